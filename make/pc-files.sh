#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the .pc files of an installation from the templates pkgconfig/*.pc.in. The environment has PREFIX, LIBDIR, INCLUDEDIR and VERSION.
#
#   make/pc-files.sh STATIC-LIBS TO         STATIC-LIBS is the file that make/static-libs.sh has written; TO is a directory
set -eu

# Directories below the prefix are written relative to it, so that an installation can be moved.
# shellcheck disable=SC2016 # ${prefix} is pkg-config's
below_prefix() {
	case $1 in
	"$PREFIX"/*) printf '${prefix}/%s' "${1#"$PREFIX"/}" ;;
	*) printf %s "$1" ;;
	esac
}
libs=$(cat "$1")
for from in "$(dirname "$0")"/../pkgconfig/*.pc.in; do
	to=$2/$(basename "$from" .in)
	sed -e "s|@PREFIX@|$PREFIX|" -e "s|@VERSION@|$VERSION|" -e "s|@LIBDIR@|$(below_prefix "$LIBDIR")|" \
		-e "s|@INCLUDEDIR@|$(below_prefix "$INCLUDEDIR")|" -e "s|@LIBS_PRIVATE@|$libs|" "$from" >"$to"
	chmod 644 "$to"
done
