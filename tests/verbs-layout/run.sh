#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Compares the bindings of src/prov/verbs with rdma-sys's reading of this machine's headers. Ends with 77 and the reason
# if its bindgen cannot run.
set -eu
cd "$(dirname "$0")/../.."

# Succeeds if these directories have a libclang. libclang-cpp, which may be there beside it or alone, is another library.
libclang_in() {
	for directory in "$@"; do
		ls "$directory"/libclang.so* "$directory"/libclang-[0-9]*so* 2>/dev/null
	done | grep -q .
}

# bindgen 0.59 uses the newest libclang that it finds, and understands none after 15.
if [ -z "${LIBCLANG_PATH:-}" ]; then
	for version in 15 14 13 11; do
		if libclang_in /usr/lib/llvm-$version/lib; then
			export LIBCLANG_PATH=/usr/lib/llvm-$version/lib
			break
		fi
	done
fi
# Also the other places where bindgen looks: otherwise it would compile for a minute or more before it reports that
# there is none.
if [ -z "${LIBCLANG_PATH:-}" ] && ! libclang_in /usr/lib* /usr/lib*/* /usr/lib*/*/* /usr/local/lib* /usr/local/lib*/* /usr/local/lib*/*/* \
	/usr/local/llvm*/lib* "$(llvm-config --libdir 2>/dev/null || echo /nowhere)"; then
	echo "SKIP: rdma-sys cannot be built here: there is no libclang, and LIBCLANG_PATH names none"
	exit 77
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! ${CARGO:-cargo} test -p gdrfab-verbs-layout --no-run >"$log" 2>&1; then
	cat "$log"
	# A missing or too new libclang is an error of rdma-sys itself; an error of the test comes after that.
	if grep -qE 'custom build command for `rdma-sys|could not compile `rdma-sys`' "$log"; then
		# A panic of the build script has its reason in the next line; otherwise the compiler's first error is
		# the reason.
		why=$(grep -m 1 -A 1 "panicked at" "$log" | tail -n 1 || true)
		[ -n "$why" ] || why=$(grep -m 1 -E '^error' "$log")
		echo "SKIP: rdma-sys cannot be built here: $why"
		exit 77
	fi
	exit 1
fi
exec ${CARGO:-cargo} test -p gdrfab-verbs-layout
