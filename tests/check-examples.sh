#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs each example many times. In each run one side leaves before one of its calls of the library: the first call in the first run, the
# second call in the second, and so on. The side is killed, or closes its objects and exits.
#
#   tests/check-examples.sh PROGRAMS [EXAMPLE...]
#
# PROGRAMS is the folder of the built examples. The remaining side must end within twice LIMIT seconds (20): with an error message
# and a status that is not 0, or with its work done. A listener that no request has reached must serve the next client. Prints a line
# that begins with "ok" or "FAIL" for each example and side; exit status 1 if one failed.
set -u

programs=${1:?usage: check-examples.sh PROGRAMS [EXAMPLE...]}
shift
[ $# -gt 0 ] || set -- rdma_transport_pingpong rdma_transport_batch kvmove file_transfer readme gaudi_pingpong hello
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -gt 1 ]; then
	# Four examples run at a time, because the sides mostly wait for each other. The longest example is the first.
	logs=$(mktemp -d) || exit 1
	trap 'rm -rf "$logs"' EXIT
	printf '%s\n' "$@" | LOGS=$logs xargs -P 4 -I EXAMPLE bash -c '"$0" "$1" EXAMPLE >"$LOGS/EXAMPLE" 2>&1' "$0" "$programs"
	status=$?
	for example in "$@"; do cat "$logs/$example"; done
	[ $status -eq 0 ]
	exit
fi
limit=$((${LIMIT:-20} * ${TEST_TIME_SCALE:-1}))
work=$(mktemp -d) || exit 1
running= failed=0
# shellcheck disable=SC2317 # called by the trap
tidy() {
	# timeout(1) passes the signal on.
	for pid in $running; do kill "$pid" 2>/dev/null; done
	rm -rf "$work"
}
trap tidy EXIT
trap 'exit 1' INT TERM

# shellcheck disable=SC2046 # words
nm -D --defined-only "$PREFIX/lib/libgdrfab.so" | sed -n 's/.* \(gdrfab_.*\)/LEAVE_NAME(\1)/p' >"$work/names.h" &&
	${CC:-cc} -std=c11 -O1 -Wall -Wextra -Wno-builtin-declaration-mismatch -fPIC -shared -I "$work" \
		-o "$work/leave.so" "$here/examples/leave.c" -ldl || exit 1
sed -n '/^```c$/,/^```$/p' "$here/../README.md" | sed '/^```/d' >"$work/readme.c"
# shellcheck disable=SC2046
${CC:-cc} -std=c99 -o "$work/readme" "$work/readme.c" $(pkg-config --cflags --libs gdrfab) || exit 1
head -c 100000 /dev/zero >"$work/file"

# Starts one side. $started is its pid; its output goes to $work/<side>.out and .err.
start() { # <side> <call where it leaves, or 0> <killed|closed> <command...>
	local side=$1 at=$2 as=$3
	shift 3
	# The inner shell turns the end by a signal into an exit status; without it this shell would print a message about the signal.
	# shellcheck disable=SC2016 # for sh
	timeout -k 1 $((2 * limit)) sh -c '"$@"; exit $?' sh env LD_PRELOAD="$work/leave.so" LEAVE_LOG="$work/$side.log" \
		LEAVE_AT="$at" LEAVE_AS="$as" "$@" >"$work/$side.out" 2>"$work/$side.err" &
	started=$!
	running="$running $started"
}

has_left() { # <side>
	grep -q '^left ' "$work/$1.log" 2>/dev/null
}

# Succeeds if the side that was to leave neither left nor ended by itself, and so ended by another signal.
crashed() { # <side>
	! grep -q '^left \|^ended ' "$work/$1.log" 2>/dev/null && { wrong "the $1 ends by a signal" || :; }
}

wrong() { # <words>
	echo "     $1"
	for side in server client both; do
		for kind in out err log; do sed "s/^/       $side.$kind: /" "$work/$side.$kind" 2>/dev/null | head -n 8; done
	done
	return 1
}

# Succeeds if the remaining side ended with 0 after its last line, or with another status and an error message.
ended_well() { # <side> <status> <what it says when its work is done; empty: the copied file tells>
	[ "$2" -lt 124 ] || { wrong "the $1 waits for ever, or ends by a signal: $2"; return 1; }
	if [ "$2" -eq 0 ]; then
		{ [ -z "$3" ] && cmp -s "$work/file" "$work/copy"; } || { [ -n "$3" ] && grep -qh "$3" "$work/$1.out" "$work/$1.err"; } ||
			wrong "the $1 ends with 0, and its work is not done"
	else
		[ -s "$work/$1.err" ] || wrong "the $1 ends with $2 and no words"
	fi
}

# Waits for a listener's line, or its end; $place is the text in place of the line's @.
listens() { # <pid> <line>
	place=
	for _ in $(seq $((limit * 50))); do
		place=$(sed -n "s/^.*${2/@/\\(.*\\)}\$/\\1/p" "$work/server.out" 2>/dev/null | head -n 1)
		[ -z "$place" ] && kill -0 "$1" 2>/dev/null || return 0
		sleep 0.02
	done
}

# Succeeds if a listener keeps waiting: if no request has reached the listener, it cannot know that a peer left.
still_waits() { # <pid>
	local until=$((SECONDS + limit / 2))
	while [ $SECONDS -lt $until ]; do
		kill -0 "$1" 2>/dev/null || return 1
		sleep 0.1
	done
}

# One run: the side <who> leaves at its <at>-th call. Returns 2 if it makes fewer calls.
pair_once() { # <who> <at> <killed|closed>
	local server client server_at=0 client_at=0 status
	rm -f "$work"/{server,client}.{out,err,log} "$work"/copy*
	[ "$1" = server ] && server_at=$2 || client_at=$2
	# shellcheck disable=SC2086 # words
	start server "$server_at" "$3" $server_command
	server=$started
	listens "$server" "$line"
	# shellcheck disable=SC2086
	start client "$client_at" "$3" ${client_command/@/${place:-127.0.0.1:1}}
	client=$started
	wait "$client"
	status=$?
	if [ "$1" = server ]; then
		wait "$server"
		has_left server || return 2
		! crashed server || return 1
		ended_well client $status "$client_done"
		return
	fi
	! crashed client || return 1
	has_left client || { wait "$server"; return 2; }
	if [ -n "$asks" ] && { ! grep -q asked "$work/client.log" || still_waits "$server"; }; then
		# shellcheck disable=SC2086
		start client 0 killed ${client_command/@/${place:-127.0.0.1:1}}
		client=$started
		wait "$client" || { wrong "the listener does not serve the next client"; kill "$server" 2>/dev/null; wait "$server"; return 1; }
		wait "$server" || wrong "the listener does not serve the next client well"
		return
	fi
	wait "$server"
	ended_well server $? "$server_done"
}

# The same for a program that forks its peer. The pipe to cat stays open until both have ended.
fork_once() { # <parent|child> <at> <killed|closed>
	local status
	rm -f "$work"/both.{out,err,log}
	# shellcheck disable=SC2016,SC2086 # for sh; words
	timeout -k 1 "$limit" sh -c 'work=$0; env "$@" 3>&1 >"$work/both.out" 2>"$work/both.err" | cat' "$work" \
		LD_PRELOAD="$work/leave.so" LEAVE_LOG="$work/both.log" LEAVE_WHO="$1" LEAVE_AT="$2" LEAVE_AS="$3" $both_command 2>/dev/null ||
		{ wrong "the side that stays waits for ever"; return 1; }
	has_left both || return 2
	status=$(sed -n 's/^ended //p' "$work/both.log")
	[ -n "$status" ] || { wrong "the side that stays ends by a signal"; return 1; }
	ended_well both "$status" "$both_done"
}

# Makes the runs of one example: for every call in turn, and for later calls in growing steps ($stride).
every() { # <name> <how to run it once> <sides>
	local name=$1 once=$2 who as at runs got bad
	shift 2
	for who in "$@"; do
		for as in killed closed; do
			at=1 runs=0 bad=0
			while :; do
				"$once" "$who" $at $as
				got=$?
				running=
				[ $got -ne 2 ] || break
				runs=$((runs + 1))
				if [ $got -ne 0 ]; then
					echo "FAIL $name: $who $as at call $at, $(cat "$work"/*.log | grep '^left')"
					failed=1 bad=$((bad + 1))
					[ $bad -lt 2 ] || break
				fi
				at=$((at + 1 + at / stride))
			done
			if [ $runs -eq 0 ]; then
				echo "FAIL $name: $who never left"
				failed=1
			elif [ $bad -eq 0 ]; then
				echo "ok   $name: $who $as at $runs of its first $at calls"
			fi
		done
	done
}

pair() { # <name> <server's command> <line that it says when it listens> <client's command>
	server_command=$2 line=$3 client_command=$4
	every "$1" pair_once server client
}
fork() { # <name> <command>
	both_command=$2
	every "$1" fork_once parent child
}

for example in "$@"; do
	asks=yes stride=3
	case $example in
	hello)
		server_done='bytes arrived' client_done='bytes written' stride=20
		pair hello "$programs/hello server" 'listening at @' "$programs/hello client"
		;;
	readme)
		both_done='child: over\|parent: '
		for provider in shm tcp; do
			fork "README over $provider" "GDRFAB_PROVIDER=$provider $work/readme"
		done
		;;
	kvmove | rdma_transport_batch | rdma_transport_pingpong)
		both_done='released\|GB/s\|every block\|rounds of'
		for provider in shm tcp; do
			case $example in
			kvmove) fork "$example over $provider" "GDRFAB_PROVIDER=$provider $programs/kvmove --blocks 20" ;;
			rdma_transport_batch) fork "$example over $provider" "$programs/$example $provider 20" ;;
			*) fork "$example over $provider" "$programs/$example --providers $provider --rounds 5" ;;
			esac
		done
		;;
	file_transfer)
		server_done='good: ' client_done=''
		for provider in shm tcp; do
			pair "$example over $provider" "$programs/$example recv --provider $provider --timeout 3 --out $work/copy" \
				'listening at @' "$programs/$example send @ $work/file --timeout 3"
		done
		;;
	gaudi_pingpong)
		# The two sides are connected by a socket, so neither sends a connection request.
		asks=
		server_done='good over' client_done='good over'
		for provider in shm tcp; do
			pair "$example over $provider" "$programs/$example listen 127.0.0.1:0 --mem host --provider $provider" \
				'listening on port @' "$programs/$example connect 127.0.0.1:@ --mem host --provider $provider"
		done
		;;
	*)
		echo "check-examples.sh: there is no example $example" >&2
		exit 2
		;;
	esac
done
exit $failed
