# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Provides Debian packages without installing any: packages that the host has are used, the others are downloaded by apt-get
# and unpacked in the cache. So no root is needed, and nothing on the host changes. The scripts in this folder source this file,
# under `set -u`.

cache=${GDRFAB_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/gdrfab-vm}
# There is one directory per release, because programs and libraries of one release do not run with those of another.
unpacked=$cache/root-$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}${VERSION_ID:-}")
arch=x86_64-linux-gnu

say() { [ -n "${quiet:-}" ] || echo "vm: $*" >&2; }
die() { echo "vm: $*" >&2 && exit 2; }
skip() { echo "SKIP: no virtual machine: $*" >&2 && exit 77; }

# Checks that the programs for packages exist, makes the cache, and locks out other runs until unlock.
lock() {
	[ "$(uname -sm)" = "Linux x86_64" ] || skip "the guest is Linux on amd64, and this is $(uname -sm)"
	local tool
	for tool in apt-get apt-cache dpkg dpkg-deb dpkg-query flock tar; do
		command -v $tool >/dev/null || skip "$tool is missing; the packages come from Debian or Ubuntu"
	done
	mkdir -p "$cache"/{debs,kernel,apt} "$unpacked" || skip "cannot write $cache; GDRFAB_VM_CACHE names another place"
	exec 9>"$cache/lock"
	flock -w 1200 9 || die "another run holds $cache/lock"
}
unlock() { exec 9>&-; }

# Runs a command and prints the end of its output if it fails.
quietly() {
	local log status
	log=$(mktemp) || return 1
	"$@" >"$log" 2>&1
	status=$?
	[ $status -eq 0 ] || tail -n 5 "$log" >&2
	rm -f "$log"
	return $status
}

# A private apt state in the cache: with the host's own sources, or with the one line given. Prints its configuration file.
apt_state() { # <name> [line of a sources.list]
	local dir=$cache/apt/$1
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" || return 1
	{
		printf 'Dir::State::Lists "%s";\nDir::Cache "%s";\n' "$dir/lists" "$dir/cache"
		printf 'Debug::NoLocking "1";\nAPT::Sandbox::User "root";\nAcquire::Languages "none";\n'
		if [ $# -gt 1 ]; then
			echo "$2" >"$dir/sources.list"
			printf 'Dir::Etc::SourceList "%s";\nDir::Etc::SourceParts "/dev/null";\n' "$dir/sources.list"
			printf 'Dir::Etc::PreferencesParts "/dev/null";\n'
		fi
	} >"$dir/apt.conf"
	echo "$dir/apt.conf"
}

# Downloads into the cache; prints the files' paths. Takes the state from APT_CONFIG, like apt-get itself.
download() { # <package[=version]...>
	local dir file
	dir=$(mktemp -d "$cache/debs/new.XXXXXX") || return 1
	if (cd "$dir" && quietly apt-get -q -o APT::Sandbox::User=root download "$@"); then
		for file in "$dir"/*.deb; do
			mv -f "$file" "$cache/debs/" && echo "$cache/debs/${file##*/}"
		done
	fi
	rmdir "$dir" 2>/dev/null || { rm -rf "$dir" && return 1; }
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
have() { [ -e "$unpacked/.files-$1" ] || installed "$1"; }

# Prints the packages that apt would install for these, as name=version. apt only simulates: nothing is installed or locked.
would_install() {
	apt-get -s -o Debug::NoLocking=1 install --no-install-recommends "$@" 2>/dev/null |
		sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p'
}

unpack() { # <.deb...>
	local deb name link target
	for deb in "$@"; do
		name=$(dpkg-deb -f "$deb" Package)
		dpkg-deb -x "$deb" "$unpacked" || return 1
		dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's|^\.||' >"$unpacked/.files-$name"
		dpkg-deb -f "$deb" Version >"$unpacked/.version-$name"
		rm -f "$deb"
	done
	# Absolute links (/sbin/depmod -> /bin/kmod) must point into the unpacked tree.
	find "$unpacked" -type l -lname '/*' -printf '%p\t%l\n' | while IFS=$'\t' read -r link target; do
		case $target in "$cache"/*) ;; *) ln -sfn "$unpacked$target" "$link" ;; esac
	done
}

# Provides these packages, with all dependencies that the host lacks.
want() { # <package...>
	local missing=() name list
	for name in "$@"; do
		have "$name" || missing+=("$name")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	say "fetching ${missing[*]}"
	list=$(would_install "${missing[@]}")
	# shellcheck disable=SC2086 # a list of words
	if [ -z "$list" ] || ! list=$(download $list 2>/dev/null); then
		# The host's package lists are missing or old, and only root may renew them: use lists in the cache.
		local APT_CONFIG
		APT_CONFIG=$(apt_state host) && export APT_CONFIG && quietly apt-get -q update || return 1
		list=$(would_install "${missing[@]}")
		[ -n "$list" ] && list=$(download $list) || return 1
	fi
	# shellcheck disable=SC2086
	unpack $list
}

files_of() { cat "$unpacked/.files-$1" 2>/dev/null || dpkg-query -L "$1"; }
version_of() { cat "$unpacked/.version-$1" 2>/dev/null || dpkg-query -W -f='${Version}\n' "$1" 2>/dev/null; }

# Prints the path of a program (tool) or library: the unpacked one if there is one, else the host's.
tool() { # <program>
	local dir
	for dir in "$unpacked"/{usr/bin,bin,usr/sbin,sbin} /usr/bin /bin /usr/sbin /sbin; do
		[ -x "$dir/$1" ] && echo "$dir/$1" && return
	done
	command -v "$1"
}
library() { # <file name>
	local dir
	for dir in "$unpacked"/{usr/lib,lib}/$arch /usr/lib/$arch /lib/$arch; do
		[ -e "$dir/$1" ] && echo "$dir/$1" && return
	done
	return 1
}

# Runs a program by its name, with the libraries that were unpacked beside it.
unpacked_libs=$unpacked/lib/$arch:$unpacked/usr/lib/$arch
run_tool() {
	local program
	program=$(tool "$1") || die "no program $1"
	shift
	LD_LIBRARY_PATH=$unpacked_libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$program" "$@"
}
