#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the library and the programs: make/library.sh PROFILE
#
# For a release the shared library is built alone (profile `shared`), at the same time as the rest, and so is a sixteenth smaller. If
# cargo builds the library together with the rlib that the programs link, the shared library keeps all functions that the rlib offers.
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
