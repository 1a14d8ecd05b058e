#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Every figure of the verbs provider: beside perftest and beside the bare registration of dma-bufs in the virtual machine of
# tests/check-verbs.sh, and instructions beside the bare verbs on this host. `make bench-verbs` runs it.
#
#   PREFIX=... benches/verbs/run.sh [ROUNDS]
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
prefix=${PREFIX:-$target/prefix} build=$target/bench-verbs rounds=${1:-9}
mkdir -p "$build"
${CC:-cc} -std=c99 -O2 -Wall -Wextra -Werror -o "$build/register" "$root/benches/verbs/register.c" \
	-I"$prefix/include" -L"$prefix/lib" -lgdrfab -ldl || exit
# Twenty runs of up to a minute for each row and round, on a busy host.
"$root/tests/check-verbs.sh" --programs layout --passes rxe --timeout $((1200 + 600 * rounds)) \
	--vm "--add $build/register:/root/register" \
	--shell-cmd "ROUNDS=$rounds /gdrfab/perftest.sh; echo; echo 34 >/proc/sys/vm/nr_hugepages; /root/register $((rounds * 11)) rxe0"
status=$?
echo
"$root/benches/verbs/count.sh" || status=$?
exit $status
