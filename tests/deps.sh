#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs what a bare Debian or Ubuntu lacks. Does nothing where all of it is present, on any system.
#
#   tests/deps.sh build   compilers, and the tools of `make check`
#   tests/deps.sh bench   the peers that `make bench` measures beside gdrfab
set -eu

packages=
need() { # <probe: a command, or pkg-config:<module>> <packages...>
	probe=$1
	shift
	case $probe in
	pkg-config:*) pkg-config --exists "${probe#*:}" 2>/dev/null && return ;;
	*) command -v "$probe" >/dev/null 2>&1 && return ;;
	esac
	packages="$packages $*"
}

for set in "$@"; do
	case $set in
	build)
		need gcc gcc libc6-dev
		need g++ g++
		need make make
		need pkg-config pkg-config
		need readelf binutils
		need abidiff abigail-tools
		need valgrind valgrind libc6-dbg
		;;
	bench)
		need pkg-config:libfabric libfabric-dev
		need pkg-config:ucx libucx-dev
		need python3 python3
		;;
	*)
		echo "deps.sh: unknown set '$set': build or bench" >&2
		exit 2
		;;
	esac
done

if ! command -v cargo >/dev/null 2>&1; then
	echo "cargo is missing: install Rust $(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml) or newer from https://rustup.rs" >&2
	exit 1
fi
# rustup's minimal profile leaves these out, and `make check` needs them.
if ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
	if command -v rustup >/dev/null 2>&1; then
		rustup component add rustfmt clippy
	else
		echo "note: 'make check' needs rustfmt and clippy, which this Rust lacks" >&2
	fi
fi
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	echo "please install what your system calls:$packages" >&2
	exit 1
fi
sudo=
if [ "$(id -u)" -ne 0 ]; then
	sudo=sudo
	if ! command -v sudo >/dev/null 2>&1; then
		echo "please run as root: apt-get install --no-install-recommends$packages" >&2
		exit 1
	fi
fi
echo "installing:$packages"
$sudo apt-get update -q
# shellcheck disable=SC2086 # a list of words
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
