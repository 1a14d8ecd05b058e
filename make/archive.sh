#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the libgdrfab.a that is installed. Its only global names are the functions gdrfab_*, because a program may also link another
# static library in Rust, which has its own copy of Rust's runtime under the same names.
#
#   make/archive.sh ARCHIVE SHARED TO       ARCHIVE is cargo's libgdrfab.a; the functions that the library SHARED exports stay global;
#                                           TO is the directory for the result
#
# The objects of the archive are joined into one, because a name that several objects use cannot be local. -R drops the sections of LLVM
# bitcode in Rust's own library, which are invalid after the joining.
set -eu

archive=$1 shared=$2
cd "$3"
if [ libgdrfab.a -nt "$archive" ]; then
	exit 0
fi
"${NM:-nm}" -D --defined-only "$shared" | sed 's/.* //' >exports
# shellcheck disable=SC2046 # words
"${LD:-ld}" -r --force-group-allocation -o libgdrfab.o $(sed 's/^/-u /' exports) "$archive"
"${OBJCOPY:-objcopy}" --strip-debug -R .llvmbc -R .llvmcmd --keep-global-symbols=exports libgdrfab.o
rm -f libgdrfab.a
"${AR:-ar}" rcs libgdrfab.a libgdrfab.o
rm libgdrfab.o exports
