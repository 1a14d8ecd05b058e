#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The figures of the provider for libfabric: what it costs above gdrfab's own calls (calls.c; device.c between the memory
# of GPUs, where there are any), and Open MPI's ping-pong and bandwidth over gdrfab;ofi_rxm (shm), over libfabric's own
# tcp;ofi_rxm, and over Open MPI's own shared memory (vader): the three in turns, medians over the rounds. Both ranks are
# pinned, to cores 0 and 1.
#
#   PREFIX=... benches/libfabric/run.sh [ROUNDS]
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
prefix=${PREFIX:-$target/prefix} build=$target/bench-libfabric rounds=${1:-9}
here=$root/benches/libfabric
mpicc=mpicc.openmpi mpirun=mpirun.openmpi
command -v $mpicc >/dev/null || mpicc=mpicc mpirun=mpirun
mkdir -p "$build" && rm -f "$build"/*.txt
strict="-std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -Wpedantic -Werror"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
for program in calls device; do
	# shellcheck disable=SC2046,SC2086 # lists of words
	${CC:-cc} $strict -o "$build/$program" "$here/$program.c" "$here/ends.c" $(pkg-config --cflags --libs gdrfab libfabric) -ldl \
		-Wl,-rpath,"$prefix/lib" || exit
done
# shellcheck disable=SC2086
OMPI_CC=${CC:-cc} $mpicc $strict -o "$build/pingpong" "$here/pingpong.c" || exit

unset LD_LIBRARY_PATH FI_PROVIDER FI_LOG_LEVEL
export FI_PROVIDER_PATH=$prefix/lib/libfabric FI_GDRFAB_PROVIDERS=shm
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

echo "load before: $(cut -d ' ' -f 1-3 /proc/loadavg); $(nproc) cores"
echo
timeout 300 "$build/calls" $((rounds * 100 + 1)) || exit
echo
timeout 300 "$build/device" || [ $? -eq 77 ] || exit
echo

job() { # <way>
	case $1 in
	gdrfab) set -- --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "gdrfab;ofi_rxm" ;;
	tcp) set -- --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "tcp;ofi_rxm" ;;
	vader) set -- --mca pml ob1 --mca btl self,vader ;;
	esac
	timeout 200 $mpirun -np 2 --bind-to core --map-by core "$@" "$build/pingpong"
}
for round in $(seq "$rounds"); do
	for way in gdrfab tcp vader; do
		job $way >"$build/one" 2>"$build/errors" || {
			echo "round $round over $way failed:"
			cat "$build/errors"
			exit 1
		}
		cat "$build/one" >>"$build/$way.txt"
	done
done

figure() { # <way> <what> <bytes>
	awk -v what="$2" -v bytes="$3" '$1 == what && $2 == bytes { print $3 }' "$build/$1.txt" | sort -g |
		awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
echo "Open MPI, two ranks, medians of $rounds rounds in turns"
echo
echo "| what | size | gdrfab;ofi_rxm (shm) | tcp;ofi_rxm | vader | gdrfab to tcp | gdrfab to vader |"
echo "|---|---|---:|---:|---:|---:|---:|"
for what in latency bandwidth; do
	for bytes in 8 65536 4194304; do
		case $bytes in 8) size="8 B" ;; 65536) size="64 KiB" ;; *) size="4 MiB" ;; esac
		[ $what = latency ] && unit="half round trip, us" || unit="bandwidth, GB/s"
		echo "$unit $(figure gdrfab $what $bytes) $(figure tcp $what $bytes) $(figure vader $what $bytes)" |
			awk -v unit="$unit" -v size="$size" '{ n = NF; printf "| %s | %s | %s | %s | %s | %.2f | %.2f |\n", unit, size,
				$(n - 2), $(n - 1), $n, $(n - 2) / $(n - 1), $(n - 2) / $n }'
	done
done
echo
echo "load after: $(cut -d ' ' -f 1-3 /proc/loadavg)"
