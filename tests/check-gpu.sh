#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the conformance programs for device memory on the GPUs of this machine, with their real driver: once with one GPU visible, and
# once with all GPUs. Prints tables in Markdown; the folder OUT keeps the output of each program.
#
#   PREFIX=<installed gdrfab> BUILD=<programs> OUT=<logs> tests/check-gpu.sh [claim text]
#   PREFIX=<installed gdrfab> tests/check-gpu.sh containers [options]      tests/gpu-containers.sh, which needs no programs
#
# This machine needs neither cargo nor pkg-config nor a compiler if the programs were built on another machine (c-tests/run.sh --build).
# With compute-sanitizer in PATH some of the claims run under that as well.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
[ "${1-}" != containers ] || exec "$root/tests/gpu-containers.sh" "${@:2}"
target=${CARGO_TARGET_DIR:-$root/target}
prefix=${PREFIX:-$target/prefix} build=${BUILD:-$target/c-tests} out=${OUT:-$target/check/gpu}
claim=${1:-cuda}
programs="device device_rma device_cuda rdm_device one_process copier rma rma_order msg msg_order memory"
export TEST_REAL=1 TEST_IFACES=${TEST_IFACES:-cuda}
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$out" || exit 1

for program in $programs; do
	if [ ! -x "$build/$program" ]; then
		# shellcheck disable=SC2086
		BUILD=$build PKG_CONFIG_PATH=$prefix/lib/pkgconfig "$root/c-tests/run.sh" --build $programs || exit 1
		break
	fi
done

echo "## The machine"
echo
echo '```'
"$prefix/bin/gdrfab-info" 2>&1
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader
uname -sr
echo '```'

# Runs all programs once; the log of each is $out/<name>.<program>.
run_all() { # <name> [command before the program...]
	local name=$1 program
	shift
	for program in $programs; do
		# These programs run all claims, because their claims do not have "cuda" in their names.
		if [[ $program = *device* || $program = one_process || $program = copier ]] && [ "$claim" = cuda ]; then
			timeout 900 "$@" "$build/$program" >"$out/$name.$program" 2>&1
		else
			timeout 900 "$@" "$build/$program" "$claim" >"$out/$name.$program" 2>&1
		fi
		echo "exit $?" >>"$out/$name.$program"
	done
}

count() { # <pattern> <file>
	grep -c "$1" "$2" 2>/dev/null
}

verdict() { # <name> <program> <claim>
	local line
	line=$(grep -m 1 -E "^(ok|FAIL|skip) $3(:| |\$)" "$out/$1.$2" 2>/dev/null)
	case $line in
	ok*) printf 'ok' ;;
	FAIL*) printf '**failed**' ;;
	skip*) printf 'skipped' ;;
	*) printf -- '-' ;;
	esac
}

gpus=$(ls /dev/nvidia[0-9]* 2>/dev/null | wc -l)
modes="one"
first=${CUDA_VISIBLE_DEVICES:-0}
rm -f "$out"/{one,all,sanitizer}.*
(export CUDA_VISIBLE_DEVICES="${first%%,*}" && run_all one)
if [ "$gpus" -gt 1 ]; then
	modes="one all"
	run_all all
fi

echo
echo "## Programs"
echo
echo "| program | GPUs | passed | failed | skipped |"
echo "|---|---|---|---|---|"
for program in $programs; do
	for mode in $modes; do
		log=$out/$mode.$program
		echo "| $program | $mode | $(count '^ok ' "$log") | $(count '^FAIL ' "$log") | $(count '^skip ' "$log") |"
	done
done

# Prints the names of the claims that were run. The rows of the tables are made from these names, so no list of rows is needed.
all_claims() { # <program> <begin>
	sed -n -E "s/^(ok|FAIL|skip) ($2[^: ]*).*/\2/p" "$out"/{one,all}."$1" 2>/dev/null | awk '!seen[$0]++'
}

row() { # <program> <claim> <cells...>
	local program=$1 name=$2 mode
	shift 2
	printf '|'
	printf ' %s |' "$@"
	for mode in one all; do
		printf ' %s |' "$(verdict "$mode" "$program" "$name")"
	done
	printf '\n'
}

echo
echo "## Remote memory access"
echo
echo "| remote memory | path | local memory | setting | one GPU | all GPUs |"
echo "|---|---|---|---|---|---|"
for name in $(all_claims rma every_call_); do
	rest=${name#every_call_} setting=
	case $rest in
	*_GDRFAB_*) setting=GDRFAB_${rest#*_GDRFAB_} rest=${rest%%_GDRFAB_*} ;;
	esac
	local=malloc
	case $rest in
	*_from_*) local=${rest#*_from_} rest=${rest%%_from_*} ;;
	esac
	row rma "$name" "${rest#*_}" "${rest%%_*}" "$local" "$setting"
done

echo
echo "## Messages"
echo
echo "| from | to | setting | one GPU | all GPUs |"
echo "|---|---|---|---|---|"
for name in $(all_claims msg every_call_and_size_); do
	rest=${name#every_call_and_size_} setting=
	case $rest in
	*_staged) setting=GDRFAB_PATHS=staged,socket rest=${rest%_staged} ;;
	esac
	case $rest in
	*_to_*) row msg "$name" "${rest%%_to_*}" "${rest#*_to_}" "$setting" ;;
	esac
done

failed=0
for mode in $modes; do
	for program in $programs; do
		log=$out/$mode.$program
		[ "$(tail -n 1 "$log")" = "exit 0" ] && continue
		failed=1
		echo
		echo "### What failed in $program, GPUs: $mode ($(tail -n 1 "$log"))"
		echo
		echo '```'
		grep -v -E '^(ok|skip) ' "$log" | cut -c 1-600 | head -n 40
		echo '```'
	done
done

if command -v compute-sanitizer >/dev/null; then
	echo
	echo "## Under compute-sanitizer"
	echo
	export TEST_FAST=1 TEST_TIME_SCALE=${TEST_TIME_SCALE:-20}
	programs=rma claim=cuda_plain
	run_all sanitizer compute-sanitizer --target-processes all --error-exitcode 9
	grep -h -E '^(FAIL|=+ (ERROR SUMMARY|Invalid|Program hit))' "$out/sanitizer.rma" | sort | uniq -c | head -n 40
	echo "$(count '^ok ' "$out/sanitizer.rma") passed, $(count '^FAIL ' "$out/sanitizer.rma") failed"
	[ "$(count '^FAIL ' "$out/sanitizer.rma")" = 0 ] || failed=1
fi
exit $failed
