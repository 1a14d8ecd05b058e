#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# In the guest: runs gdrfab-perf and perftest in turns, on the same device with the same settings, and prints a table in
# Markdown. Emulated CPUs are slow and noisy, so the figure to read is the ratio: gdrfab's result divided by perftest's of the
# same round, as the median of the rounds. `make bench-verbs` runs this script.
#
#   ROUNDS=9 DEVICE=rxe0 NODE=10.77.0.1 GID=1 perftest.sh [TEST...]
#   PROVIDER=perftest measures perftest against itself: the noise of the method.
#   TEST is <test>:<size>, such as write-bw:64K, read-bw:1M, write-lat:8 or send-lat:4K. A bandwidth test may end with :N, for
#   one completion every N operations on both sides (perftest's -Q); without :N each operation has a completion. perftest's own
#   default is 1 for more than 8 KiB, else 100. send-lat:8::rdm measures gdrfab's connectionless endpoints beside the same perftest
#
# Both have the same device, GID index and so MTU, tx depth, number of operations, completions, and CPUs. Both connect over the
# device's own address; perftest exchanges its addresses over TCP, gdrfab by rdma_cm.
set -u

rounds=${ROUNDS:-9} device=${DEVICE:-rxe0} node=${NODE:-${TEST_NODE:-10.77.0.1}} gid=${GID:-1}
provider=${PROVIDER:-${TEST_PROVIDER:-verbs}}
[ $# -gt 0 ] || set -- write-bw:8:100 write-bw:4K:100 write-bw:64K write-bw:1M read-bw:8:100 read-bw:4K:100 read-bw:64K \
	read-bw:1M write-lat:8 write-lat:4K write-lat:64K write-lat:1M send-lat:8 send-lat:8::rdm
depth=128
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GDRFAB_VERBS_GID_INDEX=$gid

iterations() { # <test> <bytes>
	case $1:$2 in
	*-lat:1048576) echo "${BIG_LAT_ITERS:-200}" ;;
	*-lat:65536) echo "${MID_LAT_ITERS:-1000}" ;;
	*-lat:*) echo "${LAT_ITERS:-2000}" ;;
	*:1048576) echo "${BIG_ITERS:-512}" ;;
	*:65536) echo "${BW_ITERS:-2000}" ;;
	*) echo "${SMALL_ITERS:-50000}" ;;
	esac
}

# perftest() and gdrfab() print one number: MB/s (10^6 bytes), or the median in us. The server has CPU 0, the client CPU 1.

perftest() { # <test> <bytes> <iterations> <operations to a completion>
	local program=ib_${1/-/_} options="-d $device -x $gid -F -s $2 -n $3" server i
	case $1 in *-bw) options="$options -t $depth -Q $4" ;; esac
	# shellcheck disable=SC2086 # a list of words
	taskset 1 timeout 120 "$program" $options >/dev/null 2>"$work/err" &
	server=$!
	# Waits until the server listens (port 18515).
	for ((i = 0; i < 100; i++)); do
		grep -q ':4853 00000000:0000 0A' /proc/net/tcp && break
		grep -q ':4853 .* 0A' /proc/net/tcp6 2>/dev/null && break
		sleep 0.1
	done
	# shellcheck disable=SC2086
	timeout 120 taskset 2 "$program" $options 127.0.0.1 2>>"$work/err" | tee "$work/perftest.out" |
		awk -v test="$1" -v bytes="$2" '$1 == bytes {
			# perftest prints MB/s and millions of messages per second; the column with more digits is used.
			print test ~ /lat$/ ? $5 : bytes <= 8192 ? $5 * bytes : $4 * 1.048576
		}'
	wait $server
}

gdrfab() { # <test> <bytes> <iterations> <operations to a completion> [rdm]
	[ "$provider" != perftest ] || { perftest "$@" && return; }
	local options="-p $provider -s $2 -n $3 --cpus 1,0${5:+ --ep $5}" key=t_typical_usec
	[ "$provider" != verbs ] || options="$options --name $node"
	# The target of writes and reads sleeps (--sleep) as perftest's does, and so leaves its CPU to the emulated device.
	case $1 in *-bw) options="$options -d $depth -Q $4 --sleep" key=bw_average_mb_s ;; esac
	# shellcheck disable=SC2086
	timeout 120 gdrfab-perf "$1" $options --local --json 2>"$work/err" | tee "$work/gdrfab.out" |
		sed -n "s/.*\"$key\": \([0-9.]*\).*/\1/p"
}

median() { # of the numbers on stdin
	sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

status=0
echo "perftest $(ib_write_bw --version 2>&1 | sed -n 's/^Version: *//p') and gdrfab $(gdrfab-perf --version | sed 's/.* //')" \
	"on $device (GID $gid), $rounds rounds, kernel $(uname -r)"
echo
echo "| test | size | tx depth | completion every | perftest | gdrfab | unit | ratio | of all rounds | bar |"
echo "|---|---|---|---|---:|---:|---|---:|---|---|"
for each in "$@"; do
	IFS=: read -r test size every kind <<<"$each"
	bytes=$(echo "$size" | sed 's/K$/ * 1024/; s/M$/ * 1048576/')
	bytes=$((bytes))
	n=$(iterations "$test" "$bytes")
	rm -f "$work"/{perftest,gdrfab,ratio}
	for ((round = 0; round < rounds; round++)); do
		# The order within a round alternates from round to round.
		if [ $((round % 2)) -eq 0 ]; then
			p=$(perftest "$test" "$bytes" "$n" "${every:-1}") g=$(gdrfab "$test" "$bytes" "$n" "${every:-1}" "$kind")
		else
			g=$(gdrfab "$test" "$bytes" "$n" "${every:-1}" "$kind") p=$(perftest "$test" "$bytes" "$n" "${every:-1}")
		fi
		if [ -z "$p" ] || [ -z "$g" ]; then
			echo "$test $size: perftest '$p', gdrfab '$g': $(tail -n 2 "$work/err")" >&2
			status=1
			continue
		fi
		echo "$p" >>"$work/perftest"
		echo "$g" >>"$work/gdrfab"
		awk -v g="$g" -v p="$p" 'BEGIN { printf "%.3f\n", g / p }' >>"$work/ratio"
	done
	case $test in
	*-bw) unit=MB/s bar=">= 0.97" in_flight=$depth ;;
	*) unit=us bar="<= 1.05" in_flight=1 every= ;;
	esac
	touch "$work"/{perftest,gdrfab,ratio}
	printf '| %s | %s | %s | %s | %.4g | %.4g | %s | %.3f | %s | %s |\n' "$test${kind:+ $kind}" "$size" $in_flight "${every:-1}" \
		"$(median <"$work/perftest")" "$(median <"$work/gdrfab")" $unit "$(median <"$work/ratio")" \
		"$(sort -g "$work/ratio" | sed -n '1p;$p' | paste -sd- | sed 's/-/ to /')" "$bar"
done
exit $status
