# SPDX-License-Identifier: Apache-2.0 OR MIT
# Cargo builds the crate. This file does what cargo does not: install a C library, and test it as one.
#
#   make demo        from a machine with Rust to two C processes that move memory
#   make check       every test, with one summary; `make check-<step>` runs one (see CHECKS)
#   make fuzz        looks for bytes that the tcp provider cannot bear; SECONDS=600 for each of two targets
#   make install     PREFIX=/usr/local LIBDIR=$PREFIX/lib DESTDIR=
#   make bench       gdrfab beside libfabric and UCX; needs `make deps-bench`
#   make check-gpu   the conformance programs on this machine's NVIDIA GPUs; `make bench-gpu` the speed there

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
CARGO      ?= cargo
RUSTC      ?= rustc
CC         ?= cc
INSTALL    ?= install

# One absolute path for cargo and for the scripts, wherever they are started.
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
OUT         := $(CARGO_TARGET_DIR)/release
TEST_PREFIX := $(CARGO_TARGET_DIR)/prefix
VERSION     := $(shell sed -n '/^\[package\]/,/^\[[^p]/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)
MAJOR       := $(firstword $(subst ., ,$(VERSION)))
SO          := libgdrfab.so
SONAME      := $(SO).$(MAJOR)
PROGRAMS    := gdrfab-info gdrfab-perf
EXAMPLES     := $(basename $(notdir $(wildcard examples/*.c)))
EXAMPLES_OUT := $(CARGO_TARGET_DIR)/c-examples

# Where `check`, `demo` and `bench` find what they have just installed, and nothing else.
USE_TEST_PREFIX = PKG_CONFIG_PATH=$(TEST_PREFIX)/lib/pkgconfig LD_LIBRARY_PATH=$(TEST_PREFIX)/lib PREFIX=$(TEST_PREFIX)
INSTALL_TEST_PREFIX = $(MAKE) --no-print-directory install PREFIX=$(TEST_PREFIX) BINDIR=$(TEST_PREFIX)/bin \
	LIBDIR=$(TEST_PREFIX)/lib INCLUDEDIR=$(TEST_PREFIX)/include DESTDIR=

# Where tests/deps.sh puts a libclang for bindgen if the system's is too new. It comes without C's own headers; gcc has them.
LIBCLANG := $(wildcard $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gdrfab-libclang/libclang.so)
ifneq ($(LIBCLANG),)
export LIBCLANG_PATH ?= $(dir $(LIBCLANG))
export BINDGEN_EXTRA_CLANG_ARGS ?= -isystem $(shell gcc -print-file-name=include)
endif

all: $(OUT)/native-static-libs
	$(CARGO) build --release

# What a static link needs besides libgdrfab.a. Only the compiler knows, and it says so only when it links.
$(OUT)/native-static-libs: Cargo.toml
	@mkdir -p $(@D)
	@echo '' | $(RUSTC) --crate-type staticlib --print native-static-libs -o $@.a - 2>&1 | \
		sed -n 's/.*native-static-libs: *//p' > $@.new
	@rm -f $@.a
	@test -s $@.new && mv $@.new $@

# `sudo make install` often runs without cargo in its PATH: then it installs what `make` has built.
install: $(if $(shell command -v $(CARGO)),all)
	$(INSTALL) -d $(addprefix $(DESTDIR),$(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR))
	$(INSTALL) -m 755 $(OUT)/$(SO) $(DESTDIR)$(LIBDIR)/$(SO).$(VERSION)
	ln -sf $(SO).$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$(SO)
	$(INSTALL) -m 644 $(OUT)/libgdrfab.a $(DESTDIR)$(LIBDIR)/libgdrfab.a
	$(INSTALL) -m 644 include/gdrfab.h $(DESTDIR)$(INCLUDEDIR)/gdrfab.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' \
		-e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' \
		-e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))|' \
		-e "s|@LIBS_PRIVATE@|$$(cat $(OUT)/native-static-libs)|" \
		pkgconfig/gdrfab.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/gdrfab.pc
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/gdrfab.pc
	$(INSTALL) -m 755 $(addprefix $(OUT)/,$(PROGRAMS)) $(DESTDIR)$(BINDIR)

uninstall:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(SO) $(SONAME) $(SO).$(VERSION) libgdrfab.a pkgconfig/gdrfab.pc)
	rm -f $(DESTDIR)$(INCLUDEDIR)/gdrfab.h $(addprefix $(DESTDIR)$(BINDIR)/,$(PROGRAMS))

# ---- tests: each step stands alone; tests/check.sh runs them all and sums up

CHECKS := fmt clippy doc rust loom install examples c guards memcheck tsan tcp fuzz verbs

check:
	@MAKE="$(MAKE)" tests/check.sh $(CHECKS)

check-fmt:
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml

check-clippy:
	$(CARGO) clippy --all-targets -- -D warnings

check-doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --lib

# The tests of the vendors' interfaces need stand-ins of their drivers, and say so and pass without.
check-rust:
	CC="$(CC)" sh c-tests/fakes/build.sh $(CARGO_TARGET_DIR)/fakes
	GDRFAB_FAKES=$(CARGO_TARGET_DIR)/fakes $(CARGO) test

# Loom swaps the atomics of the whole crate, so the models build apart.
check-loom:
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --test loom --target-dir $(CARGO_TARGET_DIR)/loom

check-install:
	$(INSTALL_TEST_PREFIX)

# As a stranger would build them: pkg-config, and no warnings.
examples: check-install
	@mkdir -p $(EXAMPLES_OUT)
	$(USE_TEST_PREFIX) sh -e -c 'for e in $(EXAMPLES); do \
		$(CC) -std=c99 -O2 -Wall -Wextra -Wpedantic -Werror -o $(EXAMPLES_OUT)/$$e examples/$$e.c \
			$$(pkg-config --cflags --libs gdrfab); done'

check-examples: examples
	$(USE_TEST_PREFIX) examples/hello.sh $(EXAMPLES_OUT)/hello
	$(USE_TEST_PREFIX) sh -e -c 'for e in $(filter-out hello,$(EXAMPLES)); do $(EXAMPLES_OUT)/$$e; done'

# Once more without locks, where operations take a shorter way.
check-c: check-install
	$(USE_TEST_PREFIX) TEST_THREADING=domain TEST_FAST=1 c-tests/run.sh rma rma_order msg cq protect
	$(USE_TEST_PREFIX) c-tests/run.sh

# The layout guard reads the debug information of a development build, which check-rust has made already.
check-guards: check-install
	$(CARGO) build --lib
	$(USE_TEST_PREFIX) MAKE="$(MAKE)" VERSION=$(VERSION) SONAME=$(SONAME) \
		DEBUG_SO=$(CARGO_TARGET_DIR)/debug/$(SO) tests/guards.sh

check-memcheck: check-install
	$(USE_TEST_PREFIX) TEST_PROVIDER=tcp c-tests/run.sh --memcheck tcp tcp_key tcp_hostile connection cntr cq
	$(USE_TEST_PREFIX) TEST_FAST=1 c-tests/run.sh --memcheck

check-tsan: check-install
	$(USE_TEST_PREFIX) tests/tsan.sh

# Over loopback, and between network namespaces where this user may make them. See tests/check-tcp.sh.
check-tcp: check-install
	$(USE_TEST_PREFIX) tests/check-tcp.sh

# A minute for each target. See fuzz/run.sh.
check-fuzz:
	fuzz/run.sh decode 60
	fuzz/run.sh connection 60

# For longer: SECONDS for each target.
fuzz: SECONDS ?= 600
fuzz:
	fuzz/run.sh decode $(SECONDS)
	fuzz/run.sh connection $(SECONDS)

# In a virtual machine whose kernel has soft-RoCE; needs neither root nor RDMA hardware. See tests/check-verbs.sh.
check-verbs: check-install
	$(USE_TEST_PREFIX) tests/check-verbs.sh

# Needs GPUs, so `check` leaves it out. Elsewhere built programs run there by tests/check-gpu.sh alone.
check-gpu: check-install
	$(USE_TEST_PREFIX) tests/check-gpu.sh

# ---- generated and committed

header:
	GDRFAB_BLESS=1 $(CARGO) test --test header

abi: check-install
	$(USE_TEST_PREFIX) tests/abi-dump.sh abi/gdrfab.abi

# ---- one command from nothing

demo: deps
	@$(MAKE) --no-print-directory examples
	@echo "--- examples/hello.c, built through pkg-config, as two processes:"
	@$(USE_TEST_PREFIX) examples/hello.sh $(EXAMPLES_OUT)/hello

bench: deps-bench
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) $(MAKE) -C benches/peers bench

# In the virtual machine of check-verbs: gdrfab beside perftest and the bare verbs; and its instructions, on this machine.
bench-verbs:
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) benches/verbs/run.sh

bench-verbs-count:
	@$(INSTALL_TEST_PREFIX)
	$(USE_TEST_PREFIX) benches/verbs/count.sh

# On a machine with NVIDIA GPUs: gdrfab beside the bare driver, and over tcp beside host memory.
bench-gpu:
	@$(INSTALL_TEST_PREFIX)
	@mkdir -p $(EXAMPLES_OUT)
	$(CC) -std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -o $(EXAMPLES_OUT)/gpu-bench benches/gpu/main.c \
		$$($(USE_TEST_PREFIX) pkg-config --cflags --libs gdrfab) -Wl,-rpath,$(TEST_PREFIX)/lib -ldl
	$(EXAMPLES_OUT)/gpu-bench
	$(USE_TEST_PREFIX) benches/gpu/tcp.py --perf $(TEST_PREFIX)/bin/gdrfab-perf $(GPU_TCP_FLAGS)

deps:
	@tests/deps.sh build

deps-bench:
	@tests/deps.sh build bench

clean:
	$(CARGO) clean

.PHONY: all examples install uninstall check check-gpu $(addprefix check-,$(CHECKS)) fuzz header abi demo bench bench-gpu bench-verbs bench-verbs-count deps deps-bench clean
