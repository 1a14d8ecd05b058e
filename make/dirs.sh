#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes directories below DESTDIR, and LIBDIR/gdrfab. Directories that did not exist before are noted in the file
# LIBDIR/gdrfab/directories, so that make/uninstall.sh removes them.
#
#   DESTDIR=... LIBDIR=... make/dirs.sh DIRECTORY...
set -eu

root=${DESTDIR:-} notes=${DESTDIR:-}$LIBDIR/gdrfab/directories made=
for dir in "$@" "$LIBDIR/gdrfab"; do
	at=$root$dir
	while [ ! -d "$at" ] && [ "$at" != "$root" ]; do
		made="$made ${at#"$root"}"
		at=$(dirname "$at")
	done
	${INSTALL:-install} -d "$root$dir"
done
for dir in $made; do
	grep -qxF "$dir" "$notes" 2>/dev/null || echo "$dir" >>"$notes"
done
