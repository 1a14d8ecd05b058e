#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs PROGRAM (silent.c, built) with more and more silent peers, then 256 processes that all send to all: benches/rdm/silent.sh PROGRAM
set -e

for n in 1 15 99 999; do "$1" shm $n 301; done
for n in 15 999; do "$1" tcp $n; done
TEST_RDM_PROCESSES=256 "$(dirname "$0")/../../c-tests/run.sh" rdm_scale
