#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes an archive that shows only gdrfab_*: another static library in Rust brings its own copy of Rust's runtime.
#
#   make/archive.sh ARCHIVE SHARED TO       of the functions that the library SHARED exports; TO is a directory
#
# The archive is one object, because names that several objects share cannot be local. Bitcode of Rust's own library does not survive the
# joining (-R).
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
