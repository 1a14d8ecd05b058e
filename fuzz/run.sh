#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds one fuzz target and runs it.
#
#   fuzz/run.sh TARGET SECONDS [arguments of libFuzzer]      searches for inputs, starting with fuzz/corpus/TARGET
#   fuzz/run.sh TARGET minimise                              makes fuzz/corpus/TARGET anew, of inputs that reach more code
#   fuzz/run.sh TARGET FILE                                  runs one input, such as one that has failed
#
# TARGET is `decode`, `connection`, `seal`, `shm` or `rdm`. New inputs are kept in $CARGO_TARGET_DIR/fuzz/found/TARGET, inputs
# that failed in .../fuzz/failed/TARGET. Ends with 77 and the reason if this machine cannot run the targets.
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

# The sanitizer is not stable in rustc yet, hence RUSTC_BOOTSTRAP. The counting of branches is a pass of LLVM's, which needs only options.
export RUSTC_BOOTSTRAP=1
flags="-Zsanitizer=address -Cpasses=sancov-module --cfg fuzzing"
for arg in -sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters -sanitizer-coverage-pc-table \
	-sanitizer-coverage-trace-compares; do
	flags="$flags -Cllvm-args=$arg"
done
# Newer compilers need an option that allows a standard library built without the sanitizer.
meant="-Cunsafe-allow-abi-mismatch=sanitizer"
if echo 'pub fn f() {}' | rustc --crate-type lib --crate-name probe -Zsanitizer=address $meant --out-dir "$work" - 2>/dev/null; then
	flags="$flags $meant"
fi
# With --target the flags do not apply to build scripts.
RUSTFLAGS="$flags" cargo build --release --manifest-path "$here/Cargo.toml" --bin "$target" --target "$host" \
	--target-dir "$work"
program=$work/$host/release/$target

# libFuzzer checks for a leak after each input. The target itself bounds the memory that a peer can cost, and so do these limits.
limits="-rss_limit_mb=1024 -malloc_limit_mb=64 -timeout=10 -max_len=2048 -len_control=20 -error_exitcode=1 -timeout_exitcode=1"
export ASAN_OPTIONS=quarantine_size_mb=64:malloc_context_size=12:${ASAN_OPTIONS:-}
mkdir -p "$here/corpus/$target"
case $what in
minimise)
	# Inputs with names stay; of the others, the 70 that reach the most code.
	find "$here/corpus/$target" -type f -regextype egrep -regex '.*/[0-9a-f]{40}' -exec mv -t "$work/found/$target" {} +
	"$program" $limits -set_cover_merge=1 -use_counters=0 "$@" "$here/corpus/$target" "$work/found/$target"
	# The merge writes inputs in the order of the coverage that they add.
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
