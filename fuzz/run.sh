#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds one fuzz target and runs it.
#
#   fuzz/run.sh TARGET SECONDS [arguments of libFuzzer]      looks for inputs, from fuzz/corpus/TARGET on
#   fuzz/run.sh TARGET minimise                              fuzz/corpus/TARGET is made anew, of what reaches more
#   fuzz/run.sh TARGET FILE                                  runs one input, as one that has failed
#
# TARGET is `decode`, `connection`, `seal`, `shm` or `rdm`. What a run finds lies in $CARGO_TARGET_DIR/fuzz/found/TARGET, failures beside it.
# Ends with 77 and the reason where this machine cannot do it.
set -eu -o pipefail

target=$1 what=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=${CARGO_TARGET_DIR:-$here/../target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$work/found/$target" "$work/failed/$target"

skip() {
	echo "SKIP: $1"
	exit 77
}
# libFuzzer comes as C++ with the crate.
command -v c++ >/dev/null || skip "no C++ compiler: 'make deps' installs one"
[ -e "$(rustc --print sysroot)/lib/rustlib/$host/lib/librustc-stable_rt.asan.a" ] ||
	ls "$(rustc --print sysroot)/lib/rustlib/$host/lib/"librustc*_rt.asan.a >/dev/null 2>&1 ||
	skip "this Rust has no AddressSanitizer (rustup's has, for $host perhaps not)"

# The sanitizer is not stable in rustc yet, hence RUSTC_BOOTSTRAP; what counts branches is LLVM's, and only needs telling.
export RUSTC_BOOTSTRAP=1
flags="-Zsanitizer=address -Cpasses=sancov-module --cfg fuzzing"
for arg in -sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters -sanitizer-coverage-pc-table \
	-sanitizer-coverage-trace-compares; do
	flags="$flags -Cllvm-args=$arg"
done
# Newer compilers want to be told that the standard library is meant to be built without.
meant="-Cunsafe-allow-abi-mismatch=sanitizer"
if echo 'pub fn f() {}' | rustc --crate-type lib --crate-name probe -Zsanitizer=address $meant --out-dir "$work" - 2>/dev/null; then
	flags="$flags $meant"
fi
# With --target the flags stay off build scripts.
RUSTFLAGS="$flags" cargo build --release --manifest-path "$here/Cargo.toml" --bin "$target" --target "$host" \
	--target-dir "$work"
program=$work/$host/release/$target

# A leak is looked for after each input; memory that a peer can take is bounded by the target itself, and by these.
limits="-rss_limit_mb=1024 -malloc_limit_mb=64 -timeout=10 -max_len=2048 -len_control=20 -error_exitcode=1 -timeout_exitcode=1"
export ASAN_OPTIONS=quarantine_size_mb=64:malloc_context_size=12:${ASAN_OPTIONS:-}
mkdir -p "$here/corpus/$target"
case $what in
minimise)
	# Those with names stay; of the others the 70 that reach most.
	find "$here/corpus/$target" -type f -regextype egrep -regex '.*/[0-9a-f]{40}' -exec mv -t "$work/found/$target" {} +
	"$program" $limits -set_cover_merge=1 -use_counters=0 "$@" "$here/corpus/$target" "$work/found/$target"
	# They are written in the order of what they add.
	(cd "$here/corpus/$target" && ls -tr | grep -E '^[0-9a-f]{40}$' | tail -n +71 | xargs -r rm)
	;;
*[!0-9]*) "$program" $limits "$@" "$what" ;;
*)
	log=$work/$target.log
	"$program" $limits -max_total_time="$what" -print_final_stats=1 -artifact_prefix="$work/failed/$target/" "$@" \
		"$work/found/$target" "$here/corpus/$target" 2>&1 | tee "$log"
	inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
	edges=$(sed -n 's/^#.*DONE *cov: \([0-9]*\).*/\1/p' "$log")
	echo "fuzz: $target: $inputs inputs, $edges edges reached, nothing found"
	;;
esac
