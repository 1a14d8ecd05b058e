# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The guest's file system, an initramfs: a base image, cached by kernel and packages, to which each run appends its own
# files. Sourced after kernel.sh. Programs and libraries are those of the host, so that programs built on the host run in the
# guest.

image_modules="rdma_rxe crc32_generic crc32_pclmul siw crc32c_generic libcrc32c ib_uverbs rdma_ucm ib_umad udmabuf
	system_heap vgem veth dummy 9pnet_virtio 9p virtio_pci virtio_console"
image_packages="ibverbs-utils rdmacm-utils perftest"
image_programs="ip rdma bash dash timeout env nohup"
# Libraries that programs open by name, which no list of dependencies shows.
image_libraries="libibverbs.so.1 librdmacm.so.1 libstdc++.so.6 libgcc_s.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libm.so.6
	libnss_files.so.2"

# Copies the shared libraries that ELF files need into <root>/lib.
copy_libraries() { # <root> <file...>
	local root=$1 file line
	shift
	for file in "$@"; do
		[ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ] || continue
		LD_LIBRARY_PATH=$unpacked_libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ldd "$file" 2>/dev/null | while read -r line; do
			case $line in
			*"not found"*) echo "vm: warning: $file: $line" >&2 ;;
			*" => /"*)
				line=${line#* => } line=${line% (*}
				[ -e "$root/lib/${line##*/}" ] || cp -L "$line" "$root/lib/"
				;;
			/lib*/ld-*)
				line=${line% (*}
				mkdir -p "$root${line%/*}"
				[ -e "$root$line" ] || cp -L "$line" "$root$line"
				;;
			esac
		done
	done
}

pack() { # <directory>
	(cd "$1" && find . -mindepth 1 | LC_ALL=C sort | run_tool cpio -o -H newc -R 0:0 --quiet) | run_tool zstd -q -3 -T2
}

# Puts the wanted modules and all modules on which they depend into the image, uncompressed.
image_put_modules() { # <root>
	local to=$1/lib/modules/$kernel queue=$image_modules done=" " name file out
	mkdir -p "$to"
	while read -r name queue <<<"$(echo $queue)" && [ -n "$name" ]; do
		name=${name//-/_}
		case $done in *" $name "*) continue ;; esac
		done+="$name "
		file=$(find "$modules/" -name '*.ko*' -printf '%P\n' |
			awk -v want="$name" '{ n = $0; sub(/.*\//, "", n); sub(/\.ko.*/, "", n); gsub(/-/, "_", n) } n == want { print; exit }')
		[ -n "$file" ] || continue
		out=$to/${file%.ko*}.ko
		mkdir -p "${out%/*}"
		case $file in
		*.xz) run_tool xz -dc "$modules/$file" >"$out" ;;
		*.zst) run_tool zstd -dcq "$modules/$file" >"$out" ;;
		*) cp "$modules/$file" "$out" ;;
		esac || return 1
		queue+=" $(run_tool modinfo -F depends "$out" | tr ',\n' '  ')"
	done
	cp "$modules"/modules.builtin* "$modules"/modules.order "$to/" 2>/dev/null
	run_tool depmod -b "$1" "$kernel" 2>/dev/null
}

image_put_programs() { # <root> <further packages...>
	local root=$1 name file package programs=$image_programs
	shift
	cp "$(tool busybox)" "$root/bin/busybox" || return 1
	for name in $("$root/bin/busybox" --list); do
		[ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"
	done
	for package in $image_packages "$@"; do
		programs+=" $(files_of "$package" | sed -n 's|^\(/usr\)\{0,1\}/s\{0,1\}bin/\([^/]*\)$|\2|p' | tr '\n' ' ')"
	done
	for name in $programs; do
		file=$(tool "$name") || continue
		rm -f "$root/bin/$name"
		cp -L "$file" "$root/bin/$name"
		copy_libraries "$root" "$file"
	done
	# busybox's shell would prefer its own ip.
	ln -sf dash "$root/bin/sh"
	# Packages that were requested by name are copied whole, but for /usr/share and /etc, because valgrind has its tools in
	# other directories than bin.
	for package in "$@"; do
		for file in $(files_of "$package" | grep -vE '/$|^(/usr)?/s?bin/|^/usr/share/|^/etc/'); do
			[ -f "$unpacked$file" ] && name=$unpacked$file || name=$file
			[ -f "$name" ] || continue
			file=${file#/usr}
			mkdir -p "$root${file%/*}"
			cp -L "$name" "$root$file"
		done
	done
}

image_put_libraries() { # <root>
	local root=$1 name file dir
	for name in $image_libraries; do
		file=$(library "$name") || continue
		[ -e "$root/lib/$name" ] || cp -L "$file" "$root/lib/"
		copy_libraries "$root" "$file"
	done
	# Of the providers of libibverbs only those of the guest's devices are copied.
	mkdir -p "$root/lib/$arch/libibverbs" "$root/etc/libibverbs.d" "$root/etc/ld.so.conf.d"
	for dir in "$unpacked" ""; do
		for file in "$dir/usr/lib/$arch/libibverbs"/lib{rxe,siw}-rdmav*.so; do
			[ -e "$file" ] && [ ! -e "$root/lib/$arch/libibverbs/${file##*/}" ] || continue
			cp "$file" "$root/lib/$arch/libibverbs/"
			copy_libraries "$root" "$file"
		done
		for file in "$dir"/etc/libibverbs.d/{rxe,siw}.driver; do
			[ ! -e "$file" ] || cp "$file" "$root/etc/libibverbs.d/"
		done
	done
	printf '/lib\n/lib/%s\n' "$arch" >"$root/etc/ld.so.conf"
	run_tool ldconfig -r "$root" 2>/dev/null
	return 0
}

# Sets base to the cached image for this kernel and these packages.
image_base() { # <work directory> <further packages...>
	local root=$1/base key
	shift
	# shellcheck disable=SC2086
	key=$({
		cat "$here"/{packages,kernel,image}.sh "$here/init"
		echo "$kernel" "$@"
		for name in $image_packages iproute2 libibverbs1 libc6 "$@"; do version_of "$name"; done
	} | sha256sum | cut -c 1-16)
	base=${modules%/lib/modules/*}/base-$key.cpio.zst
	[ -s "$base" ] && return
	say "building the base image"
	find "${base%/*}" -name 'base-*' -mtime +7 -delete
	mkdir -p "$root"/{bin,lib64,proc,sys,dev,tmp,root,run,host,etc,lib/modules} "$root/lib/$arch"
	ln -s bin "$root/sbin"
	ln -s . "$root/usr"
	image_put_modules "$root" || die "cannot read the kernel's modules"
	image_put_programs "$root" "$@" || die "cannot copy the guest's programs"
	image_put_libraries "$root"
	echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
	echo 'root:x:0:' >"$root/etc/group"
	echo '127.0.0.1 localhost guest' >"$root/etc/hosts"
	echo 'hosts: files' >"$root/etc/nsswitch.conf"
	echo "rdma-core $(version_of libibverbs1), perftest $(version_of perftest), iproute2 $(version_of iproute2)" \
		>"$root/etc/versions"
	cp "$here/init" "$root/init" && chmod 755 "$root/init"
	pack "$root" >"$base.new" && mv "$base.new" "$base" || die "cannot pack the base image"
}
