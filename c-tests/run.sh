#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the conformance programs against an installed gdrfab, as a user would, and runs them.
#
#   c-tests/run.sh [options] [PROGRAM[:TEXT]...]
#     PROGRAM            (or --filter PROGRAM) a file of c-tests/*/ without its ending, such as rma; without any: all
#     --claim TEXT       only claims with TEXT in their names; PROGRAM:TEXT does so for one program
#     --memcheck         under valgrind's memcheck (also --valgrind); implies TEST_FAST=1
#     --helgrind         under valgrind's helgrind; implies TEST_FAST=1
#     --suite NAME       the programs of plugins/NAME/tests (nccl, libfabric) instead of these
#     --jobs N           N programs at a time (1); programs that measure CPU time or flood a listener run alone
#     --build            builds, and runs nothing
#     --built            runs the programs of an earlier --build
#     --cc CC --cxx CXX --cflags '...'
#
# pkg-config finds the library: set PKG_CONFIG_PATH, as to target/prefix/lib/pkgconfig after `make check-install`. BUILD is
# the folder for the programs (target/c-tests); those of a suite go to BUILD.NAME. Prints one line per claim, and at last
# `N passed, N failed, N skipped`. docs/testing.md lists the variables that set the conditions.
#
# Device memory comes from fake drivers, which are built too; TEST_IFACES names the ones to use (all).
# TEST_REAL=1: device memory comes from the machine's own drivers, which TEST_IFACES names (cuda).
set -u

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cc=${CC:-cc} cxx=${CXX:-c++} cflags= tool= claim= build_only= built= jobs=1 suite=
programs=()

while [ $# -gt 0 ]; do
	case $1 in
	--filter) programs+=("$2") && shift ;;
	--claim) claim=$2 && shift ;;
	--valgrind | --memcheck) tool=memcheck ;;
	--helgrind) tool=helgrind ;;
	--suite) suite=$2 && shift ;;
	--jobs) jobs=$2 && shift ;;
	--build) build_only=1 ;;
	--built) built=1 ;;
	--cc) cc=$2 && shift ;;
	--cxx) cxx=$2 && shift ;;
	--cflags) cflags=$2 && shift ;;
	-*)
		sed -n '3,22s/^# \{0,1\}//p' "$0" >&2
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
mkdir -p "$build" && fakes=$(cd "$build" && pwd)/fakes || exit 1
dir=$here sources=("$here"/*/*.c "$here"/*/*.cpp) build=${fakes%/fakes}
if [ -n "$suite" ]; then
	dir=$root/plugins/$suite/tests build=$build.$suite
	sources=("$dir"/*.c "$dir"/*.cpp)
	mkdir -p "$build" || exit 1
	# shellcheck source=/dev/null
	[ ! -e "$dir/suite.sh" ] || . "$dir/suite.sh"
fi
cd "$here" || exit 1

# ---- building

if [ ${#programs[@]} -eq 0 ]; then
	mapfile -t programs < <(grep -sl '^TEST' "${sources[@]}" | sed 's|.*/||; s|\.[a-z]*$||' | LC_ALL=C sort)
fi
passed=0 failed=0 skipped=0
finish() {
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ] && { [ -n "$build_only" ] || [ $((passed + skipped)) -gt 0 ]; }
	exit
}
# The programs to run, as PROGRAM:TEXT: those that may run beside others (long and side_by_side), and those that run alone.
side_by_side=() alone=() long=() names=()
for item in "${programs[@]}"; do
	program=${item%%:*} text=$claim
	[ "$program" = "$item" ] || text=${item#*:}
	program=${program%.c*}
	if [ "$program" = verbs_raw ] && ! pkg-config --exists libibverbs; then
		printf '== %s\nskip %s: no headers of libibverbs here\n' "$program" "$program"
		skipped=$((skipped + 1))
		continue
	fi
	why=
	case $program${tool:+.checked} in
	transfer_end.checked) why="a memory checker does not see other processes write" ;;
	peer_exec.checked) why="a memory checker takes seconds to execute a program, and peer_killed loses a peer in the same way" ;;
	socket_dir.checked | containers.checked) why="it is about what the kernel lets other users do" ;;
	esac
	if [ -n "$why" ]; then
		printf '== %s\nskip %s: %s\n' "$program" "$program" "$why"
		skipped=$((skipped + 1))
		continue
	fi
	names+=("$program")
	case $program${tool:+.checked} in
	# A listener waits five seconds for its client, and in that time the copying process has to start under the checker.
	copier.checked | copier_end.checked) alone+=("$program:$text") && continue ;;
	esac
	case $program in
	listen_hostile | shm_hostile | shm_endless | tcp_flood | nccl_patience) alone+=("$program:$text") ;;
	# The longest programs start first, or they would run alone at the end.
	rma | rma_order | msg | msg_order | shm_random | device_rma | device_fails | peer_killed | fault_injection | transfer_end | nccl_fault) long+=("$program:$text") ;;
	*) side_by_side+=("$program:$text") ;;
	esac
done
side_by_side=("${long[@]}" "${side_by_side[@]}")

if [ -z "$built" ] && ! env -u MAKEFLAGS make -s -k -j "$(nproc)" SUITE="$suite" BUILD="$build" FAKES="$fakes" CC="$cc" CXX="$cxx" CFLAGS_MORE="$cflags" \
	PROGRAMS="${names[*]}"; then
	for program in "${names[@]}"; do
		[ -x "$build/$program" ] && continue
		echo "FAIL $program: does not compile"
		failed=$((failed + 1))
	done
	[ $failed -gt 0 ] || { echo "FAIL c-tests: what they share does not compile" && failed=1; }
	finish
fi
[ -z "$build_only" ] || finish

# ---- surroundings

# A finding of the memory checker ends the process with 99, which fails its claim. Only definite leaks count. The program fork has
# no leak check, because a forked child lacks its parent's other threads and never frees the memory that those held. guest-chase
# is off, because it makes valgrind's translation of the library slower, which each process of a claim repeats.
under_checker() { # <program> <command...>
	local leaks=full program=$1
	shift
	[ "$program" = fork ] && leaks=no
	case $tool in
	memcheck)
		valgrind -q --vgdb=no --vex-guest-chase=no --fair-sched=try --tool=memcheck --error-exitcode=99 --trace-children=yes --leak-check=$leaks \
			--show-leak-kinds=definite --errors-for-leak-kinds=definite "${suppressions[@]}" "$@"
		;;
	helgrind) valgrind -q --fair-sched=try --tool=helgrind --error-exitcode=99 --trace-children=yes "$@" ;;
	*) "$@" ;;
	esac
}
if [ -n "$tool" ]; then
	suppressions=("--suppressions=$here/valgrind.supp")
	[ "$dir" = "$here" ] || [ ! -e "$dir/valgrind.supp" ] || suppressions+=("--suppressions=$dir/valgrind.supp")
	export TEST_FAST=${TEST_FAST:-1} TEST_TIME_SCALE=${TEST_TIME_SCALE:-5} TEST_CHECKER=$tool
	# A wait does not spin, because valgrind runs one thread at a time, so that spinning keeps other threads from running.
	export GDRFAB_SPIN_US=${GDRFAB_SPIN_US:-0}
fi

# Device memory comes from the real drivers, or from fakes with the same library names.
if [ "${TEST_REAL:-0}" = 1 ]; then
	export TEST_IFACES=${TEST_IFACES-cuda}
else
	all=
	for pair in cuda:libcuda.so.1 rocr:libhsa-runtime64.so.1 ze:libze_loader.so.1 neuron:libnrt.so.1 \
		synapseai:libSynapse.so; do
		[ -e "$fakes/${pair#*:}" ] && all=${all:+$all,}${pair%%:*}
	done
	export TEST_IFACES=${TEST_IFACES-$all} GDRFAB_FAKES=$fakes
	export LD_LIBRARY_PATH=$fakes${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# The five lines in which valgrind reports, for each process, that it does not know pidfd_open().
unknown='WARNING: unhandled [a-z0-9]+-linux syscall: 434|You may be able to write your own handler\.'
unknown="$unknown|Read the file README_MISSING_SYSCALL_OR_IOCTL\.|Nevertheless we consider this a bug\.  Please report"
unknown="^--[0-9]+-- ($unknown|it at http://valgrind\.org/support/bug_reports\.html\.)\$"

# ---- running

logs=$(mktemp -d "$build/logs.XXXXXX") || exit 1
trap 'rm -rf "$logs"' EXIT
run_item() { # <PROGRAM:TEXT> <its log>
	local program=${1%%:*} text=${1#*:} start=$SECONDS
	echo "== ${suite:+$suite/}$program${text:+ ($text)}"
	under_checker "$program" "$build/$program" ${text:+"$text"} 2>&1 | grep --line-buffered -vE "$unknown"
	echo "${PIPESTATUS[0]}" >"$2.status"
	[ $((SECONDS - start)) -lt 10 ] || echo "     $program took $((SECONDS - start)) s"
}
count() { # <PROGRAM:TEXT> <its log>
	local program=${1%%:*} text=${1#*:} status ok bad gone
	status=$(cat "$2.status" 2>/dev/null || echo "of nothing")
	ok=$(grep -c '^ok ' "$2") bad=$(grep -c '^FAIL ' "$2") gone=$(grep -c '^skip ' "$2")
	# The status is an error that no claim reports: the program failed outside of its claims.
	if [ "$bad" -eq 0 ] && [ "$status" != 0 ] && { [ "$status" != 77 ] || [ "$ok" -ne 0 ]; }; then
		echo "FAIL $program: exit status $status"
		bad=1
	fi
	# The name of a claim that does not exist is an error, because otherwise nothing would be tested.
	if [ -n "$text" ] && [ "$text" != "$claim" ] && [ $((ok + bad + gone)) -eq 0 ]; then
		echo "FAIL $program:$text: no claim has this name"
		bad=1
	fi
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + gone))
}
if [ "$jobs" -gt 1 ]; then
	declare -A running=()
	finish_one() {
		local pid=
		wait -n -p pid "${!running[@]}"
		cat "$logs/${running[$pid]%% *}"
		count "${running[$pid]#* }" "$logs/${running[$pid]%% *}"
		unset "running[$pid]"
	}
	for i in "${!side_by_side[@]}"; do
		[ ${#running[@]} -lt "$jobs" ] || finish_one
		run_item "${side_by_side[i]}" "$logs/$i" >"$logs/$i" 2>&1 </dev/null &
		running[$!]="$i ${side_by_side[i]}"
	done
	while [ ${#running[@]} -gt 0 ]; do finish_one; done
	side_by_side=()
fi
for item in "${side_by_side[@]}" "${alone[@]}"; do
	run_item "$item" "$logs/alone" | tee "$logs/alone"
	count "$item" "$logs/alone"
done
finish
