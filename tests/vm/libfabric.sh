#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# In the guest: runs the programs of plugins/libfabric/tests, and Open MPI, with the provider for libfabric over soft-RoCE. The programs
# are in /fi/bin, the provider in /fi/lib. plugins/libfabric/tests/check.sh starts this script and counts the lines.
#
#   libfabric.sh PROGRAM... -- RANKS...
set -u

export FI_PROVIDER_PATH=/fi/lib FI_GDRFAB_PROVIDERS=verbs FI_PROVIDER=gdrfab TEST_FI_PROVIDER=gdrfab TEST_FAST=1
# One card is named, because ranks are distributed over equal cards, and the guest's cards are on networks that do not reach each other.
export GDRFAB_VERBS_DEVICE=rxe0
cd /fi/bin || exit 1
# A crash or a time-out is a failure too.
run() { # <seconds> <program> [<claim>]
	local status
	timeout "$1" "./$2" ${3+"$3"} 2>&1
	status=$?
	[ "$status" -eq 0 ] || [ "$status" -eq 77 ] || echo "FAIL fi/$2${3+ $3}: exit status $status"
}
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	echo "== fi/$1 over verbs"
	run 240 "$1"
	shift
done
shift

# Connectionless endpoints: first the fabrics that fi_info lists for each choice of providers, then messages, tags and RMA over the card.
offers() { # <providers> <fabrics>
	local got
	got=$(FI_GDRFAB_PROVIDERS=$1 ./fi_info -p gdrfab -t FI_EP_RDM | sed -n 's/.*fabric: //p' | sort -u | paste -sd' ')
	[ "$got" = "$2" ] && echo "ok   connectionless: $1" || echo "FAIL connectionless: $1: the fabrics are '$got', not '$2'"
}
echo "== connectionless endpoints over verbs"
offers shm,verbs,tcp rdm:shm+verbs+tcp
offers verbs,tcp "rdm:tcp rdm:verbs"
offers shm,tcp rdm:shm+tcp
for claim in tags_sources_data many_messages_in_one_buffer writes_and_reads_with_counters; do
	run 60 rdm_msg $claim
done

# The smallest job runs over ofi_rxm, which must be named beside gdrfab; larger jobs run over connectionless endpoints.
unset FI_PROVIDER
layers="gdrfab;ofi_rxm"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
export OMPI_MCA_rmaps_base_oversubscribe=1 TMPDIR=/tmp HOME=/root
mkdir -p /tmp /root
for n in "$@"; do
	# Claims that crash over ofi_rxm are left out by name.
	TEST_FI_PROVIDER=$layers timeout 240 orterun -np "$n" --mca pml cm --mca mtl ofi --mca btl self --mca osc pt2pt \
		--mca mtl_ofi_provider_include "$layers" -x FI_PROVIDER_PATH -x FI_GDRFAB_PROVIDERS \
		-x GDRFAB_VERBS_DEVICE -x LD_LIBRARY_PATH -x TEST_FI_PROVIDER ./mpi 2>&1 | sed "s/^==== /== mpi over verbs, $layers: /"
	status=${PIPESTATUS[0]}
	[ "$status" -eq 0 ] || echo "FAIL mpi over verbs, $layers, $n ranks: exit status $status"
	layers=gdrfab
done
