#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# In the guest: runs conformance programs that were built on the host, once for each pass, and sums up as c-tests/run.sh
# does. tests/check-verbs.sh puts this script and the programs below /gdrfab in the guest, and calls the script.
#
#   programs.sh [--claim TEXT] [--keep-going] [--then SCRIPT] PASS=PROGRAM[:CLAIM TEXT],PROGRAM...
#   programs.sh --shell PASS 'CMD'        runs CMD with the environment of a pass
#
# The passes: rxe (soft-RoCE); norxe (soft-RoCE that refuses dma-bufs); siw (soft-iWARP); domain (rxe, with programs that promise
# to use a domain from one thread at a time); rails (both devices of soft-RoCE at once, the second lost again and again); shm (no
# device). SCRIPT prints claims of its own, and runs after the passes, with the environment of rxe.
set -u

at=/gdrfab
claim= keep_going= shell= then=
while [ $# -gt 0 ]; do
	case $1 in
	--claim) claim=$2 && shift ;;
	--keep-going) keep_going=1 ;;
	--then) then=$2 && shift ;;
	--shell) shell=1 ;;
	*) break ;;
	esac
	shift
done

export LD_LIBRARY_PATH=$at/lib:$at/tests/fakes GDRFAB_FAKES=$at/tests/fakes PATH=$PATH:$at/bin
export TEST_LIBIBVERBS=$at/lib/libgdrfab-dmabuf.so
export GDRFAB_DEBUG=ibverbs=$TEST_LIBIBVERBS
[ ! -e $at/lib/libnccl-net-gdrfab.so ] || export TEST_NCCL_PLUGIN=$at/lib/libnccl-net-gdrfab.so
# The tests may take away links and devices of this machine.
export TEST_BREAK=1
# Emulated CPUs are slow.
export TEST_FAST=${TEST_FAST:-1} TEST_TIME_SCALE=${TEST_TIME_SCALE:-8}
TEST_IFACES=
for pair in cuda:libcuda.so.1 rocr:libhsa-runtime64.so.1 ze:libze_loader.so.1 neuron:libnrt.so.1 synapseai:libSynapse.so; do
	[ -e "$GDRFAB_FAKES/${pair#*:}" ] && TEST_IFACES=${TEST_IFACES:+$TEST_IFACES,}${pair%%:*}
done
export TEST_IFACES

choose() { # <pass>
	export TEST_PROVIDER=verbs
	unset TEST_THREADING TEST_RAILS TEST_LINK TEST_FIRST_LINK GDRFAB_VERBS_RAILS GDRFAB_FAULT
	[ ! -d /sys/class/infiniband/rxe1 ] || export TEST_RAILS=rxe0:1,rxe1:1 TEST_LINK=rdma-eth1 TEST_FIRST_LINK=rdma-eth0
	case $1 in
	rxe) export TEST_NODE=10.77.0.1 ;;
	domain) export TEST_NODE=10.77.0.1 TEST_THREADING=domain ;;
	rails) export TEST_NODE=10.77.0.1 GDRFAB_VERBS_RAILS=$TEST_RAILS GDRFAB_FAULT=verbs/rail=5 ;;
	norxe) export TEST_NODE=10.78.0.1 ;;
	siw) export TEST_NODE=10.88.0.1 ;;
	shm) export TEST_PROVIDER=shm && unset TEST_NODE ;;
	*) echo "programs.sh: there is no pass $1" >&2 && exit 2 ;;
	esac
}

# Restores links and devices that a failed claim has taken away.
restore() {
	local each device driver link
	for each in rxe0:rxe:rdma-eth0 rxe1:rxe:rdma-eth1 siw0:siw:rdma-eth2; do
		IFS=: read -r device driver link <<<"$each"
		[ -d "/sys/class/net/$link" ] || continue
		ip link set "$link" up
		[ -d "/sys/class/infiniband/$device" ] || rdma link add "$device" type "$driver" netdev "$link"
	done
}

passed=0 failed=0 skipped=0
one() { # <pass> <program> <claim text> <its log>
	local start=$SECONDS
	echo "== $2 ($1${3:+, $3})"
	timeout -k 5 900 "$at/tests/$2" ${3:+"$3"} 2>&1
	echo $? >"$4.status"
	echo "-- $2 ($1): $((SECONDS - start))s"
}
count() { # <program> <its log>
	local status ok bad
	status=$(cat "$2.status" 2>/dev/null || echo "of nothing")
	ok=$(grep -c '^ok ' "$2") bad=$(grep -c '^FAIL ' "$2")
	# The status is an error that no claim reports.
	if [ "$bad" -eq 0 ] && [ "$status" != 0 ] && { [ "$status" != 77 ] || [ "$ok" -ne 0 ]; }; then
		echo "FAIL $1: exit status $status"
		bad=1
	fi
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + $(grep -c '^skip ' "$2")))
}

# Most programs spend a part of their time waiting for a peer, so three run side by side.
declare -A running=()
finish_one() {
	local pid=
	wait -n -p pid "${!running[@]}"
	cat "${running[$pid]#* }"
	count ${running[$pid]}
	unset "running[$pid]"
}
finish_all() {
	while [ ${#running[@]} -gt 0 ]; do finish_one; done
}
start() { # <pass> <program> <claim text>
	local log=/tmp/$1.$2.$((++started)).log
	case $2 in
	# Programs that take links and devices away, and those that check a counter of the whole device, run alone.
	verbs | verbs_rails* | rdm | rdm_*)
		finish_all
		restore
		one "$1" "$2" "$3" "$log" | tee "$log"
		restore
		count "$2" "$log"
		;;
	*)
		[ ${#running[@]} -lt 3 ] || finish_one
		one "$1" "$2" "$3" "$log" >"$log" 2>&1 </dev/null &
		running[$!]="$2 $log"
		;;
	esac
}

started=0
cd /root || exit
if [ -n "$shell" ]; then
	choose "$1"
	exec bash -c "$2"
fi
for pass in "$@"; do
	choose "${pass%%=*}"
	for program in $(echo "${pass#*=}" | tr , ' '); do
		text=${claim:-${program#"${program%%:*}"}}
		start "${pass%%=*}" "${program%%:*}" "${text#:}"
	done
	finish_all
	# After a failure the next devices are left out, because the failure would probably repeat there.
	[ -n "$keep_going" ] || [ $failed -eq 0 ] || break
done
if [ -n "$then" ] && { [ -n "$keep_going" ] || [ $failed -eq 0 ]; }; then
	log=/tmp/then.log
	choose rxe
	restore
	timeout -k 5 900 bash "$then" 2>&1 | tee "$log" || echo "FAIL $then: ended with status $?" | tee -a "$log"
	passed=$((passed + $(grep -c '^ok ' "$log"))) failed=$((failed + $(grep -c '^FAIL ' "$log")))
	skipped=$((skipped + $(grep -c '^skip ' "$log")))
fi
dmesg | grep -E 'BUG:|WARNING:|Oops|Call Trace' | head -n 5
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
