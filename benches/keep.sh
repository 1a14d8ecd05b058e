#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a benchmark and keeps its output in benches/results, where docs/performance.md finds it; -a appends to the file.
#   benches/keep.sh [-a] <name> command [argument...]
set -o pipefail
more=
[ "$1" = -a ] && more=-a && shift
file=$(dirname "$0")/results/$1.txt
shift
# A command that fails does not replace the file.
if [ -n "$more" ]; then
	"$@" | tee -a "$file"
else
	printf 'Written by `%s`.\n' "${KEEP_AS:-$*}" >"$file.new"
	"$@" | tee -a "$file.new" || { status=$? && rm "$file.new" && exit $status; }
	mv "$file.new" "$file"
fi
