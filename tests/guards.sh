#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checks the installed library from outside: its exports, its dependencies, that C and C++ programs can use the library, and that its ABI
# has not changed.
#
#   tests/guards.sh [GUARD...]      a GUARD is a function guard_GUARD below; without any: all. `make check-guards` sets the environment:
#
#   PREFIX            the prefix in which the library is installed; PKG_CONFIG_PATH and LD_LIBRARY_PATH point into PREFIX
#   VERSION, SONAME   the expected version and SONAME
#   BUILT_SO          the installed library as it was before its symbols were split off
#   PANIC_DIR         directory of a build of the library that panics on demand and has full debug information
#   MAKE              make, which installs and uninstalls
set -u
export LC_ALL=C

so=$PREFIX/lib/libgdrfab.so
header=$PREFIX/include/gdrfab.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strict=(-Wall -Wextra -Wpedantic -Werror -fmax-errors=3)

# A guard that fails prints its finding and returns a status that is not 0.

guard_needed() { # a program that links gdrfab must start on a host that has nothing but the C library
	local bad
	bad=$(readelf -dW "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux.*)$')
	[ -z "$bad" ] || { echo "needs ${bad//$'\n'/ }"; return 1; }
	! readelf -dW "$so" | grep -E '\((RPATH|RUNPATH)\)'
}

guard_soname() {
	local got
	got=$(readelf -dW "$so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
	[ "$got" = "$SONAME" ] || { echo "SONAME is '$got', not $SONAME"; return 1; }
	got="$(readlink "$so") $(readlink "$PREFIX/lib/$SONAME")"
	[ "$got" = "$SONAME libgdrfab.so.$VERSION" ] || { echo "libgdrfab.so and $SONAME link to $got"; return 1; }
}

guard_flags() { # no unloading under running thread destructors, no lazy binding, nothing both writable and executable
	local dynamic segments
	dynamic=$(readelf -dW "$so")
	segments=$(readelf -lW "$so")
	grep -q 'FLAGS_1.*NODELETE' <<<"$dynamic" || { echo "not NODELETE"; return 1; }
	grep -q 'FLAGS_1.*NOW' <<<"$dynamic" || { echo "lazy binding"; return 1; }
	grep -q GNU_RELRO <<<"$segments" || { echo "no RELRO"; return 1; }
	! grep TEXTREL <<<"$dynamic" || return 1
	! awk '/^ *(LOAD|GNU_STACK) / && /RWE/' <<<"$segments" | grep . || { echo "writable and executable"; return 1; }
}

guard_stripped() { # what is installed is small, and its debug information lies beside it
	local file debug most
	for file in lib/libgdrfab.so.$VERSION lib/gdrfab/gdrfab-copier bin/gdrfab-info bin/gdrfab-perf; do
		most=4400
		[ "${file##*/}" != "libgdrfab.so.$VERSION" ] || most=3800
		[ "$(stat -c %s "$PREFIX/$file")" -le $((most * 1000)) ] || { echo "$file is longer than $most kB"; return 1; }
		! readelf -SW "$PREFIX/$file" | grep -E ' \.(debug_info|symtab) ' || { echo "$file is not stripped"; return 1; }
		debug=$(readelf -p .gnu_debuglink "$PREFIX/$file" | grep -o '[a-z.-]*\.debug')
		[ -e "$PREFIX/$(dirname "$file")/.debug/$debug" ] || { echo "$file has no debug file"; return 1; }
	done
	nm "$PREFIX/lib/.debug/libgdrfab.so.debug" | grep -q ' T gdrfab_version$' || { echo "no symbols in the debug file"; return 1; }
}

exported() {
	nm -D --defined-only "$so" | awk '{ print $3 }' | sort
}

declared() { # the functions of the header: what stands before the first parenthesis of each prototype
	gcc -fpreprocessed -dD -E -P "$header" 2>/dev/null | grep -v '^#' | tr '\n' ' ' | tr ';{}' '[\n*]' |
		grep -v typedef | sed -n 's/^[^(]*[ *]\(gdrfab_[a-z0-9_]*\) *(.*/\1/p' | sort -u
}

guard_symbols() {
	exported >"$work/exported"
	declared >"$work/declared"
	[ -s "$work/declared" ] || { echo "found no function in the header"; return 1; }
	! grep -v '^gdrfab_' "$work/exported" || { echo "exported, and not ours"; return 1; }
	diff --label exported --label header -u "$work/exported" "$work/declared"
}

# Prints a pattern that matches objdump's lines of calls of a function of Rust's runtime, through the global offset table or direct.
calls_of() { # <part of its mangled name>
	local at got
	at=$(nm "$BUILT_SO" | awk -v name="$1" '$3 ~ name { sub(/^0+/, "", $1); print $1; exit }')
	got=$(readelf -rW "$BUILT_SO" | awk -v at="$at" '$3 == "R_X86_64_RELATIVE" && $4 == at { sub(/^0+/, "", $1); printf "%s|", $1 }')
	echo "# (${got%|}) |(call|jmp) .*<[^>]*$1"
}

# An exported function must not unwind into C: Rust ends the process if it does. The compiler adds a call of panic_cannot_unwind to each
# exported function in which it cannot exclude unwinding. Each catch_unwind has one such call, for the panic's payload. More calls in one
# function show a path that no catch_unwind covers.
guard_unwinding() {
	if [ "$(uname -m)" != x86_64 ]; then
		echo "skipped: reads the instructions of x86_64"
		return 0
	fi
	objdump -d --no-show-raw-insn "$BUILT_SO" | awk -v ends="$(calls_of panic_cannot_unwind)" -v held="$(calls_of 12catch_unwind7cleanup)" '
		/^[0-9a-f]+ <.*>:$/ { name = $2 }
		$0 ~ ends { e[name]++; n++ }
		$0 ~ held { h[name]++; m++ }
		END { for (f in e) if (e[f] > h[f]) print f; print n + 0, m + 0 }' >"$work/unwinding"
	read -r n m < <(tail -n 1 "$work/unwinding")
	# The numbers are low bounds, which show that the pattern still finds calls. A library that is built alone has few of the first kind.
	[ "$n" -gt 5 ] && [ "$m" -gt 50 ] || { echo "found $n and $m calls: does it still read them?"; return 1; }
	# Functions whose names lack gdrfab are of Rust's runtime library: its threads, and the printing of backtraces.
	! sed '$d' "$work/unwinding" | grep gdrfab || { echo "^ a panic in these ends the process"; return 1; }
}

# In the build that panics on demand, a panic in every function and at every step of the data path must be caught. The installed
# library must not have the switch for such panics.
guard_panics() {
	local provider said
	! grep -q GDRFAB_PANIC "$so" || { echo "the installed library can be told to panic"; return 1; }
	for provider in shm tcp; do
		said=$(TEST_PROVIDER=$provider LD_LIBRARY_PATH=$PANIC_DIR:$LD_LIBRARY_PATH c-tests/run.sh panics 2>&1)
		[ "$(tail -n 1 <<<"$said")" = "2 passed, 0 failed, 0 skipped" ] || { echo "$said"; return 1; }
	done
}

# The build in PANIC_DIR has debug assertions: a thread that takes locks against their order (sync::serial::Rank) panics.
guard_locks() {
	local provider threading said
	for provider in shm tcp; do
		for threading in safe domain; do
			said=$(TEST_PROVIDER=$provider TEST_THREADING=$threading TEST_FAST=1 LD_LIBRARY_PATH=$PANIC_DIR:$LD_LIBRARY_PATH \
				c-tests/run.sh --jobs 4 rma msg rdm threads 2>&1)
			grep -q ', 0 failed, ' <<<"$(tail -n 1 <<<"$said")" || { echo "$said"; return 1; }
		done
	done
}

guard_c99() {
	printf '#include <gdrfab.h>\n#include <gdrfab.h>\n%s\n' \
		'int main(void) { gdrfab_eq_cm_entry event[2]; return GDRFAB_EQ_CM_DATA(event) != (const void *)&event[1]; }' >"$work/c99.c"
	# shellcheck disable=SC2046 # words
	gcc -std=c99 "${strict[@]}" $(pkg-config --cflags gdrfab) -c -o "$work/c99.o" "$work/c99.c"
}

guard_cxx11() {
	cp "$work/c99.c" "$work/cxx.cpp"
	# shellcheck disable=SC2046
	g++ -std=c++11 "${strict[@]}" $(pkg-config --cflags gdrfab) -c -o "$work/cxx.o" "$work/cxx.cpp"
}

guard_readme() { # the first program a newcomer copies
	sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"$work/readme.c"
	[ -s "$work/readme.c" ] || { echo "README.md has no C example"; return 1; }
	# shellcheck disable=SC2046
	gcc -std=c99 "${strict[@]}" $(pkg-config --cflags gdrfab) -o "$work/readme" "$work/readme.c" $(pkg-config --libs gdrfab)
}

program='#include <gdrfab.h>
#include <stdio.h>
int main(void) { return printf("%u\n", (unsigned)gdrfab_version()) > 0 ? 0 : 1; }'

guard_dynamic_link() {
	echo "$program" >"$work/dynamic.c"
	[ "$(pkg-config --modversion gdrfab)" = "$VERSION" ] || { echo "gdrfab.pc says $(pkg-config --modversion gdrfab)"; return 1; }
	# shellcheck disable=SC2046
	gcc -std=c99 "${strict[@]}" -o "$work/dynamic" "$work/dynamic.c" $(pkg-config --cflags --libs gdrfab) || return 1
	readelf -dW "$work/dynamic" | grep -q "NEEDED.*\[$SONAME\]" || { echo "the program does not ask for $SONAME"; return 1; }
	"$work/dynamic" >/dev/null
}

guard_static_link() { # the archive alone, and with -static the C library too
	echo "$program" >"$work/static.c"
	# shellcheck disable=SC2046
	gcc -std=c99 "${strict[@]}" -o "$work/static" "$work/static.c" $(pkg-config --cflags --libs gdrfab-static) || return 1
	! readelf -dW "$work/static" | grep libgdrfab || return 1
	env -u LD_LIBRARY_PATH "$work/static" >/dev/null || return 1
	[ -e "$(gcc -print-file-name=libc.a)" ] || { echo "skipped: -static, as this system has no libc.a"; return 0; }
	# shellcheck disable=SC2046
	gcc -std=c99 -static -o "$work/static" "$work/static.c" $(pkg-config --static --cflags --libs gdrfab) || return 1
	! readelf -dW "$work/static" | grep NEEDED || return 1
	env -u LD_LIBRARY_PATH "$work/static" >/dev/null
}

guard_static_symbols() { # the archive defines what the header declares, and nothing else that another object could see
	nm -g --defined-only "$PREFIX/lib/libgdrfab.a" | awk 'NF == 3 { print $3 }' | sort >"$work/archived"
	declared | diff --label archive --label header -u "$work/archived" -
}

guard_static_beside_rust() { # another static library in Rust, and the runtime that it brings
	local linker way order
	command -v "${RUSTC:-rustc}" >/dev/null || { echo "skipped: there is no rustc"; return 0; }
	printf '%s\n' '#[unsafe(no_mangle)]' 'pub extern "C" fn second() -> i32 {' \
		'    std::thread::spawn(|| std::panic::catch_unwind(|| std::env::args().count() as i32).unwrap_or(0)).join().unwrap_or(0)' \
		'}' >"$work/second.rs"
	printf '#include <gdrfab.h>\nint second(void);\n%s\n' \
		'int main(void) { gdrfab_info *i; return second() != 1 || gdrfab_getinfo(GDRFAB_VERSION, 0, 0, 0, 0, &i) != 0; }' >"$work/both.c"
	for way in lto=fat lto=off; do
		"${RUSTC:-rustc}" --edition 2024 --crate-type staticlib -O -C $way -o "$work/second.a" "$work/second.rs" || return 1
		for linker in bfd gold lld; do
			command -v ld.$linker >/dev/null || continue
			for order in "$PREFIX/lib/libgdrfab.a $work/second.a" "$work/second.a $PREFIX/lib/libgdrfab.a"; do
				rm -f "$work/both"
				# shellcheck disable=SC2046,SC2086
				gcc -fuse-ld=$linker -o "$work/both" "$work/both.c" $(pkg-config --cflags gdrfab) $order \
					$(pkg-config --libs gdrfab-static) && "$work/both" || { echo "$way, ld.$linker, $order"; return 1; }
			done
		done
	done
}

guard_abi() { # added functions and grown size-tagged structs are welcome; `make abi` accepts anything else
	if [ "$(uname -m)" != x86_64 ]; then
		echo "skipped: the baseline is of x86_64"
		return 0
	fi
	tests/abi-dump.sh "$work/now.abi" && abidiff --no-added-syms --suppressions abi/gdrfab.supp abi/gdrfab.abi "$work/now.abi"
}

# "struct size" and "struct.field offset" of every public struct, from abidw's XML.
layout() { # <xml>
	awk -F"'" '
		/<class-decl / { name = ($2 ~ /^gdrfab_/ && /size-in-bits/ && !/declaration-only/) ? $2 : "" }
		/<class-decl / && name { match($0, /size-in-bits=.[0-9]+/); print name, substr($0, RSTART + 14, RLENGTH - 14) }
		/<\/class-decl>/ { name = "" }
		name && /<data-member / { match($0, /layout-offset-in-bits=.[0-9]+/); offset = substr($0, RSTART + 23, RLENGTH - 23) }
		name && /<var-decl / && offset != "" { print name "." $2, offset; offset = "" }
	' "$1" | sort -u
}

guard_layout() { # the header is made from source text; this compares it with what the compiler built
	[ -s "$work/now.abi" ] || tests/abi-dump.sh "$work/now.abi" || return 1
	abidw --load-all-types --no-show-locs --out-file "$work/rust.abi" "$PANIC_DIR/$SONAME" || return 1
	layout "$work/now.abi" >"$work/layout.c"
	[ -s "$work/layout.c" ] || { echo "found no struct in the header"; return 1; }
	# Handles are opaque in C and have a layout in Rust: only structs that the header defines are compared.
	cut -d' ' -f1 "$work/layout.c" | cut -d. -f1 | sort -u >"$work/public"
	layout "$work/rust.abi" | awk 'NR == FNR { public[$1]; next } { split($1, part, ".") } part[1] in public' "$work/public" - >"$work/layout.rust"
	diff --label header --label library -u "$work/layout.c" "$work/layout.rust"
}

guard_install() {
	local dest=$work/dest
	"$MAKE" -s install DESTDIR="$dest" PREFIX=/opt/gdrfab LIBDIR=/opt/gdrfab/lib64 || return 1
	(cd "$dest/opt/gdrfab" && find . ! -type d | sort) >"$work/installed"
	# shellcheck disable=SC2046 # a list of words
	printf './%s\n' bin/gdrfab-info bin/gdrfab-perf include/gdrfab.h $(ls include/gdrfab/*.hpp) lib64/gdrfab/gdrfab-copier lib64/gdrfab/directories \
		lib64/libgdrfab.a lib64/libgdrfab.so "lib64/$SONAME" "lib64/libgdrfab.so.$VERSION" lib64/pkgconfig/gdrfab{,-static}.pc | sort | diff -u - "$work/installed" || return 1
	! grep -n "$work" "$dest"/opt/gdrfab/lib64/pkgconfig/*.pc || { echo "^ DESTDIR has found its way into this"; return 1; }
	! grep -n '@' "$dest"/opt/gdrfab/lib64/pkgconfig/*.pc || { echo "^ this is not filled in"; return 1; }
	"$MAKE" -s uninstall DESTDIR="$dest" PREFIX=/opt/gdrfab LIBDIR=/opt/gdrfab/lib64 || return 1
	! find "$dest" ! -type d | grep . || { echo "uninstall left these behind"; return 1; }
}

guard_uninstall() { # with the plugins, into directories that were there and others that were not: as it was before
	local dest=$work/un out=$work/out file
	mkdir -p "$out/stripped" "$dest/usr/lib" "$dest/usr/include/gdrfab" "$dest/usr/share"
	touch "$dest/usr/include/gdrfab/others.h"
	touch "$out/native-static-libs"
	for file in libgdrfab.a libgdrfab.so{,.debug} gdrfab-{info,perf,copier}{,.debug} libnccl-net-gdrfab.so libgdrfab-fi.so; do
		touch "$out/stripped/$file"
	done
	for _ in once again; do
		(cd "$dest" && find . | sort) >"$work/before"
		# Without cargo, install does not build. The second install must change nothing.
		for _ in 1 2; do
			"$MAKE" -s install install-debug install-plugin-nccl install-plugin-libfabric CARGO=none OUT="$out" DESTDIR="$dest" PREFIX=/usr \
				LIBDIR=/usr/lib/triplet || return 1
		done
		[ -e "$dest/usr/lib/triplet/libfabric/libgdrfab-fi.so" ] && [ -e "$dest/usr/lib/triplet/libnccl-net-gdrfab.so" ] || return 1
		"$MAKE" -s uninstall DESTDIR="$dest" PREFIX=/usr LIBDIR=/usr/lib/triplet || return 1
		(cd "$dest" && find . | sort) | diff -u --label before --label after "$work/before" - || return 1
		rm -rf "$dest/usr"
		mkdir -p "$dest"
	done
}

guard_old_rust() { # is told, with what to do, before anything is fetched or built
	local tool out
	mkdir -p "$work/rust"
	for tool in cargo rustc; do
		printf '#!/bin/sh\necho "%s 1.63.0 (Debian)"\n' $tool >"$work/rust/$tool"
		chmod +x "$work/rust/$tool"
	done
	for tool in all check demo deps; do
		! out=$("$MAKE" -s $tool CARGO="$work/rust/cargo" RUSTC="$work/rust/rustc" OUT="$work/rust/out" 2>&1) || { echo "make $tool goes on"; return 1; }
		grep -q "cargo is 1.63.0 .*Rust [0-9.]* or newer is needed: from https://rustup.rs" <<<"$out" || { echo "make $tool: $out"; return 1; }
		! out=$("$MAKE" -s $tool CARGO=no-cargo-here OUT="$work/rust/out" 2>&1) || { echo "make $tool goes on without"; return 1; }
		grep -q "no-cargo-here is missing.*rustup.rs" <<<"$out" || { echo "make $tool without: $out"; return 1; }
	done
	[ ! -e "$work/rust/out" ] || { echo "something was built"; return 1; }
}

failed=0
guards=(needed soname flags stripped symbols unwinding panics locks c99 cxx11 readme dynamic_link static_link static_symbols static_beside_rust abi layout install uninstall old_rust)
[ $# -eq 0 ] || guards=("$@")
for guard in "${guards[@]}"; do
	if output=$("guard_$guard" 2>&1); then
		echo "ok      $guard $(grep '^skipped' <<<"$output")"
	else
		printf 'FAILED  %s\n%s\n' "$guard" "$output"
		failed=$((failed + 1))
	fi
done
echo "guards: $((${#guards[@]} - failed)) of ${#guards[@]} hold"
[ "$failed" -eq 0 ]
