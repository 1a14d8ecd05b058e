#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the plugin under unmodified NIXL from PyPI, with host memory and each agent in a process of its own; before that, without
# NIXL, over each set of connectionless endpoints. Run by make check-nixl.
#
#   check.sh [--versions "PACKAGE==VERSION..."] [arguments of run.py]
#   --all: the oldest and the newest NIXL that are known to work, of CUDA 12 and 13
set -eu
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE=1
versions=nixl-cu13==1.5.1
case ${1-} in
--versions) versions=$2 && shift 2 ;;
--all) versions="nixl-cu12==1.0.0 nixl-cu13==1.0.0 nixl-cu12==1.5.1 nixl-cu13==1.5.1" && shift ;;
esac
skip() {
	echo "SKIP: $1"
	exit 77
}
if [ $# -eq 0 ]; then
	alone=$(mktemp)
	trap 'rm -f "$alone"' EXIT
	for each in engine hostile; do
		CXXFLAGS=$(pkg-config --cflags --libs gdrfab) ./engine.sh "$alone" $each.cpp
		"$alone"
	done
fi
command -v python3 >/dev/null || skip "no python3"
# shellcheck disable=SC2086 # a list of words
python3 fetch.py $versions || skip "NIXL's wheels are not in the cache, and could not be fetched"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gdrfab-nixl
# A copy made of links, so that the cache stays as it was unpacked.
work=$cache/check.$$
trap 'rm -rf "$work" "${alone-}"' EXIT
trap 'exit 1' INT TERM
mkdir "$work"
for old in "$cache"/numpy-*; do
	[ ! -d "$old" ] || ln -s "$old" "$work"
done
roots=
for version in $versions; do
	name=$(echo "$version" | sed 's/==/-/')
	cp -al "$cache/$name" "$work/$name"
	plugins=$(echo "$work/$name"/.nixl*.libs/plugins)
	cp "$PREFIX/lib/nixl/libplugin_GDRFAB.so" "$PREFIX/lib/libgdrfab.so.0" "$plugins"
	roots="$roots $work/$name"
done
# shellcheck disable=SC2086
python3 run.py "$@" $roots
