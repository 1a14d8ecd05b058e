#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The figures of the provider for libfabric: the cost that it adds to gdrfab's own calls (calls.c; device.c between the memory of
# GPUs, where there are any), and Open MPI's ping-pong, bandwidth and one-sided operations over gdrfab, over Open MPI's own shared
# memory (vader, osc/sm), over UCX if Open MPI has it, and over libfabric's own tcp;ofi_rxm, taking turns. Both ranks are pinned, to
# cores 0 and 1.
#
#   PREFIX=... benches/libfabric/run.sh [--mpi] [ROUNDS]
#     --mpi  only Open MPI's
set -u -o pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
prefix=${PREFIX:-$target/prefix} build=$target/bench-libfabric only_mpi=
[ "${1:-}" != --mpi ] || { only_mpi=1 && shift; }
rounds=${1:-9}
here=$root/benches/libfabric
mpicc=mpicc.openmpi mpirun=mpirun.openmpi
command -v $mpicc >/dev/null || mpicc=mpicc mpirun=mpirun
mkdir -p "$build" && rm -f "$build"/*.txt
strict="-std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -Wpedantic -Werror"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
programs="calls device"
[ -z "$only_mpi" ] || programs=
for program in $programs; do
	# shellcheck disable=SC2046,SC2086 # lists of words
	${CC:-cc} $strict -o "$build/$program" "$here/$program.c" "$here/ends.c" $(pkg-config --cflags --libs gdrfab libfabric) -ldl \
		-Wl,-rpath,"$prefix/lib" || exit
done
for program in pingpong onesided; do
	# shellcheck disable=SC2086
	OMPI_CC=${CC:-cc} $mpicc $strict -o "$build/$program" "$here/$program.c" || exit
done

unset LD_LIBRARY_PATH FI_PROVIDER FI_LOG_LEVEL
export FI_PROVIDER_PATH=$prefix/lib/libfabric FI_GDRFAB_PROVIDERS=shm
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

echo "load before: $(cut -d ' ' -f 1-3 /proc/loadavg); $(nproc) cores"
echo
if [ -z "$only_mpi" ]; then
	timeout 300 "$build/calls" $((rounds * 100 + 1)) || exit
	echo
	timeout 300 "$build/device" || [ $? -eq 77 ] || exit
	echo
fi

# Asks once which of the others can run here.
ways="gdrfab vader ucx tcp"
ompi_info 2>/dev/null | grep -q 'MCA pml: ucx' || ways="gdrfab vader tcp"
# Connectionless endpoints must reach other hosts too.
export FI_GDRFAB_PROVIDERS=shm,tcp GDRFAB_TCP_IFACE=lo
job() { # <way>
	case $1 in
	gdrfab) set -- --mca pml cm --mca mtl ofi --mca btl self --mca mtl_ofi_provider_include gdrfab ;;
	vader) set -- --mca pml ob1 --mca btl self,vader ;;
	ucx) set -- --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any ;;
	tcp) set -- --mca pml cm --mca mtl ofi --mca btl self --mca mtl_ofi_provider_include "tcp;ofi_rxm" ;;
	esac
	timeout 200 $mpirun -np 2 --bind-to core --map-by core "$@" "$build/pingpong"
}

# Windows of the program's memory, which osc/sm cannot have, and windows that the MPI allocates.
windows() { # <way> create|allocate
	local how=$2
	case $1 in
	gdrfab) set -- --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include gdrfab --mca btl self,ofi \
		--mca btl_ofi_provider_include gdrfab --mca osc rdma ;;
	vader) [ "$how" = allocate ] || return 0 && set -- --mca pml ob1 --mca btl self,vader --mca osc sm ;;
	ucx) set -- --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --mca osc ucx ;;
	tcp) return 0 ;;
	esac
	timeout 200 $mpirun -np 2 --bind-to core --map-by core "$@" "$build/onesided" "$how" | sed "s/^/$how-/"
}
for round in $(seq "$rounds"); do
	for way in $ways; do
		{ job "$way" && windows "$way" create && windows "$way" allocate; } >"$build/one" 2>"$build/errors" || {
			echo "round $round over $way failed:"
			cat "$build/errors"
			exit 1
		}
		sed "s/^/$way $round /" "$build/one" >>"$build/rounds.txt"
	done
done

echo "Open MPI, two ranks, gdrfab without ofi_rxm over $FI_GDRFAB_PROVIDERS, $rounds rounds in turns: medians; the ratios are medians of"
echo "the rounds' own, of time or of its inverse, so that less is better"
echo
echo "| what | size | gdrfab | vader | pml/ucx | tcp;ofi_rxm | to vader | to ucx | to tcp;ofi_rxm |"
echo "|---|---|---:|---:|---:|---:|---:|---:|---:|"
awk '
function median(list,   n, v, i, j, t) {
	n = split(list, v, " ")
	for (i = 2; i <= n; i++) {
		t = v[i] + 0
		for (j = i - 1; j > 0 && v[j] + 0 > t; j--) v[j + 1] = v[j]
		v[j + 1] = t
	}
	return v[int((n + 1) / 2)]
}
{ at[$1, $2, $3, $4] = $5; all[$1, $3, $4] = all[$1, $3, $4] " " $5; last = $2; if (!seen[$3, $4]++) row[++rows] = $3 " " $4 }
END {
	size[8] = "8 B"; size[4096] = "4 KiB"; size[65536] = "64 KiB"; size[1048576] = "1 MiB"; size[16777216] = "16 MiB"
	unit["latency"] = "half round trip, us"; unit["bandwidth"] = "bandwidth, GB/s"
	split("put get fetch_and_op", onesided, " ")
	for (w = 1; w <= 3; w++) {
		unit["create-" onesided[w]] = onesided[w] " and flush, us"
		unit["allocate-" onesided[w]] = onesided[w] " and flush, allocated window (osc/sm), us"
	}
	split("vader ucx tcp", other, " ")
	for (r = 1; r <= rows; r++) {
		split(row[r], key, " ")
		line = "| " unit[key[1]] " | " size[key[2]] " | " median(all["gdrfab", key[1], key[2]])
		for (o = 1; o <= 3; o++) line = line " | " ((other[o], key[1], key[2]) in all ? median(all[other[o], key[1], key[2]]) : "")
		for (o = 1; o <= 3; o++) {
			list = ""
			for (i = 1; i <= last; i++) if ((other[o], i, key[1], key[2]) in at) {
				ours = at["gdrfab", i, key[1], key[2]]; theirs = at[other[o], i, key[1], key[2]]
				list = list " " (key[1] == "bandwidth" ? theirs / ours : ours / theirs)
			}
			line = line " | " (list == "" ? "" : sprintf("%.2f", median(list)))
		}
		print line " |"
	}
}' "$build/rounds.txt"
echo
echo "load after: $(cut -d ' ' -f 1-3 /proc/loadavg)"
