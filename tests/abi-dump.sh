#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Writes the ABI that a C program sees in the installed library: tests/abi-dump.sh OUT (PREFIX from the environment).
#
# abidw reads a small C object that names every exported function, struct and constant of the header. The debug information of
# the library itself is not used, because it also has the private fields of every handle, and changes with the compiler.
set -eu

out=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

so=$PREFIX/lib/libgdrfab.so
soname=$(readelf -dW "$so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
{
	echo '#include <gdrfab.h>'
	nm -D --defined-only "$so" | awk '{ print $3 }' | LC_ALL=C sort |
		awk '{ printf "__typeof__(&%s) abi_fn_%s = &%s;\n", $1, $1, $1 }'
	echo 'enum abi_constants {'
	sed -n 's/^#define \(GDRFAB_[A-Z0-9_]*\) .*/\1/p' "$PREFIX/include/gdrfab.h" | grep -v '^GDRFAB_VERSION_' |
		sed 's/.*/	abi_& = &,/'
	echo '} *abi_constants;'
	sed -n 's/^typedef struct \(gdrfab_[a-z_]*\) {$/\1 *abi_struct_\1;/p' "$PREFIX/include/gdrfab.h"
} >abi.c
gcc -std=c99 -g -O0 -shared -fPIC -Wl,-soname,"$soname" -I"$PREFIX/include" -o abi.so abi.c
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --drop-undefined-syms --out-file "$out" abi.so
