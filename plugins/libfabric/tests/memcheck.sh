# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The part "memcheck" of check.sh: fi_pingpong and Open MPI under valgrind.

# Open MPI and libfabric have errors of their own, mostly memory that they keep. Only these errors count: each with a
# function of ours in its stack, and each in the program itself. One kind is left out: Open MPI's windows send
# structures with unset gaps, which valgrind notices where they are written to a socket, ours or libfabric's.
checker() { # <where the reports go>
	echo valgrind -q --xml=yes --xml-file="$1.%p.xml" --leak-check=full --show-leak-kinds=definite --num-callers=40 \
		--keep-debuginfo=yes --fair-sched=try
}
judge() { # <claim> <program> <reports...>
	local claim=$1 program=$2 theirs ours
	shift 2
	ours=$(awk -v program="/$program" 'BEGIN { RS = "</error>" } /<error>/ {
		stack = $0
		sub(/<\/stack>.*/, "", stack)
		ours = stack ~ /<obj>[^<]*libgdrfab/
		if ($0 ~ /<kind>SyscallParam/ && $0 ~ /Syscall param (socketcall[.])?send/ && stack ~ /<fn>ompi_osc_pt2pt/)
			next
		# The owner of the code at the top of the stack, ignoring the C library and valgrind itself.
		count = split(stack, frames, /<frame>/)
		for (i = 2; i <= count && !ours; i++) {
			if (!match(frames[i], /<obj>[^<]*/)) continue
			object = substr(frames[i], RSTART + 5, RLENGTH - 5)
			if (object ~ /vgpreload|\/libc\.so|\/ld-linux/) continue
			ours = $0 !~ /<kind>Leak/ && substr(object, length(object) - length(program) + 1) == program
			break
		}
		if (ours) print
	}' "$@")
	theirs=$(cat "$@" | grep -c '<error>')
	if [ -n "$ours" ]; then
		echo "$ours" >"$out/memcheck.ours"
		bad "$claim" "$(echo "$ours" | grep -c '<kind>') errors; the first:" <(
			sed -n '1,/<\/stack>/p' "$out/memcheck.ours" | sed -n 's/.*<\(what\|text\|fn\)>\(.*\)<.*/\2/p' | head -n 24
		)
	elif ! grep -q '<state>FINISHED' "$@"; then
		bad "$claim" "valgrind wrote no report"
	else
		echo "     $claim: $theirs errors without a function of ours in their stacks"
		ok "$claim"
	fi
}

part_memcheck() {
	local provider tool
	if ! command -v valgrind >/dev/null; then
		left_out memcheck "no valgrind here"
		return
	fi
	for provider in $providers; do
		over "$provider"
		rm -f "$out"/vg.*
		read -r -a tool <<<"$(checker "$out/vg.%side")"
		GDRFAB_SPIN_US=0 pingpong "pingpong_under_valgrind_$provider" "$name" msg 2 "$out/vg" "${tool[@]}" &&
			judge "memcheck_pingpong_$provider" fi_pingpong "$out"/vg.*.xml
		[ -n "$mpirun" ] || continue
		rm -f "$out"/vg.*
		read -r -a tool <<<"$(checker "$out/vg")"
		# Without GDRFAB_DEBUG=no-coop the peer's process would write a part of large copies, and valgrind would
		# take bytes that it does not see written for unset.
		# shellcheck disable=SC2086
		GDRFAB_DEBUG=no-coop GDRFAB_SPIN_US=0 TEST_FAST=1 TEST_TIME_SCALE=4 open_mpi 2 "${tool[@]}" "$build/mpi" $claims \
			>"$out/mpi" 2>"$out/mpi.err"
		count_lines "mpi under valgrind over $provider" $? "$out/mpi"
		judge "memcheck_mpi_$provider" mpi "$out"/vg.*.xml
	done
}
