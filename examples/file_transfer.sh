#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs both sides of file_transfer, compares the received file, and kills each side once:
#
#   examples/file_transfer.sh PROGRAM [PROVIDER|ADDRESS...]
#
# A provider, or an address to listen at, such as verbs://192.0.2.1:0; without any: shm and tcp. BIG: bytes of the largest
# file, for machines with little room (314572800). LIMIT: seconds of silence that a slow machine needs (5). Prints a line
# that begins with "ok" or "FAIL" for each claim; exit status 1 if one failed.
set -u

program=${1:?usage: file_transfer.sh PROGRAM [PROVIDER|ADDRESS...]}
shift
[ $# -gt 0 ] || set -- shm tcp
big=${BIG:-314572800}
limit=${LIMIT:-5} # seconds of silence that the programs bear; the watchdog of each run is longer
work=$(mktemp -d) || exit 1
receiver= sender= failed=0
# shellcheck disable=SC2317 # called by the trap
tidy() {
	for pid in $receiver $sender; do kill -9 "$pid" 2>/dev/null; done
	rm -rf "$work"
}
trap tidy EXIT
trap 'exit 1' INT TERM

claim() { # <status> <words>: 0 is ok
	if [ "$1" -eq 0 ]; then
		echo "ok   $2"
	else
		echo "FAIL $2"
		failed=1
		for log in receiver sender; do sed "s/^/     $log: /" "$work/$log.log"; done
	fi
}

# Starts the receiver in the background and waits until it listens. Sets $receiver to its pid and $addr to its address.
receive() { # <provider or address> [options]
	local at=--provider
	case $1 in *://*) at=--listen ;; esac
	# The address of an earlier receiver must not be read.
	rm -f "$work/said" && : >"$work/said"
	"$program" recv "$at" "$@" --timeout $limit --out "$work/copy" >"$work/said" 2>"$work/receiver.log" &
	receiver=$! addr=
	for _ in $(seq 100); do
		addr=$(sed -n 's/^listening at //p' "$work/said")
		[ -n "$addr" ] && return 0
		kill -0 $receiver 2>/dev/null || return 1
		sleep 0.05
	done
	return 1
}

send() { # <file>: its pid in $sender
	"$program" send "$addr" "$1" --timeout $limit 2>"$work/sender.log" &
	sender=$!
}

# Waits for a side and sets $status to its exit status: 124 if it had to be killed.
end_of() { # <pid> <seconds>
	local tenths=$(($2 * 10))
	while kill -0 "$1" 2>/dev/null && [ $tenths -gt 0 ]; do
		sleep 0.1
		tenths=$((tenths - 1))
	done
	if [ $tenths -eq 0 ] && kill -9 "$1" 2>/dev/null; then
		wait "$1" 2>/dev/null
		status=124
	else
		wait "$1" 2>/dev/null
		status=$?
	fi
}

both_end() { # both statuses in $sent and $received
	end_of "$sender" 120 && sent=$status
	end_of "$receiver" 120 && received=$status
	sender= receiver=
}

fill() { # <bytes> <file>: numbers, so that a piece in the wrong place shows
	seq 1 $(($1 / 8 + 2)) | sed 's/$/ bytes/' | head -c "$1" >"$2"
}

whole() { # <provider> <bytes> <window>
	fill "$2" "$work/file"
	rm -f "$work"/copy*
	if ! receive "$1" --window "$3"; then
		claim 1 "${1%%:*}: receiver listens"
		return
	fi
	send "$work/file"
	both_end
	[ "$sent" -eq 0 ] && [ "$received" -eq 0 ] && cmp -s "$work/file" "$work/copy" && [ ! -e "$work"/copy.*.part ]
	claim $? "${1%%:*}: $2 bytes, window $3"
}

# Waits until some of the file has arrived, with the receiver running in short steps, and leaves the receiver stopped,
# so that no more arrives.
under_way() {
	for _ in $(seq 3000); do
		kill -STOP "$receiver" 2>/dev/null || return 1
		[ "$(stat -c %s "$work"/copy.*.part 2>/dev/null || echo 0)" -gt 1000000 ] && return 0
		kill -CONT "$receiver" && kill -0 "$sender" 2>/dev/null || return 1
		sleep 0.002
	done
	return 1
}

# Kills one side. The other must end in time with a message and status 1, and no file may have the final name.
killed() { # <provider> sender|receiver [--resume]
	local left victim survivor
	rm -f "$work"/copy*
	receive "$1" --window 1M ${3:+"$3"} && send "$work/file" && under_way || {
		claim 1 "${1%%:*}: $2 under way"
		return
	}
	[ "$2" = sender ] && victim=$sender survivor=$receiver || victim=$receiver survivor=$sender
	kill -9 "$victim"
	kill -CONT "$receiver" 2>/dev/null
	wait "$victim" 2>/dev/null
	end_of "$survivor" $((limit + 5))
	[ "$2" = sender ] && left=receiver || left=sender
	receiver= sender=
	[ $status -eq 1 ] && [ ! -e "$work/copy" ] && grep -q 'the peer is gone' "$work/$left.log"
	claim $? "${1%%:*}: $2 killed: $(head -1 "$work/$left.log")"
	if [ "$2" = sender ] && [ -z "${3:-}" ]; then
		[ -z "$(find "$work" -name '*.part')" ]
		claim $? "${1%%:*}: nothing is left of half a file"
	fi
}

# A peer that is alive and silent: the time limit ends the transfer.
stopped() { # <provider>
	rm -f "$work"/copy*
	receive "$1" --window 1M && send "$work/file" && under_way || {
		claim 1 "${1%%:*}: receiver under way"
		return
	}
	end_of "$sender" $((limit + 5))
	[ $status -eq 1 ] && grep -q 'no sign of the peer' "$work/sender.log"
	claim $? "${1%%:*}: receiver stopped: $(head -1 "$work/sender.log")"
	kill -9 "$receiver"
	wait "$receiver" 2>/dev/null
	receiver= sender=
}

for provider in "$@"; do
	whole "$provider" 0 16M
	whole "$provider" 1 16M
	whole "$provider" 1048579 16M
	whole "$provider" "$big" 256K
	fill $((big / 2)) "$work/file"
	killed "$provider" sender
	killed "$provider" receiver
	stopped "$provider"
	killed "$provider" sender --resume
	if receive "$provider" --resume; then
		send "$work/file"
		both_end
		[ "$sent" -eq 0 ] && [ "$received" -eq 0 ] && cmp -s "$work/file" "$work/copy" &&
			grep -q 'resumed at byte' "$work/sender.log"
		claim $? "${provider%%:*}: $(cat "$work/sender.log")"
	fi
	rm -f "$work"/copy* "$work/file"
done

# A sender whose id is not its file's hash must not find another file's part file; and the peer's texts are printed
# without control characters.
sources=$(dirname "$0")/file_transfer
mkdir "$work/forged" && cp "$sources"/*.[ch] "$work/forged" &&
	sed -i 's|s->id = wire(s->id);|s->id = wire(s->id) ^ 1;|' "$work/forged/sender.c" &&
	sed -i 's|"the id is not that of the hash"|"\\033[31mred\\r\\n"|' "$work/forged/receiver.c" &&
	# shellcheck disable=SC2046 # words
	${CC:-cc} -std=c99 -w -o "$work/forger" "$work"/forged/*.c $(pkg-config --cflags --libs gdrfab) -ldl || exit 1
head -c 100000 /dev/urandom >"$work/file"
honest=$program
for receiver_is in "$honest" "$work/forger"; do
	program=$receiver_is
	receive shm --resume || exit 1
	program=$work/forger
	send "$work/file"
	both_end
	[ "$sent" -eq 1 ] && [ "$received" -eq 1 ] && grep -q 'the id is not\|?\[31mred??' "$work/sender.log" && ! ls "$work"/copy* 2>/dev/null
	claim $? "a forged id is refused: $(tail -n 1 "$work/sender.log")"
	! LC_ALL=C grep -q '[[:cntrl:]]' "$work/sender.log"
	claim $? "no control characters are shown"
done
exit $failed
