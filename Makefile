# SPDX-License-Identifier: Apache-2.0 OR MIT
# Cargo builds the crate. This file does the rest: it installs the C library and tests it as one.
#
#   make help        prints this
#   make demo        from a machine with Rust to two C processes that move memory
#   make check       the tests of a working day in ten minutes, with one summary; `make check-<step>` runs one step
#   make check-all   those and all others in an hour: sanitizers, memory checkers, fuzzers, virtual machine, plugins
#   make fuzz        runs the five fuzz targets, whose peers break the rules of tcp, shm and rdm; SECONDS=600 for each
#   make install     PREFIX=/usr/local LIBDIR=$PREFIX/lib DESTDIR=; `make install-debug` puts the debug information beside it
#   make bench       gdrfab beside libfabric and UCX; needs `make deps-bench`
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
EXAMPLES     := $(basename $(notdir $(wildcard examples/*.c)))
# Examples of several files, each in a directory of its own; a script beside it runs both sides.
EXAMPLE_DIRS := $(notdir $(patsubst %/main.c,%,$(wildcard examples/*/main.c)))
EXAMPLES_CXX := $(basename $(notdir $(wildcard examples/*.cpp)))
EXAMPLES_OUT := $(CARGO_TARGET_DIR)/c-examples

# With these variables `check`, `demo` and `bench` find the files that they have just installed, and no others.
USE_TEST_PREFIX = PKG_CONFIG_PATH=$(TEST_PREFIX)/lib/pkgconfig LD_LIBRARY_PATH=$(TEST_PREFIX)/lib PREFIX=$(TEST_PREFIX)
INSTALL_TEST_PLUGIN = $(MAKE) --no-print-directory install-plugin-nccl LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
INSTALL_TEST_FI = $(MAKE) --no-print-directory install-plugin-libfabric LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
# Other tests run from the prefix meanwhile, so the library is not installed anew.
INSTALL_TEST_NIXL = $(MAKE) --no-print-directory -o check-install install-plugin-nixl NIXL= LIBDIR=$(TEST_PREFIX)/lib DESTDIR=
# Unchanged files keep their times, so that programs built against them are not built anew.
INSTALL_TEST_PREFIX = $(MAKE) --no-print-directory install install-debug INSTALL="$(INSTALL) -C" PREFIX=$(TEST_PREFIX) BINDIR=$(TEST_PREFIX)/bin \
	LIBDIR=$(TEST_PREFIX)/lib INCLUDEDIR=$(TEST_PREFIX)/include DESTDIR=

# Splits the debug information off the programs and shared libraries of a directory, if they are newer than the results.
split_debug = @mkdir -p $(STRIPPED); cd $(STRIPPED) && for f in $(1); do from=$(or $(2),$(OUT))/$$f; [ $$f -nt $$from ] || { \
	$(OBJCOPY) --only-keep-debug $$from $$f.debug && chmod 644 $$f.debug && \
	$(OBJCOPY) --strip-unneeded --add-gnu-debuglink=$$f.debug $$from $$f; } || exit 1; done

# Makes an archive that shows only gdrfab_*: another static library in Rust brings its own copy of Rust's runtime. The archive is
# one object, because names that several objects share cannot be local. Bitcode of Rust's own library does not survive the joining
# (-R).
local_archive = @cd $(STRIPPED) && { [ libgdrfab.a -nt $(OUT)/libgdrfab.a ] || { \
	$(NM) -D --defined-only $(SO_OUT)/$(SO) | sed 's/.* //' >exports && \
	$(LD) -r --force-group-allocation -o libgdrfab.o $$(sed 's/^/-u /' exports) $(OUT)/libgdrfab.a && \
	$(OBJCOPY) --strip-debug -R .llvmbc -R .llvmcmd --keep-global-symbols=exports libgdrfab.o && \
	rm -f libgdrfab.a && $(AR) rcs libgdrfab.a libgdrfab.o && rm libgdrfab.o exports; }; }

# Built together with the rlib that the programs link, a shared library keeps all that the rlib offers. For a release the shared
# library is therefore built alone, at the same time, and is a sixteenth smaller.
all: has-rust $(OUT)/native-static-libs
ifeq ($(PROFILE),release)
	@$(CARGO) rustc -q --profile shared --lib --crate-type cdylib & shared=$$!; \
		$(CARGO) build --profile $(PROFILE); built=$$?; wait $$shared && exit $$built
else
	$(CARGO) build --profile $(PROFILE)
endif
	$(call split_debug,$(SO),$(SO_OUT))
	$(call split_debug,$(PROGRAMS) $(notdir $(COPIER)))
	$(call local_archive)

# Checked before anything is fetched or built.
has-rust:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh rust

# The libraries that a static link needs besides libgdrfab.a. Only the compiler knows them, and prints them only when it links. C
# compilers add the unwinder (gcc_s) themselves, and it has no archive of that name for -static.
$(OUT)/native-static-libs: Cargo.toml Makefile | has-rust
	@mkdir -p $(@D)
	@echo '' | $(RUSTC) --crate-type staticlib --print native-static-libs -o $@.a - 2>&1 | \
		sed -n 's/.*native-static-libs: *//p' | sed 's/-lgcc_s *//' > $@.new
	@rm -f $@.a
	@test -s $@.new && mv $@.new $@

# Makes directories, and notes those that it made, so that uninstall can remove them.
NOTED := gdrfab/directories
make_dirs = @made=; for d in $(1) $(DESTDIR)$(LIBDIR)/gdrfab; do \
		while [ ! -d "$$d" ] && [ "$$d" != "$(DESTDIR)" ]; do made="$$made $${d\#"$(DESTDIR)"}"; d=$$(dirname "$$d"); done; done; \
	$(INSTALL) -d $(1) $(DESTDIR)$(LIBDIR)/gdrfab && \
	for d in $$made; do grep -qxF "$$d" $(DESTDIR)$(LIBDIR)/$(NOTED) 2>/dev/null || echo "$$d" >>$(DESTDIR)$(LIBDIR)/$(NOTED); done

# `sudo make install` often has no cargo in its PATH: then it installs the files that `make` has built.
install: $(if $(shell command -v $(CARGO)),all)
	$(call make_dirs,$(addprefix $(DESTDIR),$(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR)/gdrfab))
	$(INSTALL) -m 755 $(STRIPPED)/$(SO) $(DESTDIR)$(LIBDIR)/$(SO).$(VERSION)
	ln -sf $(SO).$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$(SO)
	$(INSTALL) -m 644 $(STRIPPED)/libgdrfab.a $(DESTDIR)$(LIBDIR)/libgdrfab.a
	$(INSTALL) -m 644 include/gdrfab.h $(DESTDIR)$(INCLUDEDIR)/gdrfab.h
	$(INSTALL) -m 644 include/gdrfab/*.hpp $(DESTDIR)$(INCLUDEDIR)/gdrfab
	for pc in $(PC_FILES); do sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' \
		-e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' \
		-e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))|' \
		-e "s|@LIBS_PRIVATE@|$$(cat $(OUT)/native-static-libs)|" \
		pkgconfig/$$pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/$$pc && \
		chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/$$pc || exit 1; done
	$(INSTALL) -m 755 $(addprefix $(STRIPPED)/,$(PROGRAMS)) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 755 $(STRIPPED)/$(notdir $(COPIER)) $(DESTDIR)$(LIBDIR)/$(COPIER)

# Where gdb, perf and valgrind look for debug information: in .debug beside each file.
DEBUG_DIRS := $(LIBDIR)/.debug $(LIBDIR)/gdrfab/.debug $(BINDIR)/.debug
install-debug: $(if $(shell command -v $(CARGO)),all)
	$(call make_dirs,$(addprefix $(DESTDIR),$(DEBUG_DIRS)))
	$(INSTALL) -m 644 $(STRIPPED)/$(SO).debug $(DESTDIR)$(LIBDIR)/.debug
	$(INSTALL) -m 644 $(STRIPPED)/$(notdir $(COPIER)).debug $(DESTDIR)$(LIBDIR)/gdrfab/.debug
	$(INSTALL) -m 644 $(addprefix $(STRIPPED)/,$(addsuffix .debug,$(PROGRAMS))) $(DESTDIR)$(BINDIR)/.debug

# ---- plugins: C on the installed library, built as a user would build them

NCCL_SO := libnccl-net-gdrfab.so
NCCL_C  := $(wildcard plugins/nccl/*.c)

# Needs neither NCCL nor CUDA, only gdrfab as pkg-config finds it in the prefix just installed. At run time the plugin looks for
# libgdrfab.so beside itself first. The library stays loaded when NCCL closes it (nodelete), because connections may be left open
# and helper threads may still run.
plugin-nccl: check-install
	$(CC) -std=c99 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wpedantic -Werror -shared \
		-Wl,-soname,$(NCCL_SO) -Wl,-z,defs -Wl,-z,nodelete -Wl,-rpath,'$$ORIGIN' -o $(OUT)/$(NCCL_SO) $(NCCL_C) \
		$$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab)
	$(call split_debug,$(NCCL_SO))

install-plugin-nccl: $(if $(shell command -v $(CARGO)),plugin-nccl)
	$(call make_dirs,$(DESTDIR)$(LIBDIR))
	$(INSTALL) -m 755 $(STRIPPED)/$(NCCL_SO) $(DESTDIR)$(LIBDIR)/$(NCCL_SO)

FI_SO := libgdrfab-fi.so
FI_C  := $(wildcard plugins/libfabric/*.c)

# Needs libfabric's headers, but links none of its libraries: the provider calls whichever libfabric loads the file. It stays loaded
# when libfabric closes it (nodelete), because gdrfab's threads may still run in it.
plugin-libfabric: check-install
	$(CC) -std=c99 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wpedantic -Werror -shared \
		-Wl,-soname,$(FI_SO) -Wl,-z,defs -Wl,-z,nodelete -Wl,-rpath,'$$ORIGIN/..' -o $(OUT)/$(FI_SO) $(FI_C) \
		$$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab) $$(pkg-config --cflags libfabric) -ldl
	$(call split_debug,$(FI_SO))

# A directory of its own: FI_PROVIDER_PATH names it, and libfabric loads every file in it.
install-plugin-libfabric: $(if $(shell command -v $(CARGO)),plugin-libfabric)
	$(call make_dirs,$(DESTDIR)$(LIBDIR)/libfabric)
	$(INSTALL) -m 755 $(STRIPPED)/$(FI_SO) $(DESTDIR)$(LIBDIR)/libfabric/$(FI_SO)

NIXL_SO  := libplugin_GDRFAB.so
NIXL_CXX := $(wildcard plugins/nixl/*.cpp)

# Needs no header of NIXL's. The Python that opens it may have an older C++ library than this machine's, so it brings its own. It
# stays loaded when NIXL closes it (nodelete), because gdrfab's threads may still run in it.
plugin-nixl: check-install
	$(if $(NIXL_INCLUDE),$(CXX) -std=c++20 -fsyntax-only -Iplugins/nixl/tests/quiet $(addprefix -I$(NIXL_INCLUDE)/,src/api/cpp src/utils src/core/telemetry) \
		plugins/nixl/tests/border.cpp)
	$(CXX) -std=c++17 -O2 -g -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wpedantic -Werror -shared -static-libstdc++ \
		-static-libgcc -Wl,--version-script=plugins/nixl/exports.map -Wl,-soname,$(NIXL_SO) -Wl,-z,defs -Wl,-z,nodelete \
		-Wl,-rpath,'$$ORIGIN:$$ORIGIN/..' -o $(OUT)/$(NIXL_SO) $(NIXL_CXX) $$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab)
	$(call split_debug,$(NIXL_SO))

# NIXL has one folder of plugins: NIXL= names it, and the library goes there too. Without NIXL=, the plugin goes beside the library,
# for NIXL_PLUGIN_DIR.
install-plugin-nixl: $(if $(shell command -v $(CARGO)),plugin-nixl)
ifneq ($(NIXL),)
	$(INSTALL) -d $(NIXL)/gdrfab
	$(INSTALL) -m 755 $(STRIPPED)/$(NIXL_SO) $(NIXL)/$(NIXL_SO)
	$(INSTALL) -m 755 $(STRIPPED)/$(SO) $(NIXL)/$(SONAME)
	$(INSTALL) -m 755 $(STRIPPED)/$(notdir $(COPIER)) $(NIXL)/$(COPIER)
else
	$(call make_dirs,$(DESTDIR)$(LIBDIR)/nixl)
	$(INSTALL) -m 755 $(STRIPPED)/$(NIXL_SO) $(DESTDIR)$(LIBDIR)/nixl/$(NIXL_SO)
endif

# Removes all files that install and the plugins' installs have put there, and the directories that they made, if empty.
uninstall:
	rm -f $(DESTDIR)$(LIBDIR)/libfabric/$(FI_SO) $(DESTDIR)$(LIBDIR)/nixl/$(NIXL_SO)
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(NCCL_SO) $(SO) $(SONAME) $(SO).$(VERSION) libgdrfab.a $(addprefix pkgconfig/,$(PC_FILES)) $(COPIER))
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/gdrfab/,$(notdir $(wildcard include/gdrfab/*.hpp)))
	rm -f $(DESTDIR)$(INCLUDEDIR)/gdrfab.h $(addprefix $(DESTDIR)$(BINDIR)/,$(PROGRAMS))
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/.debug/,$(addsuffix .debug,$(PROGRAMS)))
	rm -f $(DESTDIR)$(LIBDIR)/.debug/$(SO).debug $(DESTDIR)$(LIBDIR)/gdrfab/.debug/$(notdir $(COPIER)).debug
	@made=$$(sort -r $(DESTDIR)$(LIBDIR)/$(NOTED) 2>/dev/null); rm -f $(DESTDIR)$(LIBDIR)/$(NOTED); \
	for d in $(DEBUG_DIRS) $(LIBDIR)/gdrfab $(INCLUDEDIR)/gdrfab $$made; do rmdir $(DESTDIR)$$d 2>/dev/null || true; done

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
CHECKS_WAIT := nccl libfabric tcp-links examples doc
CHECKS_PAIRS := verbs memcheck libfabric-deep fuzz tsan nixl guards bindings
# The number of c-tests programs that run at a time; see c-tests/run.sh. They wait most of the time.
JOBS ?= 4

check:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh check
	@MAKE="$(MAKE)" tests/check.sh check 9 --pairs $(CHECKS_BUILD) --alone $(CHECKS) guards

check-all:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh check-all
	@MAKE="$(MAKE)" tests/check.sh check-all 55 --pairs $(CHECKS_BUILD) --alone $(CHECKS) $(CHECKS_ALONE) --pairs $(CHECKS_WAIT) --alone --pairs $(CHECKS_PAIRS)

check-fmt:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml

check-clippy:
	$(CARGO) clippy --all-targets -- -D warnings

check-doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --lib

# The tests of the vendors' interfaces need the fake drivers; without them they say so and pass.
check-rust:
	CC="$(CC)" sh c-tests/fakes/build.sh $(CARGO_TARGET_DIR)/fakes
	GDRFAB_FAKES=$(CARGO_TARGET_DIR)/fakes $(CARGO) test --no-fail-fast

# Compares the verbs bindings with the C headers, where rdma-sys' bindgen runs.
check-bindings:
	CARGO="$(CARGO)" tests/verbs-layout/run.sh

# Loom replaces the atomics of the whole crate, so the models have a build of their own.
check-loom:
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test -p gdrfab-loom --target-dir $(CARGO_TARGET_DIR)/loom

check-install:
	$(INSTALL_TEST_PREFIX)

# Built as a user would build them: with pkg-config, and without warnings.
examples: check-install
	@mkdir -p $(EXAMPLES_OUT)
	$(USE_TEST_PREFIX) sh -e -c 'for e in $(EXAMPLES); do \
		$(CC) -std=c99 -O2 -Wall -Wextra -Wpedantic -Werror -o $(EXAMPLES_OUT)/$$e examples/$$e.c \
			$$(pkg-config --cflags --libs gdrfab); done; \
		for e in $(EXAMPLE_DIRS); do \
		$(CC) -std=c99 -O2 -Wall -Wextra -Wpedantic -Werror -o $(EXAMPLES_OUT)/$$e examples/$$e/*.c \
			$$(pkg-config --cflags --libs gdrfab) -ldl; done; \
		for e in $(EXAMPLES_CXX); do \
		$(CXX) -std=c++17 -O2 -Wall -Wextra -Wpedantic -Werror -pthread -o $(EXAMPLES_OUT)/$$e examples/$$e.cpp \
			$$(pkg-config --cflags --libs gdrfab); done'

check-examples: examples
	$(USE_TEST_PREFIX) examples/hello.sh $(EXAMPLES_OUT)/hello
	$(USE_TEST_PREFIX) CC="$(CC)" tests/check-examples.sh $(EXAMPLES_OUT)
	$(USE_TEST_PREFIX) sh -e -c 'for e in $(filter-out hello,$(EXAMPLES)) $(EXAMPLES_CXX); do $(EXAMPLES_OUT)/$$e; done'
	$(USE_TEST_PREFIX) $(EXAMPLES_OUT)/rdma_transport_pingpong --providers tcp --rounds 100
	$(USE_TEST_PREFIX) $(EXAMPLES_OUT)/rdma_transport_batch tcp
	$(USE_TEST_PREFIX) BIG=60000000 examples/file_transfer.sh $(EXAMPLES_OUT)/file_transfer
	CC="$(CC)" sh c-tests/fakes/build.sh $(CARGO_TARGET_DIR)/fakes
	$(USE_TEST_PREFIX) examples/gaudi_pingpong.sh $(EXAMPLES_OUT)/gaudi_pingpong $(CARGO_TARGET_DIR)/fakes
	$(USE_TEST_PREFIX) sh -e -c 'k=$(EXAMPLES_OUT)/kvmove; $$k --die; GDRFAB_PROVIDER=tcp $$k --die; \
		LD_LIBRARY_PATH=$(CARGO_TARGET_DIR)/fakes:$$LD_LIBRARY_PATH $$k --mem cuda:0 --size 5000'

# The promises of gdrfab-perf. See tests/check-perf.sh.
check-perf: check-install
	$(USE_TEST_PREFIX) tests/check-perf.sh

check-c: check-install
	$(USE_TEST_PREFIX) c-tests/run.sh --jobs $(JOBS)

# The same programs without locks, where operations take the fast path, with completions in the order of posting, with tags, and
# between connectionless endpoints.
check-modes: check-install
	$(USE_TEST_PREFIX) TEST_THREADING=domain TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) rma rma_order msg msg_order cq cq_error region_protection
	$(USE_TEST_PREFIX) TEST_COMP_ORDER=strict TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) rma msg msg_order cq cq_error region_protection deadline fault_injection fault_injection_refuse
	$(USE_TEST_PREFIX) TEST_TAGGED=1 TEST_FAST=1 c-tests/run.sh --jobs $(JOBS) connection connection_many cntr region_protection rma fault_injection
	$(USE_TEST_PREFIX) TEST_RDM=1 TEST_FAST=1 sh -e -c 'for p in shm tcp; do TEST_PROVIDER=$$p c-tests/run.sh --jobs $(JOBS) \
		rma rma_order msg msg_order region_protection deadline fault_injection peer_killed wait region_unmapped threads; done'

# One build of the library, made with the dependencies that check-rust has built, serves two guards: it panics on demand, and its
# debug information tells the compiler's layout of the structs that the header declares. It is moved away at once.
check-guards: check-install
	$(CARGO) rustc --lib --crate-type cdylib -- --cfg gdrfab_panic -C opt-level=0 -C debuginfo=2
	@mkdir -p $(CARGO_TARGET_DIR)/panic && mv $(CARGO_TARGET_DIR)/debug/$(SO) $(CARGO_TARGET_DIR)/panic/$(SONAME)
	$(USE_TEST_PREFIX) MAKE="$(MAKE)" VERSION=$(VERSION) SONAME=$(SONAME) \
		BUILT_SO=$(SO_OUT)/$(SO) PANIC_DIR=$(CARGO_TARGET_DIR)/panic tests/guards.sh

check-memcheck: check-install
	$(USE_TEST_PREFIX) TEST_PROVIDER=tcp c-tests/run.sh --jobs 2 --memcheck tcp tcp_paths tcp_key tcp_hosts tcp_hostile tcp_split connection cntr cq cq_error
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
	$(INSTALL_TEST_PLUGIN)
	$(INSTALL_TEST_FI)

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
	$(INSTALL_TEST_PLUGIN)
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
	@$(USE_TEST_PREFIX) examples/hello.sh $(EXAMPLES_OUT)/hello

# Built as a user would build it.
hello:
	@$(INSTALL_TEST_PREFIX)
	@mkdir -p $(EXAMPLES_OUT)
	$(CC) -std=c99 -O2 -o $(EXAMPLES_OUT)/hello examples/hello.c $$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab)

bench: deps-bench
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) KEEP_AS='make bench' benches/keep.sh peers $(MAKE) -C benches/peers bench

# BASE=<prefix>: the version installed there takes turns with this tree. QUICK_FLAGS: options of benches/peers/quick.py.
bench-quick:
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) benches/peers/quick.py $(if $(BASE),--base $(BASE)) $(QUICK_FLAGS)

# An active tcp connection beside idle ones: each line is one run.
bench-idle:
	@$(INSTALL_TEST_PREFIX)
	@mkdir -p $(EXAMPLES_OUT)
	$(CC) -std=c99 -O2 -Wall -Wextra -o $(EXAMPLES_OUT)/idle benches/tcp/idle.c $$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab)
	$(USE_TEST_PREFIX) KEEP_AS='make bench-idle' benches/keep.sh tcp-idle sh -e -c 'for n in 0 99 9999; do \
		$(EXAMPLES_OUT)/idle $$n; $(EXAMPLES_OUT)/idle $$n 101 poll; done'

# Connectionless endpoints: an active peer beside silent ones, 1,000 of 10,000 names in use, 256 processes all to all.
bench-rdm:
	@$(INSTALL_TEST_PREFIX)
	@mkdir -p $(EXAMPLES_OUT)
	$(CC) -std=c99 -O2 -Wall -Wextra -o $(EXAMPLES_OUT)/silent benches/rdm/silent.c $$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab)
	$(USE_TEST_PREFIX) KEEP_AS='make bench-rdm' benches/keep.sh rdm sh -e -c 'for n in 1 15 99 999; do \
		$(EXAMPLES_OUT)/silent shm $$n 301; done; for n in 15 999; do $(EXAMPLES_OUT)/silent tcp $$n; done; \
		TEST_RDM_PROCESSES=256 c-tests/run.sh rdm_scale'

# In the virtual machine of check-verbs: gdrfab beside perftest and the bare verbs; and its instructions, on this machine.
bench-verbs:
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) KEEP_AS='make bench-verbs' benches/keep.sh verbs benches/verbs/run.sh

bench-verbs-count:
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) benches/verbs/count.sh

# On a machine with NVIDIA GPUs: gdrfab beside the bare driver, lists with and without kernels, and over tcp beside host memory.
bench-gpu:
	@$(INSTALL_TEST_PREFIX)
	@mkdir -p $(EXAMPLES_OUT)
	for program in main lists; do \
		$(CC) -std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -o $(EXAMPLES_OUT)/gpu-$$program benches/gpu/$$program.c \
			$$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab) -Wl,-rpath,$(TEST_PREFIX)/lib -ldl || exit 1; done
	KEEP_AS='make bench-gpu' benches/keep.sh gpu $(EXAMPLES_OUT)/gpu-main
	benches/keep.sh -a gpu $(EXAMPLES_OUT)/gpu-lists
	benches/keep.sh -a gpu env GDRFAB_CUDA_MAX_CTAS=0 $(EXAMPLES_OUT)/gpu-lists
	$(USE_TEST_PREFIX) benches/keep.sh -a gpu benches/gpu/tcp.py --perf $(TEST_PREFIX)/bin/gdrfab-perf $(GPU_TCP_FLAGS)

# The measurements of torchcomms' benchmark of this name, and the cost that the C++ layer adds to the C functions.
bench-rdma-transport:
	@$(INSTALL_TEST_PREFIX)
	@mkdir -p $(EXAMPLES_OUT)
	$(CXX) -std=c++17 -O2 -Wall -Wextra -pthread -o $(EXAMPLES_OUT)/rdma_transport_bench \
		benches/cxx/rdma_transport_bench.cpp $$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab) \
		-Wl,-rpath,$(TEST_PREFIX)/lib
	KEEP_AS='make bench-rdma-transport' benches/keep.sh rdma-transport \
		$(EXAMPLES_OUT)/rdma_transport_bench --two $(RDMA_TRANSPORT_FLAGS)
	benches/keep.sh -a rdma-transport $(EXAMPLES_OUT)/rdma_transport_bench --overhead

# The provider for libfabric beside gdrfab's own calls, and Open MPI over it beside other transports.
bench-libfabric: check-install
	@$(INSTALL_TEST_FI)
	$(USE_TEST_PREFIX) KEEP_AS='make bench-libfabric' benches/keep.sh libfabric benches/libfabric/run.sh

deps:
	@CARGO="$(CARGO)" RUSTC="$(RUSTC)" tests/deps.sh check-all

deps-bench:
	@tests/deps.sh demo bench

clean:
	$(CARGO) clean

.PHONY: all has-rust help plugin-nccl install-plugin-nccl examples hello install install-debug uninstall check check-all check-gpu check-nccl-gpu test-plugins $(addprefix check-,$(CHECKS_BUILD) $(CHECKS) $(CHECKS_ALONE) $(CHECKS_WAIT) $(CHECKS_PAIRS)) fuzz header options abi demo bench bench-quick bench-gpu bench-verbs bench-verbs-count bench-idle bench-rdm bench-rdma-transport deps deps-bench clean plugin-libfabric install-plugin-libfabric bench-libfabric plugin-nixl install-plugin-nixl
