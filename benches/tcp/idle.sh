#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The program of idle.c with more and more idle connections: idle.sh PROGRAM
set -e

for n in 0 99 9999; do
	"$1" $n
	"$1" $n 101 poll
done
