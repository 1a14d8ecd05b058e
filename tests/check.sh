#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the steps of `make check` or `make check-all`, all of them even if one fails, and sums up. A step is a target check-STEP of the
# Makefile.
#
#   tests/check.sh NAME MINUTES [--pairs | --alone] STEP...
#
# NAME is check or check-all, MINUTES the expected time. Steps run one after the other. Steps after --pairs tolerate a busy machine and
# run two at a time; --alone waits for them. The output of a step is kept in $CARGO_TARGET_DIR/check/STEP.log. The causes of failures are
# printed last, because the web page of a CI shows the end of the output.
set -u

make=${MAKE:-make}
logs=${CARGO_TARGET_DIR:-target}/check
name=$1 minutes=$2
shift 2
steps=()
for word in "$@"; do
	[ "${word#--}" != "$word" ] || steps+=("$word")
done
mkdir -p "$logs"

for tool in cargo gcc g++ pkg-config readelf abidiff valgrind; do
	if ! command -v "$tool" >/dev/null; then
		echo "$name: $tool is missing; 'make deps' installs what the tests need" >&2
		exit 1
	fi
done

# Prints one line of figures from a step's log.
figures() { # <step>
	case $1 in
	bindings) sed -n 's/^SKIP: //p; s/^test result: ok. \([0-9]* passed\).*/\1/p' "$logs/bindings.log" ;;
	rust | loom)
		awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
			END { printf "%d passed, %d failed, %d ignored", passed, failed, ignored }' "$logs/$1.log"
		;;
	guards) tail -n 1 "$logs/$1.log" ;;
	fuzz) sed -n 's/^SKIP: //p; s/^fuzz: //p' "$logs/fuzz.log" | paste -s -d ';' ;;
	*)
		awk '/^SKIP: / { print; any = 0; exit }
			/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { passed += $1; failed += $3; skipped += $5; any = 1 }
			END { if (any) printf "%d passed, %d failed, %d skipped", passed, failed, skipped }' "$logs/$1.log"
		;;
	esac
}

# Options (-o) that keep make from making the installed files again, because two steps would make them at the same time.
installed=()
run_step() { # <step>
	local step=$1 start=$SECONDS verdict
	if "$make" --no-print-directory ${installed[@]+"${installed[@]}"} "check-$step" >"$logs/$step.log" 2>&1; then
		verdict=ok
	elif grep -q '^SKIP: ' "$logs/$step.log"; then
		verdict=skipped
	else
		verdict=FAILED
	fi
	# cargo test succeeds even if it runs no model.
	if [ "$step" = loom ] && [ "$verdict" = ok ] && ! grep -q '^test result: ok. [1-9]' "$logs/loom.log"; then
		verdict=FAILED
		echo "no loom model ran" >>"$logs/loom.log"
	fi
	printf '%-15s %-7s %4ds  %s\n' "$step" "$verdict" $((SECONDS - start)) "$(figures "$step")" | tee "$logs/$step.verdict"
}

# Prints each failure of a log with the lines about it: those since the last good claim, and the indented ones after it.
excerpt() { # <step>
	echo "---- $1: from $logs/$1.log"
	if grep -qE '^FAIL(ED)? ' "$logs/$1.log"; then
		awk '
			/^== / { program = $0; n = after = 0; next }
			/^(ok|skip) / { n = after = 0; next }
			/^FAIL(ED)? / {
				if (++shown > 8) { n = 0; next }
				if (program != said) print said = program
				for (i = 0; i < n; i++) if (i < 10 || i >= n - 6) print before[i]; else if (i == 10) print "[...]"
				print
				n = 0
				after = /^FAILED/ ? 2 : 1
				next
			}
			after == 2 || (after && /^     /) { if (lines++ < 60) print; next }
			{ after = 0; before[n++] = $0 }
			END { if (shown > 8) print "and " shown - 8 " more" }' "$logs/$1.log" | cut -c 1-400
	else
		awk '/^failures:$/ { on = 1 } on; /^test result/ { on = 0 }' "$logs/$1.log" | head -n 60
		tail -n 50 "$logs/$1.log"
	fi
}

last=$(cat "$logs/$name.seconds" 2>/dev/null)
echo "$name: ${#steps[@]} steps, about $minutes minutes on two quiet cores from a built tree${last:+; the last one here took $((last / 60)) min $((last % 60)) s}"
begin=$SECONDS
for step in "${steps[@]}"; do rm -f "$logs/$step.verdict"; done
# Notes the targets that a successful step has installed. A step that needs such a target never runs beside the step that makes it.
note_installed() { # <step>
	grep -q ' ok ' "$logs/$1.verdict" || return
	case $1 in
	install) installed+=(-o check-install) ;;
	plugins) installed+=(-o test-plugins) ;;
	esac
}
side_by_side= beside=()
for word in "$@"; do
	case $word in
	--pairs) side_by_side=1 ;;
	--alone)
		wait
		for step in "${beside[@]}"; do note_installed "$step"; done
		side_by_side= beside=()
		;;
	*)
		if [ -z "$side_by_side" ]; then
			run_step "$word"
			note_installed "$word"
			continue
		fi
		# The running jobs are counted, because wait -n may report a job that an earlier wait has reported already.
		while [ "$(jobs -pr | wc -l)" -ge 2 ]; do wait -n; done
		run_step "$word" &
		beside+=("$word")
		;;
	esac
done
wait
took=$((SECONDS - begin))
echo $took >"$logs/$name.seconds"

failed=() skipped=0
for step in "${steps[@]}"; do
	case $(cat "$logs/$step.verdict" 2>/dev/null) in
	"$step "*" ok "*) ;;
	"$step "*" skipped "*) skipped=$((skipped + 1)) ;;
	*) failed+=("$step") ;;
	esac
done
if [ ${#failed[@]} -gt 0 ]; then
	echo
	for step in "${failed[@]}"; do excerpt "$step"; done
	printf '\n%s: %d of %d steps FAILED in %ds (logs in %s)\n' "$name" ${#failed[@]} ${#steps[@]} $took "$logs"
	for step in "${steps[@]}"; do sed 's/^/  /' "$logs/$step.verdict"; done
	echo "what they say first:"
	for step in "${failed[@]}"; do
		grep -hE '^FAIL(ED)? |^error|: (fatal )?error|^test .* FAILED$|panicked at|No space left|Killed|Terminated' "$logs/$step.log" |
			head -n 6 | cut -c 1-300 | sed "s/^/  $step: /"
	done
	exit 1
fi
echo "$name: $((${#steps[@]} - skipped)) steps passed, $skipped skipped, in ${took}s (logs in $logs)"
