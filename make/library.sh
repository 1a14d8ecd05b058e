#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the library and the programs: make/library.sh PROFILE
#
# Built together with the rlib that the programs link, a shared library keeps all that the rlib offers. For a release the shared
# library is therefore built alone, at the same time, and is a sixteenth smaller.
set -eu

cargo=${CARGO:-cargo}
if [ "$1" != release ]; then
	exec "$cargo" build --profile "$1"
fi
"$cargo" rustc -q --profile shared --lib --crate-type cdylib &
shared=$!
built=0
"$cargo" build --profile release || built=$?
wait $shared
exit $built
