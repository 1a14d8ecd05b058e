#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs every test over every provider and verifies the transferred data. See tests/check-perf.sh.
set -u
. "$(dirname "$0")/claims.sh"

for provider in $PROVIDERS; do
	for test in write-lat read-lat send-lat write-bw read-bw send-bw write-rate; do
		claim "$provider: $test verifies what arrived" local_run "$provider" "$test" -s 8:4K -n 50 --verify
	done
	for test in add fetch-add compare-swap; do
		claim "$provider: $test-lat verifies what it did" local_run "$provider" $test-lat -n 50 --verify
		claim "$provider: $test-rate verifies what it did" local_run "$provider" $test-rate -n 500 --verify
	done
	for pattern in random strided; do
		for test in list-read list-write; do
			claim "$provider: $test, $pattern, verifies what arrived" local_run "$provider" "$test" -s 512:4K --blocks 100 --pattern $pattern \
				-n 5 --verify
		done
	done
done
# The same with any provider.
[ "$PROVIDERS" != verbs ] || exit 0
claim "atomics over connectionless endpoints" local_run shm+tcp fetch-add-rate --ep rdm -n 500 --verify
claim "atomics of another size are refused" refused "8 bytes" add-lat -s 16
claim "blocks of what has none are refused" refused "for lists only" write-bw --blocks 5
claim "mr-reg prints the path" bash -c '"$PERF" mr-reg -s 4K -n 50 | grep -q offers'
claim "an unknown test is refused" refused "no such test" fly
claim "an unknown option is refused" refused "--frob" write-lat --frob
exit 0
