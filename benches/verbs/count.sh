#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Counts the instructions that gdrfab adds to ibv_post_send and ibv_poll_cq with the same work request: for an 8-byte write with its
# completion, and for a message with its receive and two completions. callgrind counts over a fake libibverbs whose queues do nothing, so
# neither RDMA nor a quiet machine is needed. Each figure is the difference of two runs of different lengths, so that opening and closing
# do not count. Exit status 1 if gdrfab adds too many ($most).
#
#   PREFIX=... FAKES=... BUILD=... benches/verbs/count.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
prefix=${PREFIX:-$target/prefix} fakes=${FAKES:-$target/fakes} build=${BUILD:-$target/bench-verbs}
most=120
command -v valgrind >/dev/null || { echo "SKIP: no valgrind"; exit 77; }
mkdir -p "$build"
[ -n "${FAKES:-}" ] || CC=${CC:-cc} sh "$here/../../c-tests/fakes/build.sh" "$fakes"
${CC:-cc} -std=c99 -O2 -g -Wall -Wextra -Werror -o "$build/count" "$here/count.c" \
	-I"$prefix/include" -L"$prefix/lib" -lgdrfab -Wl,-rpath,"$prefix/lib" -ldl
export LIBIBVERBS=$fakes/verbs/libibverbs.so.1
export GDRFAB_DEBUG=ibverbs=$LIBIBVERBS GDRFAB_LOG=${GDRFAB_LOG:-error}

total() { # <how> <what> <depth> <rounds>
	valgrind --tool=callgrind --callgrind-out-file="$build/count.$1.$2.$3.out" --toggle-collect='measured_*' "$build/count" "$@" \
		2>"$build/count.log" || { cat "$build/count.log" >&2 && return 1; }
	sed -n 's/.*Collected : *//p' "$build/count.log"
}

each() { # <how> <what> <depth>: instructions per operation, one decimal
	local few=256 many=2304
	local a b
	a=$(total "$@" $few) && b=$(total "$@" $many) || return 1
	awk -v a="$a" -v b="$b" -v n=$(((many - few) * $3)) 'BEGIN { printf "%.1f", (b - a) / n }'
}

status=0
echo "| 8 bytes | posted before completions are read | threading | bare verbs | gdrfab | above | bar |"
echo "|---|---|---|---:|---:|---:|---|"
for what in write message; do
	for depth in 1 16; do
		raw=$(each raw $what $depth)
		for how in domain safe; do
			ours=$(each $how $what $depth)
			above=$(awk -v a="$ours" -v b="$raw" 'BEGIN { printf "%.1f", a - b }')
			bar=
			[ $what:$how != write:domain ] || bar="<= $most"
			echo "| $what | $depth | $how | $raw | $ours | $above | $bar |"
			[ -z "$bar" ] || awk -v a="$above" -v m=$most 'BEGIN { exit a > m }' || status=1
		done
	done
done
exit $status
