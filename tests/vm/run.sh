#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Boots Debian's 6.12 kernel in QEMU with soft-RoCE and runs one command in the guest, as root of the guest. Any user of this
# machine may run this script.
#
#   tests/vm/run.sh [options] -- CMD [ARG...]     (a single CMD may be a script: it is given to bash)
#
#     --add FILE:GUEST        a file or directory at GUEST in the guest; the libraries of programs come along (repeatable)
#     --module 'FILE.ko [P=V...]'  loads this module, with parameters, in place of the packaged one (repeatable)
#     --provider FILE.so      a provider of libibverbs in place of the packaged one (repeatable)
#     --share DIR             DIR appears at /host in the guest, to read and write
#     --net single|two|none   single (the default): rxe0 on 10.77.0.1; two: also rxe1 on 10.78.0.1; none: no RDMA device.
#                             With single and two, --module siw.ko adds siw0 on 10.88.0.1
#     --pkgs "P..."           further Debian packages for the guest, as "valgrind libc6-dbg"
#     --mem MB (1024)  --smp N (2)  --timeout SECONDS (120)  --accel auto|tcg|kvm  --console FILE  --quiet
#
# The command's output is this script's stdout, and its exit status is this script's, except:
#     77 this machine cannot have the virtual machine    124 timed out    125 the guest died    2 wrong use
#
# Nothing is installed: packages that the host lacks are kept unpacked in $GDRFAB_VM_CACHE (~/.cache/gdrfab-vm).
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=packages.sh
. "$here/packages.sh"
. "$here/kernel.sh"
. "$here/image.sh"

adds=() load=() providers=() share= net=single pkgs= mem=1024 smp=2 limit=120 accel=auto console= quiet=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	case $1 in
	--quiet) quiet=1 && shift && continue ;;
	-h | --help) sed -n '3,/^set -u/s/^# \{0,1\}//p' "$0" && exit 0 ;;
	esac
	[ $# -ge 2 ] || die "$1 needs a value"
	case $1 in
	--add) adds+=("$2") ;;
	--module) load+=("$2") ;;
	--provider) providers+=("$2") ;;
	--share) share=$(realpath "$2") ;;
	--net) net=$2 ;;
	--pkgs) pkgs=$2 ;;
	--mem) mem=$2 ;;
	--smp) smp=$2 ;;
	--timeout) limit=$2 ;;
	--accel) accel=$2 ;;
	--console) console=$2 ;;
	*) die "unknown option $1; the command goes after --" ;;
	esac
	shift 2
done
[ $# -ge 2 ] || die "no command given; see --help"
shift
case $net in single | two | none) ;; *) die "--net $net is none of single, two, none" ;; esac

work=$(mktemp -d) || exit 2
qemu_pid=
cleanup() {
	[ -z "$qemu_pid" ] || kill "$qemu_pid" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# ---- kernel, programs, images
begin=$SECONDS
lock
# shellcheck disable=SC2086 # lists of words
want busybox-static kmod cpio xz-utils zstd bash dash iproute2 ibverbs-providers $image_packages ||
	skip "cannot download the guest's packages"
qemu=$(command -v qemu-system-x86_64) || {
	want qemu-system-x86 seabios && qemu=$(tool qemu-system-x86_64) || skip "QEMU is missing and cannot be downloaded"
}
# shellcheck disable=SC2086
[ -z "$pkgs" ] || want $pkgs || skip "cannot download $pkgs"
kernel_find
# shellcheck disable=SC2086
image_base "$work" $pkgs
unlock

over=$work/over
mkdir -p "$over/etc" "$over/lib/modules/extra" "$over/lib/$arch/libibverbs"
printf 'VM_NET=%s\nVM_SHARE=%s\n' "$net" "${share:+1}" >"$over/etc/vm.conf"
if [ $# -eq 1 ]; then
	printf '%s\n' "$1"
else
	printf '%q ' "$@" && echo
fi >"$over/etc/command"
for add in ${adds[@]+"${adds[@]}"}; do
	from=${add%%:*} to=${add#*:}
	[ "$from" != "$add" ] || to=/root/${from##*/}
	[ -e "$from" ] || die "--add: there is no $from"
	case $to in /*) ;; *) die "--add: $to is no absolute path" ;; esac
	mkdir -p "$over${to%/*}"
	cp -aL "$from" "$over$to" || die "--add: cannot copy $from"
	mapfile -t elf < <(find "$over$to" -type f \( -perm -100 -o -name '*.so*' \))
	[ ${#elf[@]} -eq 0 ] || copy_libraries "$over" "${elf[@]}"
done
: >"$over/etc/modules"
for module in ${load[@]+"${load[@]}"}; do
	file=${module%% *}
	[ -f "$file" ] || die "--module: there is no $file"
	cp "$file" "$over/lib/modules/extra/"
	echo "/lib/modules/extra/${file##*/}${module#"$file"}" >>"$over/etc/modules"
done
for provider in ${providers[@]+"${providers[@]}"}; do
	cp -L "$provider" "$over/lib/$arch/libibverbs/" || die "--provider: cannot copy $provider"
done
# The initramfs is two archives, one after the other: the base image, padded to 4 bytes, and the files of this run.
{
	cat "$base"
	head -c $(((4 - $(stat -c %s "$base") % 4) % 4)) /dev/zero
	pack "$over"
} >"$work/initrd" || die "cannot pack the files of this run"
rm -rf "$over"

# ---- boot
# KVM is used only if the CPU has the flag as well, because a host that is itself a guest may have a /dev/kvm under which no
# ordinary kernel boots.
if [ "$accel" = auto ]; then
	accel=tcg
	[ -w /dev/kvm ] && grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo && accel=kvm
fi
# In emulation soft-RoCE is faster on an old CPU than on the newest, because vector instructions are expensive to
# emulate.
case $accel in
kvm) machine=(-accel kvm -cpu host) ;;
*) machine=(-accel "tcg,thread=multi" -cpu Nehalem) ;;
esac
case $qemu in "$unpacked"/*)
	export QEMU_MODULE_DIR=$unpacked/usr/lib/$arch/qemu
	for dir in "$unpacked" ""; do
		for data in usr/share/seabios usr/share/qemu usr/lib/ipxe/qemu; do
			[ -d "$dir/$data" ] && machine+=(-L "$dir/$data")
		done
	done
	;;
esac
[ -z "$share" ] || machine+=(-virtfs "local,path=$share,mount_tag=host,security_model=none,multidevs=remap")
kernel_arguments="console=ttyS0 panic=-1 reboot=t quiet loglevel=5 mitigations=off nokaslr tsc=reliable no_timer_check"

say "kernel $kernel, $accel, prepared in $((SECONDS - begin))s"
begin=$SECONDS

boot() {
	: >"$work/out" >"$work/status" >"$work/console"
	LD_LIBRARY_PATH=$unpacked_libs "$qemu" "${machine[@]}" -smp "$smp" -m "$mem" -machine pc -nodefaults -no-user-config \
		-display none -no-reboot -kernel "$vmlinuz" -initrd "$work/initrd" -append "$kernel_arguments" \
		-chardev file,id=console,path="$work/console" -serial chardev:console \
		-chardev file,id=out1,path="$work/out",append=on -serial chardev:out1 \
		-chardev file,id=status,path="$work/status" -serial chardev:status \
		-device virtio-serial-pci -chardev file,id=out2,path="$work/out",append=on \
		-device virtserialport,chardev=out2,name=out \
		</dev/null 2>"$work/qemu.err" &
	qemu_pid=$!
	tail -n +1 -s 0.2 --pid=$qemu_pid -f "$work/out" &
	tail_pid=$!
	timed_out=
	while kill -0 $qemu_pid 2>/dev/null; do
		if [ $((SECONDS - begin)) -ge "$limit" ]; then
			timed_out=1
			kill $qemu_pid
			break
		fi
		sleep 0.2
	done
	wait $qemu_pid 2>/dev/null
	qemu_status=$?
	qemu_pid=
	wait $tail_pid 2>/dev/null
}

# A booting kernel patches its own code, and with two emulated CPUs it sometimes crashes at that. The command has not begun
# then, so the guest is booted again, at most three times in all; a guest that dies later is a failure.
for attempt in 1 2 3; do
	boot
	if [ "$accel" = kvm ] || [ -s "$work/out" ] || [ -s "$work/status" ] || ! grep -q 'Kernel panic' "$work/console"; then
		break
	fi
	say "the guest's kernel died while it booted (attempt $attempt of 3): $(grep -m 1 'RIP: ' "$work/console")"
done

[ -z "$console" ] || cp "$work/console" "$console"
status=$(sed -n 's/^status \([0-9]*\).*/\1/p' "$work/status" | tail -n 1)
say "the guest ran for $((SECONDS - begin))s"
grep -q complaint "$work/status" && say "WARNING: the guest's kernel complained (add: dmesg)"
if [ -n "$timed_out" ]; then
	echo "vm: timed out after ${limit}s; the console's end:" >&2
	tail -n 25 "$work/console" >&2
	exit 124
fi
if [ -z "$status" ]; then
	echo "vm: the guest died (QEMU's status $qemu_status); the console's end:" >&2
	cat "$work/qemu.err" >&2
	tail -n 40 "$work/console" >&2
	exit 125
fi
exit "$status"
