#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the conformance programs over tcp, in passes with different conditions. The passes from netns on run between two network
# namespaces that this script makes, so that the machine's own network stays untouched. An impossible pass prints a "skip" line with the
# reason.
#
#   tests/check-tcp.sh [options]
#     --passes "P..."      only these: loopback, sealed (with a key), rails (over two addresses), ipv6, domain (without
#                          locks); netns (two namespaces), mtu (packets of 1,500 bytes), lossy (a slow link that loses
#                          packets), cut (a link is cut), links (two links are cut in turn), limited (rate of a connection)
#     --programs "P..."    these programs instead of the passes' own; PROGRAM or PROGRAM:TEXT in a claim's name
#     --jobs N             number of programs at a time (1), except over a link that loses packets
#     --full               without TEST_FAST
#
# The library is found by pkg-config, as by c-tests/run.sh. BUILD is the directory for the programs.
set -u -o pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
self=$root/tests/check-tcp.sh
target=${CARGO_TARGET_DIR:-$root/target}
build=${BUILD:-$target/c-tests}
passes="loopback sealed rails ipv6 domain netns mtu lossy cut links limited"
programs= inside= fast=1 jobs=1
while [ $# -gt 0 ]; do
	case $1 in
	--passes) passes=$2 && shift ;;
	--programs) programs=$2 && shift ;;
	--jobs) jobs=$2 && shift ;;
	--full) fast= ;;
	--inside) inside=$2 && shift ;; # in a network namespace of its own: a file for the counts
	*)
		sed -n '3,16s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
	shift
done
export TEST_PROVIDER=tcp BUILD=$build
[ -n "$fast" ] && export TEST_FAST=${TEST_FAST:-1}

# ---- passes

# Prints the programs of a pass. Passes other than the first repeat only the claims that the pass's way of connecting, of locking or of
# losing packets may affect.
of_pass() { # <pass>
	case $1 in
	loopback) (cd "$root/c-tests" && grep -l '^TEST' ./*/*.c ./*/*.cpp | sed 's|.*/||; s|\.[a-z]*$||' | LC_ALL=C sort) |
		grep -vx -e verbs -e verbs_raw -e tcp_link ;;
	sealed) echo connection cq cq_error deadline peer_killed msg msg_order rma rma_order list list_end atomic atomic_end inject_rest post_to_dead_peer rdm rdm_atomic rdm_dead rdm_end rdm_match tcp_paths \
		tcp_rails:broken_with tcp_streams region_protection region_unmapped ;;
	rails) echo connection msg msg_order:large rma:socket_malloc rma_order:malloc list atomic rdm rdm_match peer_killed region_protection:malloc tcp_split tcp_flood ;;
	ipv6) echo connection connection_many:name info:addresses info:hint info_hints msg:by_address rma:socket_mem_alloc tcp_split ;;
	domain) echo cq cq_error rma_order:malloc rma:every_call_socket_mem rma:staged_cuda_alloc msg:by_address region_protection:malloc ;;
	netns) echo connection peer_killed:killed peer_killed:stopped_while msg:by_address msg_order:order_auto rma:socket_mem rma:staged_cuda_plain \
		rma_order:malloc wait:fd deadline:receive tcp_streams:over_four tcp_streams:with_a_key tcp_streams_auto:not_for_a_slow_peer \
		tcp_streams_hostile:a_door_that_is_asked_for idle_connections ;;
	mtu) echo msg:by_address rma:socket_mem rma_order:both_at_once_socket_malloc ;;
	lossy) echo connection:data msg:by_address msg_order:large_in_order rma:socket_memfd rma_order:both_at_once_socket_malloc deadline:large ;;
	cut) echo tcp_link ;;
	links) echo tcp_rails:broken tcp_rails:cut ;;
	limited) echo tcp_streams_auto ;;
	*) echo "check-tcp.sh: there is no pass $1" >&2 && exit 2 ;;
	esac
}

passed=0 failed=0 skipped=0 broken=
run_pass() { # <pass>
	local counts start=$SECONDS log=$build.pass
	echo "==== tcp, $1"
	# shellcheck disable=SC2046,SC2086 # lists of words
	"$root/c-tests/run.sh" --built --jobs $([ "$1" = lossy ] && echo 1 || echo "$jobs") ${programs:-$(of_pass "$1")} >"$log" 2>&1
	counts=$(tail -n 1 "$log")
	sed '$d' "$log"
	echo "     $1 took $((SECONDS - start)) s"
	if ! [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
		echo "FAIL $1: $counts"
		failed=$((failed + 1)) broken="$broken $1"
		return
	fi
	passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
	[ "${BASH_REMATCH[2]}" -eq 0 ] || broken="$broken $1"
}

skip() { # <pass> <reason>
	echo "skip $1: $2"
	skipped=$((skipped + 1))
}

wanted() { # <pass>
	[[ " $passes " = *" $1 "* ]]
}

# ---- in a network namespace of its own, beside a second one

link=gdr0
peer=
in_peer() {
	nsenter -t "$peer" -n "$@"
}

# Gives both ends of a link an address and packets of at most 1,500 bytes, and tells the programs to use the link.
addresses() { # <device> <third byte>
	ip addr add "10.77.$2.1/24" dev "$1" && in_peer ip addr add "10.77.$2.2/24" dev "$1" &&
		ip link set "$1" mtu 1500 up && in_peer ip link set "$1" mtu 1500 up || return
	export TEST_NODE=10.77.$2.1 TEST_CLIENT_NODE=10.77.$2.2 GDRFAB_TCP_IFACE=$1
}

lossy_link() {
	if tc qdisc add dev $link root netem delay 5ms loss 1% 2>/dev/null &&
		in_peer tc qdisc add dev $link root netem delay 5ms loss 1% 2>/dev/null; then
		echo "     netem: 5 ms and 1 % loss each way"
		return
	fi
	tc qdisc del dev $link root 2>/dev/null
	relayed lossy gdrlossy 1 5 10 && echo "     no netem in this kernel: tests/lossy-link.c, 5 ms and 1 % loss each way"
}

# Makes a link between the namespaces whose packets go through the program tests/lossy-link.c.
relayed() { # <pass> <device> <third byte> <how: tests/lossy-link.c>...
	local pass=$1 device=$2 third=$3 word
	shift 3
	if [ ! -e /dev/net/tun ]; then
		skip "$pass" "neither netem (tc: $(tc qdisc add dev lo root netem delay 5ms 2>&1 | head -n 1)) nor /dev/net/tun"
		return 1
	fi
	${CC:-cc} -std=c99 -Wall -Wextra -Wpedantic -Werror -O2 -o "$build/lossy-link" "$root/tests/lossy-link.c" || return 1
	coproc relay { exec "$build/lossy-link" "$device" "/proc/$peer/ns/net" "$@" 2>&1; }
	if ! read -r -t 5 -u "${relay[0]}" word || [ "$word" != ready ]; then
		skip "$pass" "no device of one's own: ${word:-no answer}"
		return 1
	fi
	addresses "$device" "$third"
}

namespaces() {
	ip link set lo up || exit
	unshare -n sleep 100000 &
	peer=$!
	trap 'kill $peer ${relay_PID:-} 2>/dev/null' EXIT
	# Waits until the process has entered its namespace.
	for _ in $(seq 100); do
		[ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ] && break
		sleep 0.05
	done
	export TEST_CLIENT_NETNS=/proc/$peer/ns/net
	local words
	if ! words=$(ip link add $link type veth peer name $link netns "$peer" 2>&1); then
		for pass in netns mtu lossy cut links limited; do
			wanted $pass && skip $pass "no veth: $words"
		done
		return
	fi
	in_peer ip link set lo up && addresses $link 0 || exit
	wanted netns && run_pass netns
	wanted cut && TEST_LINK=$link run_pass cut
	if wanted links; then
		ip link add ${link}b type veth peer name ${link}b netns "$peer" && ip addr add 10.77.8.1/24 dev ${link}b &&
			in_peer ip addr add 10.77.8.2/24 dev ${link}b && ip link set ${link}b up && in_peer ip link set ${link}b up || exit
		TEST_RAILS=10.77.0.1,10.77.8.1 TEST_CLIENT_RAILS=10.77.0.2,10.77.8.2 TEST_LINKS="$link ${link}b" run_pass links
	fi
	if wanted mtu; then
		# By default a veth device passes segments of any size without splitting them into packets.
		ip link set dev $link gso_max_segs 1 && in_peer ip link set dev $link gso_max_segs 1 || exit
		run_pass mtu
	fi
	if wanted lossy && lossy_link; then
		TEST_TIME_SCALE=${TEST_TIME_SCALE:-3} run_pass lossy
		kill ${relay_PID:+"$relay_PID"} 2>/dev/null && wait "$relay_PID"
	fi
	if wanted limited && relayed limited gdrlimit 2 2 0 100; then
		TEST_LIMIT=100 run_pass limited
	fi
}

if [ -n "$inside" ]; then
	# Each pass sets these variables for itself.
	unset GDRFAB_TCP_IFACE TEST_NODE
	namespaces
	echo "$passed $failed $skipped $broken" >"$inside"
	exit 0
fi

# ---- all of them

start=$SECONDS
all=$(of_pass loopback)
mkdir -p "$build"
# shellcheck disable=SC2046,SC2086 # lists of words
"$root/c-tests/run.sh" --build $(printf '%s\n' ${programs:-$all tcp_link} | sed 's/:.*//' | sort -u) >"$build.log" 2>&1 || {
	cat "$build.log"
	exit 1
}
unset TEST_NODE TEST_CLIENT_NETNS GDRFAB_TCP_IFACE
wanted loopback && run_pass loopback
if wanted sealed; then
	(umask 077 && head -c 32 /dev/urandom >"$build.key") || exit 1
	GDRFAB_TCP_KEY_FILE=$build.key run_pass sealed
fi
wanted rails && GDRFAB_TCP_RAILS=127.0.0.1,127.0.0.2 run_pass rails
if wanted ipv6; then
	if grep -q '^00000000000000000000000000000001 ' /proc/net/if_inet6 2>/dev/null; then
		TEST_NODE=::1 run_pass ipv6
	else
		skip ipv6 "this machine has no ::1"
	fi
fi
wanted domain && TEST_THREADING=domain run_pass domain

netns=
for pass in netns mtu lossy cut links limited; do
	wanted $pass && netns="$netns $pass"
done
if [ -n "$netns" ]; then
	why= as=
	if ! command -v ip >/dev/null || ! command -v nsenter >/dev/null; then
		why="no ip (iproute2) or no nsenter"
	elif unshare -n true 2>/dev/null; then
		as=-n
	elif why=$(unshare -Urn true 2>&1); then
		as=-Urn
	fi
	if [ -n "$as" ]; then
		counts=$(mktemp)
		unshare $as "$self" --inside "$counts" --jobs "$jobs" --passes "$netns" ${programs:+--programs "$programs"} $([ -n "$fast" ] || echo --full)
		if read -r p f s b <"$counts"; then
			passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)) broken="$broken $b"
		else
			echo "FAIL namespaces: ended early"
			failed=$((failed + 1))
		fi
		rm -f "$counts"
	else
		for pass in $netns; do
			skip "$pass" "no network namespace of one's own: $why"
		done
	fi
fi
[ -z "${broken// /}" ] || echo "failed:$broken"
echo "tcp took $((SECONDS - start)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
