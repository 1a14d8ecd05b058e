#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the fake drivers into DIR, under the names by which programs load the real ones; old versions into DIR/old.
# libibverbs goes to DIR/verbs, where it is found by GDRFAB_DEBUG=ibverbs=FILE only, if its header is there to build it.
#
#   c-tests/fakes/build.sh DIR
set -eu

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: build.sh DIR}
mkdir -p "$dir/old"

# build SONAME FILE [FLAGS]: SONAME may name a file of old/
build() {
	out=$1 source=$2
	shift 2
	${CC:-cc} -std=c99 -O1 -g -Wall -Wextra -Wpedantic -Werror -shared -fPIC -fvisibility=hidden \
		-Wl,-soname,"${out##*/}" -o "$dir/$out" "$here/$source" "$here/fakemem.c" -pthread "$@"
}

build libnrt.so.1 nrt.c
build old/libnrt.so.1 nrt.c -DFAKE_OLD
build libhl-thunk.so hlthunk.c
build old/libhl-thunk.so hlthunk.c -DFAKE_OLD
build libSynapse.so synapse.c -L"$dir" -l:libhl-thunk.so -Wl,-rpath,'$ORIGIN'
build libhsa-runtime64.so.1 hsa.c "$here/hsa_agent.c" "$here/hsa_copy.c"
build old/libhsa-runtime64.so.1 hsa.c "$here/hsa_agent.c" "$here/hsa_copy.c" -DFAKE_OLD
cuda() {
	out=$1
	shift
	set -- "$out" cuda.c "$@"
	for part in table mem vmm pool async copy list; do
		set -- "$@" "$here/cuda_$part.c"
	done
	build "$@"
}
cuda libcuda.so.1
cuda old/libcuda.so.1 -DFAKE_OLD
build libnccl.so.2 nccl.c
build libze_loader.so.1 ze.c "$here/ze_copy.c"
build old/libze_loader.so.1 ze.c "$here/ze_copy.c" -DFAKE_OLD

# By another SONAME than the real one, which librdmacm needs beside it.
verbs() {
	name=$1
	shift
	mkdir -p "$dir/${name%/*}"
	build "$name" ibverbs.c "$here/ibverbs_object.c" "$here/ibverbs_mr.c" "$here/ibverbs_queue.c" -Wl,-soname,libibverbs-fake.so.1 "$@"
}
if echo '#include <infiniband/verbs.h>' | ${CC:-cc} -E - >/dev/null 2>&1; then
	verbs verbs/libibverbs.so.1
	verbs verbs/old/libibverbs.so.1 -DFAKE_OLD
else
	echo "fakes: no infiniband/verbs.h, so no fake libibverbs" >&2
fi
