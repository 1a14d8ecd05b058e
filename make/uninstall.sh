#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Removes the files, then the given directories and those that make/dirs.sh has noted, if they are empty. All paths are below DESTDIR.
#
#   DESTDIR=... LIBDIR=... make/uninstall.sh FILE... -- DIRECTORY...
set -eu

root=${DESTDIR:-} notes=${DESTDIR:-}$LIBDIR/gdrfab/directories
while [ "$1" != -- ]; do
	rm -f "$root$1"
	shift
done
shift
made=$(sort -r "$notes" 2>/dev/null || true)
rm -f "$notes"
for dir in "$@" $made; do
	rmdir "$root$dir" 2>/dev/null || true
done
