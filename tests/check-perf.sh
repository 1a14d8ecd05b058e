#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests the command line of gdrfab-perf: runs the installed program as a user would, and checks the effect of its options, never the speed.
#
#   tests/check-perf.sh [PART...]
#
# A PART is a file tests/perf/PART.sh (default: all). PERF: the program (found in PREFIX/bin, or in PATH); PROVIDERS: the providers to
# use ("shm tcp"); NODE: the address at which a server of the provider verbs listens. Prints one line for each claim, and at last
# `N passed, N failed, N skipped`.
set -u

here=$(cd "$(dirname "$0")/perf" && pwd)
[ -z "${PREFIX:-}" ] || PERF=${PERF:-$PREFIX/bin/gdrfab-perf}
export PERF=${PERF:-gdrfab-perf} PROVIDERS=${PROVIDERS:-shm tcp}
command -v "$PERF" >/dev/null || {
	echo "FAIL check-perf.sh: there is no $PERF"
	exit 1
}
[ $# -gt 0 ] || set -- $(cd "$here" && ls ./*.sh | sed 's|^\./||; s|\.sh$||' | grep -vx claims)

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for part in "$@"; do
	echo "== $part"
	# A part that ends with an error has not run all of its claims.
	{ timeout 600 bash "$here/$part.sh" 2>&1 || echo "FAIL $part: ended with status $?"; } | tee -a "$log"
done
passed=$(grep -c '^ok ' "$log") failed=$(grep -c '^FAIL ' "$log") skipped=$(grep -c '^skip ' "$log")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
