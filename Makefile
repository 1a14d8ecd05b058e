# SPDX-License-Identifier: Apache-2.0 OR MIT
# Cargo builds the crate. This file does the rest: it installs the C library and tests it as one.
#
#   make help        prints this
#   make demo        from a machine with Rust to two C processes that move memory
#   make check       the tests of a working day in ten minutes, with one summary; `make check-<step>` runs one step
#   make check-all   those and all others in an hour: sanitizers, memory checkers, fuzzers, virtual machine, plugins
#   make fuzz        runs the five fuzz targets, whose peers break the rules of tcp, shm and rdm; SECONDS=600 for each
#   make install     PREFIX=/usr/local LIBDIR=$PREFIX/lib DESTDIR=; `make install-debug` puts the debug information beside it
#   make bench       gdrfab beside libfabric and UCX; needs `make deps-bench`. `make bench-NAME`: one of benches/Makefile
#   make bench-quick gdrfab's main rows in three minutes; BASE=<prefix of another version> puts that one beside them
#   make plugin-nccl the net plugin for NCCL; `make install-plugin-nccl` puts it beside the library
#   make plugin-libfabric  the provider for libfabric; `make install-plugin-libfabric` puts it into LIBDIR/libfabric
#   make plugin-nixl  the backend for NIXL; `make install-plugin-nixl NIXL=<wheel's plugins folder>` puts it there
#   make check-gpu   the conformance programs on this machine's NVIDIA GPUs; `make bench-gpu` the speed there
#   make deps        installs what the tests need; `make header options abi` rewrites the generated files that are committed

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
CARGO      ?= cargo
RUSTC      ?= rustc
CC         ?= cc
CXX        ?= c++
INSTALL    ?= install
OBJCOPY    ?= objcopy
NM         ?= nm

# An absolute path for cargo and for the scripts, whatever directory they are started in.
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
# `demo` is built in a minute. Measurements and installed files use `release`.
PROFILE     ?= release
OUT         := $(CARGO_TARGET_DIR)/$(PROFILE)
# Installed files have no debug information; it lies beside them in .debug files.
STRIPPED    := $(OUT)/stripped
SO_OUT      := $(if $(filter release,$(PROFILE)),$(CARGO_TARGET_DIR)/shared,$(OUT))
TEST_PREFIX := $(CARGO_TARGET_DIR)/prefix
VERSION     := $(shell sed -n '/^\[workspace.package\]/,/^\[[^w]/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)
MAJOR       := $(firstword $(subst ., ,$(VERSION)))
SO          := libgdrfab.so
SONAME      := $(SO).$(MAJOR)
PROGRAMS    := gdrfab-info gdrfab-perf
PC_FILES    := gdrfab.pc gdrfab-static.pc
# The process that copies for processes that may not call a driver. The library looks for it at this path beside itself.
COPIER      := gdrfab/gdrfab-copier
EXAMPLES    := $(CARGO_TARGET_DIR)/c-examples
FAKES       := $(CARGO_TARGET_DIR)/fakes

# With these variables `check`, `demo` and `bench` find the files that they have just installed, and no others.
USE_TEST_PREFIX = PKG_CONFIG_PATH=$(TEST_PREFIX)/lib/pkgconfig LD_LIBRARY_PATH=$(TEST_PREFIX)/lib PREFIX=$(TEST_PREFIX)
INSTALL_TEST_PLUGIN = $(MAKE) --no-print-directory install-plugin-$(1) LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
# Other tests run from the prefix meanwhile, so the library is not installed anew.
INSTALL_TEST_NIXL = $(MAKE) --no-print-directory -o check-install install-plugin-nixl NIXL= LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
# Unchanged files keep their times, so that programs built against them are not built anew.
INSTALL_TEST_PREFIX = $(MAKE) --no-print-directory install install-debug INSTALL="$(INSTALL) -C" PREFIX=$(TEST_PREFIX) BINDIR=$(TEST_PREFIX)/bin \
	LIBDIR=$(TEST_PREFIX)/lib INCLUDEDIR=$(TEST_PREFIX)/include DESTDIR=

# ---- building

all: has-rust $(OUT)/native-static-libs
	@CARGO="$(CARGO)" make/library.sh $(PROFILE)
	@OBJCOPY="$(OBJCOPY)" make/split-debug.sh $(SO_OUT) $(STRIPPED) $(SO)
	@OBJCOPY="$(OBJCOPY)" make/split-debug.sh $(OUT) $(STRIPPED) $(PROGRAMS) $(notdir $(COPIER))
	@OBJCOPY="$(OBJCOPY)" NM="$(NM)" LD="$(LD)" AR="$(AR)" make/archive.sh $(OUT)/libgdrfab.a $(SO_OUT)/$(SO) $(STRIPPED)

# Checked before anything is fetched or built.
has-rust:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh rust

$(OUT)/native-static-libs: Cargo.toml Makefile | has-rust
	@RUSTC="$(RUSTC)" make/static-libs.sh $@

# ---- installing

# Where this installation is, for the scripts.
HERE = DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" INCLUDEDIR="$(INCLUDEDIR)" VERSION="$(VERSION)" INSTALL="$(INSTALL)"

# `sudo make install` often has no cargo in its PATH: then it installs the files that `make` has built.
install: $(if $(shell command -v $(CARGO)),all)
	@$(HERE) make/dirs.sh $(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR)/gdrfab
	$(INSTALL) -m 755 $(STRIPPED)/$(SO) $(DESTDIR)$(LIBDIR)/$(SO).$(VERSION)
	ln -sf $(SO).$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$(SO)
	$(INSTALL) -m 644 $(STRIPPED)/libgdrfab.a $(DESTDIR)$(LIBDIR)/libgdrfab.a
	$(INSTALL) -m 644 include/gdrfab.h $(DESTDIR)$(INCLUDEDIR)/gdrfab.h
	$(INSTALL) -m 644 include/gdrfab/*.hpp $(DESTDIR)$(INCLUDEDIR)/gdrfab
	@$(HERE) make/pc-files.sh $(OUT)/native-static-libs $(DESTDIR)$(LIBDIR)/pkgconfig
	$(INSTALL) -m 755 $(addprefix $(STRIPPED)/,$(PROGRAMS)) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 755 $(STRIPPED)/$(notdir $(COPIER)) $(DESTDIR)$(LIBDIR)/$(COPIER)

# Where gdb, perf and valgrind look for debug information: in .debug beside each file.
DEBUG_DIRS := $(LIBDIR)/.debug $(LIBDIR)/gdrfab/.debug $(BINDIR)/.debug
install-debug: $(if $(shell command -v $(CARGO)),all)
	@$(HERE) make/dirs.sh $(DEBUG_DIRS)
	$(INSTALL) -m 644 $(STRIPPED)/$(SO).debug $(DESTDIR)$(LIBDIR)/.debug
	$(INSTALL) -m 644 $(STRIPPED)/$(notdir $(COPIER)).debug $(DESTDIR)$(LIBDIR)/gdrfab/.debug
	$(INSTALL) -m 644 $(addprefix $(STRIPPED)/,$(addsuffix .debug,$(PROGRAMS))) $(DESTDIR)$(BINDIR)/.debug

# ---- plugins: each has a Makefile, and is built on the library that was just installed, as a user would build it

PLUGINS := nccl libfabric nixl
PLUGIN   = $(USE_TEST_PREFIX) $(MAKE) --no-print-directory -C plugins/$(1) OUT=$(abspath $(OUT)) STRIPPED=$(abspath $(STRIPPED)) LIBDIR=$(LIBDIR) \
	DESTDIR=$(if $(DESTDIR),$(abspath $(DESTDIR)))

$(PLUGINS:%=plugin-%): plugin-%: check-install
	@$(call PLUGIN,$*)

$(PLUGINS:%=install-plugin-%): install-plugin-%: $(if $(shell command -v $(CARGO)),plugin-%)
	@$(call PLUGIN,$*) $(if $(and $(filter nixl,$*),$(NIXL)),install-into-nixl NIXL=$(abspath $(NIXL)) SONAME=$(SONAME),install)

# Removes all files that install and the plugins' installs have put there, and the directories that they made, if empty.
uninstall: $(PLUGINS:%=uninstall-plugin-%)
	@$(HERE) make/uninstall.sh $(addprefix $(LIBDIR)/,$(SO) $(SONAME) $(SO).$(VERSION) libgdrfab.a $(COPIER) $(PC_FILES:%=pkgconfig/%) \
			.debug/$(SO).debug gdrfab/.debug/$(notdir $(COPIER)).debug) \
		$(addprefix $(INCLUDEDIR)/,gdrfab.h $(patsubst include/%,%,$(wildcard include/gdrfab/*.hpp))) \
		$(addprefix $(BINDIR)/,$(PROGRAMS) $(PROGRAMS:%=.debug/%.debug)) \
		-- $(DEBUG_DIRS) $(LIBDIR)/gdrfab $(INCLUDEDIR)/gdrfab

$(PLUGINS:%=uninstall-plugin-%): uninstall-plugin-%:
	@$(call PLUGIN,$*) uninstall

help:
	@sed -n 's/^#   make/make/p' $(firstword $(MAKEFILE_LIST))

# ---- tests: each step stands alone; tests/check.sh runs them and sums up

# First the steps that mostly compile, two at a time: much of that uses one thread, and install, loom and the others have different
# target directories or profiles. Then the steps that need the installed library.
CHECKS_BUILD := fmt clippy install rust loom
CHECKS := c tcp plugins
# More tests. Steps whose limits need a quiet machine run alone. Steps that mostly wait run two at a time. The others, whose limits
# are wide or which have none, run last, the longest first; libfabric-deep has a virtual machine of its own, and takes the turn of
# the first one.
CHECKS_ALONE := perf modes
CHECKS_WAIT := nccl libfabric tcp-links doc
CHECKS_PAIRS := verbs memcheck libfabric-deep examples fuzz tsan nixl guards bindings
# The number of c-tests programs that run at a time; see c-tests/run.sh. They wait most of the time.
JOBS ?= 4

check:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh check
	@MAKE="$(MAKE)" tests/check.sh check 9 --pairs $(CHECKS_BUILD) --alone $(CHECKS) guards

check-all:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh check-all
	@MAKE="$(MAKE)" tests/check.sh check-all 55 --pairs $(CHECKS_BUILD) --alone $(CHECKS) $(CHECKS_ALONE) \
		--pairs $(CHECKS_WAIT) --alone --pairs $(CHECKS_PAIRS)

check-fmt:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml

check-clippy:
	$(CARGO) clippy --all-targets -- -D warnings

check-doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --lib

# The tests of the vendors' interfaces need the fake drivers; without them they say so and pass.
check-rust:
	CC="$(CC)" sh c-tests/fakes/build.sh $(FAKES)
	GDRFAB_FAKES=$(FAKES) $(CARGO) test --no-fail-fast

# Compares the verbs bindings with the C headers, where rdma-sys' bindgen runs.
check-bindings:
	CARGO="$(CARGO)" tests/verbs-layout/run.sh

# Loom replaces the atomics of the whole crate, so the models have a build of their own.
check-loom:
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test -p gdrfab-loom --target-dir $(CARGO_TARGET_DIR)/loom

check-install:
	$(INSTALL_TEST_PREFIX)

examples: check-install
	$(USE_TEST_PREFIX) $(MAKE) --no-print-directory -C examples OUT=$(EXAMPLES)

check-examples: check-install
	CC="$(CC)" sh c-tests/fakes/build.sh $(FAKES)
	$(USE_TEST_PREFIX) $(MAKE) --no-print-directory -C examples OUT=$(EXAMPLES) FAKES=$(FAKES) check

# The promises of gdrfab-perf. See tests/check-perf.sh.
check-perf: check-install
	$(USE_TEST_PREFIX) tests/check-perf.sh

check-c: check-install
	$(USE_TEST_PREFIX) c-tests/run.sh --jobs $(JOBS)

# The same programs without locks, where operations take the fast path, with completions in the order of posting, with tags, and
# between connectionless endpoints.
RDM_TOO := rma rma_order msg msg_order region_protection deadline fault_injection peer_killed wait region_unmapped threads
check-modes: check-install
	$(USE_TEST_PREFIX) TEST_THREADING=domain TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) rma rma_order msg msg_order cq cq_error region_protection
	$(USE_TEST_PREFIX) TEST_COMP_ORDER=strict TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) rma msg msg_order cq cq_error region_protection \
		deadline fault_injection fault_injection_refuse
	$(USE_TEST_PREFIX) TEST_TAGGED=1 TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) connection connection_many cntr region_protection rma fault_injection
	$(USE_TEST_PREFIX) TEST_RDM=1 TEST_FAST=1 TEST_PROVIDER=shm c-tests/run.sh --jobs $(JOBS) $(RDM_TOO)
	$(USE_TEST_PREFIX) TEST_RDM=1 TEST_FAST=1 TEST_PROVIDER=tcp c-tests/run.sh --jobs $(JOBS) $(RDM_TOO)

# One build of the library, made with the dependencies that check-rust has built, serves two guards: it panics on demand, and its
# debug information tells the compiler's layout of the structs that the header declares. It is moved away at once.
check-guards: check-install
	$(CARGO) rustc --lib --crate-type cdylib -- --cfg gdrfab_panic -C opt-level=0 -C debuginfo=2
	@mkdir -p $(CARGO_TARGET_DIR)/panic && mv $(CARGO_TARGET_DIR)/debug/$(SO) $(CARGO_TARGET_DIR)/panic/$(SONAME)
	$(USE_TEST_PREFIX) MAKE="$(MAKE)" VERSION=$(VERSION) SONAME=$(SONAME) \
		BUILT_SO=$(SO_OUT)/$(SO) PANIC_DIR=$(CARGO_TARGET_DIR)/panic tests/guards.sh

check-memcheck: check-install
	$(USE_TEST_PREFIX) TEST_PROVIDER=tcp c-tests/run.sh --jobs 2 --memcheck tcp tcp_paths tcp_key tcp_hosts tcp_hostile tcp_split connection cq cq_error
	$(USE_TEST_PREFIX) TEST_FAST=1 c-tests/run.sh --jobs 2 --memcheck

check-tsan: check-install
	$(USE_TEST_PREFIX) tests/tsan.sh

# The same programs over tcp, on loopback. See tests/check-tcp.sh.
check-tcp: check-install
	$(USE_TEST_PREFIX) tests/check-tcp.sh --jobs $(JOBS) --passes loopback

# Over IPv6, without locks, and between network namespaces if this user may make them; and shm between namespaces of all kinds.
check-tcp-links: check-install
	$(USE_TEST_PREFIX) tests/check-tcp.sh --jobs $(JOBS) --passes "sealed rails ipv6 domain netns mtu lossy cut links limited"
	$(USE_TEST_PREFIX) tests/check-containers.sh --jobs $(JOBS)

test-plugins: check-install
	$(call INSTALL_TEST_PLUGIN,nccl)
	$(call INSTALL_TEST_PLUGIN,libfabric)

# Each plugin once: NCCL's present interface with small counts, and libfabric's own tools.
check-plugins: test-plugins
	$(USE_TEST_PREFIX) plugins/nccl/tests/check.sh --fast --versions 11 --providers shm --programs "nccl nccl_ranks nccl_tuner nccl_message nccl_group"
	$(USE_TEST_PREFIX) plugins/libfabric/tests/check.sh --parts "tools pingpong"

# The plugin driven as NCCL drives it, without NCCL and without a GPU; two programs at a time, as no call may take long. See
# plugins/nccl/tests/check.sh. NCCL_WHEELS="2.20.5 ...": checks that these NCCLs find an interface in the plugin; see wheels.sh.
check-nccl: test-plugins
	$(USE_TEST_PREFIX) plugins/nccl/tests/check.sh --jobs 2
	$(if $(NCCL_WHEELS),$(USE_TEST_PREFIX) plugins/nccl/tests/wheels.sh $(NCCL_WHEELS))

# The provider under libfabric's own tools, under Open MPI and under a newer libfabric. See plugins/libfabric/tests/check.sh.
check-libfabric: test-plugins
	$(USE_TEST_PREFIX) plugins/libfabric/tests/check.sh --parts "tools pingpong api rdm mpi newer"

# The backend under unmodified NIXL, with host memory. NIXL_FLAGS: --all, or options of plugins/nixl/tests/check.sh.
check-nixl: check-install
	$(INSTALL_TEST_NIXL)
	$(USE_TEST_PREFIX) plugins/nixl/tests/check.sh $(NIXL_FLAGS)

# The parts with a memory checker and a virtual machine, which tolerate a busy machine.
check-libfabric-deep: test-plugins
	$(USE_TEST_PREFIX) TEST_TIME_SCALE=2 plugins/libfabric/tests/check.sh --parts "memcheck verbs"

# Half a minute for each target, ten seconds for `seal`. See fuzz/run.sh.
check-fuzz:
	fuzz/run.sh decode 30
	fuzz/run.sh connection 30
	fuzz/run.sh seal 10
	fuzz/run.sh shm 30
	fuzz/run.sh rdm 30

# Runs each target for SECONDS.
fuzz: SECONDS ?= 600
fuzz:
	fuzz/run.sh decode $(SECONDS)
	fuzz/run.sh connection $(SECONDS)
	fuzz/run.sh seal $(SECONDS)
	fuzz/run.sh shm $(SECONDS)
	fuzz/run.sh rdm $(SECONDS)

# In a virtual machine whose kernel has soft-RoCE; needs neither root nor RDMA hardware. See tests/check-verbs.sh.
check-verbs: check-install
	$(USE_TEST_PREFIX) tests/check-verbs.sh

# Needs GPUs, so `check` leaves it out. tests/check-gpu.sh alone runs programs there that were built elsewhere.
check-gpu: check-install
	$(USE_TEST_PREFIX) tests/check-gpu.sh

# The plugin under PyTorch (PYTHON=python3), on a machine with two GPUs or more.
check-nccl-gpu: check-install
	$(call INSTALL_TEST_PLUGIN,nccl)
	$(USE_TEST_PREFIX) plugins/nccl/tests/check-gpu.sh all

# ---- generated and committed

header:
	GDRFAB_BLESS=1 $(CARGO) test --test header

# The table of docs/options.md.
options:
	CC="$(CC)" sh c-tests/fakes/build.sh $(CARGO_TARGET_DIR)/fakes
	GDRFAB_BLESS=1 GDRFAB_FAKES=$(CARGO_TARGET_DIR)/fakes $(CARGO) test --test options

abi: check-install
	$(USE_TEST_PREFIX) tests/abi-dump.sh abi/gdrfab.abi

# ---- one command from nothing

demo:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh demo
	@$(MAKE) --no-print-directory PROFILE=demo hello
	@echo "--- examples/hello.c, built through pkg-config, as two processes:"
	@$(USE_TEST_PREFIX) examples/hello.sh $(EXAMPLES)/hello

hello:
	@$(INSTALL_TEST_PREFIX)
	@$(USE_TEST_PREFIX) $(MAKE) --no-print-directory -C examples OUT=$(EXAMPLES) STRICT=-O2 $(EXAMPLES)/hello

# ---- measuring: benches/Makefile says what each measures

bench: deps-bench
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) KEEP_AS='make bench' benches/keep.sh peers $(MAKE) -C benches/peers bench

BENCHES := idle rdm verbs verbs-count gpu rdma-transport libfabric quick
$(BENCHES:%=bench-%): bench-%:
	@$(INSTALL_TEST_PREFIX)
	@$(if $(filter libfabric,$*),$(call INSTALL_TEST_PLUGIN,libfabric))
	@$(USE_TEST_PREFIX) $(MAKE) --no-print-directory -C benches $* OUT=$(EXAMPLES) LIB=$(TEST_PREFIX)/lib

deps:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh check-all

deps-bench:
	@tests/deps.sh demo bench

clean:
	$(CARGO) clean

.PHONY: all has-rust install install-debug uninstall help demo hello examples deps deps-bench clean
.PHONY: $(foreach plugin,$(PLUGINS),plugin-$(plugin) install-plugin-$(plugin) uninstall-plugin-$(plugin)) test-plugins
.PHONY: check check-all check-gpu check-nccl-gpu fuzz
.PHONY: $(addprefix check-,$(CHECKS_BUILD) $(CHECKS) $(CHECKS_ALONE) $(CHECKS_WAIT) $(CHECKS_PAIRS))
.PHONY: header options abi bench $(BENCHES:%=bench-%)
