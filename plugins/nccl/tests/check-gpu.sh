#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The NCCL plugin under unmodified PyTorch on the NVIDIA GPUs of this machine. Needs an installed plugin and a python3 with
# torch; neither a compiler nor a network. The programs are in plugins/nccl/torch.
#
#   PREFIX=<installed gdrfab> OUT=<logs> [PYTHON=python3] [RANKS=2] plugins/nccl/tests/check-gpu.sh <mode>...
#
#   smoke [transport]            one all_reduce with NCCL's log: was the path taken that was meant?
#   collectives [transports]     all operations, sizes and types; the transports' results must be equal (gdrfab p2p)
#   bench [transports] [N=V...]  interleaved, ROUNDS=3, medians (gdrfab gdrfab-tcp socket shm p2p); N=V is for all of them
#   sweep [N=V1,V2...]...        gdrfab-fixed with each combination of these variables, `-` for unset; one round
#   sweep                        numbers of channels (WIDTHS="1 2..."), ROUNDS=3, of TRANSPORT; the rows for the tuner's table are then in OUT/tuner_table*.h
#   train SECONDS                two trainings at the same time, gdrfab's and the default's: equal losses, nothing grows
#   killed [transport]           a rank is killed while it trains: how long until the other one ends with an error
#   stopped [transport]          a rank is stopped for STILL=30 seconds while it trains: it goes on, with the default's losses
#   nccl-tests [transports]      NVIDIA's, built elsewhere (NCCL_TESTS is their directory): 8 B to 1 GiB with values checked, one
#                                process with all GPUs and one each (MPIEXEC, if they were built with MPI), registered or not
#   train-begin SECONDS          the same in the background, for where a command may not run that long, and
#   train-end [LIMIT]            waits for it, says how it went
#   all                          smoke, smoke gdrfab-tcp, collectives, bench
#
# Transports: gdrfab (from GPU to GPU, copied by another process, tuned by the plugin), gdrfab-fixed (the same with
# GDRFAB_NCCL_TUNE=0), gdrfab-here (GDRFAB_NCCL_GDR=1: copied by the ranks themselves), gdrfab-host (GDRFAB_NCCL_GDR=0: through host memory), gdrfab-tcp (the provider tcp alone), socket (NCCL's own),
# shm (through host memory), p2p (NCCL's default). `gdrfab,NCCL_MIN_NCHANNELS=16` is gdrfab with a setting of its own, and may stand beside gdrfab.
# BENCH="--sizes 1M,64M --ops all_reduce,sendrecv" and TRAIN="--layers 8" are passed on to the programs; BUDGET=540 is
# the number of seconds after which bench and sweep begin no further job. IN_TURN=1 trains one after the other. BACKEND=gloo tries all this without a GPU.
set -u

root=$(cd "$(dirname "$0")/../../.." && pwd)
programs=$root/plugins/nccl/torch
prefix=${PREFIX:-${CARGO_TARGET_DIR:-$root/target}/prefix}
out=${OUT:-${CARGO_TARGET_DIR:-$root/target}/check/nccl-gpu}
python=${PYTHON:-python3} ranks=${RANKS:-2} backend=${BACKEND:-nccl}
# Old versions of gloo lack bfloat16, and report that only two operations later.
[ "$backend" = nccl ] || : "${COLLECTIVES:=--max-mib 1 --dtypes float32,float16,float64,int32,int64,uint8,int8}"
plugin=$prefix/lib/libnccl-net-gdrfab.so
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONDONTWRITEBYTECODE=1
# Only this script decides the settings of a transport.
unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_NET NCCL_NET_PLUGIN NCCL_NET_GDR_LEVEL NCCL_ALGO NCCL_PROTO \
	NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_BUFFSIZE NCCL_P2P_NET_CHUNKSIZE NCCL_DEBUG_FILE \
	GDRFAB_NCCL_PROVIDERS GDRFAB_NCCL_GDR GDRFAB_NCCL_TUNE NCCL_TUNER_PLUGIN CUDA_MODULE_LOADING
# NVLS uses multicast in the switch: that is another algorithm, not another transport, and may be forbidden on borrowed GPUs.
export NCCL_NVLS_ENABLE=0
# The log has a line for each connection and none for each operation, so it costs little and shows the path of every job.
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
failed=0

fail() {
	echo "FAIL $*"
	failed=1
}

settings() { # <transport[,NAME=VALUE...]> -> NAME=VALUE...
	local own=
	case $1 in *,*) own=${1#*,} ;; esac
	case ${1%%,*} in
	gdrfab) printf '%s ' NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "NCCL_NET_PLUGIN=$plugin" ;;
	gdrfab-fixed) printf '%s ' "$(settings gdrfab)" GDRFAB_NCCL_TUNE=0 NCCL_PROTO=^LL NCCL_NET_GDR_LEVEL=SYS ;;
	# See docs/nccl.md for the rules that a program must then keep. The programs use a stream of their own.
	gdrfab-here) printf '%s ' "$(settings gdrfab-host)" GDRFAB_NCCL_GDR=1 NCCL_NET_GDR_LEVEL=SYS CUDA_MODULE_LOADING=EAGER ;;
	gdrfab-host) printf '%s ' NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "NCCL_NET_PLUGIN=$plugin" NCCL_NET=gdrfab GDRFAB_NCCL_GDR=0 ;;
	gdrfab-tcp) printf '%s ' "$(settings gdrfab-host)" GDRFAB_NCCL_PROVIDERS=tcp ;;
	socket) printf '%s ' NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET_PLUGIN=none NCCL_NET=Socket ;;
	shm) printf '%s ' NCCL_P2P_DISABLE=1 NCCL_NET_PLUGIN=none ;;
	p2p) printf '%s ' NCCL_NET_PLUGIN=none ;;
	*)
		echo "no such transport: $1" >&2
		exit 2
		;;
	esac
	printf '%s' "${own//,/ }"
}

# A pattern that NCCL's log must have for each connection. p2p may use NVLink or, on a machine without it, another path.
way() { # <transport>
	case ${1%%,*} in
	gdrfab | gdrfab-fixed | gdrfab-here) echo 'NET/gdrfab/[0-9]+/GDRDMA' ;;
	gdrfab-host | gdrfab-tcp) echo 'NET/gdrfab/[0-9]+(/[^G].*)?$' ;;
	socket) echo 'NET/Socket/' ;;
	shm) echo 'SHM' ;;
	p2p) echo 'P2P/' ;;
	esac
}

path_was() { # <transport> <log>
	local want other
	want=$(way "$1")
	[ "$backend" = nccl ] || return 0
	case $1 in
	gdrfab*)
		grep -q 'Loaded net plugin gdrfab' "$2" || { fail "$1: NCCL did not load the plugin ($2)" && return 1; }
		;;
	esac
	grep -qE " via $want" "$2" || { fail "$1: no connection via $want ($2)" && return 1; }
	# A single channel over another path would spoil the measurement.
	other=$(grep -E 'Channel [0-9]+.* via ' "$2" | grep -vE " via $want" | head -n 1)
	[ -z "$other" ] || { fail "$1: not only via $want: $other" && return 1; }
}

port=$((20000 + RANDOM % 8000))

# Runs one job of all ranks as its user would start it. A hang ends by the program's own limit, with stacks, or else by timeout's.
job() { # <transport> <log> <limit> <program> [arguments...]
	local words log=$2 limit=$3 program=$4
	words=$(settings "$1") || exit 2
	port=$((port + 1))
	shift 4
	: >"$log"
	# shellcheck disable=SC2086
	env $words timeout -k 15 $((limit + 30)) "$python" -m torch.distributed.run --nproc_per_node="$ranks" \
		--master_addr=127.0.0.1 --master_port=$port "$programs/$program" --backend "$backend" --limit "$limit" "$@" >>"$log" 2>&1
}

# Prints the reason of a job's failure, from a log that mostly has NCCL's set-up messages.
why() { # <log>
	echo '```'
	grep -a -E '^FAIL|NCCL WARN|Error|error:|rank [0-9]+: (the|FAIL)|[Tt]imeout|File ".*line' "$1" | grep -v -E 'NCCL INFO|elastic|ChildFailed' | awk '!seen[$0]++' |
		cut -c 1-300 | head -n 40
	echo "... all of it: $1"
	echo '```'
}

smoke() { # [transport]
	local transport=${1:-gdrfab} log
	log=$out/smoke.$transport.log
	echo "## Smoke: $transport"
	NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV,TUNING job "$transport" "$log" 120 collectives.py --smoke || { fail "smoke: $transport" && why "$log"; }
	path_was "$transport" "$log"
	echo '```'
	# Rank 0's lines are like the other ranks'.
	grep -a -i -E 'net plugin|Using network|gdrfab|GPU Direct RDMA|coll channels|NCCL version| set by environment|Bytes -> Algo' "$log" |
		grep -a -E '\[0\] NCCL|NCCL version' | sed -E 's/^[^ ]+:[0-9]+:[0-9]+ //' | awk '!seen[$0]++' | cut -c 1-220 | head -n 60
	grep -a -E 'Channel [0-9]+.* via ' "$log" | sed -E 's/.*( via .*)/\1/' | sort | uniq -c
	grep -a -E '^([0-9]+ checks|FAIL)' "$log"
	echo '```'
}

collectives() { # [transports...]
	local transport log hash first=
	echo "## Collectives"
	[ $# -gt 0 ] || set -- gdrfab p2p
	for transport in "$@"; do
		log=$out/collectives.$transport.log
		# shellcheck disable=SC2086
		job "$transport" "$log" 300 collectives.py ${COLLECTIVES:-} || { fail "collectives: $transport" && why "$log"; }
		path_was "$transport" "$log"
		hash=$(sed -n 's/^sha256 //p' "$log")
		echo "$transport: $(grep -a -E '^[0-9]+ checks' "$log" || echo 'did not end'), sha256 ${hash:0:16}"
		grep -a -E '^# (skipped|rank [0-9]+: descr)' "$log"
		first=${first:-$hash}
		if [ -z "$hash" ] || [ "$hash" != "$first" ]; then
			fail "collectives: the results of $1 and $transport are not equal"
		fi
	done
}

# Runs the jobs of a list, then checks the path of each.
launch() { # <list> <logs>
	local name transport rc
	rm -rf "$2"
	mkdir -p "$2"
	timeout -k 10 $((${BUDGET:-540} + 120)) "$python" "$programs/launch.py" --jobs "$1" --logs "$2" --ranks "$ranks" \
		--budget "${BUDGET:-540}" >"$2/report"
	rc=$?
	cat "$2/report"
	if [ $rc != 0 ]; then
		fail "not all jobs ended well ($2)"
		name=$(sed -n -E 's/^([^:]*): rank .*/\1/p' "$2/report" | head -n 1)
		[ -z "$name" ] || why "$2/$name.log"
	fi
	while IFS=$'\t' read -r name transport _; do
		[ ! -f "$2/$name.log" ] || path_was "${transport%% *}" "$2/$name.log"
	done <"$1.names"
}

add_job() { # <list> <name> <transport> <settings> <results> <title>
	local words
	words=$(settings "$3") || exit 2
	printf '%s\t%s\t%s\n' "$2" "$words $4" \
		"$programs/bench.py --backend $backend --limit 80 --name $6 --out $5 ${BENCH:-}" >>"$1"
	printf '%s\t%s\n' "$2" "$3" >>"$1.names"
}

bench() { # [transports...] [NAME=VALUE...]
	local transports=() common='' argument round i list=$out/bench.jobs
	echo "## Bench"
	for argument in "$@"; do
		case $argument in
		*,*=* | [!A-Z]*) transports+=("$argument") ;;
		*=*) common="$common $argument" ;;
		esac
	done
	[ ${#transports[@]} -gt 0 ] || transports=(gdrfab gdrfab-tcp socket shm p2p)
	rm -f "$out/bench.json" "$list" "$list.names"
	for round in $(seq "${ROUNDS:-3}"); do
		for i in "${!transports[@]}"; do
			add_job "$list" "$i-$round" "${transports[i]}" "$common" "$out/bench.json" "${transports[i]}"
		done
	done
	launch "$list" "$out/bench"
	echo "Settings for all:${common:- none}. GB/s: bytes over time."
	if [ -s "$out/bench.json" ]; then
		"$python" "$programs/table.py" by-transport "$out/bench.json"
	else
		fail "bench: no results"
	fi
}

# Measures the tuner's choices: communicators as wide as the plugin makes them, and narrower.
sweep_channels() {
	local n round own widths table list=$out/sweep.jobs
	local BENCH=${BENCH:---ops all_reduce,all_gather,reduce_scatter,broadcast --sizes 8K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,64M,256M}
	# The buffers that the plugin would set: it leaves them alone when the number of channels is set.
	case ${TRANSPORT:-gdrfab-fixed} in
	gdrfab-fixed) own=,NCCL_BUFFSIZE=16777216 widths="1 2 4 8 16" table=tuner_table.h ;;
	gdrfab-host) own=,NCCL_BUFFSIZE=2097152 widths="1 2 4 8 16" table=tuner_table_host.h ;;
	gdrfab-tcp) own='' widths="1 2 4 8" table=tuner_table_tcp.h ;;
	esac
	rm -f "$out/sweep.json" "$list" "$list.names"
	for round in $(seq "${ROUNDS:-3}"); do
		for n in ${WIDTHS:-$widths}; do
			add_job "$list" "$n-$round" "${TRANSPORT:-gdrfab-fixed}${own},NCCL_MIN_NCHANNELS=$n,NCCL_MAX_NCHANNELS=$n" '' \
				"$out/sweep.json" "$n"
		done
	done
	launch "$list" "$out/sweep"
	if [ ! -s "$out/sweep.json" ]; then
		fail "sweep: no results"
		return
	fi
	"$python" "$programs/table.py" by-setting "$out/sweep.json"
	{
		echo "/* $ranks ranks, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | tr -s ' \n' ' ')"
		echo " * $(grep -a -o -h -m 1 'NCCL version [^ ]*' "$out"/sweep/*.log | head -n 1), ${own#,}, PyTorch */"
		"$python" "$programs/table.py" tuner "$out/sweep.json" "$ranks"
	} >"$out/$table"
	echo "for plugins/nccl/$table: $out/$table"
}

sweep() { # NAME=V1,V2...
	local combinations=('') next one value name title list=$out/sweep.jobs i
	echo "## Sweep"
	if [ $# = 0 ]; then
		sweep_channels
		return
	fi
	for name in "$@"; do
		next=()
		for one in "${combinations[@]}"; do
			for value in $(tr , ' ' <<<"${name#*=}"); do
				if [ "$value" = - ]; then next+=("$one"); else next+=("$one,${name%%=*}=$value"); fi
			done
		done
		combinations=("${next[@]}")
	done
	rm -f "$out/sweep.json" "$list" "$list.names"
	for i in "${!combinations[@]}"; do
		one=${combinations[i]}
		title=${one#,}
		title=${title:-defaults}
		add_job "$list" "$i" "${TRANSPORT:-gdrfab-fixed}$one" '' "$out/sweep.json" "$title"
	done
	launch "$list" "$out/sweep"
	if [ -s "$out/sweep.json" ]; then
		"$python" "$programs/table.py" by-setting "$out/sweep.json"
	else
		fail "sweep: no results"
	fi
}

# The sum of more than two floats depends on the order of additions, so many ranks need one order over all transports.
same_order=
[ "$ranks" -le 2 ] || same_order=,NCCL_ALGO=Ring,NCCL_PROTO=Simple,NCCL_MIN_NCHANNELS=4,NCCL_MAX_NCHANNELS=4

one_training() { # <transport> <seconds> [arguments...]
	local transport=$1 seconds=$2 every=$(($2 / 60 > 0 ? $2 / 60 : 1))
	shift 2
	rm -f "$out/train.$transport" "$out/train.$transport".rank*
	# shellcheck disable=SC2086
	job "$transport$same_order" "$out/train.$transport.log" $((seconds + 120)) train.py --every "$every" --out "$out/train.$transport" \
		${TRAIN:-} "$@"
}

train() { # <seconds>
	local seconds=$1 transport background
	local -A code=()
	if [ -n "${IN_TURN:-}" ]; then
		echo "## Training: gdrfab for $seconds s, then p2p for as many steps"
		one_training gdrfab "$seconds" --seconds "$seconds"
		code[gdrfab]=$?
		one_training p2p "$seconds" --steps "$(grep -c '^[0-9]' "$out/train.gdrfab")"
		code[p2p]=$?
	else
		echo "## Training: gdrfab, and p2p at the same time, $seconds s"
		one_training gdrfab "$seconds" --seconds "$seconds" &
		background=$!
		port=$((port + 100))
		one_training p2p "$seconds" --seconds "$seconds"
		code[p2p]=$?
		wait $background
		code[gdrfab]=$?
	fi
	for transport in gdrfab p2p; do
		[ "${code[$transport]}" = 0 ] || { fail "train: $transport" && why "$out/train.$transport.log"; }
		path_was "$transport" "$out/train.$transport.log"
		echo "$transport: $(grep -a -E '^[0-9]+ steps' "$out/train.$transport.log" || echo 'did not end')"
	done
	grep -a -E '^rank 0: loss' "$out/train.gdrfab.log"
	echo '```'
	"$python" "$programs/compare.py" "$out/train.gdrfab" "$out/train.p2p" || fail "train: see above"
	echo '```'
}

# torchrun would end the survivor itself; launch.py lets the survivor notice.
killed() { # [transport]
	local transport=${1:-gdrfab} words list=$out/killed.jobs
	echo "## A rank is killed: $transport"
	words=$(settings "$transport") || exit 2
	printf 'killed\t%s\t%s\n' "$words" \
		"$programs/train.py --backend $backend --limit 100 --steps 100000 --die 50 --out $out/killed ${TRAIN:-}" >"$list"
	rm -rf "$out/killed.logs"
	mkdir -p "$out/killed.logs"
	timeout 180 "$python" "$programs/launch.py" --jobs "$list" --logs "$out/killed.logs" --ranks "$ranks" --job-limit 100 \
		--grace 90 >"$out/killed.report"
	cat "$out/killed.report"
	path_was "$transport" "$out/killed.logs/killed.log"
	grep -q 'ended with -9' "$out/killed.report" || fail "killed: nobody was killed"
	! grep -q 'had not ended' "$out/killed.report" || fail "killed: the survivor hangs"
	grep -a gdrfab "$out/killed.logs/killed.log" | tail -n 8 | cut -c 1-300
	why "$out/killed.logs/killed.log"
}

stopped() { # [transport]
	local transport=${1:-gdrfab} still=${STILL:-30}
	echo "## A rank is stopped for $still s: $transport"
	one_training "$transport" $((still + 60)) --steps 300 --stop 100 --still "$still" ||
		{ fail "stopped: $transport" && why "$out/train.$transport.log"; }
	path_was "$transport" "$out/train.$transport.log"
	one_training p2p 60 --steps 300 || fail "stopped: p2p"
	grep -a -E '^[0-9]+ steps' "$out/train.$transport.log" "$out/train.p2p.log"
	cmp "$out/train.$transport" "$out/train.p2p" || fail "stopped: other losses"
}

nccl_tests() { # [transports...]
	local transport test how registered log words command code since
	echo "## nccl-tests"
	echo "| transport | test | processes | registered | wrong values | 8 MiB, GB/s | 256 MiB, GB/s | seconds |"
	echo "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |"
	for transport in "${@:-gdrfab}"; do
		words=$(settings "$transport") || exit 2
		for how in one ${MPIEXEC:+each}; do
			for test in all_reduce all_gather broadcast reduce_scatter sendrecv alltoall; do
				for registered in 0 1; do
					[ "$SECONDS" -lt "${BUDGET:-540}" ] || { fail "nccl-tests: no time left for $transport $test" && return; }
					log=$out/nccl-tests.$transport.$test.$how.$registered.log since=$SECONDS
					command=("${NCCL_TESTS:?the directory of all_reduce_perf}/${test}_perf" -g "$ranks")
					[ "$how" = one ] || command=("$MPIEXEC" -n "$ranks" "${command[0]}" -g 1)
					rm -f "$log".*
					# shellcheck disable=SC2086
					env $words NCCL_DEBUG_FILE="$log.%p" timeout -k 5 "${LIMIT:-60}" "${command[@]}" -b 8 -e 1G -f 2 -w 1 -n 2 -c 1 \
						-R "$registered" >"$log" 2>&1
					code=$?
					cat "$log".* >"$log.nccl"
					[ "$code" = 0 ] && grep -q 'Out of bounds values : 0 OK' "$log" ||
						{ fail "nccl-tests: $transport $test $how $registered: exit $code" && why "$log"; }
					path_was "$transport" "$log.nccl"
					echo "| $transport | $test | $how | $registered | $(sed -n 's/.*Out of bounds values : //p' "$log" | head -n 1) |" \
						"$(awk '$1 == 8388608 {a = $8} $1 == 268435456 {b = $8} END {print a " | " b}' "$log") | $((SECONDS - since)) |"
				done
			done
		done
	done
}

train_begin() { # <seconds>
	rm -f "$out/train.rc"
	# shellcheck disable=SC2016
	setsid bash -c '"$1" train "$2" >"$3/train.report" 2>&1; echo $? >"$3/train.rc"' - "$root/plugins/nccl/tests/check-gpu.sh" "$1" "$out" \
		</dev/null >/dev/null 2>&1 &
	echo "begun; ask with train-end"
}

train_end() { # [limit]
	local left=${1:-570}
	while [ ! -s "$out/train.rc" ] && [ "$left" -gt 0 ]; do
		sleep 1
		left=$((left - 1))
	done
	if [ ! -s "$out/train.rc" ]; then
		tail -n 2 "$out"/train.*.log | cut -c 1-200
		fail "train: not at its end yet"
		return
	fi
	cat "$out/train.report"
	failed=$(cat "$out/train.rc")
}

if [ "$backend" = nccl ] && [ ! -f "$plugin" ]; then
	echo "no $plugin: PREFIX names where the plugin is installed" >&2
	exit 2
fi
mode=${1:?smoke, collectives, bench, sweep, train, killed, stopped, nccl-tests, train-begin, train-end or all}
shift
SECONDS=0
case $mode in
smoke) smoke "$@" ;;
collectives) collectives "$@" ;;
bench) bench "$@" ;;
sweep) sweep "$@" ;;
killed) killed "$@" ;;
stopped) stopped "$@" ;;
nccl-tests) nccl_tests "$@" ;;
train) train "${1:?seconds}" ;;
train-begin) train_begin "${1:?seconds}" ;;
train-end) train_end "$@" ;;
all)
	smoke gdrfab
	smoke gdrfab-tcp
	collectives gdrfab p2p
	bench gdrfab gdrfab-tcp socket shm p2p
	;;
*)
	echo "no such mode: $mode" >&2
	exit 2
	;;
esac
echo
echo "$mode: $([ "$failed" = 0 ] && echo ok || echo FAILED), $SECONDS s"
exit "$failed"
