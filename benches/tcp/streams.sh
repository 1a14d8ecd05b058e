#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Measures the bandwidth of one connection with one stream, with further streams as the library decides, and with four streams
# (GDRFAB_TCP_STREAMS=1, unset, 4): over the loopback, and over links with limits or faults between two network namespaces.
#
#   benches/tcp/streams.sh PROGRAM [PATH]...     PROGRAM: rails.c, built; PATH: the beginning of a row's name (all)
#
# BYTES: bytes of one operation (16 MiB). SECONDS_EACH: seconds of each run (12). ROUNDS (3): the medians are printed, in MB/s.
set -u -o pipefail

. "$(dirname "$0")/netns.sh"
program=$1 && shift
relay=
trap 'kill $peer $relay' EXIT
ip link set lo up && there ip link set lo up || exit
link=$(mktemp) || exit
${CC:-cc} -std=c99 -O2 -o "$link" "$(dirname "$0")/../../tests/lossy-link.c" || exit

port=7600
once() { # <streams, or nothing> <write or read>
	local server words=(env ${1:+"GDRFAB_TCP_STREAMS=$1"} ${congestion:+"GDRFAB_TCP_CONGESTION=$congestion"})
	port=$((port + 1))
	$where "${words[@]}" "$program" serve $node $port 2>>"${LOG:-/dev/null}" &
	server=$!
	until $where ss -ltn | grep -q ":$port "; do sleep 0.1; done
	"${words[@]}" "$program" "$2" $node $port "${BYTES:-16777216}" "${SECONDS_EACH:-12}" 2>>"${LOG:-/dev/null}"
	wait $server
}
median() { sort -n | sed -n "$(((${ROUNDS:-3} + 1) / 2))p"; }
row() { # <name> <write or read>
	local one= any= four=
	for _ in $(seq "${ROUNDS:-3}"); do
		one="$one $(once 1 "$2")" any="$any $(once '' "$2")" four="$four $(once 4 "$2")"
	done
	printf '| %-44s | %-5s | %5s | %9s | %5s |\n' "$1" "$2" "$(printf '%s\n' $one | median)" "$(printf '%s\n' $any | median)" \
		"$(printf '%s\n' $four | median)"
}
wanted() { # <name> <paths>...
	local name=$1
	shift
	[ $# -eq 0 ] && return
	for path in "$@"; do [[ $name = "$path"* ]] && return; done
	return 1
}
addresses() {
	ip addr add 10.77.0.1/24 dev way && there ip addr add 10.77.0.2/24 dev way && ip link set way mtu 1500 up && there ip link set way mtu 1500 up
}
printf '| %-44s | %-5s | %5s | %9s | %5s |\n' path test 1 automatic 4
printf '| %s | ----- | ----- | --------- | ----- |\n' --------------------------------------------
where= congestion= node=127.0.0.1
wanted loopback "$@" && row loopback write
where=there node=10.77.0.2
while IFS='|' read -r name how tests; do
	wanted "$name" "$@" || continue
	congestion=
	# shellcheck disable=SC2086 # lists of words
	case $how in
	tbf*)
		ip link add way type veth peer name way netns "$peer" && addresses || exit
		[ "$how" = tbf ] || for side in "" there; do $side tc qdisc add dev way root $how burst 128k latency 20ms || exit; done
		;;
	*)
		read -r delay loss limit wmem congestion <<<"$how"
		"$link" way "/proc/$peer/ns/net" "$delay" "$loss" "$limit" >/dev/null &
		relay=$!
		until ip link show way >/dev/null 2>&1 && there ip link show way >/dev/null 2>&1; do sleep 0.1; done
		addresses || exit
		for side in "" there; do
			[ "$wmem" = - ] || $side sysctl -qw "net.ipv4.tcp_wmem=4096 16384 $wmem"
		done
		;;
	esac
	for test in $tests; do row "$name" "$test"; done
	for side in "" there; do $side sysctl -qw "net.ipv4.tcp_wmem=4096 16384 4194304"; done
	if [ -n "$relay" ]; then kill $relay && wait $relay; else ip link del way; fi 2>/dev/null
	relay=
done <<'ROWS'
veth|tbf|write
1 Gbit/s (tbf)|tbf rate 1gbit|write
100 Mbit/s for each connection, 4 ms|2 0 100 - cubic|write read
20 ms, 0.025 % lost, cubic|10 0.25 0 - cubic|write
20 ms, 0.025 % lost, bbr|10 0.25 0 - bbr|write
20 ms, at most 256 KiB of tcp_wmem|10 0 0 262144 cubic|write
ROWS
rm -f "$link"
