#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs both sides of gaudi_pingpong with fakes of the vendors' drivers, and kills each side once:
#
#   examples/gaudi_pingpong.sh PROGRAM FAKES [PROVIDER...]
#
# FAKES is the directory that c-tests/fakes/build.sh has filled; "" for the machine's own drivers, and then MEMS are the kinds of
# memory that it has (gaudi:0 cuda:0). Without providers: shm and tcp. Prints a line that begins with "ok", "FAIL" or
# "skip" for each claim; exit status 1 if one failed.
set -u

usage='usage: gaudi_pingpong.sh PROGRAM FAKES [PROVIDER...]'
program=${1:?$usage} fakes=${2?$usage}
shift 2
[ $# -gt 0 ] || set -- shm tcp
read -r -a mems <<<"${MEMS:-gaudi:0 cuda:0}"
work=$(mktemp -d) || exit 1
listener= caller= failed=0 drivers=${fakes:+$fakes:}${LD_LIBRARY_PATH:-}
# shellcheck disable=SC2317 # called by the trap
tidy() {
	for pid in $listener $caller; do kill -9 "$pid" 2>/dev/null; done
	rm -rf "$work"
}
trap tidy EXIT
trap 'exit 1' INT TERM

claim() { # <status> <words>: 0 is ok
	if [ "$1" -eq 0 ]; then
		echo "ok   $2"
		return
	fi
	echo "FAIL $2"
	failed=1
	for log in listener caller; do sed "s/^/     $log: /" "$work/$log.log"; done
}

# Both sides in the background, the second as soon as the first listens.
start() { # <provider> <memory> <memory> [options]
	local provider=$1 one=$2 two=$3 port=
	shift 3
	rm -f "$work"/*.log
	: >"$work/caller.log"
	LD_LIBRARY_PATH=$drivers "$program" listen 127.0.0.1:0 --provider "$provider" --mem "$one" "$@" \
		>"$work/listener.log" 2>&1 &
	listener=$!
	for _ in $(seq 100); do
		port=$(sed -n 's/^listening on port //p' "$work/listener.log" 2>/dev/null)
		[ -n "$port" ] && break
		kill -0 "$listener" 2>/dev/null || break
		sleep 0.05
	done
	LD_LIBRARY_PATH=$drivers "$program" connect "127.0.0.1:${port:-1}" --provider "$provider" --mem "$two" "$@" \
		>"$work/caller.log" 2>&1 &
	caller=$!
}

# Waits for a side and sets $status to its exit status: 124 if it had to be killed.
end_of() { # <pid>
	for _ in $(seq 200); do
		kill -0 "$1" 2>/dev/null || break
		sleep 0.1
	done
	local late=0
	kill -9 "$1" 2>/dev/null && late=1
	wait "$1" 2>/dev/null
	status=$?
	[ $late -eq 0 ] || status=124
}

both_end() {
	local sum
	end_of "$listener"
	sum=$status
	end_of "$caller"
	sum=$((sum + status))
	listener= caller=
	[ $sum -eq 0 ]
}

verified() { # <provider> <memory> <memory> [options]
	start "$@"
	both_end && for log in listener caller; do
		[ "$(grep -c '^message: .* verified' "$work/$log.log")" -eq 3 ] &&
			grep -q '^RMA write by the peer: .* verified' "$work/$log.log" &&
			grep -q '^RMA read: .* verified' "$work/$log.log" || return 1
	done
}

fell_back() { # <words>
	grep -q 'cannot be used here' "$work/listener.log" && grep -q "$1" "$work/listener.log" &&
		grep -q 'host here' "$work/listener.log"
}

killed() { # <provider> <memory> listener|caller
	local victim survivor
	start "$1" "$2" "$2" --rounds 100000000
	for _ in $(seq 200); do
		[ "$(grep -c '^message' "$work/listener.log")" -eq 3 ] && break
		sleep 0.05
	done
	[ "$3" = listener ] && victim=$listener survivor=caller || victim=$caller survivor=listener
	kill -9 "$victim"
	wait "$victim" 2>/dev/null
	end_of "${!survivor}"
	listener= caller=
	[ $status -eq 1 ]
	claim $? "$1: $2, $3 killed: $(grep '^gaudi_pingpong:' "$work/$survivor.log" | tail -1)"
}

# Succeeds if the dynamic linker finds a library by itself.
found() { # <library>
	local dir path=${LD_LIBRARY_PATH:-}
	for dir in ${path//:/ } /lib /usr/lib /lib/*-linux-gnu /usr/lib/*-linux-gnu /usr/lib/habanalabs; do
		[ ! -e "$dir/$1" ] || return 0
	done
	return 1
}

for provider in "$@"; do
	for one in "${mems[@]}" host; do
		for two in "${mems[@]}" host; do
			verified "$provider" "$one" "$two"
			claim $? "$provider: $one and $two"
		done
	done
	verified "$provider" "${mems[0]}" host --size 1000003
	claim $? "$provider: ${mems[0]} and host, a size that is no whole page"
	killed "$provider" "${mems[0]}" listener
	killed "$provider" "${mems[0]}" caller
	if [ -n "$fakes" ]; then
		# A side without the device, or without a part of its software, continues with host memory and prints
		# the reason.
		verified "$provider" gaudi:7 cuda:0 && fell_back 'SynapseAI gives no device'
		claim $? "$provider: no such Gaudi, host memory in its place"
		name="hl-thunk without SynapseAI, host memory in its place"
		if [ -w /dev/udmabuf ]; then
			echo "skip $provider: $name: the stand-in's dma-bufs can be mapped here, so its memory can be copied"
		elif found libSynapse.so; then
			echo "skip $provider: $name: libSynapse.so is found without $fakes"
		else
			mkdir -p "$work/thunk" && cp "$fakes/libhl-thunk.so" "$work/thunk"
			drivers=$work/thunk:${LD_LIBRARY_PATH:-}
			verified "$provider" gaudi:0 host && fell_back 'cannot be copied'
			claim $? "$provider: $name"
		fi
		name="no Gaudi at all, host memory in its place"
		if found libSynapse.so || found libhl-thunk.so; then
			echo "skip $provider: $name: libSynapse.so or libhl-thunk.so is found without $fakes"
		else
			drivers=${LD_LIBRARY_PATH:-}
			verified "$provider" gaudi:0 host && fell_back 'libSynapse.so'
			claim $? "$provider: $name"
		fi
		drivers=$fakes:${LD_LIBRARY_PATH:-}
	fi
done
exit $failed
