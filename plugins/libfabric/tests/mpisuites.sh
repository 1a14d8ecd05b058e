#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the suites of MPICH and of mpi4py, which are built elsewhere: none of their sources is here. A test that fails over gdrfab
# runs over libfabric's own provider too, and is a failure of gdrfab's only if it passes there.
#
#   plugins/libfabric/tests/mpisuites.sh [options] DIRECTORY
#     DIRECTORY          MPICH's test/mpi, configured and built for this MPI, or mpi4py's test/ (each module of it is one test)
#     --mpi DIRECTORY    where bin/mpiexec and lib are (else those on PATH): MPICH over ch4:ofi, Open MPI 4.1 or 5
#     --lists "L..."     of test/mpi these (pt2pt rma coll; rma.dtp is rma/testlist.dtp); of mpi4py these modules
#     --ranks N          the most processes (4); mpi4py always has this number
#     --windows          Open MPI's windows by osc/rdma over btl/ofi, not by messages; the baseline's by messages
#     --baseline NAME    the provider to compare with (tcp;ofi_rxm)
#     --both             runs tests that pass over the baseline too
#     --only PATTERN     tests whose line matches this extended regular expression
#     --logs DIRECTORY   their output, by test
#
# FI_GDRFAB_PROVIDERS names the gdrfab providers (shm,tcp). mpisuites.txt lists the tests that need not pass, with the reasons.
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-${CARGO_TARGET_DIR:-$here/../../../target}/prefix}
mpi= lists= ranks=4 windows= baseline="tcp;ofi_rxm" both= only=. logs= tests=
while [ $# -gt 0 ]; do
	case $1 in
	--mpi) mpi=$2 && shift ;;
	--lists) lists=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--windows) windows=1 ;;
	--baseline) baseline=$2 && shift ;;
	--both) both=1 ;;
	--only) only=$2 && shift ;;
	--logs) logs=$2 && shift ;;
	-*) sed -n '3,19s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
	*) tests=$(cd "$1" 2>/dev/null && pwd) ;;
	esac
	shift
done
launcher=${mpi:+$mpi/bin/}mpiexec
[ -n "$mpi" ] || ! command -v mpiexec.openmpi >/dev/null || launcher=mpiexec.openmpi
if [ -e "$tests/main.py" ]; then
	suite=mpi4py lists=${lists:-$(cd "$tests" && echo test_*.py)}
elif [ -e "$tests/pt2pt/testlist" ]; then
	suite=mpich lists=${lists:-pt2pt rma coll}
else
	echo "skip mpi: no suite in '$tests'; configure and make MPICH's test/mpi, or unpack mpi4py"
	echo "0 passed, 0 failed, 1 skipped"
	exit 77
fi
version=$("$launcher" --version 2>&1)
case $version in
*"Open MPI"* | *OpenRTE*) kind=openmpi ;;
*HYDRA*) kind=mpich ;;
*)
	echo "skip mpi: no $launcher of MPICH or Open MPI"
	echo "0 passed, 0 failed, 1 skipped"
	exit 77
	;;
esac
major=$(grep -oE '[0-9]+\.[0-9]+' <<<"$version" | head -n 1) major=${major%%.*}
if [ -z "$logs" ]; then
	logs=$(mktemp -d) || exit 1
	trap 'rm -rf "$logs"' EXIT
fi
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || exit 1
scale=${TEST_TIME_SCALE:-1} passed=0 failed=0 skipped=0
unset FI_PROVIDER FI_HOOK GDRFAB_TCP_KEY_FILE GDRFAB_FAULT
export FI_PROVIDER_PATH=$prefix/lib/libfabric GDRFAB_TCP_IFACE=lo FI_GDRFAB_PROVIDERS=${FI_GDRFAB_PROVIDERS:-shm,tcp}
export FI_LOG_LEVEL=${FI_LOG_LEVEL:-warn} FI_LOG_PROV=gdrfab MPI4PY_MPIABI=$kind
export MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi
[ -z "$mpi" ] || export LD_LIBRARY_PATH=$mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Only the provider may carry bytes.
launch() { # <provider> <ranks> <seconds> <command...>
	local provider=$1 n=$2 limit=$3 ways="--mca btl self --mca osc pt2pt"
	shift 3
	if [ $kind = mpich ]; then
		FI_PROVIDER=$provider timeout -k 5 "$limit" "$launcher" -n "$n" "$@" </dev/null
		return
	fi
	if [ -n "$windows" ] && [ "$provider" = gdrfab ]; then
		ways="--mca btl self,ofi --mca btl_ofi_provider_include gdrfab --mca osc rdma"
	elif [ "$major" -ge 5 ]; then
		# Open MPI 5.0 has no windows by messages.
		ways="--mca btl self,sm --mca osc rdma,sm"
	fi
	# shellcheck disable=SC2086 # words
	timeout -k 5 "$limit" "$launcher" --oversubscribe -n "$n" --mca pml cm --mca mtl ofi $ways \
		--mca mtl_ofi_provider_include "$provider" "$@" </dev/null
}

# Runs one test. Its own report decides, because some tests always end with status 0.
try() { # <provider> <line of a list> <log>
	local words n limit=60 arguments=() settings=() word
	read -r -a words <<<"$2"
	if [ $suite = mpi4py ]; then
		(cd "$tests" && launch "$1" "$ranks" $((180 * scale)) python3 main.py -v -i "^${words[0]}.py\$") >"$3" 2>&1 &&
			grep -q '^Ran [1-9]' "$3"
		return
	fi
	n=${words[2]}
	[ "$n" -le "$ranks" ] || n=$ranks
	for word in "${words[@]:3}"; do
		case $word in
		arg=*) arguments+=("${word#arg=}") ;;
		env=*) settings+=("${word#env=}") ;;
		timeLimit=*) limit=$((${word#timeLimit=} / 2)) ;;
		esac
	done
	[ "$limit" -ge 60 ] || limit=60
	(cd "$tests/${words[0]}" && launch "$1" "$n" $((limit * scale)) env "${settings[@]}" "./${words[1]}" "${arguments[@]}") \
		>"$3" 2>&1 && grep -qE '^ ?(No Errors|Test passed)' "$3"
}

# Prints the failed cases of a module; for a program, or a module that did not end: all.
cases() { # <log>
	local found
	found=$(sed -n 's/^\(FAIL\|ERROR\): \([^ ]*\) (.*/\2/p' "$1" | sort -u)
	if [ $suite = mpi4py ] && [ -n "$found" ] && grep -q '^Ran [0-9]* test' "$1"; then
		echo "$found"
	else
		echo all
	fi
}

reason() { # <test>
	local where pattern why
	while IFS='|' read -r where pattern why; do
		case $where in all | "$kind$major" | "$kind$major${windows:++windows}") [[ $1 =~ ^$pattern ]] && echo "$why" && return ;; esac
	done < <(grep -v '^#' "$here/mpisuites.txt")
}

beside=0
one() { # <line of a list>
	local log there status theirs=0 why left start=$SECONDS
	log=$logs/$kind.$(tr -c 'a-zA-Z0-9_\n-' _ <<<"$1" | cut -c -150) && there=$log.beside
	try gdrfab "$1" "$log"
	status=$?
	if [ $status -ne 0 ] || [ -n "$both" ]; then
		try "$baseline" "$1" "$there"
		theirs=$?
		[ $theirs -ne 0 ] || beside=$((beside + 1))
	fi
	why=$(reason "$1")
	if [ $status -eq 0 ] && [ -n "$why" ]; then
		echo "FAIL $1: passes, though mpisuites.txt says: $why"
		failed=$((failed + 1))
		return
	elif [ $status -eq 0 ]; then
		passed=$((passed + 1))
		[ $theirs -eq 0 ] || echo "     $1: passes; over $baseline it does not"
		return
	fi
	left=$(cases "$log")
	if [ $theirs -ne 0 ]; then
		[ "$(cases "$there")" = all ] && left= || left=$(comm -23 <(echo "$left") <(cases "$there"))
	fi
	# shellcheck disable=SC2086 # words on one line
	if [ -z "$left" ]; then
		# 124: the time limit ended it.
		echo "skip $1: status $status, and $theirs over $baseline: "$(cases "$log")
		skipped=$((skipped + 1))
	elif [ -n "$why" ]; then
		echo "skip $1: $why"
		skipped=$((skipped + 1))
	else
		echo "FAIL $1: status $status, $((SECONDS - start)) s: "$left
		tail -n 6 "$log" | sed 's/^/     | /'
		failed=$((failed + 1))
	fi
}

for list in $lists; do
	if [ $suite = mpi4py ]; then
		# Spawning and files do not concern the provider.
		[[ ! ${list%.py} =~ ^test_(spawn|dynproc|file|io|package|toplevel|util_pool)$ && $list =~ $only ]] && one "${list%.py}"
		continue
	fi
	before=$passed where=${list%.*}
	while read -r line; do
		[[ $list/$line =~ $only && $line != *xfail=* ]] && [ -x "$tests/$where/${line%% *}" ] && one "$where $line"
	done < <(grep -E '^[a-z]' "$tests/$where/testlist${list#"$where"}")
	echo "     $list: $((passed - before)) ok"
done
[ -z "$both" ] || echo "     over $baseline: $beside passed"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
