# SPDX-License-Identifier: Apache-2.0 OR MIT
# Cargo builds the crate. This file does the rest: it installs the C library, and tests the installed files as a C program uses them.
# `make` alone builds the library and its programs.
#
#   make help        prints this
#   make demo        builds the library in two minutes, and runs examples/hello.c as two processes that move memory
#   make check       the tests before a change is sent: ten minutes, with one summary; `make check-<step>` runs one step
#   make check-all   those and all others that need no GPU, in an hour: sanitizers, valgrind, fuzzers, virtual machine, plugins
#   make fuzz        runs the five fuzz targets of tcp, shm and rdm, each for SECONDS=600
#   make install     PREFIX=/usr/local LIBDIR=$PREFIX/lib DESTDIR=; `make install-debug` puts the debug information beside it
#   make bench       gdrfab beside libfabric and UCX, which are installed first. `make bench-NAME`: one of benches/Makefile
#   make bench-quick gdrfab's main rows in three minutes; BASE=<prefix of another version> puts that one beside them
#   make plugin-nccl the net plugin for NCCL; `make install-plugin-nccl` puts it beside the library
#   make plugin-libfabric  the provider for libfabric; `make install-plugin-libfabric` puts it into LIBDIR/libfabric
#   make plugin-nixl  the backend for NIXL; `make install-plugin-nixl NIXL=<wheel's plugins folder>` puts it there
#   make check-gpu   the conformance programs on this machine's NVIDIA GPUs; `make bench-gpu` the speed there
#   make deps        installs what the tests need; `make header`, `make options` and `make abi` rewrite generated files

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

# The path is absolute, because cargo and the scripts run in several directories.
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
# Cargo's profile: `release` for measurements and installed files; `demo` optimises less and is built in a minute or two.
PROFILE     ?= release
OUT         := $(CARGO_TARGET_DIR)/$(PROFILE)
# The folder of the files to install, without debug information, and of the .debug files that have the information.
STRIPPED    := $(OUT)/stripped
SO_OUT      := $(if $(filter release,$(PROFILE)),$(CARGO_TARGET_DIR)/shared,$(OUT))
TEST_PREFIX := $(CARGO_TARGET_DIR)/prefix
VERSION     := $(shell sed -n '/^\[workspace.package\]/,/^\[[^w]/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)
MAJOR       := $(firstword $(subst ., ,$(VERSION)))
SO          := libgdrfab.so
SONAME      := $(SO).$(MAJOR)
PROGRAMS    := gdrfab-info gdrfab-perf
PC_FILES    := gdrfab.pc gdrfab-static.pc
# The helper program that copies device memory for processes that may not call a driver. The library looks for the program at this path,
# beginning at the library's own folder.
COPIER      := gdrfab/gdrfab-copier
EXAMPLES    := $(CARGO_TARGET_DIR)/c-examples
FAKES       := $(CARGO_TARGET_DIR)/fakes

# With these variables, commands of `check`, `demo` and `bench` use the files that were just installed, and no others.
USE_TEST_PREFIX = PKG_CONFIG_PATH=$(TEST_PREFIX)/lib/pkgconfig LD_LIBRARY_PATH=$(TEST_PREFIX)/lib PREFIX=$(TEST_PREFIX)
INSTALL_TEST_PLUGIN = $(MAKE) --no-print-directory install-plugin-$(1) LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
# -o: the library is not installed again, because other tests use the prefix at the same time.
INSTALL_TEST_NIXL = $(MAKE) --no-print-directory -o check-install install-plugin-nixl NIXL= LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
# -C: unchanged files keep their times, so that programs built against them are not built again.
INSTALL_TEST_PREFIX = $(MAKE) --no-print-directory install install-debug INSTALL="$(INSTALL) -C" PREFIX=$(TEST_PREFIX) BINDIR=$(TEST_PREFIX)/bin \
	LIBDIR=$(TEST_PREFIX)/lib INCLUDEDIR=$(TEST_PREFIX)/include DESTDIR=

# ---- building

all: has-rust $(OUT)/native-static-libs
	@CARGO="$(CARGO)" make/library.sh $(PROFILE)
	@OBJCOPY="$(OBJCOPY)" make/split-debug.sh $(SO_OUT) $(STRIPPED) $(SO)
	@OBJCOPY="$(OBJCOPY)" make/split-debug.sh $(OUT) $(STRIPPED) $(PROGRAMS) $(notdir $(COPIER))
	@OBJCOPY="$(OBJCOPY)" NM="$(NM)" LD="$(LD)" AR="$(AR)" make/archive.sh $(OUT)/libgdrfab.a $(SO_OUT)/$(SO) $(STRIPPED)

# Fails if Rust is missing or too old, before anything is fetched or built.
has-rust:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh rust

$(OUT)/native-static-libs: Cargo.toml Makefile | has-rust
	@RUSTC="$(RUSTC)" make/static-libs.sh $@

# ---- installing

# Tells the scripts of make/ where to install.
HERE = DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" INCLUDEDIR="$(INCLUDEDIR)" VERSION="$(VERSION)" INSTALL="$(INSTALL)"

# `sudo make install` often has no cargo in its PATH. Without cargo this target does not build, and installs the files that `make` has
# built before.
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

# ---- plugins: each has a Makefile, and is built against the library in target/prefix, as a user builds against an installed library

PLUGINS := nccl libfabric nixl
PLUGIN   = $(USE_TEST_PREFIX) $(MAKE) --no-print-directory -C plugins/$(1) OUT=$(abspath $(OUT)) STRIPPED=$(abspath $(STRIPPED)) LIBDIR=$(LIBDIR) \
	DESTDIR=$(if $(DESTDIR),$(abspath $(DESTDIR)))

$(PLUGINS:%=plugin-%): plugin-%: check-install
	@$(call PLUGIN,$*)

$(PLUGINS:%=install-plugin-%): install-plugin-%: $(if $(shell command -v $(CARGO)),plugin-%)
	@$(call PLUGIN,$*) $(if $(and $(filter nixl,$*),$(NIXL)),install-into-nixl NIXL=$(abspath $(NIXL)) SONAME=$(SONAME),install)

# Removes all files of install, install-debug and install-plugin-NAME, and the directories that those targets made, if they are empty.
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

# The first steps mostly compile. They run two at a time, because much of a build uses one thread, and because install, loom and the others
# use different target directories or profiles. Then come the steps that need the installed library.
CHECKS_BUILD := fmt clippy install rust loom
CHECKS := c tcp plugins
# The further steps of check-all. Steps with time limits that need a quiet machine run alone (CHECKS_ALONE). Steps that mostly wait run two
# at a time (CHECKS_WAIT). The others have wide time limits or none: they run last, two at a time, the longest first (CHECKS_PAIRS).
# libfabric-deep has a virtual machine of its own, and starts when verbs or memcheck has ended.
CHECKS_ALONE := perf modes
CHECKS_WAIT := nccl libfabric tcp-links doc
CHECKS_PAIRS := verbs memcheck libfabric-deep examples fuzz tsan nixl guards bindings
# The number of programs of c-tests that run at a time (c-tests/run.sh). The programs wait most of the time.
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

# The tests of the vendors' interfaces need the fake drivers. Without GDRFAB_FAKES these tests print so and pass.
check-rust:
	CC="$(CC)" sh c-tests/fakes/build.sh $(FAKES)
	GDRFAB_FAKES=$(FAKES) $(CARGO) test --no-fail-fast

# Compares the verbs bindings with the C headers of this machine; skipped if the bindgen of rdma-sys cannot run here.
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

# The command line of gdrfab-perf. See tests/check-perf.sh.
check-perf: check-install
	$(USE_TEST_PREFIX) tests/check-perf.sh

check-c: check-install
	$(USE_TEST_PREFIX) c-tests/run.sh --jobs $(JOBS)

# Some programs of check-c again: without locks, where operations take the fast path; with completions in the order of posting; with tags;
# and between connectionless endpoints (RDM_TOO).
RDM_TOO := rma rma_order msg msg_order region_protection deadline fault_injection peer_killed wait region_unmapped threads
check-modes: check-install
	$(USE_TEST_PREFIX) TEST_THREADING=domain TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) rma rma_order msg msg_order cq cq_error region_protection
	$(USE_TEST_PREFIX) TEST_COMP_ORDER=strict TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) rma msg msg_order cq cq_error region_protection \
		deadline fault_injection fault_injection_refuse
	$(USE_TEST_PREFIX) TEST_TAGGED=1 TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) connection connection_many cntr region_protection rma fault_injection
	$(USE_TEST_PREFIX) TEST_RDM=1 TEST_FAST=1 TEST_PROVIDER=shm c-tests/run.sh --jobs $(JOBS) $(RDM_TOO)
	$(USE_TEST_PREFIX) TEST_RDM=1 TEST_FAST=1 TEST_PROVIDER=tcp c-tests/run.sh --jobs $(JOBS) $(RDM_TOO)

# A second build of the library serves the guards that need one: this build panics on demand, has debug assertions, and its debug
# information has the compiler's layout of the structs that the header declares. The file is moved at once, so that no other step uses
# this build. Its dependencies are those that check-rust has built.
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

# The programs of check-c over tcp, on the loopback. See tests/check-tcp.sh.
check-tcp: check-install
	$(USE_TEST_PREFIX) tests/check-tcp.sh --jobs $(JOBS) --passes loopback

# tcp with a key, over several rails, over IPv6, without locks, and between network namespaces if this user may make them; and shm between
# namespaces of all kinds.
check-tcp-links: check-install
	$(USE_TEST_PREFIX) tests/check-tcp.sh --jobs $(JOBS) --passes "sealed rails ipv6 domain netns mtu lossy cut links limited"
	$(USE_TEST_PREFIX) tests/check-containers.sh --jobs $(JOBS)

test-plugins: check-install
	$(call INSTALL_TEST_PLUGIN,nccl)
	$(call INSTALL_TEST_PLUGIN,libfabric)

# A short test of two plugins: for NCCL the version of the interface that PyTorch uses, with small counts; for libfabric its own tools.
check-plugins: test-plugins
	$(USE_TEST_PREFIX) plugins/nccl/tests/check.sh --fast --versions 11 --providers shm --programs "nccl nccl_ranks nccl_tuner nccl_message nccl_group"
	$(USE_TEST_PREFIX) plugins/libfabric/tests/check.sh --parts "tools pingpong"

# Programs that call the plugin as NCCL does, without NCCL and without a GPU (plugins/nccl/tests/check.sh). Only two programs run at a
# time, because no call of the plugin may take long. NCCL_WHEELS="2.20.5 ..." also checks that these versions of NCCL find an interface in
# the plugin (wheels.sh there).
check-nccl: test-plugins
	$(USE_TEST_PREFIX) plugins/nccl/tests/check.sh --jobs 2
	$(if $(NCCL_WHEELS),$(USE_TEST_PREFIX) plugins/nccl/tests/wheels.sh $(NCCL_WHEELS))

# The provider under libfabric's own tools, under Open MPI and under a newer libfabric. See plugins/libfabric/tests/check.sh.
check-libfabric: test-plugins
	$(USE_TEST_PREFIX) plugins/libfabric/tests/check.sh --parts "tools pingpong api rdm mpi newer"

# The backend under unmodified NIXL, with host memory. NIXL_FLAGS: options of plugins/nixl/tests/check.sh, such as --all.
check-nixl: check-install
	$(INSTALL_TEST_NIXL)
	$(USE_TEST_PREFIX) plugins/nixl/tests/check.sh $(NIXL_FLAGS)

# The parts of the same script that use valgrind and a virtual machine. Both parts tolerate a busy machine.
check-libfabric-deep: test-plugins
	$(USE_TEST_PREFIX) TEST_TIME_SCALE=2 plugins/libfabric/tests/check.sh --parts "memcheck verbs"

# Half a minute for each target; ten seconds for `seal`. See fuzz/run.sh.
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

# The machine needs NVIDIA GPUs, so check and check-all leave this target out. To run programs that were built on another machine, call
# tests/check-gpu.sh directly.
check-gpu: check-install
	$(USE_TEST_PREFIX) tests/check-gpu.sh

# The plugin under PyTorch (PYTHON=python3), on a machine with two GPUs or more.
check-nccl-gpu: check-install
	$(call INSTALL_TEST_PLUGIN,nccl)
	$(USE_TEST_PREFIX) plugins/nccl/tests/check-gpu.sh all

# ---- generated and committed

header:
	GDRFAB_BLESS=1 $(CARGO) test --test header

# Rewrites the table of docs/options.md.
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

# ---- measuring: benches/Makefile describes each benchmark

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
