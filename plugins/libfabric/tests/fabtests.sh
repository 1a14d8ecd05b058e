#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs libfabric's own tests, which are built elsewhere: none of their sources is here.
#
#   plugins/libfabric/tests/fabtests.sh [options] DIRECTORY
#     DIRECTORY           where `make install` of fabtests has put them (bin/runfabtests.sh has their lists)
#     --lists "L..."      these of runfabtests.sh's lists (unit functional short); multinode and others too
#     --providers "P..."  each of these in turn as FI_GDRFAB_PROVIDERS (shm,tcp shm tcp)
#     --only PATTERN      tests whose command matches this extended regular expression
#     --logs DIRECTORY    their output, by test
#
# fabtests.txt lists the tests that need not pass, with the reasons; such a test that passes is reported too. With
# TEST_FI_PROVIDER="tcp;ofi_rxm" the tests run over that provider, and no result is expected. fabtests' own script is not used,
# because it kills every process of the machine that has a test's name.
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-${CARGO_TARGET_DIR:-$here/../../../target}/prefix}
lists="unit functional short" providers="shm,tcp shm tcp" only=. logs= tests=
while [ $# -gt 0 ]; do
	case $1 in
	--lists) lists=$2 && shift ;;
	--providers) providers=$2 && shift ;;
	--only) only=$2 && shift ;;
	--logs) logs=$2 && shift ;;
	-*) sed -n '3,15s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
	*) tests=$1 ;;
	esac
	shift
done
if [ ! -x "$tests/bin/fi_rdm" ]; then
	echo "skip fabtests: none in '${tests}'; build them of libfabric's repository, --prefix=DIRECTORY"
	echo "0 passed, 0 failed, 1 skipped"
	exit 77
fi
if [ -z "$logs" ]; then
	logs=$(mktemp -d) || exit 1
	trap 'rm -rf "$logs"' EXIT
fi
mkdir -p "$logs" || exit 1
name=${TEST_FI_PROVIDER:-gdrfab} scale=${TEST_TIME_SCALE:-1}
unset FI_PROVIDER FI_HOOK GDRFAB_TCP_KEY_FILE GDRFAB_FAULT
export FI_PROVIDER_PATH=$prefix/lib/libfabric GDRFAB_TCP_IFACE=lo
export FI_LOG_LEVEL=${FI_LOG_LEVEL:-warn} FI_LOG_PROV=${FI_LOG_PROV:-gdrfab}
at=127.0.0.1 passed=0 failed=0 skipped=0

# Runs a number of processes and returns their worst status; a client's failure ends its server.
processes() { # <number> <log> <command...>
	local number=$1 log=$2 worst=0 status i server clients= limit="timeout -k 2 $((60 * scale))"
	shift 2
	$limit "$@" -s $at >"$log.server" 2>&1 &
	server=$!
	sleep 0.6
	for ((i = 1; i < number; i++)); do
		# Multi-node tests have the same command line in all processes; in others the client names the server.
		if [ "$number" -gt 2 ]; then
			$limit "$@" -s $at >"$log.client$i" 2>&1 &
		else
			$limit "$@" -s $at $at >"$log.client$i" 2>&1 &
		fi
		clients+=" $!"
	done
	for i in $clients; do
		wait "$i"
		status=$?
		[ "$worst" -ne 0 ] || worst=$status
	done
	if [ "$worst" -ne 0 ]; then
		sleep 1
		kill "$server" 2>/dev/null
	fi
	wait "$server"
	status=$?
	[ "$worst" -ne 0 ] || worst=$status
	return "$worst"
}

# Prints why a test is not expected to pass; nothing if it is.
reason() { # <provider> <test>
	local where pattern why
	[ "$name" = gdrfab ] || return
	while IFS='|' read -r where pattern why; do
		case " $where " in *" $1 "* | *" all "*) [[ $2 =~ ^$pattern ]] && echo "$why" && return ;; esac
	done < <(grep -v '^#' "$here/fabtests.txt")
}

one() { # <list> <provider> <test>
	local test=$3 log status why words start=$SECONDS
	log=$logs/$2.$(tr -c 'a-zA-Z0-9_\n-' _ <<<"$test")
	# shellcheck disable=SC2086 # words
	case $1 in
	unit)
		timeout -k 2 $((60 * scale)) "$tests/bin/"${test//GOOD_ADDR/$at} -p "$name" >"$log" 2>&1
		;;
	multinode) processes 3 "$log" "$tests/bin/"$test -n 3 -p "$name" ;;
	*) processes 2 "$log" "$tests/bin/"$test -p "$name" ;;
	esac
	status=$?
	why=$(reason "$2" "$test")
	# With these statuses tests end if the provider lacks something.
	case $status in
	0) words=passes ;;
	38 | 61) words="does not run ($status)" ;;
	124 | 137) words="hangs" ;;
	*) words="fails ($status)" ;;
	esac
	if [ -n "$why" ] && [ "$status" -ne 0 ]; then
		echo "skip $2: $test: $words: $why"
		skipped=$((skipped + 1))
	elif [ -n "$why" ]; then
		echo "FAIL $2: $test: passes, though fabtests.txt says: $why"
		failed=$((failed + 1))
	elif [ "$status" -ne 0 ]; then
		echo "FAIL $2: $test: $words, $((SECONDS - start)) s"
		tail -n 4 -q "$log"* | sed 's/^/     | /'
		failed=$((failed + 1))
	else
		passed=$((passed + 1))
	fi
}

# Tests for other kinds of endpoints, or for a kind that the provider lacks.
foreign='dgram|sighandler'
for provider in $providers; do
	export FI_GDRFAB_PROVIDERS=$provider
	before=$passed
	for list in $lists; do
		while read -r test; do
			[[ $test =~ $only ]] && one "$list" "$provider" "${test//SERVER_ADDR/$at}"
		done < <(sed -n "/^${list}_tests=(/,/^)/s/^[[:space:]]*\"\(.*\)\"/\1/p" "$tests/bin/runfabtests.sh" | grep -Ev "$foreign")
	done
	echo "     $name over $provider: $((passed - before)) ok"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
