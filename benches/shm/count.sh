#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Counts the instructions of each step of a message and of RMA over shm: posting, taking the sender's completion, arrival and its
# completion, posting the receive, and an empty poll. callgrind counts, so the machine need not be quiet. Each figure is the difference of
# two runs of different lengths, so that connecting and closing do not count.
#
#   PREFIX=... BUILD=... DEPTHS='1 16' benches/shm/count.sh [BYTES...]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
prefix=${PREFIX:-$target/prefix} build=${BUILD:-$target/bench-shm}
few=200 many=1000
command -v valgrind >/dev/null || { echo "SKIP: no valgrind"; exit 77; }
[ $# -gt 0 ] || set -- 8 56 1024
mkdir -p "$build"
${CC:-cc} -std=c99 -O2 -g -Wall -Wextra -Wpedantic -Werror -o "$build/count" "$here/count.c" \
	-I"$prefix/include" -L"$prefix/lib" -lgdrfab -Wl,-rpath,"$prefix/lib"
export GDRFAB_LOG=${GDRFAB_LOG:-error}

total() { # <step> <how> <bytes> <depth> <rounds>
	valgrind --tool=callgrind --callgrind-out-file="$build/count.$1.$2.$3.$4.out" --toggle-collect="$1_" "$build/count" "$@" \
		2>"$build/count.log" || { cat "$build/count.log" >&2 && return 1; }
	sed -n 's/.*Collected : *//p' "$build/count.log"
}

each() { # <step> <how> <bytes> <depth>: instructions of one, one decimal
	local a b
	a=$(total "$@" $few) && b=$(total "$@" $many) || return 1
	awk -v a="$a" -v b="$b" -v n=$(((many - few) * $4 * ($([ "$1" = writelist ] && echo 1000 || echo 1)))) 'BEGIN { printf "%.1f", (b - a) / n }'
}

echo "| bytes | threading | at a time | send | inject | sender's entry | arrival and entry | receive | look in vain | write | read | inject_write | block of a writelist | fetch_add |"
echo "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
for bytes in "$@"; do
	for how in domain safe; do
		for depth in ${DEPTHS:-1 16}; do
			row="| $bytes | $how | $depth |"
			for step in ${STEPS:-send inject sent arrive recv idle write read inject_write writelist fetch_add}; do
				row="$row $(each $step $how "$bytes" $depth) |"
			done
			echo "$row"
		done
	done
done
