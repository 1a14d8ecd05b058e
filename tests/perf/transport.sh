#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The options of gdrfab-perf for transports: lists, both directions, several endpoints, inline data, a limited rate, connecting by
# exchanged addresses, and rdma-transport. See tests/check-perf.sh.
set -u
. "$(dirname "$0")/claims.sh"

# Emulated CPUs are slow.
slow=${TEST_TIME_SCALE:-1}

# Runs over a provider with JSON output in $work/json; must succeed, with each word in the output.
run_json() { # <provider> <word,word...> <arguments...>
	local provider=$1 words=$2 word
	shift 2
	local_run "$provider" "$@" --json >"$work/json" || return
	IFS=, read -ra words <<<"$words"
	for word in "${words[@]}"; do
		grep -qF -e "$word" "$work/json" || {
			echo "no $word in:"
			cat "$work/json"
			return 1
		}
	done
}

# The text output must contain <text>.
says() { # <provider> <text> <arguments...>
	local provider=$1 text=$2
	shift 2
	local_run "$provider" "$@" >"$work/text" || return
	grep -qF -e "$text" "$work/text" || {
		cat "$work/text"
		return 1
	}
}

# Must fail with status 1 and an error message that contains <text>.
fails() { # <provider> <text> <arguments...>
	local provider=$1 text=$2 status
	shift 2
	local_run "$provider" "$@" 2>"$work/err"
	status=$?
	cat "$work/err"
	[ $status -eq 1 ] && grep -qF -e "$text" "$work/err"
}

# The sum must contain both directions: the server's part, and not only that.
sums() { # <provider> <test>
	run_json "$1" '"bidirectional": true,"verified": true' "$2" -s 4K:8K -n 2000 -b --verify || return
	awk -F '[:,]' '/"bw_average_mb_s"/ { sum = $2 } /"bw_server_mb_s"/ { print sum, $2; rows++; bad += !($2 > 0 && sum > $2) }
		END { exit bad || rows != 2 }' "$work/json"
}

# A limit far below the speed of any transport is never exceeded, and is reached; on a busy machine that may take a few tries.
paced() { # <provider> <messages a second> <options...>
	local provider=$1 rate=$2 try
	shift 2
	for try in 1 2 3 4; do
		run_json "$provider" '"rate_limit"' write-bw -s 64 -D 0.5 -w 10 --rate-limit "$rate" --rate-unit p "$@" || return
		awk -F '[:,]' -v want="$rate" '/"msg_rate_mpps"/ { got = $2 * 1e6; print "'"$try"'", got }
			END { exit got > 1.3 * want ? 2 : got < 0.7 * want }' "$work/json"
		case $? in
		0) return 0 ;;
		2) return 1 ;;
		esac
	done
	return 1
}

# Starts a server: the options to listen with a provider, and the address for a client.
start_server() { # <provider> <arguments...>
	local provider=$1 where=(--name "check-perf.$$") i
	shift
	case $provider in
	tcp) where=(--port 0) ;;
	verbs) where=(--name "${NODE:-127.0.0.1}" --port 0) ;;
	esac
	case " $* " in *" --connect addresses "*)
		where=(--control-port 0)
		[ "$provider" != verbs ] || where+=(--name "${NODE:-127.0.0.1}")
		;;
	esac
	# The output of an earlier server must not be read.
	: >"$work/server"
	"$PERF" "$@" "${where[@]}" -p "$provider" >"$work/server" 2>"$work/server.err" &
	server=$!
	for ((i = 0; i < 100; i++)); do
		at=$(sed -n 's/^waiting on \(.*\) for: .*/\1/p' "$work/server" | tail -n 1)
		[ -z "$at" ] || return 0
		sleep 0.1
	done
	echo "the server does not listen: $(cat "$work/server.err")"
	return 1
}

# Waits at most <seconds> for the end of process <pid>, and returns its status.
ends_within() { # <seconds> <pid>
	local i
	for ((i = 0; i < $1 * 10; i++)); do
		kill -0 "$2" 2>/dev/null || break
		sleep 0.1
	done
	kill -0 "$2" 2>/dev/null && echo "still there after $1 s" && return 99
	wait "$2"
}

# If a client with several endpoints is killed or stopped, its server ends in time; and so does a client if its server is.
loses_peer() { # <provider> <who> <signal> <connect>
	local provider=$1 who=$2 signal=$3 connect=$4 client survivor victim status i
	start_server "$provider" write-bw --connect "$connect" || return
	: >"$work/client"
	"$PERF" write-bw -s 4K -D 30 -q 8 -b --deadline $((2000 * slow)) --connect "$connect" -p "$provider" "$at" >"$work/client" 2>&1 &
	client=$!
	# The run must have begun: its table's head has been printed.
	for ((i = 0; i < 100; i++)); do
		grep -q '^ how ' "$work/client" && break
		sleep 0.1
	done
	sleep 0.5
	victim=$client survivor=$server
	[ "$who" = client ] || victim=$server survivor=$client
	kill "-$signal" "$victim" || {
		cat "$work/client" "$work/server.err"
		return 1
	}
	ends_within $((8 * slow)) "$survivor"
	status=$?
	kill -KILL "$client" "$server" 2>/dev/null
	wait "$victim"
	cat "$work/client" "$work/server.err"
	server=
	[ $status -eq 1 ]
}

# Sends stdin to <host:port>, whatever the receiver does.
throw() {
	exec 9<>"/dev/tcp/${1%:*}/${1##*:}" || return
	cat >&9 2>/dev/null
	exec 9>&-
}

# Invalid data at the control port is rejected, and the next client is served.
garbage() { # <provider>
	local status
	start_server "$1" write-lat --connect addresses --deadline $((1000 * slow)) || return
	printf 'GET / HTTP/1.0\r\n\r\n' | throw "$at" || return
	head -c 100000 /dev/urandom | throw "$at" || return
	# A valid beginning with an endless frame; a frame that ends early; a plan of zeros.
	printf 'gdrfabc\x01\xff\xff\xff\xff' | throw "$at" || return
	printf 'gdrfabc\x01\x40\x00\x00\x00abc' | throw "$at" || return
	{
		printf 'gdrfabc\x01\x37\x00\x00\x00\x03\x00shm\x30\x00'
		head -c 48 /dev/zero
	} | throw "$at" || return
	# A connection that sends nothing.
	exec 9<>"/dev/tcp/${at%:*}/${at##*:}" || return
	timeout 60 "$PERF" write-lat -s 8 -n 10 --connect addresses -p "$1" "$at" >"$work/client" 2>&1
	status=$?
	exec 9>&-
	[ $status -eq 0 ] && ends_within $((5 * slow)) "$server"
	status=$?
	kill -KILL "$server" 2>/dev/null
	server=
	cat "$work/client" "$work/server.err"
	[ $status -eq 0 ] && [ "$(grep -c 'was turned away' "$work/server.err")" -ge 5 ]
}

# A server with limits rejects a client that wants more, with an error message, and serves the next one.
bounded() { # <provider> <text> <connect> <server's options...> -- <client's options...>
	local provider=$1 text=$2 connect=$3 options=() status next
	shift 3
	while [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	shift
	start_server "$provider" write-bw -k --connect "$connect" "${options[@]}" || return
	timeout 60 "$PERF" write-bw "$@" --connect "$connect" -p "$provider" "$at" >"$work/client" 2>&1
	status=$?
	timeout 60 "$PERF" write-bw -s 4K -n 100 --connect "$connect" -p "$provider" "$at" >"$work/next" 2>&1
	next=$?
	kill -KILL "$server" 2>/dev/null
	server=
	cat "$work/client" "$work/next" "$work/server.err"
	[ $status -eq 1 ] && grep -qF -e "$text" "$work/client" && [ $next -eq 0 ]
}

# Connections that send nothing, or stop halfway, delay nobody.
silent() { # <provider>
	local fds=() fd i status before
	start_server "$1" write-lat --connect addresses --deadline 60000 || return
	for ((i = 0; i < 40; i++)); do
		exec {fd}<>"/dev/tcp/${at%:*}/${at##*:}" || return
		fds+=("$fd")
		[ $((i % 2)) -eq 0 ] || printf 'gdrfabc\x01\x40' >&"$fd"
	done
	before=$SECONDS
	timeout 60 "$PERF" write-lat -s 8 -n 10 --connect addresses -p "$1" "$at" >"$work/client" 2>&1
	status=$?
	for fd in "${fds[@]}"; do exec {fd}>&-; done
	kill -KILL "$server" 2>/dev/null
	server=
	cat "$work/client" "$work/server.err"
	[ $status -eq 0 ] && [ $((SECONDS - before)) -le $((5 * slow)) ]
}

# Without -p the library's first set is used.
first_offered() { # <set>
	timeout 60 "$PERF" send-lat -s 8 -n 50 --ep rdm --tagged --local --json >"$work/json" || return
	cat "$work/json"
	grep -qF "\"provider\": \"$1\"" "$work/json" && grep -qF '"tagged": true' "$work/json"
}

# If the two sides of one host cannot share memory, they use the card.
by_card() {
	local status
	GDRFAB_SHM_DIR=$work start_server shm+verbs+tcp write-bw --ep rdm --connect addresses || return
	timeout 60 "$PERF" write-bw -s 64K -n 20 --ep rdm --verify --json "$at" >"$work/client" 2>&1
	status=$?
	kill -KILL "$server" 2>/dev/null
	server=
	cat "$work/client" "$work/server.err"
	[ $status -eq 0 ] && grep -qF '"path": "nic"' "$work/client"
}

for provider in $PROVIDERS; do
	claim "$provider: lists of operations" run_json "$provider" '"post_list": 16,"verified": true' write-bw -s 8:4K -n 500 -l 16 --verify
	claim "$provider: lists of messages" run_json "$provider" '"verified": true' send-bw -s 64 -n 333 -l 8 -Q 16 --verify
	claim "$provider: lists of reads" run_json "$provider" '"verified": true' read-bw -s 64:64K -n 100 -l 5 -d 12 --verify
	for test in write-bw read-bw send-bw write-rate; do
		claim "$provider: $test in both directions" sums "$provider" "$test"
	done
	for test in write-bw read-bw send-bw; do
		claim "$provider: $test over eight endpoints" run_json "$provider" '"endpoints": 8,"verified": true' "$test" -s 64:64K \
			-n 400 -q 8 --verify
	done
	claim "$provider: inline data" run_json "$provider" '"inline": 64,"verified": true' write-lat -s 8:128 -n 50 -I 64 --verify
	claim "$provider: inline messages in lists" run_json "$provider" '"verified": true' send-bw -s 16:256 -n 100 -I 64 -l 4 -b --verify
	for test in write-lat send-lat read-bw; do
		claim "$provider: $test, connected by addresses" run_json "$provider" '"connect": "addresses","verified": true' "$test" -s 8:4K -n 100 \
			--connect addresses --verify
	done
	rdm=("send-lat --tagged" "send-bw --tagged -q 4 -b" send-bw write-lat read-bw) sizes=8:64K
	# The guest is slow, so fewer runs.
	[ "$provider" != verbs ] || rdm=("send-bw --tagged -q 4 -d 8" write-lat) sizes=4K:16K
	for test in "${rdm[@]}"; do
		claim "$provider: $test, connectionless" run_json "$provider" '"ep": "rdm","connect": "addresses","verified": true' $test -s $sizes \
			-n 50 --ep rdm --verify
	done
	claim "$provider: rdma-transport" run_json "$provider" '"write_usec","read_gb_s","register_8k_usec","verified": true' rdma-transport \
		-s 8K:1M -n 20 --verify
	for connect in cm addresses; do
		claim "$provider: a server with eight endpoints survives its client ($connect)" loses_peer "$provider" client KILL $connect
		claim "$provider: a client with eight endpoints survives its server ($connect)" loses_peer "$provider" server KILL $connect
	done
	claim "$provider: a client that stands still is given up" loses_peer "$provider" client STOP cm
	# The rest is done by the program itself, with any provider in the same way; a guest is slow.
	[ "$provider" != verbs ] || continue
	claim "$provider: the row says what is a sum" says "$provider" "both directions: " write-bw -s 4K -n 100 -b
	claim "$provider: all at once" run_json "$provider" '"verified": true' send-bw -s 2:8K -n 300 -q 3 -l 4 -d 8 -b --verify
	claim "$provider: the head says endpoints" says "$provider" "5 endpoints" write-rate -n 100 -q 5
	claim "$provider: no inline data" run_json "$provider" '"inline": 0,"verified": true' send-lat -s 1:128 -n 50 -I 0 --verify
	claim "$provider: more inline data than there can be" fails "$provider" "takes up to" write-lat -s 8 -n 1 -I 4096
	claim "$provider: a limited rate" paced "$provider" 500
	claim "$provider: a limited rate in bursts" paced "$provider" 800 --burst 16 -l 4 -q 2
	claim "$provider: the head says the limit" says "$provider" "at most 1 MB/s in bursts of 1" write-bw -s 1K -n 20 --rate-limit 1 --rate-unit m
	claim "$provider: bandwidth in Gb/s" says "$provider" "BW average[Gb/sec]" write-bw -s 4K -n 10 --report-gbits
	claim "$provider: several endpoints by addresses" run_json "$provider" '"verified": true' send-bw -s 8:4K -n 100 -q 8 -b \
		--connect addresses --verify
	claim "$provider: rdma-transport's table" says "$provider" "and deregister 8192 bytes" rdma-transport -s 8K -n 10
	claim "$provider: CPU use of both sides" run_json "$provider" '"cpu_client_percent": ,"cpu_server_percent": ' write-lat -s 8 -n 1000
	claim "$provider: garbage at the control port" garbage "$provider"
	claim "$provider: silent callers at the control port" silent "$provider"
	for connect in cm addresses; do
		claim "$provider: memory beyond a server's bound ($connect)" bounded "$provider" --max-memory $connect --max-memory 16M -- -s 8M -n 10
		claim "$provider: time beyond a server's bound ($connect)" bounded "$provider" --max-time $connect --max-time $slow -- -s 4K -D $((5 * slow))
		ldconfig -p | grep -q 'libcuda\.so\.1' || claim "$provider: memory whose driver the server lacks ($connect)" \
			bounded "$provider" "turned us away: cuda:0" $connect -- --local-mem host --remote-mem cuda:0
	done
done
if [ "$PROVIDERS" = verbs ]; then
	claim "shm+verbs+tcp: connectionless by default" first_offered shm+verbs+tcp
	claim "shm+verbs+tcp: a card where shm does not reach" by_card
	exit 0
fi
claim "a latency of several endpoints is refused" refused "one operation under way" write-lat -q 2
claim "a latency in both directions is refused" refused "--bidirectional" read-lat -b
claim "a list longer than the depth is refused" refused "--post-list 9" write-bw -d 8 -l 9
claim "completions within lists are refused" refused "multiple of --post-list" write-bw -l 4 -Q 6
claim "too many endpoints are refused" refused "--endpoints 65" write-bw -q 65
claim "no endpoints are refused" refused "--endpoints 0" write-bw -q 0
claim "a burst without a limit is refused" refused "--burst" write-bw --burst 4
claim "no rate is refused" refused "--rate-limit 0" write-bw --rate-limit 0
claim "an unknown unit is refused" refused "--rate-unit x" write-bw --rate-limit 1 --rate-unit x
claim "an unknown way to connect is refused" refused "--connect pigeon" write-bw --connect pigeon
[ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] || claim "shm+tcp: connectionless by default" first_offered shm+tcp
[ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] || claim "a set without its card is refused" fails shm+verbs+tcp "no RDMA device" \
	write-lat -s 8 -n 1 --ep rdm
claim "a set that there is not is refused" fails shm+pigeon '"shm+pigeon", but over shm+verbs+tcp, shm+tcp,' write-lat -s 8 -n 1 --ep rdm
claim "lists over connectionless endpoints are refused" refused "--ep rdm" list-read --ep rdm
claim "tags without what has them are refused" refused "--tagged" send-lat --tagged
claim "a control port without its way is refused" refused "--control-port" write-bw --control-port 1
exit 0
