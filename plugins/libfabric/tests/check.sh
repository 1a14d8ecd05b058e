#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests the provider for libfabric with programs that use libfabric: its own tools, programs of ours, Open MPI, and a newer
# libfabric under MPICH. Neither a network card nor a GPU is needed.
#
#   plugins/libfabric/tests/check.sh [options]
#     --providers "P..."  only over these (shm tcp)
#     --parts "P..."      only these:
#                           tools     fi_info: its list of offers, and the reasons for what it does not list
#                           pingpong  fi_pingpong with its data checked, on gdrfab and on "gdrfab;ofi_rxm"
#                           api       the programs beside this script
#                           rdm       connectionless endpoints: rdm*.c over shm and tcp together, and Open MPI and MPICH over them
#                           mpi       the programs of mpi/ under Open MPI
#                           memcheck  fi_pingpong and Open MPI under valgrind
#                           verbs     the programs beside this script, and Open MPI, in the virtual machine of check-verbs
#                           newer     the same file under the libfabric that MPICH's wheel brings
#     --ranks "N..."      numbers of processes of a job (2 4)
#     --claims "C..."     of mpi/ only the claims with one of these letters in their names
#     --build             builds, and runs nothing
#     --built             runs the programs that an earlier --build has made
#
# The provider is $PREFIX/lib/libfabric/libgdrfab-fi.so, which finds libgdrfab.so by itself. BUILD is the directory for the
# programs. TEST_FI_PROVIDER=tcp runs them over libfabric's own provider, where that is possible: a test that fails there
# too is not gdrfab's fault.
set -u -o pipefail

root=$(cd "$(dirname "$0")/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
build=${BUILD:-$target/c-tests}
prefix=${PREFIX:-$target/prefix}
# The directory where tests/deps.sh puts MPICH's wheel.
mpich=${GDRFAB_MPICH:-${XDG_CACHE_HOME:-$HOME/.cache}/gdrfab-mpich}
providers="shm tcp" parts="tools pingpong api rdm mpi memcheck newer verbs" ranks="2 4" claims= build_only= built=
while [ $# -gt 0 ]; do
	case $1 in
	--providers) providers=$2 && shift ;;
	--parts) parts=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--claims) claims=$2 && shift ;;
	--build) build_only=1 ;;
	--built) built=1 ;;
	*)
		sed -n '3,26s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
	shift
done
name=${TEST_FI_PROVIDER:-gdrfab}
plugin=$prefix/lib/libfabric/libgdrfab-fi.so
out=$build/libfabric scale=${TEST_TIME_SCALE:-1}
mkdir -p "$out" || exit 1

# ---- verdicts

begin=$SECONDS passed=0 failed=0 skipped=0
ok() {
	echo "ok   $1"
	passed=$((passed + 1))
}
bad() { # <claim> <why> [file whose end tells more]
	echo "FAIL $1: $2"
	# Of libfabric's log only the provider's lines, and warnings.
	[ $# -lt 3 ] || grep -vE '^libfabric:.*(fi_param_get|:core:.*<info>)' "$3" | tail -n 25 | sed 's/^/     | /'
	failed=$((failed + 1))
}
left_out() {
	echo "skip $1: $2"
	skipped=$((skipped + 1))
}
finish() {
	echo "libfabric took $((SECONDS - begin)) s"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
	exit
}
# Adds up the result lines of one of our programs.
count_lines() { # <claim> <exit status> <output>
	local good bad_ones gone
	good=$(grep -c '^ok ' "$3") bad_ones=$(grep -c '^FAIL ' "$3") gone=$(grep -c '^skip ' "$3")
	grep -E '^(FAIL|skip|     [a-z_]+, rank)' "$3"
	if [ "$2" -ne 0 ] && [ "$bad_ones" -eq 0 ] && ! { [ "$2" -eq 77 ] && [ "$good" -eq 0 ]; }; then
		bad "$1" "exit status $2" "$3"
	elif ! tail -n 1 "$3" | grep -q '^[0-9]* passed, [0-9]* failed, [0-9]* skipped$' && [ "$bad_ones" -eq 0 ]; then
		bad "$1" "no last line that counts" "$3"
	elif [ "$bad_ones" -eq 0 ]; then
		echo "     $1: $good ok"
	fi
	passed=$((passed + good)) failed=$((failed + bad_ones)) skipped=$((skipped + gone))
}

if [ "$name" = gdrfab ] && [ ! -e "$plugin" ]; then
	bad plugin "there is no $plugin; make install-plugin-libfabric PREFIX=... puts it there"
	finish
fi

# ---- the environment: the settings of a user are cleared, and the file must find the library by itself
unset LD_LIBRARY_PATH FI_PROVIDER FI_LOG_LEVEL FI_LOG_PROV FI_LOG_SUBSYS FI_HOOK FI_GDRFAB_PROVIDERS
unset GDRFAB_TCP_KEY_FILE GDRFAB_LOG GDRFAB_FAULT
export FI_PROVIDER_PATH=$prefix/lib/libfabric
# Only the loopback is used: no address of the machine's own network.
export GDRFAB_TCP_IFACE=lo
if [ "$(id -u)" -eq 0 ]; then
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
over() { # <provider>: from here on the provider offers this alone
	export FI_GDRFAB_PROVIDERS=$1
}

# Open MPI's own commands, not those of another MPI on the machine.
mpicc= mpirun=
for pair in mpicc.openmpi:mpirun.openmpi mpicc:mpirun; do
	if "${pair%:*}" --showme:version >/dev/null 2>&1 && command -v "${pair#*:}" >/dev/null; then
		mpicc=${pair%:*} mpirun=${pair#*:}
		break
	fi
done

# Checks the log of a run: it must have endpoints of the requested provider that carried messages both ways, and none of
# another provider. (If two connect to each other at once, one connection is given up unused.) A run over libfabric's
# own provider has no such lines.
carried() { # <claim> <provider> <endpoints at least> <log>
	local used others
	used=$(grep -c "gdrfab:.* $2 endpoint to .* closed: [1-9][0-9]* messages sent, [1-9]" "$4")
	others=$(grep 'gdrfab:.* endpoint to .* closed: ' "$4" | grep -vc " $2 endpoint to ")
	if [ "$name" != gdrfab ] || { [ "$used" -ge "$3" ] && [ "$others" -eq 0 ]; }; then
		ok "$1"
		return
	fi
	bad "$1" "the log has $used endpoints over $2 that carried messages, and $others over something else" "$4"
	return 1
}

# ---- building

strict="-std=c99 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -g -O1 -pthread"
sources=$(cd "$root/plugins/libfabric/tests/mpi" 2>/dev/null && ls -- *.c | grep -vx newer.c)
if [ -z "$built" ]; then
	cd "$root/plugins/libfabric/tests/mpi" || exit 1
	# shellcheck disable=SC2086 # lists of words
	if [ -n "$mpicc" ] && ! OMPI_CC=${CC:-cc} $mpicc $strict -o "$build/mpi" $sources; then
		bad mpi "does not compile"
		finish
	fi
	# shellcheck disable=SC2086
	if [ -e "$mpich/lib/libmpi.so.12" ] && ! { ${CC:-cc} $strict -isystem "$mpich/include" -o "$build/mpi-mpich" $sources \
		"$mpich/lib/libmpi.so.12" -Wl,-rpath,"$mpich/lib" && ${CC:-cc} $strict -o "$build/newer" newer.c -ldl; }; then
		bad newer "does not compile"
		finish
	fi
	cd "$root" || exit 1
	if ! BUILD=$build c-tests/run.sh --suite libfabric --build >"$out/build.log" 2>&1; then
		bad api "does not compile" "$out/build.log"
		finish
	fi
fi
if [ -n "$build_only" ]; then
	[ "$passed" -gt 0 ] || passed=1
	finish
fi

# ---- parts

. "$root/plugins/libfabric/tests/tools.sh"
. "$root/plugins/libfabric/tests/memcheck.sh"

# Finds a free port, at which the server of fi_pingpong and its client meet.
free_port() {
	local port
	while :; do
		port=$((20000 + RANDOM % 10000))
		grep -qi ":$(printf %04x $port) " /proc/net/tcp || break
	done
	echo "$port"
}
await_listener() { # <port>
	for _ in $(seq 100); do
		grep -qi ":$(printf %04x "$1") 00000000:0000 0A" /proc/net/tcp && return
		sleep 0.1
	done
}

pingpong() { # <claim> <provider of libfabric> <type> <rounds of each size> <log prefix> [tool and its arguments...]
	local claim=$1 prov=$2 type=$3 rounds=$4 log=$5 port server status rows
	shift 5
	port=$(free_port)
	FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab timeout -k 5 $((60 * scale)) ${@+"${@//%side/server}"} \
		fi_pingpong -B "$port" -p "$prov" -e "$type" -c -S all -I "$rounds" >"$log.server" 2>"$log.server.err" &
	server=$!
	await_listener "$port"
	FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab timeout -k 5 $((60 * scale)) ${@+"${@//%side/client}"} \
		fi_pingpong -P "$port" -p "$prov" -e "$type" -c -S all -I "$rounds" 127.0.0.1 >"$log.client" 2>"$log.client.err"
	status=$?
	wait "$server" || status=$?
	rows=$(grep -c "^[0-9.]*[km]\{0,1\} *$rounds *=$rounds " "$log.client")
	if [ "$status" -ne 0 ] || [ "$rows" -lt 30 ]; then
		bad "$claim" "exit status $status, $rows sizes" "$log.client.err"
		return 1
	fi
	cat "$log.server.err" >>"$log.client.err"
	carried "$claim" "$FI_GDRFAB_PROVIDERS" 2 "$log.client.err"
}

part_pingpong() {
	local provider
	if ! command -v fi_pingpong >/dev/null; then
		left_out pingpong "no fi_pingpong here"
		return
	fi
	for provider in $providers; do
		over "$provider"
		pingpong "pingpong_msg_$provider" "$name" msg 10 "$out/pingpong"
		pingpong "pingpong_rdm_$provider" "$name;ofi_rxm" rdm 10 "$out/pingpong"
	done
}

part_api() {
	local provider
	for provider in $providers; do
		TEST_FI_PROVIDER=$name TEST_PROVIDER=$provider BUILD=$build PREFIX=$prefix \
			"$root/c-tests/run.sh" --suite libfabric --built --jobs 4 >"$out/api" 2>&1
		count_lines "api over $provider" $? "$out/api"
	done
}

# Only the provider may carry bytes: no transport of Open MPI's own is permitted, neither for messages nor for windows.
open_mpi() { # <ranks> <command...>
	local n=$1
	shift
	# shellcheck disable=SC2086 # words
	timeout -k 5 "$((240 * scale))" "$mpirun" --oversubscribe -np "$n" --mca pml cm --mca mtl ofi \
		${windows---mca btl self --mca osc pt2pt} --mca mtl_ofi_provider_include "${layers-$name;ofi_rxm}" "$@"
}

mpich() { # <ranks> <command...>
	local n=$1
	shift
	MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER="${layers-$name;ofi_rxm}" \
		timeout -k 5 $((240 * scale)) "$mpich/bin/mpiexec" -n "$n" "$@"
}

# Without ofi_rxm: the log must have an endpoint of each rank.
part_rdm() {
	local layers=$name
	if [ "$name" != gdrfab ]; then
		left_out rdm "gdrfab's own kind of endpoint"
		return
	fi
	over shm,tcp
	TEST_PROVIDER=shm,tcp BUILD=$build PREFIX=$prefix "$root/c-tests/run.sh" --suite libfabric --built rdm rdm_msg rdm_atomic >"$out/api" 2>&1
	count_lines "api over shm and tcp" $? "$out/api"
	export FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab
	if [ -n "$mpirun" ]; then
		# shellcheck disable=SC2086 # a list of words
		open_mpi 2 "$build/mpi" $claims >"$out/mpi" 2>"$out/mpi.err"
		count_lines "mpi over connectionless endpoints" $? "$out/mpi"
		carried mpi_carried_rdm shm+tcp 2 "$out/mpi.err"
		# By RMA and atomics. (btl/ofi of 4.1.4 dereferences NULL in MPI_Compare_and_swap.)
		local windows="--mca btl self,ofi --mca btl_ofi_provider_include $name --mca osc rdma"
		open_mpi 2 "$build/mpi" window accumulate tickets exclusive post_and requests >"$out/mpi" 2>"$out/mpi.err"
		count_lines "windows over btl/ofi" $? "$out/mpi"
		if grep -q 'gdrfab:.* 0 received; RMA operations by path: .*\(cma\|staged\) [1-9]' "$out/mpi.err"; then
			ok windows_carried_rdm
		else
			bad windows_carried_rdm "the log has no endpoint that moved bytes without a message" "$out/mpi.err"
		fi
		unset windows
	fi
	if [ -x "$build/mpi-mpich" ]; then
		# shellcheck disable=SC2086
		mpich 2 "$build/mpi-mpich" $claims >"$out/mpi" 2>"$out/mpi.err"
		count_lines "MPICH over connectionless endpoints" $? "$out/mpi"
		carried mpich_carried_rdm shm+tcp 2 "$out/mpi.err"
	fi
	unset FI_LOG_LEVEL FI_LOG_PROV
}

part_mpi() {
	local provider n
	if [ -z "$mpirun" ]; then
		left_out mpi "no Open MPI here"
		return
	fi
	for provider in $providers; do
		over "$provider"
		for n in $ranks; do
			# shellcheck disable=SC2086 # a list of words
			FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab open_mpi "$n" "$build/mpi" $claims >"$out/mpi" 2>"$out/mpi.err"
			count_lines "mpi over $provider, $n ranks" $? "$out/mpi"
			carried "mpi_carried_${provider}_$n" "$provider" "$n" "$out/mpi.err"
			[ -n "$claims" ] && continue
			open_mpi "$n" "$build/mpi" --threads >"$out/mpi" 2>"$out/mpi.err"
			count_lines "mpi with threads over $provider, $n ranks" $? "$out/mpi"
		done
	done
	# Without the provider such a job must fail, which shows that nothing else carries it.
	if [ "$name" = gdrfab ]; then
		if FI_PROVIDER_PATH=$out/nowhere open_mpi 2 "$build/mpi" split >"$out/mpi" 2>&1; then
			bad mpi_needs_the_provider "the same job runs without the provider" "$out/mpi"
		else
			ok mpi_needs_the_provider
		fi
	fi
}

# Over soft-RoCE: each write with data needs a receive, inject sizes are small, and failures end connections.
# A guest has two CPUs, so jobs of four ranks are the largest.
part_verbs() {
	local stage=$out/guest
	local pkgs="openmpi-bin openmpi-common libopenmpi3 libpmix2 libmunge2 libfabric1 hostname"
	if [ "$name" != gdrfab ] || [ -z "$mpirun" ] || [ ! -x "$build.libfabric/msg" ]; then
		left_out verbs "nothing was built for the guest"
		return
	fi
	rm -rf "$stage" && mkdir -p "$stage/bin" "$stage/lib" || exit 1
	cp "$plugin" "$stage/lib/" && cp "$build/mpi" "$root/tests/vm/libfabric.sh" "$stage/bin/" || exit 1
	cp "$(command -v fi_info)" "$stage/bin/" || exit 1
	for program in $verbs_programs rdm_msg; do
		cp "$build.libfabric/$program" "$stage/bin/" || exit 1
	done
	PREFIX=$prefix BUILD=$build PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib "$root/tests/check-verbs.sh" \
		--passes rxe --programs eq --timeout $((1800 * scale)) --vm "--pkgs '$pkgs' --add $stage:/fi" \
		--shell-cmd "/fi/bin/libfabric.sh $verbs_programs -- 2 4" >"$out/verbs" 2>&1
	case $? in
	77) left_out verbs "$(grep '^SKIP: ' "$out/verbs" | tail -n 1)" ;;
	*)
		grep -q '^ok .*every_size' "$out/verbs" || bad verbs "Open MPI did not run in the guest" "$out/verbs"
		echo "0 passed, 0 failed, 0 skipped" >>"$out/verbs"
		count_lines "verbs, in a virtual machine" 0 "$out/verbs"
		;;
	esac
}
verbs_programs="info msg msg_mixed rma rma_fail mr cm cm_end wait cntr"

part_newer() {
	local provider n
	if [ ! -x "$build/mpi-mpich" ]; then
		left_out newer "no MPICH in $mpich; tests/deps.sh check-all fetches it"
		return
	fi
	for provider in $providers; do
		over "$provider"
		if [ "$name" = gdrfab ]; then
			timeout 20 "$build/newer" "$mpich/lib/mpich/libfabric.so.1" "$provider" >"$out/newer" 2>&1
			count_lines "newer libfabric over $provider" $? "$out/newer"
			grep '^     ' "$out/newer"
		fi
		for n in $ranks; do
			# shellcheck disable=SC2086
			FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab mpich "$n" "$build/mpi-mpich" $claims >"$out/mpich" 2>"$out/mpich.err"
			count_lines "MPICH over $provider, $n ranks" $? "$out/mpich"
			carried "mpich_carried_${provider}_$n" "$provider" "$n" "$out/mpich.err"
		done
	done
}

for part in $parts; do
	case $part in
	tools | pingpong | api | rdm | mpi | memcheck | newer | verbs) ;;
	*)
		echo "check.sh: no part '$part'" >&2
		exit 2
		;;
	esac
	echo "==== $part"
	start=$SECONDS
	"part_$part"
	echo "     $part took $((SECONDS - start)) s"
done
finish
