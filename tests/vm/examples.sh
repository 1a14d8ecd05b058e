#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: the examples over RDMA, each as two processes, and the claims of gdrfab-perf. Prints a line
# that begins with "ok", "FAIL" or "skip" for each claim; programs.sh counts them. tests/check-verbs.sh puts the programs
# and their scripts below /gdrfab.
#
#   examples.sh [NODE [DEVICE]]
set -u

at=/gdrfab node=${1:-10.77.0.1} device=${2:-rxe0}
# The fake drivers are not in LD_LIBRARY_PATH, so that only the tests that name them use them. The device is named, because the
# guest's devices are on networks of their own.
export LD_LIBRARY_PATH=$at/lib GDRFAB_VERBS_DEVICE=$device
unset TEST_IFACES

# For programs that report success by their status alone.
ends_well() { # <program> [arguments...]
	local log
	log=$(timeout 60 "$at/examples/$@" 2>&1) && echo "ok   verbs: $*" && return
	echo "FAIL verbs: $*: exit status $?"
	printf '%s\n' "$log" | tail -n 5 | sed 's/^/     /'
}

timed() { # <name> <command...>
	local start=$SECONDS name=$1
	shift
	echo "== $name (verbs)"
	timeout 600 "$@" 2>&1 || case $? in
	124) echo "FAIL verbs: $name: not through within 600 s" ;;
	# The command's own lines have the reason.
	1 | 77) echo "     $name: exit status $?" ;;
	*) echo "FAIL verbs: $name: exit status $?" ;;
	esac
	echo "-- $name: $((SECONDS - start))s"
}

# The file is long enough for a side to be killed during the transfer, and no longer, because the guest is slow.
BIG=${BIG:-12000000} LIMIT=10 timed file_transfer bash $at/examples/file_transfer.sh $at/examples/file_transfer "verbs://$node:0"
timed gaudi_pingpong bash $at/examples/gaudi_pingpong.sh $at/examples/gaudi_pingpong $at/tests/fakes verbs
echo "== rdma_transport (verbs)"
ends_well rdma_transport_pingpong --providers verbs --address "$node" --rounds 100
ends_well rdma_transport_batch verbs 100
# The sum that the program prints is dropped, because programs.sh counts the lines.
timed nixl_engine $at/examples/nixl_engine | grep -vE '^[0-9]+ passed, '
# The part "output" of gdrfab-perf's tests is left out, because that part is the same over any provider.
PERF=gdrfab-perf PROVIDERS=verbs NODE=$node GDRFAB_FAKES=$at/tests/fakes timed gdrfab-perf bash $at/check-perf.sh basics memory transport |
	grep -vE '^[0-9]+ passed, '
