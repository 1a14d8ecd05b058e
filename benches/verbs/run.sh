#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes all figures of the verbs provider. In the virtual machine of tests/check-verbs.sh: gdrfab beside perftest, its registration beside
# the bare calls of the verbs, and unregistered beside registered memory. On this host: instructions beside the bare verbs.
# `make bench-verbs` runs this script.
#
#   PREFIX=... benches/verbs/run.sh [ROUNDS]
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
prefix=${PREFIX:-$target/prefix} build=$target/bench-verbs rounds=${1:-9}
mkdir -p "$build"
for program in register unregistered; do
	${CC:-cc} -std=c99 -O2 -Wall -Wextra -Werror -o "$build/$program" "$root/benches/verbs/$program.c" \
		-I"$prefix/include" -L"$prefix/lib" -lgdrfab -ldl || exit
done
# On a busy host each row and round has twenty runs of up to a minute.
"$root/tests/check-verbs.sh" --programs layout --passes rxe --timeout $((1200 + 600 * rounds)) \
	--vm "--add $build/register:/root/register --add $build/unregistered:/root/unregistered" \
	--shell-cmd "ROUNDS=$rounds /gdrfab/perftest.sh; echo; echo 34 >/proc/sys/vm/nr_hugepages; /root/register $((rounds * 11)) rxe0
echo; for i in \$(seq $rounds); do /root/unregistered verbs 61 8192 16384 32768 65536 131072 262144; done"
status=$?
echo
"$root/benches/verbs/count.sh" || status=$?
exit $status
