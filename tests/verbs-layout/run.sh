#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Compares the bindings of src/prov/verbs with what rdma-sys makes of this machine's headers.
# Ends with 77 and the reason where its bindgen cannot run.
set -eu
cd "$(dirname "$0")/../.."

# bindgen 0.59 takes the newest libclang that it finds, and understands none after 15.
if [ -z "${LIBCLANG_PATH:-}" ]; then
	for version in 15 14 13 11; do
		if ls /usr/lib/llvm-$version/lib/libclang[.-]*so* >/dev/null 2>&1; then
			export LIBCLANG_PATH=/usr/lib/llvm-$version/lib
			break
		fi
	done
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! ${CARGO:-cargo} test -p gdrfab-verbs-layout --no-run >"$log" 2>&1; then
	cat "$log"
	# A libclang that is missing or too new shows in rdma-sys itself; what is wrong with the test shows after it.
	if grep -qE 'custom build command for `rdma-sys|could not compile `rdma-sys`' "$log"; then
		# A panic of the build script says why on the line after, else the compiler's first error does.
		why=$(grep -m 1 -A 1 "panicked at" "$log" | tail -n 1 || true)
		[ -n "$why" ] || why=$(grep -m 1 -E '^error' "$log")
		echo "SKIP: rdma-sys cannot be built here: $why"
		exit 77
	fi
	exit 1
fi
exec ${CARGO:-cargo} test -p gdrfab-verbs-layout
