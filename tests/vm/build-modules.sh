#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds two drivers for the guest's kernel: soft-RoCE that imports dma-bufs (rxe-dmabuf.h), which no kernel has yet, and
# soft-iWARP, which Debian leaves out.
#
#   tests/vm/build-modules.sh OUTDIR     makes OUTDIR/rdma_rxe.ko and OUTDIR/siw.ko
#
# The patched soft-RoCE has a parameter no_dmabuf=DEVICE (also /sys/module/rdma_rxe/parameters/no_dmabuf): the device of this
# name refuses dma-bufs, as the packaged driver does.
#
# The drivers are kept in $GDRFAB_VM_CACHE, nothing is installed. Exit status 77: this machine cannot build them.
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/packages.sh"
. "$here/kernel.sh"

[ $# -eq 1 ] && mkdir -p "$1" || die "usage: build-modules.sh OUTDIR"
out=$(cd "$1" && pwd)
for program in gcc make; do
	command -v $program >/dev/null || skip "$program is missing, and drivers have to be built"
done
lock
want xz-utils || skip "cannot download packages"
kernel_find
release=${kernel%-amd64} series=$(echo "$kernel" | grep -oE '^[0-9]+\.[0-9]+')
build=$cache/build/$kernel-$(cat "$0" "$here/rxe-dmabuf.h" | sha256sum | cut -c 1-12)

fetch() {
	local version debs deb source
	version=$(cat "${vmlinuz%/boot/*}/version")
	say "fetching the kernel's sources and headers (170 MB)"
	debs=$(APT_CONFIG=$kernel_apt download "linux-source-$series=$version" "linux-headers-$kernel=$version" \
		"linux-headers-$release-common=$version" "linux-kbuild-$release=$version") || return 1
	for deb in $debs; do
		case $deb in
		*/linux-source-*) source=$deb ;;
		*) dpkg-deb -x "$deb" "$build" || return 1 ;;
		esac
	done
	dpkg-deb --fsys-tarfile "$source" | tar -xO "./usr/src/linux-source-$series.tar.xz" | run_tool xz -dc -T2 |
		tar -x --wildcards --strip-components=4 -C "$build" "linux-source-$series/drivers/infiniband/sw/rxe" \
			"linux-source-$series/drivers/infiniband/sw/siw" || return 1
	# shellcheck disable=SC2086
	rm -f $debs
	# The headers' own Makefile contains the path at which they would be installed.
	echo "include $build/usr/src/linux-headers-$release-common/Makefile" >"$build/usr/src/linux-headers-$kernel/Makefile"
	# rxe_dmabuf_ops is set before rxe_dev_ops, because the first of two calls that set an operation wins.
	cp "$here/rxe-dmabuf.h" "$build/rxe/" &&
		sed -i -e 's/^static const struct ib_device_ops rxe_dev_ops = {/#include "rxe-dmabuf.h"\n\n&/' \
			-e 's/^\tib_set_device_ops(dev, &rxe_dev_ops);/\tib_set_device_ops(dev, \&rxe_dmabuf_ops);\n&/' \
			"$build/rxe/rxe_verbs.c" && [ "$(grep -c 'rxe.dmabuf' "$build/rxe/rxe_verbs.c")" = 2 ] || return 1
	# Repairs a defect of the kernel, a panic if the rest of a message arrives after the queue pair has given up the
	# message's receive.
	sed -i '/^static enum resp_states send_data_in(/,/^}/s/^\tint err;$/&\n\n\tif (!qp->resp.wqe)\n\t\treturn RESPST_ERR_LENGTH;/' \
		"$build/rxe/rxe_resp.c" && grep -q '!qp->resp.wqe)$' "$build/rxe/rxe_resp.c" || return 1
	# Repairs another defect, an endless loop: if the queue pair enters the error state while a request is processed, the
	# request is refused and processed again and again. With this change the receiver's next turn drops the request.
	sed -i '/^static enum resp_states do_complete(/,/^}/s/return RESPST_CHK_RESOURCE;/return RESPST_DONE;/' "$build/rxe/rxe_resp.c" &&
		[ "$(grep -c 'return RESPST_CHK_RESOURCE;' "$build/rxe/rxe_resp.c")" = 1 ]
}

compile() { # <directory> <module> <option>
	# The kernel was built by a compiler of another name; this machine's gcc will do, even if its version differs.
	quietly make -s -C "$build/usr/src/linux-headers-$kernel" M="$build/$1" CC=gcc "$3=m" CONFIG_DEBUG_INFO_BTF_MODULES= \
		-j"$(nproc)" modules && strip -g -o "$build/$2.ko" "$build/$1/$2.ko"
}

if [ ! -e "$build/.complete" ]; then
	rm -rf "$build" && mkdir -p "$build" || die "cannot write $build"
	fetch || skip "the kernel's sources cannot be had"
	say "compiling"
	compile rxe rdma_rxe CONFIG_RDMA_RXE && compile siw siw CONFIG_RDMA_SIW || die "a driver does not compile"
	rm -rf "$build"/{usr,lib,rxe,siw}
	touch "$build/.complete"
fi
cp "$build"/{rdma_rxe,siw}.ko "$out/"
