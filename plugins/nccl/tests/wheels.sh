#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checks that NCCLs from PyPI would find an interface in the plugin: fetches their wheels, and reads the versions of a net and of a
# tuner that each asks a plugin for. NCCL uses the newest version that both know; check.sh tests every version of ours.
#
#   plugins/nccl/tests/wheels.sh VERSION...      2.20.5 2.28.9 ...; some 200 MB each, so only `make check-nccl NCCL_WHEELS="..."` runs it
#
# The plugin is $PREFIX/lib/libnccl-net-gdrfab.so; WHEELS is the directory that keeps the wheels.
set -u

root=$(cd "$(dirname "$0")/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
plugin=${PREFIX:-$target/prefix}/lib/libnccl-net-gdrfab.so
wheels=${WHEELS:-$target/nccl-wheels}
mkdir -p "$wheels" || exit 1
passed=0 failed=0

newest() { # <text> <other text>: the newest word of both
	comm -12 <(sort -u <<<"$1") <(sort -u <<<"$2") | sort -V | tail -n 1
}

names='nccl(Net|Tuner)Plugin_v[0-9]+'
own=$(nm -D --defined-only "$plugin" | grep -oE "$names")
[ -n "$own" ] || { echo "FAIL wheels: $plugin exports nothing" && exit 1; }
for version in "$@"; do
	if ! python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --platform manylinux_2_18_x86_64 \
		-d "$wheels" "nvidia-nccl-cu12==$version" >"$wheels/log" 2>&1; then
		echo "FAIL $version: $(tail -n 1 "$wheels/log")"
		failed=$((failed + 1))
		continue
	fi
	asked=$(python3 - "$wheels"/nvidia_nccl_cu12-"$version"-*.whl "$names" <<-'E'
		import re, sys, zipfile
		with zipfile.ZipFile(sys.argv[1]) as wheel:
		    library = wheel.read("nvidia/nccl/lib/libnccl.so.2")
		print("\n".join(sorted({found.group().decode() for found in re.finditer(sys.argv[2].encode(), library)})))
	E
	)
	net=$(newest "$own" "$(grep Net <<<"$asked")") tuner=$(newest "$own" "$(grep Tuner <<<"$asked")")
	if [ -z "$net" ]; then
		echo "FAIL $version: it asks for $(tr '\n' ' ' <<<"$asked"), the plugin has $(tr '\n' ' ' <<<"$own")"
		failed=$((failed + 1))
		continue
	fi
	echo "ok $version: $net, ${tuner:-no tuner of ours}"
	passed=$((passed + 1))
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
