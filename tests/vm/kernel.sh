# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The guest's kernel: Debian's 6.12, unpacked in the cache. Sourced after packages.sh. kernel_find sets
#
#   kernel      the version, as `uname -r` prints it
#   vmlinuz     the file of the image
#   modules     the directory of the modules
#   kernel_apt  the file of an apt configuration that knows the kernel's packages
#
# The packages come from the mirror that this machine's apt uses. GDRFAB_VM_SUITE and GDRFAB_VM_MIRROR choose another suite or mirror.

# The suite of the kernel. Modules are built with this machine's compiler: that of Debian 13 suits the 6.12 of Debian 13, and compilers
# of all other hosts suit the backport of 6.12 for Debian 12.
kernel_suite() {
	local id version
	id=$(. /etc/os-release && echo "${ID:-}") version=$(. /etc/os-release && echo "${VERSION_ID:-}")
	if [ "$id" = debian ] && [ "${version%%.*}" = 13 ]; then
		echo trixie
	else
		echo bookworm-backports
	fi
}

kernel_mirror() {
	local uri
	uri=$(sed -n 's|^[^#]*[[:blank:]]\(https\{0,1\}://[^[:blank:]]*/debian\)/\{0,1\}\([[:blank:]].*\)\{0,1\}$|\1|p' \
		/etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
	echo "${GDRFAB_VM_MIRROR:-$uri}"
}

# Unpacks the package of the kernel's image, without families of modules that the guest does not need.
kernel_unpack() { # <.deb> <directory>
	local skip='/kernel/(sound|fs/(nls|btrfs|xfs|ocfs2|gfs2|ntfs3|f2fs|ceph|smb|nfsd?|jfs|ubifs)'
	skip+='|net/(netfilter|sched|bluetooth|mac80211|wireless|can|atm|ax25)|drivers/(media|iio|usb|platform|hid|hwmon|scsi'
	skip+='|input|comedi|misc|mtd|ata|watchdog|bluetooth|w1|staging|mmc|isdn|md|nvme|target|nfc|xen|infiniband/hw'
	skip+='|net/(wireless|ethernet|usb|can|wwan|phy|wan|ieee802154|hamradio)|gpu/drm/(amd|nouveau|radeon|i915|xe)))/'
	skip+='|/usr/share/|/System.map'
	rm -rf "$2" && mkdir -p "$2" || return 1
	dpkg-deb --fsys-tarfile "$1" >"$2/all.tar" && tar -tf "$2/all.tar" | grep -vE "/$|$skip" >"$2/list" &&
		tar -xf "$2/all.tar" -C "$2" -T "$2/list" && rm -f "$2/all.tar" "$2/list"
}

kernel_find() {
	local suite state image deb key dir
	suite=${GDRFAB_VM_SUITE:-$(kernel_suite)} key=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -n "$(kernel_mirror)" ] || skip "apt knows no mirror of Debian; GDRFAB_VM_MIRROR names one"
	want debian-archive-keyring || skip "cannot download packages"
	[ -e "$unpacked$key" ] && key=$unpacked$key
	kernel_apt=$(apt_state "$suite" "deb [signed-by=$key arch=amd64] $(kernel_mirror) $suite main") || die "cannot write $cache"
	state=${kernel_apt%/*}

	# The newest kernel is looked up once a week. If the mirror does not answer, the kernel found before is used.
	if [ -z "$(find "$state/image" -mtime -7 2>/dev/null)" ]; then
		say "looking up the newest kernel of $suite"
		image=$(export APT_CONFIG=$kernel_apt && quietly apt-get -q update &&
			apt-cache show --no-all-versions linux-image-amd64 2>/dev/null |
			sed -n 's/^Depends: *\(linux-image-[^ ,]*\).*/\1/p' | head -n 1)
		if [ -n "$image" ]; then
			echo "$image" >"$state/image"
		elif [ ! -s "$state/image" ]; then
			skip "no kernel to be had from $(kernel_mirror), suite $suite"
		fi
	fi
	image=$(cat "$state/image")
	kernel=${image#linux-image-} dir=$cache/kernel/$kernel
	if [ ! -e "$dir/.complete" ]; then
		say "fetching $image (100 MB)"
		deb=$(APT_CONFIG=$kernel_apt download "$image") || skip "cannot download $image"
		kernel_unpack "$deb" "$dir" || die "cannot unpack $deb"
		dpkg-deb -f "$deb" Version >"$dir/version"
		rm -f "$deb"
		touch "$dir/.complete"
	fi
	vmlinuz=$(ls "$dir"/boot/vmlinuz* | head -n 1)
	modules=$(ls -d "$dir"/{usr/,}lib/modules/* 2>/dev/null | head -n 1)
	[ -n "$vmlinuz" ] && [ -n "$modules" ] || die "no kernel or no modules under $dir"
}
