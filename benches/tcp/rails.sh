#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Measures the bandwidth of two links between two network namespaces that this script makes: each link alone, and both as rails. tc (tbf)
# limits the rates of the links.
#
#   benches/tcp/rails.sh PROGRAM [RATE RATE]...     PROGRAM: rails.c, built; pairs of rates as tc reads them (1gbit 1gbit 1gbit 100mbit)
#
# BYTES: bytes of one write (16 MiB). SECONDS_EACH: seconds of each run (4). ROUNDS (3): the medians of the rounds are printed, in MB/s.
set -u -o pipefail

. "$(dirname "$0")/netns.sh"
program=$1 && shift
[ $# -gt 0 ] || set -- 1gbit 1gbit 1gbit 100mbit
trap 'kill $peer' EXIT
for i in 0 1; do
	ip link add rail$i type veth peer name rail$i netns "$peer" && ip addr add 10.77.$i.1/24 dev rail$i &&
		there ip addr add 10.77.$i.2/24 dev rail$i && ip link set rail$i up && there ip link set rail$i up || exit
done
port=7500
once() { # <first address> <rails here> <rails there>
	port=$((port + 1))
	there ${3:+env "GDRFAB_TCP_RAILS=$3"} "$program" serve "$1" $port &
	sleep 0.4
	${2:+env "GDRFAB_TCP_RAILS=$2"} "$program" write "$1" $port "${BYTES:-16777216}" "${SECONDS_EACH:-4}" 2>>"${LOG:-/dev/null}"
	wait $!
}
median() { sort -n | sed -n "$(((${ROUNDS:-3} + 1) / 2))p"; }
printf '%-10s %-10s %10s %10s %10s\n' first second "first" "second" "both"
while [ $# -ge 2 ]; do
	for where in "" there; do
		$where tc qdisc replace dev rail0 root tbf rate "$1" burst 128k latency 20ms || exit
		$where tc qdisc replace dev rail1 root tbf rate "$2" burst 128k latency 20ms || exit
	done
	one= two= both=
	for _ in $(seq "${ROUNDS:-3}"); do
		one="$one $(once 10.77.0.2 '' '')" two="$two $(once 10.77.1.2 '' '')"
		both="$both $(once 10.77.0.2 10.77.0.1,10.77.1.1 10.77.0.2,10.77.1.2)"
	done
	printf '%-10s %-10s %10s %10s %10s\n' "$1" "$2" "$(printf '%s\n' $one | median)" "$(printf '%s\n' $two | median)" \
		"$(printf '%s\n' $both | median)"
	shift 2
done
