#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests shm between two containers of one host, by the namespaces that containers have: conformance programs whose clients are in
# network, pid, mount, user and ipc namespaces of their own, each kind alone, then all together, and at last with both sides in all
# of them (siblings). Both sides share the directory of the sockets. Each case runs as root and as another user, who can make
# namespaces only inside a user namespace. An impossible case prints a line that begins with "skip" and has the reason.
#
#   tests/check-containers.sh [options]
#     --namespaces "N..."  only these: none, net, pid, mount, user, ipc, all, siblings
#     --programs "P..."    these programs instead; PROGRAM or PROGRAM:TEXT in a claim's name
#     --jobs N             number of programs at a time (1)
#
# The library is found by pkg-config, as by c-tests/run.sh. BUILD is the directory for the programs.
set -u -o pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
build=${BUILD:-$target/c-tests}
kinds="none net pid mount user ipc all siblings" jobs=1
few="containers:paths_that_cannot containers:memory_files msg:by_address"
all="containers connection:data msg:by_address rma:direct_mem_alloc peer_killed:killed rdm_match:shm"
# No peer is killed between siblings, because neither side knows a process ID of the other.
siblings=${all/ peer_killed:killed/}
programs=
while [ $# -gt 0 ]; do
	case $1 in
	--namespaces) kinds=$2 && shift ;;
	--programs) programs=$2 && shift ;;
	--jobs) jobs=$2 && shift ;;
	*)
		sed -n '3,13s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
	shift
done
export TEST_PROVIDER=shm BUILD=$build TEST_FAST=${TEST_FAST:-1}
names=
for p in ${programs:-$all $few}; do [[ " $names " = *" ${p%%:*} "* ]] || names="$names ${p%%:*}"; done
# shellcheck disable=SC2086 # a list of words
"$root/c-tests/run.sh" --build $names || exit 1

passed=0 failed=0 skipped=0 broken=
skip() { # <pass> <reason>
	echo "skip $1: $2"
	skipped=$((skipped + 1))
}

run_pass() { # <name> <namespaces> <command...>: runs the programs by that command
	local name=$1 namespaces=$2 list=$3 servers= counts log=$build.containers holder own=$build start=$SECONDS
	[ "$kind" != siblings ] || servers=$namespaces
	shift 3
	holder=$(mktemp -d /tmp/gdrfab-XXXXXX) && mkdir -p "$holder/h/v" || exit 1
	echo "==== containers, $name"
	if [ $# -gt 0 ]; then
		# shellcheck disable=SC2086 # a list of words
		own=$holder/b && mkdir "$own" && (cd "$build" && cp -r fakes $names "$own") && chown -R $other_user "$holder" || exit 1
	fi
	# shellcheck disable=SC2086 # a list of words
	TEST_CLIENT_NAMESPACES=$namespaces TEST_SERVER_NAMESPACES=$servers BUILD=$own TEST_VOLUME=$holder/h/v GDRFAB_SHM_DIR=$holder/h/v "$@" \
		"$root/c-tests/run.sh" --built --jobs "$jobs" $list >"$log" 2>&1
	counts=$(tail -n 1 "$log")
	sed '$d' "$log"
	echo "     $(find "$holder/h/v" -mindepth 1 | wc -l) sockets of killed processes are left"
	rm -rf "$holder"
	echo "     $name took $((SECONDS - start)) s"
	if ! [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
		echo "FAIL $name: $counts"
		failed=$((failed + 1)) broken="$broken $name"
		return
	fi
	passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
	[ "${BASH_REMATCH[2]}" -eq 0 ] || broken="$broken $name"
}

other_user=12345
namespaces_of() { # <kind>
	case $1 in
	none) ;;
	all | siblings) echo "user net ipc mount pid" ;;
	*) echo "$1" ;;
	esac
}
for kind in $kinds; do
	namespaces=$(namespaces_of "$kind")
	case $kind in
	none | all) list=${programs:-$all} ;;
	siblings) list=${programs:-$siblings} ;;
	*) list=${programs:-$few} ;;
	esac
	if [ "$(id -u)" -eq 0 ]; then
		run_pass "$kind, as root" "$namespaces" "$list"
		run_as="setpriv --reuid=$other_user --regid=$other_user --clear-groups"
		if ! $run_as test -r "$root/c-tests/run.sh" 2>/dev/null; then
			skip "$kind, as user $other_user" "the programs are not to be read by others"
			continue
		fi
	else
		run_as=
	fi
	[ "$kind" = none ] || [ "$kind" = user ] || [ "$kind" = all ] || [ "$kind" = siblings ] || namespaces="user $namespaces"
	if [ -n "$namespaces" ] && ! $run_as unshare -U true 2>/dev/null; then
		skip "$kind, as a plain user" "no user namespaces: $($run_as unshare -U true 2>&1)"
		continue
	fi
	# shellcheck disable=SC2086 # a list of words
	run_pass "$kind, as a plain user" "$namespaces" "$list" $run_as
done
echo "$passed passed, $failed failed, $skipped skipped${broken:+ (failed in:$broken)}"
[ "$failed" -eq 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77
