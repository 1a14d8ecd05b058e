#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Splits the debug information off programs and shared libraries. A file whose result is newer is left alone.
#
#   make/split-debug.sh FROM TO FILE...     FROM/FILE becomes TO/FILE and TO/FILE.debug
set -eu

objcopy=${OBJCOPY:-objcopy} from=$1 to=$2
shift 2
mkdir -p "$to"
# --add-gnu-debuglink looks for the .debug file in the current directory.
cd "$to"
for file in "$@"; do
	[ "$file" -nt "$from/$file" ] && continue
	"$objcopy" --only-keep-debug "$from/$file" "$file.debug"
	chmod 644 "$file.debug"
	"$objcopy" --strip-unneeded --add-gnu-debuglink="$file.debug" "$from/$file" "$file"
done
