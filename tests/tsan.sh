#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the threaded conformance claims with a library built for ThreadSanitizer. `make check-tsan` sets the environment:
# PREFIX, where the ordinary library is installed, and CARGO_TARGET_DIR. Arguments go to c-tests/run.sh in place of the
# usual programs.
#
# helgrind is no substitute, because helgrind knows only the locks of pthread, and the library has locks of its own.
set -eu -o pipefail

work=$CARGO_TARGET_DIR/tsan
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$work/prefix/lib/pkgconfig"

# rustc calls these functions, which the runtime of older gccs lacks. Here each calls memcpy and the like, which that runtime checks.
cat >"$work/mem.c" <<'C'
#include <string.h>
void *__tsan_memcpy(void *to, const void *from, size_t n) { return memcpy(to, from, n); }
void *__tsan_memmove(void *to, const void *from, size_t n) { return memmove(to, from, n); }
void *__tsan_memset(void *to, int c, size_t n) { return memset(to, c, n); }
C
gcc -O1 -fno-builtin -fPIC -c -o "$work/mem.o" "$work/mem.c"

# The sanitizers are not stable in rustc yet, hence RUSTC_BOOTSTRAP. The standard library is built without the sanitizer: tsan.supp
# suppresses the resulting reports, and newer compilers need a flag that allows this.
export RUSTC_BOOTSTRAP=1
flags=-Zsanitizer=thread
meant="-Cunsafe-allow-abi-mismatch=sanitizer"
if echo 'pub fn f() {}' | rustc --crate-type lib --crate-name probe $flags $meant --out-dir "$work" - 2>/dev/null; then
	flags="$flags $meant"
fi
# With --target the flags do not apply to build scripts. Level 1, because without optimisation every local variable is checked.
CARGO_PROFILE_DEV_OPT_LEVEL=1 RUSTFLAGS="$flags -Clink-arg=$work/mem.o" cargo build -p gdrfab --lib --no-default-features --target "$host" --target-dir "$work"

# A copy of the installation, with the library for ThreadSanitizer in place of the ordinary one.
cp -r "$PREFIX/include" "$work/prefix/"
sed "s|^prefix=.*|prefix=$work/prefix|" "$PREFIX/lib/pkgconfig/gdrfab.pc" >"$work/prefix/lib/pkgconfig/gdrfab.pc"
cp "$work/$host/debug/libgdrfab.so" "$work/prefix/lib/"
ln -sf libgdrfab.so "$work/prefix/lib/$(readelf -dW "$work/prefix/lib/libgdrfab.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"

# Address randomisation is switched off, because older runtimes cannot place their shadow memory if the kernel randomises widely.
fixed=()
setarch "$(uname -m)" -R true 2>/dev/null && fixed=(setarch "$(uname -m)" -R)

run() {
	PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig LD_LIBRARY_PATH=$work/prefix/lib BUILD=$work/c-tests \
		TEST_FAST=1 TEST_TIME_SCALE=${TEST_TIME_SCALE:-5} \
		TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp history_size=7 die_after_fork=0 exitcode=99" \
		"${fixed[@]}" c-tests/run.sh --cflags -fsanitize=thread "$@"
}

if [ $# -gt 0 ]; then
	run "$@"
	exit
fi
# Of the program threads, automatic_progress_serves_an_idle_target is left out: there another process tells the reader that memory was
# written, and the sanitizer cannot see an order that another process makes.
run threads:one threads:each cntr connection cq cq_error deadline eq fork info info_hints msg msg_order options wait \
	rdma_transport_races:memory rdma_transport_races:words
TEST_RDM=1 run threads:one threads:each

# The plugin for NCCL, whose helpers share connections with NCCL's thread.
plugin=$work/libnccl-net-gdrfab.so
gcc -std=c99 -D_GNU_SOURCE -g -O1 -fsanitize=thread -fPIC -shared -pthread -o "$plugin" -Wl,-z,nodelete plugins/nccl/*.c \
	$(PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig pkg-config --cflags --libs gdrfab) -ldl
TEST_NCCL_PLUGIN=$plugin TEST_NCCL_ABI=12 TEST_PROVIDER=shm GDRFAB_NCCL_THREADS=2 run --suite nccl nccl_helpers:mixed \
	nccl_helpers:closed nccl_order:bytes
