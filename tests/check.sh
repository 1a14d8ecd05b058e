#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the steps of `make check` (its arguments) one after the other, all of them even if one fails, and sums up.
# The output of each is kept in $CARGO_TARGET_DIR/check/<step>.log; a failure shows its end.
set -u

make=${MAKE:-make}
logs=${CARGO_TARGET_DIR:-target}/check
mkdir -p "$logs"

for tool in cargo gcc g++ pkg-config readelf abidiff valgrind; do
	if ! command -v "$tool" >/dev/null; then
		echo "check: $tool is missing; 'make deps' installs what the tests need" >&2
		exit 1
	fi
done

# One line of figures out of a step's log.
figures() { # <step>
	case $1 in
	rust | loom)
		awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
			END { printf "%d passed, %d failed, %d ignored", passed, failed, ignored }' "$logs/$1.log"
		;;
	c | guards | memcheck | tsan) grep -v '^make' "$logs/$1.log" | tail -n 1 ;;
	fuzz) sed -n 's/^SKIP: //p; s/^fuzz: //p' "$logs/fuzz.log" | paste -s -d ';' ;;
	perf | tcp | nccl | libfabric | verbs) grep -E '^SKIP: | passed, .* failed, .* skipped$' "$logs/$1.log" | tail -n 1 ;;
	esac
}

failed=0 skipped=0
summary= causes=
begin=$SECONDS
for step in "$@"; do
	printf '%-10s ' "$step"
	start=$SECONDS
	if "$make" --no-print-directory "check-$step" >"$logs/$step.log" 2>&1; then
		verdict=ok
	elif grep -q '^SKIP: ' "$logs/$step.log"; then
		verdict=skipped
		skipped=$((skipped + 1))
	else
		verdict=FAILED
	fi
	# A filter that matches nothing passes; a model that does not run proves nothing.
	if [ "$step" = loom ] && [ "$verdict" = ok ] && ! grep -q '^test result: ok. [1-9]' "$logs/loom.log"; then
		verdict=FAILED
		echo "no loom model ran" >>"$logs/loom.log"
	fi
	line=$(printf '%-7s %4ds  %s' "$verdict" $((SECONDS - start)) "$(figures "$step")")
	echo "$line"
	summary+=$(printf '  %-10s %s' "$step" "$line")$'\n'
	if [ "$verdict" = FAILED ]; then
		failed=$((failed + 1))
		echo "---- end of $logs/$step.log"
		tail -n 60 "$logs/$step.log"
		# What failed may be far from the end, and whoever reads this may have these lines alone.
		if grep -q '^FAIL ' "$logs/$step.log"; then
			echo "---- what failed in it, with what was printed around it"
			grep -B 3 -A 6 '^FAIL ' "$logs/$step.log" | head -n 40
		fi
		echo "----"
		causes+=$(grep -hE '^FAIL |^error|: (fatal )?error|panicked at|No space left|Killed|Terminated' "$logs/$step.log" |
			head -n 6 | sed "s/^/  $step: /")$'\n'
	fi
done

if [ "$failed" -ne 0 ]; then
	printf '\ncheck: %d of %d steps FAILED in %ds (logs in %s)\n%s' "$failed" $# $((SECONDS - begin)) "$logs" "$summary"
	printf 'what they say first:\n%s' "$causes"
	exit 1
fi
echo "check: $(($# - skipped)) steps passed, $skipped skipped, in $((SECONDS - begin))s (logs in $logs)"
