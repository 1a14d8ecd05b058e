#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Every kind of memory: under test on both sides with the transferred data verified, and registered by mr-reg. Device memory is that of
# fake drivers, which the CPU cannot touch: GDRFAB_FAKES, or built here from c-tests/fakes. See tests/check-perf.sh.
set -u
. "$(dirname "$0")/claims.sh"

# Three sizes, each verified; the output stays in $work/out.
verified() { # <provider> <client's> <server's> <test> [arguments...]
	local provider=$1 here=$2 there=$3 test=$4 status
	shift 4
	local_run "$provider" "$test" --local-mem "$here" --remote-mem "$there" -s 500:2000 -n 20 --verify "$@" >"$work/out" 2>&1
	status=$?
	cat "$work/out"
	[ $status -eq 0 ] && [ "$(grep -cE '^ +(500|1000|2000) .*, verified$' "$work/out")" -eq 3 ]
}

field() { # <name>: its first value in the results
	sed -n "s/.*\"$1\": \"\{0,1\}\([^\",]*\(,[a-z0-9]*\)*\)\"\{0,1\},\{0,1\}\$/\1/p" "$work/json" | head -n 1
}

# A run must fail with status 1 and an error message that contains <text>.
fails() { # <text> <provider> <arguments...>
	local text=$1 status
	shift
	local_run "$@" >"$work/out" 2>"$work/err"
	status=$?
	cat "$work/out" "$work/err"
	[ $status -eq 1 ] && grep -qF -e "$text" "$work/err"
}

# Registers three sizes, each with a path.
registers() { # <provider> <kind> <path> [arguments...]
	local provider=$1 kind=$2 path=$3
	shift 3
	timeout 60 "$PERF" mr-reg -p "$provider" ${DEVICE:+--device "$DEVICE"} --mem "$kind" -s 4K:16K -n 20 "$@" >"$work/out" 2>&1
	local status=$?
	cat "$work/out"
	[ $status -eq 0 ] && [ "$(grep -cE "^ +(4096|8192|16384) +20 .*[ ,]$path(,|\$)" "$work/out")" -eq 3 ]
}

# ---- options of the command line
swept() { # <client's> <server's> <options...>: the kinds that these options mean
	local here=$1 there=$2
	shift 2
	local_run shm write-lat -s 8 -n 5 --json "$@" >"$work/json" && [ "$(field memory)" = "$here" ] && [ "$(field remote_memory)" = "$there" ]
}
# The same with any provider.
if [ "$PROVIDERS" != verbs ]; then
	claim "--mem is both sides'" swept malloc malloc --mem malloc
	claim "--local-mem alone is both sides'" swept memfd memfd --local-mem memfd
	claim "--local-mem goes before --mem" swept memfd malloc --local-mem memfd --mem malloc
	claim "--remote-mem goes before --mem" swept malloc alloc --remote-mem host --mem malloc
	for kind in tape cuda:0,tape rocr:0,vmm cuda:0,dmabuf,pcie malloc,dmabuf gaudi:x; do
		claim "--mem $kind is refused" refused "--mem $kind: host, malloc" write-lat --mem "$kind"
	done
fi

# ---- memory of the host
for provider in $PROVIDERS; do
	for pair in malloc:memfd memfd:host host:malloc; do
		claim "$provider: ${pair/:/ and }" verified "$provider" "${pair%:*}" "${pair#*:}" write-lat
	done
	if [ "$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages 2>/dev/null || echo 0)" -ge 8 ]; then
		claim "$provider: hugepages" verified "$provider" hugepages hugepages write-bw
	else
		claim "$provider: without hugepages the way to some is told" fails "vm.nr_hugepages" "$provider" write-bw --mem hugepages
	fi
	for kind in udmabuf:/dev/udmabuf dma-heap:/dev/dma_heap/system; do
		if [ -w "${kind#*:}" ]; then
			claim "$provider: ${kind%:*} by messages" verified "$provider" "${kind%:*}" "${kind%:*}" send-lat
			claim "$provider: ${kind%:*} by writes" verified "$provider" "${kind%:*}" "${kind%:*}" write-lat
		else
			claim "$provider: without ${kind%:*} what is missing is told" fails "${kind#*:}" "$provider" write-lat --mem "${kind%:*}"
		fi
	done
done

# ---- memory of devices
fakes=${GDRFAB_FAKES:-}
if [ -z "$fakes" ] && [ -e "$(dirname "$0")/../../c-tests/fakes/build.sh" ]; then
	fakes=$work/fakes
	sh "$(dirname "$0")/../../c-tests/fakes/build.sh" "$fakes" >"$work/build" 2>&1 || fakes=
fi
export LD_LIBRARY_PATH=${fakes:+$fakes:}${LD_LIBRARY_PATH:-}
for provider in $PROVIDERS; do
	[ -n "$fakes" ] || {
		skip "$provider: memory of devices" "no fake drivers: $(tail -n 1 "$work/build" 2>/dev/null)"
		continue
	}
	# A Gaudi serves one process.
	for pair in cuda:0:cuda:1 cuda:0,pool:cuda:0,vmm cuda:0,vmm2:cuda:0,managed rocm:0:rocm:0 ze:0:ze:0 neuron:0:neuron:1 \
		gaudi:0:gaudi:1; do
		here=${pair%:*:*} there=${pair#"$here":}
		# The guest is slow, so over its card one of each vendor's.
		if [ "$provider" = verbs ]; then
			tests=write-bw
			[ "${#here}" -eq 6 ] || tests=send-lat
		else
			tests="write-bw read-bw send-lat"
		fi
		for test in $tests; do
			claim "$provider: $test, $here and $there" verified "$provider" "$here" "$there" "$test"
		done
	done
	claim "$provider: host and gaudi:0" verified "$provider" host gaudi:0 write-lat
	claim "$provider: neuron:0 and host" verified "$provider" neuron:0 host write-lat
	if [ "$provider" != verbs ]; then
		claim "$provider: a dma-buf of a device's is for RDMA devices" fails "provider verbs" "$provider" write-lat --mem rocr:0,dmabuf
		continue
	fi
	# A dma-buf must be made by a kernel.
	if [ ! -w /dev/udmabuf ]; then
		skip "$provider: dma-bufs of devices" "no /dev/udmabuf, by which the fakes make them"
		continue
	fi
	export FAKE_PCIE=1
	# ze is left out: its fake exports the memory file itself.
	for pair in cuda:0,dmabuf:cuda:0,pcie rocm:0,dmabuf:rocm:0,pcie neuron:0,dmabuf:neuron:0,dmabuf gaudi:0,dmabuf:gaudi:1,dmabuf; do
		here=${pair%:*:*} there=${pair#"$here":}
		claim "$provider: $here and $there" verified "$provider" "$here" "$there" write-bw
		claim "$provider: $here went by its dma-buf" grep -q '^ memory .*,dmabuf here (dmabuf)' "$work/out"
	done
	unset FAKE_PCIE
	claim "$provider: a driver that refuses is named" fails cuMemGetHandleForAddressRange "$provider" write-bw --mem cuda:0,pcie
done
if [ -n "$fakes" ] && [ "$PROVIDERS" != verbs ]; then
	export FAKE_FAULT=nrt_init=7,synDeviceAcquireByModuleId=8
	claim "a runtime that does not start is named" fails "nrt_init: status 7" shm write-lat -s 8 --mem neuron:0
	claim "a device that another process has is named" fails "synDeviceAcquireByModuleId of device 1: status 8" shm write-lat \
		-s 8 --local-mem host --remote-mem gaudi:1
	unset FAKE_FAULT
fi

# ---- registration
for provider in $PROVIDERS; do
	case $provider in
	shm) host=direct heap=cma device=ipc ;;
	tcp) host=socket heap=socket device=staged ;;
	*) host=nic heap=nic device=dmabuf ;;
	esac
	claim "$provider: mr-reg of host memory: $host" registers "$provider" host "$host"
	claim "$provider: mr-reg of malloc'ed memory: $heap" registers "$provider" malloc "$heap" --live 10
	claim "$provider: mr-reg with --path" registers "$provider" host "$host" --path "$host"
	claim "$provider: mr-reg without its path" fails require "$provider" mr-reg --mem host -s 4K -n 5 --path peer-mem
	if [ -w /dev/udmabuf ]; then
		[ "$provider" = verbs ] && way=dmabuf || way=$host
		claim "$provider: mr-reg of udmabuf: $way" registers "$provider" udmabuf "$way"
	fi
	if [ -n "$fakes" ] && { [ "$provider" != verbs ] || [ -w /dev/udmabuf ]; }; then
		claim "$provider: mr-reg of a device's memory: $device" registers "$provider" rocr:0 "$device"
	fi
done
exit 0
