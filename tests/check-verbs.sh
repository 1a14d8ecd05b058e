#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the conformance programs over verbs, in a virtual machine with three RDMA devices: soft-RoCE that imports dma-bufs, soft-RoCE that
# does not, and soft-iWARP. Without options the examples, the claims of gdrfab-perf (tests/perf), and the backend for NIXL without NIXL run
# over soft-RoCE as well. Needs the packages of `make deps`, and downloads others. If there can be no virtual machine, a line that begins
# with "SKIP:" has the reason, and the exit status is 77.
#
#   tests/check-verbs.sh [options]
#     --programs "P..."    only these (default: all, on each device those that apply)
#     --claim TEXT         only claims with TEXT in their names
#     --examples           only the examples and gdrfab-perf
#     --passes "D..."      only these devices: rxe, domain (rxe without locks), norxe (refuses dma-bufs), siw; rails (both of rxe);
#                          or shm, the other provider in the guest
#     --keep-going         the next device even if one had failures
#     --stock              the packaged soft-RoCE instead of the patched one, and no soft-iWARP
#     --shell-cmd 'CMD'    runs CMD in the prepared guest instead, with the environment of the first device
#     --vm 'OPTIONS'       more options for tests/vm/run.sh, as --vm '--pkgs "valgrind libc6-dbg" --mem 2048'
#     --timeout SECONDS    for the guest (3000)
#
# The library is the one installed in PREFIX (target/prefix); the programs are built in BUILD (target/c-tests).
set -u -o pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
prefix=${PREFIX:-$target/prefix} build=${BUILD:-$target/c-tests}

programs= claim= passes= keep_going= stock= shell_cmd= vm= limit=3000 examples=
while [ $# -gt 0 ]; do
	case $1 in
	--programs) programs=$2 && shift ;;
	--claim) claim=$2 && shift ;;
	--passes) passes=$2 && shift ;;
	--examples) examples=only ;;
	--keep-going) keep_going=1 ;;
	--stock) stock=1 ;;
	--shell-cmd) shell_cmd=$2 && shift ;;
	--vm) vm=$2 && shift ;;
	--timeout) limit=$2 && shift ;;
	*)
		sed -n '3,25s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
	shift
done

[ -n "$programs$claim$passes$stock$shell_cmd$examples" ] || examples=too
[ "$examples" != only ] || programs=layout

# ---- what goes into the guest
all=$(cd "$root/c-tests" && grep -l '^TEST' ./*/*.c ./*/*.cpp | sed 's|.*/||; s|\.[a-z]*$||' | LC_ALL=C sort)
# If the plugin for NCCL is installed: the claims in which cards differ from shm and tcp.
plugin=$prefix/lib/libnccl-net-gdrfab.so nccl=
[ -e "$plugin" ] && nccl="nccl_connect:path nccl_message:every_size_host nccl_message:every_size_dmabuf nccl_order:bytes nccl_group:group_of_8 nccl_group:group_device nccl_patience:late_receiver"
wanted=() wanted_nccl=()
for item in ${programs:-$all $nccl}; do
	case $item in
	nccl*) wanted_nccl+=("${item%%:*}") ;;
	*) wanted+=("${item%%:*}") ;;
	esac
done
export BUILD=$build PKG_CONFIG_PATH=$prefix/lib/pkgconfig
{
	"$root/c-tests/run.sh" --build "${wanted[@]}" &&
		{ [ ${#wanted_nccl[@]} -eq 0 ] || "$root/c-tests/run.sh" --suite nccl --build "${wanted_nccl[@]}"; }
} >"$target/vm-build.log" 2>&1 || {
	grep -v '^==' "$target/vm-build.log"
	exit 1
}

# The directory is new, because another run may be under way.
stage=$(mktemp -d "$target/vm.XXXXXX") || exit 1
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/gdrfab"/{lib,bin,tests} "$stage/modules" || exit 1
cp -a "$prefix"/lib/libgdrfab.so* "$stage/gdrfab/lib/" && cp "$prefix"/bin/gdrfab-* "$stage/gdrfab/bin/" || exit 1
[ -z "$nccl" ] || cp "$plugin" "$stage/gdrfab/lib/" || exit 1
cp -a "$build/fakes" "$stage/gdrfab/tests/" || exit 1
for file in "${wanted[@]/#/$build/}" "${wanted_nccl[@]/#/$build.nccl/}"; do
	cp "$file" "$stage/gdrfab/tests/" || exit 1
done
cp "$root"/tests/vm/{programs,perftest,examples}.sh "$stage/gdrfab/" 2>/dev/null
if [ -n "$examples" ]; then
	mkdir -p "$stage/gdrfab/examples" && cp -r "$root"/tests/{check-perf.sh,perf} "$stage/gdrfab/" || exit 1
	use=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs gdrfab) || exit 1
	for each in file_transfer gaudi_pingpong; do
		# shellcheck disable=SC2086 # a list of words
		${CC:-cc} -std=c99 -O2 -o "$stage/gdrfab/examples/$each" "$root/examples/$each"/*.c $use -ldl || exit 1
		cp "$root/examples/$each.sh" "$stage/gdrfab/examples/" || exit 1
	done
	for each in rdma_transport_pingpong rdma_transport_batch; do
		# shellcheck disable=SC2086
		${CXX:-c++} -std=c++17 -O2 -pthread -o "$stage/gdrfab/examples/$each" "$root/examples/$each.cpp" $use || exit 1
	done
	CXXFLAGS=$use "$root/plugins/nixl/tests/engine.sh" "$stage/gdrfab/examples/nixl_engine" || exit 1
fi
# The files go into the guest's memory, so they are stripped.
find "$stage/gdrfab" -type f \( -name '*.so*' -o -perm -100 \) ! -name '*.sh' -exec strip -g {} + 2>/dev/null
${CC:-cc} -std=c99 -Wall -Wextra -Wpedantic -Werror -O2 -fPIC -shared -fvisibility=hidden \
	-o "$stage/gdrfab/lib/libgdrfab-dmabuf.so" "$root"/tests/vm/{dmabuf,liar}-shim.c -Wl,--no-as-needed -libverbs -ldl || exit 1

modules=() module_note="the packaged rdma_rxe"
if [ -z "$stock" ]; then
	"$root/tests/vm/build-modules.sh" "$stage/modules" || exit
	modules=(--module "$stage/modules/rdma_rxe.ko no_dmabuf=rxe1" --module "$stage/modules/siw.ko")
	module_note="rdma_rxe with import of dma-bufs but on rxe1, $(sha256sum "$stage/modules/rdma_rxe.ko" | cut -c 1-12)"
	module_note="$module_note, and siw, $(sha256sum "$stage/modules/siw.ko" | cut -c 1-12)"
fi

# ---- the programs of each pass
if [ -z "$passes" ]; then
	passes=rxe
	[ -n "$stock" ] || passes="rxe domain norxe siw rails"
fi
list=
# Programs that are left out, because they are about shm, tcp, CPUs or drivers alone: here they skip, or give the results of the host.
elsewhere="atomic|atomic_end|copier|copier_end|device_fails|device_rma|hmem|hmem_cuda|layout|listen_hostile|one_process|panics"
elsewhere="$elsewhere|rdma_transport_pieces|shm_[a-z]*|tcp|region_unmapped|verbs_rails_rdm"
lanes="tagged rdm rdm_pieces rdm_end rdm_atomic rdm_bad rdm_lies rdm_cards inject_rest"
for pass in $passes; do
	[ "$pass" != shm ] || elsewhere=tcp
	case $pass in
	# The other devices repeat only the claims that depend on the device.
	norxe) default="device device_rma device_fails device_cuda memory:paths_offered rma:_from_ verbs:refused" ;;
	# Without locks operations take the fast path.
	domain) default="cq cq_error rma_order:_nic_ rma:every_call_nic msg:every_call_and_size_by region_protection:nic_malloc" ;;
	rails) default="verbs_rails_rdm list_ways:host rma:every_call_nic_mem_alloc" ;;
	siw) default="info:without_hints connection cq cq_error memory:malloc memory:ten_thousand msg msg_order rma rma_order wait list_ways:all_move_host atomic_card $lanes" ;;
	# The program verbs is the last, because it takes links and devices away. idle_connections is left out, because endpoints of verbs do not
	# rest; of the lists only a few claims run, because a list is many small operations over verbs.
	*) default="$(echo "$all" | grep -vxE "verbs|idle_connections|list|list_[a-z]*|rdm_scale|rdm_rails|tcp_[a-z_]*|containers|connection_cost|$elsewhere") atomic:a_provider_without list:nic_malloc list_ways:host list_end:given_up list_end:peer_dies $nccl verbs" ;;
	esac
	# shellcheck disable=SC2086
	list="$list $pass=$(echo ${programs:-$default} | tr ' ' ,)"
done
command="echo \"kernel \$(uname -r), \$(cat /etc/versions)\"; echo 'modules: $module_note'; rdma link"
if [ -n "$shell_cmd" ]; then
	command="$command; /gdrfab/programs.sh --shell ${passes%% *} $(printf %q "$shell_cmd")"
else
	[ "$examples" != only ] || list=
	command="$command; /gdrfab/programs.sh ${claim:+--claim $(printf %q "$claim")} ${keep_going:+--keep-going}"
	command="$command ${examples:+--then /gdrfab/examples.sh}$list"
fi
eval "set -- $vm"
"$root/tests/vm/run.sh" --net two --timeout "$limit" --mem 2048 --add "$stage/gdrfab:/gdrfab" \
	${modules[@]+"${modules[@]}"} "$@" -- "$command"
