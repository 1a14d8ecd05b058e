#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs the packages that a bare Debian or Ubuntu lacks. Does nothing on a system that has all of them.
#
#   tests/deps.sh rust       installs nothing; fails if Rust is missing or too old, which the other sets check first as well
#   tests/deps.sh demo       the packages for the build, and for a C program that uses the library
#   tests/deps.sh check      those of demo, and the tools of `make check`
#   tests/deps.sh check-all  those of check, and the tools of `make check-all`: Open MPI, MPICH and NIXL
#   tests/deps.sh bench      the libraries that `make bench` measures beside gdrfab
set -eu

# Rust is checked first, because without Rust the other packages are of no use.
cargo=${CARGO:-cargo} rustc=${RUSTC:-rustc}
needed=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
new_enough() { # <version>
	[ -n "$1" ] && [ "$(printf '%s\n' "$needed" "$1" | sort -V | head -n 1)" = "$needed" ]
}
# Prints the names of this distribution's packages of Rust, if apt knows packages that are new enough. Debian 12 has a newer Rust under the
# names with -web.
packaged_rust() {
	command -v apt-cache >/dev/null 2>&1 || return 0
	for suffix in '' -web; do
		version=$(apt-cache policy "cargo$suffix" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
		new_enough "$version" || continue
		clippy=rust$suffix-clippy
		echo ", or from this distribution: apt-get install cargo$suffix rustc$suffix (for 'make check' also rustfmt$suffix $clippy)"
		return 0
	done
}
wrong_rust() { # <what is wrong>
	echo "$1. Rust $needed or newer is needed: from https://rustup.rs$(packaged_rust)" >&2
	exit 1
}
for tool in "$cargo" "$rustc"; do
	command -v "${tool%% *}" >/dev/null 2>&1 || wrong_rust "$tool is missing"
	version=$($tool --version 2>/dev/null | awk '{ print $2; exit }')
	new_enough "${version%%-*}" || wrong_rust "$tool is ${version:-of an unknown version} ($(command -v "${tool%% *}"))"
done
# rustup's minimal profile leaves these out.
case " $* " in *" check"*)
	if ! { $cargo fmt --version && $cargo clippy --version; } >/dev/null 2>&1; then
		command -v rustup >/dev/null 2>&1 || wrong_rust "this Rust lacks rustfmt or clippy, which the tests need"
		rustup component add rustfmt clippy
	fi
	;;
esac
[ "$*" != rust ] || exit 0

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

need_pip() {
	python3 -c 'import pip' 2>/dev/null || packages="$packages python3-pip ca-certificates"
}

# MPICH with a libfabric that is newer than any distribution's, for one part of check-libfabric. The package is unpacked where
# plugins/libfabric/tests/check.sh looks for it. A machine that cannot have the package skips that part.
mpich=
mpich_dir=${XDG_CACHE_HOME:-$HOME/.cache}/gdrfab-mpich
need_mpich() {
	[ -e "$mpich_dir/lib/libmpi.so.12" ] && return
	mpich=needed
	need_pip
}
fetch_mpich() {
	echo "fetching MPICH 5.0.2 with its libfabric, with pip, to $mpich_dir"
	rm -rf "$mpich_dir.new"
	mkdir -p "$mpich_dir.new"
	# The two hashes are of the wheels for x86-64 and for aarch64.
	cat >"$mpich_dir.new/wanted" <<-E
		mpich==5.0.2 --hash=sha256:8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4 --hash=sha256:992ae6ebb0da97d49d7a67000ae8112da9a3825da1bb1e6f1d196428a0410f2d
	E
	if ! python3 -m pip download -q --no-deps --only-binary=:all: -d "$mpich_dir.new" -r "$mpich_dir.new/wanted" >/dev/null ||
		! python3 -m zipfile -e "$mpich_dir.new"/mpich-*.whl "$mpich_dir.new"; then
		rm -rf "$mpich_dir.new"
		echo "note: pip did not get it; check-libfabric leaves its newer libfabric out" >&2
		return 0
	fi
	chmod +x "$mpich_dir.new"/mpich-*.data/data/bin/*
	rm -rf "$mpich_dir"
	mv "$mpich_dir.new"/mpich-*.data/data "$mpich_dir"
	cp -r "$mpich_dir.new"/mpich-*.dist-info/licenses "$mpich_dir"
	rm -rf "$mpich_dir.new"
}

# NIXL, for check-nixl, which is skipped without it.
nixl=
fetch_nixl() {
	plugins/nixl/tests/fetch.py || echo "note: check-nixl is skipped" >&2
}

libclang=
choose_libclang() {
	for version in 15 14; do
		apt-cache show "libclang1-$version" 2>/dev/null | grep -q . || continue
		packages="$packages libclang1-$version libclang-common-$version-dev"
		libclang=
		return
	done
}
# The sets of packages: check-all contains check, and check contains demo.
demo() {
	need cc gcc libc6-dev
	need make make
	need pkg-config pkg-config
}
check() {
	demo
	need g++ g++
	need readelf binutils
	need abidiff abigail-tools
	need ip iproute2
	need nsenter util-linux
	need valgrind valgrind libc6-dbg
	need pkg-config:libibverbs libibverbs-dev
	need pkg-config:librdmacm librdmacm-dev
	need pkg-config:libfabric libfabric-dev
	need fi_info libfabric-bin
	# The bindgen of rdma-sys understands libclang up to 15; without one, check-bindings is skipped. libclang-cpp, which may be alone in
	# these directories, is another library.
	if ! ls /usr/lib/llvm-1[1-5]/lib/libclang.so* /usr/lib/llvm-1[1-5]/lib/libclang-[0-9]*so* 2>/dev/null | grep -q .; then
		libclang=needed
		choose_libclang
	fi
}
for set in "$@"; do
	case $set in
	demo) demo ;;
	check) check ;;
	check-all)
		check
		# Only Open MPI's mpicc knows this option.
		mpicc --showme:version >/dev/null 2>&1 || need mpicc.openmpi libopenmpi-dev openmpi-bin
		need_mpich
		need python3 python3
		need_pip
		nixl=needed
		;;
	bench)
		need pkg-config:libfabric libfabric-dev
		need pkg-config:ucx libucx-dev
		need python3 python3
		;;
	*)
		echo "deps.sh: unknown set '$set': rust, demo, check, check-all or bench" >&2
		exit 2
		;;
	esac
done

[ -n "$packages$mpich$nixl" ] || exit 0

if [ -n "$packages" ] && command -v apt-get >/dev/null 2>&1; then
	sudo=
	[ "$(id -u)" -eq 0 ] || sudo=sudo
	if [ -n "$sudo" ] && ! command -v sudo >/dev/null 2>&1; then
		echo "please run as root: tests/deps.sh $*" >&2
		exit 1
	fi
	echo "needed, and not there:$packages"
	echo "this runs${sudo:+ as root, by sudo}: apt-get update, and apt-get install --no-install-recommends of that with what it depends on"
	$sudo apt-get update -q
	# On a fresh machine apt knows the names of packages only after the update.
	[ -z "$libclang" ] || choose_libclang
	# shellcheck disable=SC2086 # a list of words
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
elif [ -n "$packages" ]; then
	echo "missing, and to be installed first; Debian calls it:$packages" >&2
	exit 1
fi
[ -z "$mpich" ] || fetch_mpich
[ -z "$nixl" ] || fetch_nixl
