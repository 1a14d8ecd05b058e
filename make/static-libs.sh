#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Writes the linker options of the libraries that a static link needs besides libgdrfab.a into a file: make/static-libs.sh FILE
#
# Only rustc knows these libraries, and rustc prints them only when it makes a static library. The unwinder (-lgcc_s) is left out, because
# C compilers add it themselves, and no archive of that name exists for -static.
set -eu

mkdir -p "$(dirname "$1")"
echo '' | ${RUSTC:-rustc} --crate-type staticlib --print native-static-libs -o "$1.a" - 2>&1 |
	sed -n 's/.*native-static-libs: *//p' | sed 's/-lgcc_s *//' >"$1.new"
rm -f "$1.a"
test -s "$1.new" && mv "$1.new" "$1"
