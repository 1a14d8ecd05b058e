#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Counts the instructions of each step of a message over shm, for a connected endpoint and for connectionless ones, by callgrind as
# benches/shm/count.sh does. Then measures the least time of a whole message, with both sides in one thread.
#
#   PREFIX=... BUILD=... benches/rdm/count.sh [BYTES...]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
prefix=${PREFIX:-$target/prefix} build=${BUILD:-$target/bench-rdm}
few=100 many=300
command -v valgrind >/dev/null || { echo "SKIP: no valgrind"; exit 77; }
[ $# -gt 0 ] || set -- 8 1024
mkdir -p "$build"
${CC:-cc} -std=c99 -O2 -g -Wall -Wextra -Wpedantic -Werror -o "$build/count" "$here/count.c" \
	-I"$prefix/include" -L"$prefix/lib" -lgdrfab -Wl,-rpath,"$prefix/lib"
export GDRFAB_LOG=${GDRFAB_LOG:-error}

total() { # <step> <kind> <how> <bytes> <rounds> [<posted> <how>]
	valgrind --tool=callgrind --callgrind-out-file="$build/count.$1.$2.$3.$4.$5.out" --toggle-collect="${1}_" "$build/count" "$@" \
		2>"$build/count.log" || { cat "$build/count.log" >&2 && return 1; }
	sed -n 's/.*Collected : *//p' "$build/count.log"
}

each() { # <step> <kind> <how> <bytes> [<posted> <how>]: instructions of one
	local a b step=$1 kind=$2 how=$3 bytes=$4
	shift 4
	a=$(total $step $kind $how $bytes $few "$@") && b=$(total $step $kind $how $bytes $many "$@") || return 1
	awk -v a="$a" -v b="$b" -v n=$((many - few)) 'BEGIN { printf "%.0f", (b - a) / n }'
}

echo "| bytes | endpoint | threading | send | sender's entry | arrival and entry | receive | look in vain |"
echo "|---:|---|---|---:|---:|---:|---:|---:|"
row() { # <kind> <how> <bytes> [<posted> <how>]
	local cells=''
	for step in ${STEPS:-send sent arrive recv idle}; do
		cells="$cells $(each $step "$@") |"
	done
	echo "| $3 | $1 ${4:-} ${5:-} | $2 |$cells"
}
for bytes in "$@"; do
	for how in domain safe; do
		for kind in msg rdm tag data; do row $kind $how "$bytes"; done
	done
done
for fit in exact wild; do row tag domain 8 1000 $fit; done
row tag domain 8 1 same
echo
"$build/count" time "${SECONDS_EACH:-2}" domain
