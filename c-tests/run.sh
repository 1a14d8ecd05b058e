#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the conformance programs against an installed gdrfab, as a stranger would, and runs them.
#
#   c-tests/run.sh [options] [PROGRAM...]
#     --filter PROGRAM   only this one; may be given several times, like PROGRAM
#     --claim TEXT       only claims with TEXT in their names
#     --valgrind         under memcheck (also --memcheck); implies TEST_FAST=1
#     --helgrind         under helgrind; implies TEST_FAST=1
#     --build            builds, and runs nothing
#     --built            runs what an earlier --build has made
#     --cc CC --cxx CXX --cflags '...'
#
# The library is found by pkg-config alone: set PKG_CONFIG_PATH unless it is installed where pkg-config looks. BUILD is
# where the programs go (target/c-tests). Prints one line per claim, and at last `N passed, N failed, N skipped`.
#
# Device memory is that of fake drivers, built beside the programs; TEST_IFACES names those that are used (all of them).
# TEST_REAL=1: the machine's own drivers; then TEST_IFACES says which (cuda).
set -u

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cc=${CC:-cc} cxx=${CXX:-c++} cflags= tool= claim= build_only= built=
programs=()

while [ $# -gt 0 ]; do
	case $1 in
	--filter) programs+=("$2") && shift ;;
	--claim) claim=$2 && shift ;;
	--valgrind | --memcheck) tool=memcheck ;;
	--helgrind) tool=helgrind ;;
	--build) build_only=1 ;;
	--built) built=1 ;;
	--cc) cc=$2 && shift ;;
	--cxx) cxx=$2 && shift ;;
	--cflags) cflags=$2 && shift ;;
	-*)
		sed -n '3,18s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	*) programs+=("$1") ;;
	esac
	shift
done

if ! pkg-config --exists gdrfab; then
	echo "run.sh: pkg-config does not know gdrfab; set PKG_CONFIG_PATH to <prefix>/lib/pkgconfig" >&2
	exit 1
fi
build=${BUILD:-${CARGO_TARGET_DIR:-$root/target}/c-tests}
mkdir -p "$build" || exit 1

strict="-Wall -Wextra -Wpedantic -Werror -D_GNU_SOURCE -g -O1 -pthread"
use_cflags=$(pkg-config --cflags gdrfab)
use_libs="$(pkg-config --libs gdrfab) -Wl,-rpath,$(pkg-config --variable=libdir gdrfab) -ldl"

# What a memory checker finds ends a process with 99; the frame makes that a failed claim. Only definite losses count.
# A forked child has none of its parent's other threads, and nobody frees what they held: no leaks are sought there.
under_checker() { # <program> <command...>
	local leaks=full program=$1
	shift
	[ "$program" = fork ] && leaks=no
	case $tool in
	memcheck)
		valgrind -q --fair-sched=try --tool=memcheck --error-exitcode=99 --trace-children=yes --leak-check=$leaks \
			--show-leak-kinds=definite --errors-for-leak-kinds=definite --suppressions="$here/valgrind.supp" "$@"
		;;
	helgrind) valgrind -q --fair-sched=try --tool=helgrind --error-exitcode=99 --trace-children=yes "$@" ;;
	*) "$@" ;;
	esac
}
if [ -n "$tool" ]; then
	export TEST_FAST=${TEST_FAST:-1} TEST_TIME_SCALE=${TEST_TIME_SCALE:-5}
	# Valgrind's machine is one thread: a wait that spins only keeps the other side from running.
	export GDRFAB_SPIN_US=${GDRFAB_SPIN_US:-0}
fi

cd "$here" || exit 1

# Device memory: of the real drivers, or of fake ones under their names.
fakes=$build/fakes
if [ "${TEST_REAL:-0}" = 1 ]; then
	export TEST_IFACES=${TEST_IFACES-cuda}
else
	if [ -z "$built" ] && ! CC=$cc fakes/build.sh "$fakes"; then
		echo "FAIL fakes: do not compile"
		echo "0 passed, 1 failed, 0 skipped"
		exit 1
	fi
	all=
	for pair in cuda:libcuda.so.1 rocr:libhsa-runtime64.so.1 ze:libze_loader.so.1 neuron:libnrt.so.1 \
		synapseai:libSynapse.so; do
		[ -e "$fakes/${pair#*:}" ] && all=${all:+$all,}${pair%%:*}
	done
	export TEST_IFACES=${TEST_IFACES-$all} GDRFAB_FAKES=$fakes
	export LD_LIBRARY_PATH=$fakes${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

if [ ${#programs[@]} -eq 0 ]; then
	for file in $(grep -l '^TEST' ./*.c ./*.cpp | LC_ALL=C sort); do
		file=${file#./}
		programs+=("${file%.*}")
	done
fi

passed=0 failed=0 skipped=0
common=()
for part in test fab fab_provider fab_wait fab_local fab_mem fab_ways fab_dmabuf fab_cuda fab_raw fab_siege nccl_drive nccl_ops; do
	# shellcheck disable=SC2086
	if [ -z "$built" ] && ! $cc -std=c99 $strict $cflags $use_cflags -c -o "$build/$part.o" $part.c; then
		echo "FAIL $part: does not compile"
		echo "0 passed, 1 failed, 0 skipped"
		exit 1
	fi
	common+=("$build/$part.o")
done

build_program() { # <program>
	local use_libs=$use_libs std=c++11
	case $1 in rdma_transport*) std=c++17 ;; esac
	[ "$1" = verbs_raw ] && use_libs="$use_libs -libverbs"
	# The loader of a set-uid program does not look at LD_LIBRARY_PATH.
	[ "$1" = environment ] && use_libs="$use_libs -Wl,-rpath,$(pkg-config --variable=libdir gdrfab)"
	# shellcheck disable=SC2086
	if [ -f "$1.cpp" ]; then
		$cxx -std=$std $strict $cflags $use_cflags -o "$build/$1" "$1.cpp" "${common[@]}" $use_libs
	else
		$cc -std=c99 $strict $cflags $use_cflags -o "$build/$1" "$1.c" "${common[@]}" $use_libs
	fi
}

for program in "${programs[@]}"; do
	program=${program%.c*}
	echo "== $program"
	# A peer of plain verbs needs what gdrfab itself does without.
	if [ "$program" = verbs_raw ] && ! pkg-config --exists libibverbs; then
		echo "skip $program: no headers of libibverbs here"
		skipped=$((skipped + 1))
		continue
	fi
	# What it looks for is done by other processes and by the kernel.
	if [ "$program" = quiet ] && [ -n "$tool" ]; then
		echo "skip $program: a memory checker does not see other processes write"
		skipped=$((skipped + 1))
		continue
	fi
	if [ -z "$built" ] && ! build_program "$program"; then
		echo "FAIL $program: does not compile"
		failed=$((failed + 1))
		continue
	fi
	[ -n "$build_only" ] && continue
	under_checker "$program" "$build/$program" ${claim:+"$claim"} 2>&1 | tee "$build/$program.log"
	status=${PIPESTATUS[0]}
	ok=$(grep -c '^ok ' "$build/$program.log")
	bad=$(grep -c '^FAIL ' "$build/$program.log")
	left_out=$(grep -c '^skip ' "$build/$program.log")
	# An end that no claim accounts for.
	if [ "$bad" -eq 0 ] && [ "$status" -ne 0 ] && { [ "$status" -ne 77 ] || [ "$ok" -ne 0 ]; }; then
		echo "FAIL $program: exit status $status"
		bad=1
	fi
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
done

echo "$passed passed, $failed failed, $skipped skipped"
[ -n "$build_only" ] && exit $((failed > 0))
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
