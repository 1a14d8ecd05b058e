#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests device memory between two containers of one host, by the namespaces that containers have: server and client of gdrfab-perf
# run in namespaces of their own, each kind alone and all together, with the socket in a directory that both mount. Bytes are written,
# read and compared. Prints a line per case: "ok", the path taken and why no faster one; "skip" and the reason; or "FAIL" and the error.
#
#   tests/gpu-containers.sh [options]          (also: tests/check-gpu.sh containers [options])
#     --prefix DIR    where gdrfab is installed ($PREFIX, else target/prefix); nothing else is needed, but root and unshare
#     --gpus N        the number of GPUs (those in /dev)
#     --memory "M..." kinds of device memory, as in gdrfab-perf's --mem cuda:N,KIND ("plain vmm pool")
#     --kinds "K..."  namespaces: none, pid, mount, net, ipc, user; container (all but user), all
#
# A case also names the GPUs: with "own" each side sees and uses a GPU that the other does not see (CUDA_VISIBLE_DEVICES); with
# "both" the sides see two GPUs and use one each; with "same" the sides see and use the first GPU.
set -u -o pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${PREFIX:-${CARGO_TARGET_DIR:-$root/target}/prefix}
gpus=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
kinds="none pid mount net ipc user container all" memory="plain vmm pool"
while [ $# -gt 1 ]; do
	case $1 in
	--prefix) prefix=$2 ;;
	--gpus) gpus=$2 ;;
	--memory) memory=$2 ;;
	--kinds) kinds=$2 ;;
	*) break ;;
	esac
	shift 2
done
if [ $# -gt 0 ]; then
	sed -n '3,15s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
perf=$prefix/bin/gdrfab-perf
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ "$(id -u)" -ne 0 ] || [ ! -x "$perf" ]; then
	echo "skip all: $([ -x "$perf" ] && echo "only root has these namespaces" || echo "no $perf")"
	exit 77
fi

base=/run
[ -w /run ] || base=/tmp
holder=$(mktemp -d "$base/gdrfab-XXXXXX") && mkdir -p "$holder/aside" "$holder/own/volume" || exit 1
volume=$holder/own/volume
trap 'rm -rf "$holder"' EXIT
passed=0 failed=0 skipped=0

flags_of() { # <kind>: options of unshare
	case $1 in
	none) ;;
	user) echo "--user --map-root-user" ;;
	net | ipc | mount) echo "--$1" ;;
	# CUDA starts only if /proc is that of the pid namespace, hence the mount namespace.
	pid) echo "--pid --fork --kill-child --mount" ;;
	container) echo "--pid --fork --kill-child --mount --net --ipc --uts" ;;
	all) echo "--user --map-root-user --pid --fork --kill-child --mount --net --ipc --uts" ;;
	*) return 1 ;;
	esac
}

# Only the volume is shared: each container has its own directory around the volume, and its own /proc.
# shellcheck disable=SC2016 # for the shell inside
enter='
set -e
case $KIND in mount|container|all)
	mount --bind "$HOLDER/own/volume" "$HOLDER/aside"
	mount -t tmpfs own "$HOLDER/own"
	mkdir "$HOLDER/own/volume"
	mount --move "$HOLDER/aside" "$HOLDER/own/volume"
	[ ! -d /dev/shm ] || mount -t tmpfs own /dev/shm ;;
esac
case $KIND in pid|container|all) mount -t proc own /proc || echo "/proc stays the host'"'"'s" >&2 ;; esac
exec "$@"'

inside() { # <kind> <visible GPUs> <command...>
	local kind=$1 visible=$2 flags
	shift 2
	flags=$(flags_of "$kind")
	# shellcheck disable=SC2086 # a list of words
	[ "$kind" = none ] || set -- unshare $flags bash -c "$enter" enter "$@"
	KIND=$kind HOLDER=$holder CUDA_VISIBLE_DEVICES=$visible timeout -k 5 60 "$@"
}

line() { # <ok|skip|FAIL> <words>
	printf '%s\n' "$(echo "$*" | tr '\n' ' ' | cut -c 1-700)"
	case $1 in
	ok) passed=$((passed + 1)) ;;
	skip) skipped=$((skipped + 1)) ;;
	*) failed=$((failed + 1)) ;;
	esac
}

row=0
transfer() { # <kind> <layout> <memory> [options of the client]: a line
	local kind=$1 layout=$2 mem=$3 see=(0 1) use=(0 0) server address log=$holder/log status name
	shift 3
	name="$kind, $layout, $mem${*:+, $*}"
	case $layout in
	both) see=(0,1 0,1) use=(0 1) ;;
	same) see=(0 0) ;;
	esac
	row=$((row + 1)) address=shm://$volume/$row
	inside "$kind" "${see[0]}" "$perf" rdma-transport --name "$address" >"$log.server" 2>&1 &
	server=$!
	for _ in $(seq 100); do
		[ -S "$volume/$row" ] || ! kill -0 $server 2>/dev/null || sleep 0.05
	done
	inside "$kind" "${see[1]}" "$perf" rdma-transport -s 8K:1M -n 20 --verify --deadline 10000 \
		--local-mem "cuda:${use[1]},$mem" --remote-mem "cuda:${use[0]},$mem" "$@" "$address" >"$log" 2>&1
	status=$?
	[ $status -eq 0 ] || kill $server 2>/dev/null
	wait $server 2>/dev/null
	if [ $status -eq 0 ] && [ "$(grep -c 'verified$' "$log")" -eq 8 ]; then
		# The figures of the longest transfer, and the path with the reason against a faster one.
		line ok "$name: $(awk '/verified$/ { w = $4; r = $6 } END { printf "write %s, read %s GB/s", w, r }' "$log"):" \
			"$(sed -n 's/^ path *//p' "$log" | head -n 1)"
	elif [ $status -eq 124 ] || [ $status -eq 137 ]; then
		line FAIL "$name: no end within a minute: $(cat "$log" "$log.server")"
	else
		line FAIL "$name (exit $status): $(grep -h gdrfab-perf: "$log" "$log.server" || cat "$log" "$log.server")"
	fi
}

echo "$(uname -sr), $gpus GPUs; $("$perf" --version)"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader
[ ! -r /proc/sys/kernel/yama/ptrace_scope ] || echo "ptrace_scope $(cat /proc/sys/kernel/yama/ptrace_scope)"
if [ "$gpus" -eq 0 ]; then
	echo "skip all: no GPU in /dev"
	exit 77
fi
for kind in $kinds; do
	if ! flags=$(flags_of "$kind"); then
		line FAIL "$kind: not a kind"
		continue
	fi
	# shellcheck disable=SC2086 # a list of words
	if ! reason=$(inside "$kind" 0 true 2>&1); then
		line skip "$kind: $reason"
		continue
	fi
	case $kind in
	none | container | all) layouts="own both same" some=$memory ;;
	*) layouts=own some=${memory/ pool/} ;;
	esac
	for layout in $layouts; do
		if [ "$layout" != same ] && [ "$gpus" -lt 2 ]; then
			line skip "$kind, $layout: one GPU"
			continue
		fi
		for mem in $some; do
			transfer "$kind" "$layout" "$mem"
		done
	done
	case $kind in
	none | container | all) transfer "$kind" same plain --path staged ;;
	esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77
