#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the programs that drive the plugin for NCCL as NCCL does: every version of the interface, over shm and over tcp on
# loopback, with memory of the host and of a fake CUDA. Neither NCCL nor a GPU is needed.
#
#   plugins/nccl/tests/check.sh [options]
#     --versions "N..."    only these (8 9 10 11 12)
#     --providers "P..."   only these (shm tcp)
#     --programs "P..."    only these; PROGRAM or PROGRAM:TEXT in a claim's name
#     --jobs N             number of programs at a time (1)
#     --fast               TEST_FAST for version 11, which PyTorch uses, too; the other versions always have it
#
# The plugin is $PREFIX/lib/libnccl-net-gdrfab.so. The library is found by pkg-config, as by c-tests/run.sh. BUILD is the
# directory for the programs.
set -u -o pipefail

root=$(cd "$(dirname "$0")/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
build=${BUILD:-$target/c-tests}
prefix=${PREFIX:-$target/prefix}
versions="8 9 10 11 12" providers="shm tcp" fast= jobs=1
programs=$(cd "$root/plugins/nccl/tests" && grep -l '^TEST' ./*.c | sed 's|^\./||' | sed 's|\.c$||' | LC_ALL=C sort | tr '\n' ' ')
while [ $# -gt 0 ]; do
	case $1 in
	--versions) versions=$2 && shift ;;
	--providers) providers=$2 && shift ;;
	--programs) programs=$2 && shift ;;
	--jobs) jobs=$2 && shift ;;
	--fast) fast=1 ;;
	*)
		sed -n '3,15s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
	shift
done
export BUILD=$build TEST_NCCL_PLUGIN=${TEST_NCCL_PLUGIN:-$prefix/lib/libnccl-net-gdrfab.so}
if [ ! -e "$TEST_NCCL_PLUGIN" ]; then
	echo "FAIL plugin: there is no $TEST_NCCL_PLUGIN; make install-plugin-nccl PREFIX=... puts it there"
	echo "0 passed, 1 failed, 0 skipped"
	exit 1
fi
# Clears the settings of a launcher or a user.
unset GDRFAB_NCCL_THREADS GDRFAB_NCCL_PROVIDERS GDRFAB_NCCL_TIMEOUT GDRFAB_NCCL_EAGER GDRFAB_NCCL_GDR GDRFAB_NCCL_TUNE NCCL_P2P_DISABLE NCCL_SHM_DISABLE GDRFAB_TCP_IFACE NCCL_SOCKET_IFNAME
unset WORLD_SIZE LOCAL_WORLD_SIZE OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE

mkdir -p "$build"
# shellcheck disable=SC2046,SC2086 # lists of words
"$root/c-tests/run.sh" --suite nccl --build $(printf '%s\n' $programs | sed 's/:.*//' | sort -u) >"$build.nccl.log" 2>&1 || {
	cat "$build.nccl.log"
	exit 1
}

begin=$SECONDS passed=0 failed=0 skipped=0 broken=
for provider in $providers; do
	# Only the loopback is used: no address of the machine's own network.
	[ "$provider" = tcp ] && export GDRFAB_TCP_IFACE=lo
	for version in $versions; do
		echo "==== nccl, version $version over $provider"
		quick=$fast
		[ "$version" = 11 ] || quick=1
		these=$programs
		# Tests that are slow because they wait do not depend on the version.
		[ "$version" = 11 ] || [ "$versions" = "$version" ] || these=${programs/nccl_patience/}
		# Nor do helpers, so only one version runs with them.
		[ "$version" = 12 ] && export GDRFAB_NCCL_THREADS=2 || export GDRFAB_NCCL_THREADS=0
		# shellcheck disable=SC2086 # a list of words
		TEST_PROVIDER=$provider TEST_NCCL_ABI=$version TEST_FAST=${TEST_FAST:-$quick} \
			"$root/c-tests/run.sh" --suite nccl --built --jobs "$jobs" $these >"$build.nccl.pass" 2>&1
		counts=$(tail -n 1 "$build.nccl.pass")
		sed '$d' "$build.nccl.pass"
		if ! [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
			echo "FAIL v$version/$provider: $counts"
			failed=$((failed + 1)) broken="$broken v$version/$provider"
			continue
		fi
		passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
		skipped=$((skipped + BASH_REMATCH[3]))
		[ "${BASH_REMATCH[2]}" -eq 0 ] || broken="$broken v$version/$provider"
	done
	unset GDRFAB_TCP_IFACE
done
[ -z "$broken" ] || echo "failed:$broken"
echo "nccl took $((SECONDS - begin)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
