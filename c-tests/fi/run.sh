#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the programs that drive a provider through libfabric, as a client of libfabric would, and runs them.
#
#   c-tests/fi/run.sh [options] [PROGRAM...]
#     --filter PROGRAM   only this one; may be given several times, like PROGRAM
#     --claim TEXT       only claims with TEXT in their names
#     --memcheck         under valgrind (also --valgrind); implies TEST_FAST=1
#     --build            builds, and runs nothing
#     --built            runs what an earlier --build has made
#     --cc CC --cflags '...'
#
# TEST_FI_PROVIDER is the provider's name (gdrfab); any other of libfabric's FI_EP_MSG providers shows whether the
# programs are fair: `TEST_FI_PROVIDER=tcp c-tests/fi/run.sh`. TEST_PROVIDER is which of gdrfab's own carries it (shm);
# TEST_NODE the address that they use, TEST_CLIENT_NETNS and TEST_CLIENT_NODE the client's if it is elsewhere. gdrfab is
# found at FI_PROVIDER_PATH, or else at PREFIX/lib/libfabric, or else at pkg-config's libdir of gdrfab. BUILD is where
# the programs go (target/c-tests/fi). Prints one line per claim, and at last `N passed, N failed, N skipped`.
set -u

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$here")")
cc=${CC:-cc} cflags= tool= claim= build_only= built=
programs=()

while [ $# -gt 0 ]; do
	case $1 in
	--filter) programs+=("$2") && shift ;;
	--claim) claim=$2 && shift ;;
	--valgrind | --memcheck) tool=memcheck ;;
	--build) build_only=1 ;;
	--built) built=1 ;;
	--cc) cc=$2 && shift ;;
	--cflags) cflags=$2 && shift ;;
	-*)
		sed -n '3,19s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	*) programs+=("$1") ;;
	esac
	shift
done

if ! pkg-config --exists libfabric; then
	echo "run.sh: no libfabric to build against (pkg-config does not know it); install libfabric-dev"
	exit 77
fi
build=${BUILD:-${CARGO_TARGET_DIR:-$root/target}/c-tests/fi}
mkdir -p "$build" || exit 1

export TEST_FI_PROVIDER=${TEST_FI_PROVIDER:-gdrfab} TEST_PROVIDER=${TEST_PROVIDER:-shm}
if [ "$TEST_FI_PROVIDER" = gdrfab ]; then
	if [ -z "${FI_PROVIDER_PATH:-}" ]; then
		libdir=${PREFIX:+$PREFIX/lib}
		FI_PROVIDER_PATH=${libdir:-$(pkg-config --variable=libdir gdrfab 2>/dev/null)}/libfabric
	fi
	export FI_PROVIDER_PATH FI_GDRFAB_PROVIDERS=$TEST_PROVIDER
	if [ -z "$build_only" ] && [ ! -e "$FI_PROVIDER_PATH/libgdrfab-fi.so" ]; then
		echo "run.sh: no $FI_PROVIDER_PATH/libgdrfab-fi.so; make install-plugin-libfabric, and set PREFIX" >&2
		exit 1
	fi
fi
# The others need not start in every process. The claim that looks for them unsets it.
export FI_PROVIDER=$TEST_FI_PROVIDER

# A client's view: libfabric's headers are the system's, not ours to judge.
strict="-std=c99 -Wall -Wextra -Wpedantic -Werror -D_GNU_SOURCE -DTEST_OWN_WORDS -g -O1 -pthread"
use_cflags=$(pkg-config --cflags libfabric | sed 's/-I/-isystem /g')
use_libs="$(pkg-config --libs libfabric) -ldl"

# What a memory checker finds ends a process with 99; the frame makes that a failed claim. Only definite losses count.
under_checker() { # <command...>
	if [ -n "$tool" ]; then
		valgrind -q --fair-sched=try --tool=memcheck --error-exitcode=99 --trace-children=yes \
			--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
			--suppressions="$here/../valgrind.supp" --suppressions="$here/valgrind.supp" "$@"
	else
		"$@"
	fi
}
if [ -n "$tool" ]; then
	export TEST_FAST=${TEST_FAST:-1} TEST_TIME_SCALE=${TEST_TIME_SCALE:-5}
	# Valgrind's machine is one thread: a wait that spins only keeps the other side from running.
	export GDRFAB_SPIN_US=${GDRFAB_SPIN_US:-0}
fi

cd "$here" || exit 1

# Device memory is that of a fake driver, unless TEST_REAL=1: then it is the machine's.
if [ "${TEST_REAL:-0}" != 1 ]; then
	fakes=$build/fakes
	if [ -z "$built" ] && ! CC=$cc ../fakes/build.sh "$fakes"; then
		echo "FAIL fakes: do not compile"
		echo "0 passed, 1 failed, 0 skipped"
		exit 1
	fi
	export GDRFAB_FAKES=$fakes LD_LIBRARY_PATH=$fakes${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

if [ ${#programs[@]} -eq 0 ]; then
	for file in $(grep -l '^TEST' ./*.c | LC_ALL=C sort); do
		file=${file#./}
		programs+=("${file%.*}")
	done
fi

passed=0 failed=0 skipped=0
common=()
for part in ../test fi_node fi_done fi_mem; do
	object=$build/${part##*/}.o
	# shellcheck disable=SC2086
	if [ -z "$built" ] && ! $cc $strict $cflags $use_cflags -c -o "$object" $part.c; then
		echo "FAIL ${part##*/}: does not compile"
		echo "0 passed, 1 failed, 0 skipped"
		exit 1
	fi
	common+=("$object")
done

for program in "${programs[@]}"; do
	program=${program%.c}
	echo "== fi/$program"
	# shellcheck disable=SC2086
	if [ -z "$built" ] &&
		! $cc $strict $cflags $use_cflags -o "$build/$program" "$program.c" "${common[@]}" $use_libs; then
		echo "FAIL $program: does not compile"
		failed=$((failed + 1))
		continue
	fi
	[ -n "$build_only" ] && continue
	under_checker "$build/$program" ${claim:+"$claim"} 2>&1 | tee "$build/$program.log"
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
