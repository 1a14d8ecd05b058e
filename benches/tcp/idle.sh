#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs PROGRAM (idle.c, built) with more and more idle connections: benches/tcp/idle.sh PROGRAM
set -e

for n in 0 99 9999; do
	"$1" $n
	"$1" $n 101 poll
done
