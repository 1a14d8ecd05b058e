#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs both sides of hello.c: examples/hello.sh PROGRAM. The client starts when the server reports that it listens.
set -eu

work=$(mktemp -d)
server=
trap 'rm -rf "$work"; [ -z "$server" ] || kill "$server" 2>/dev/null || :' EXIT
mkfifo "$work/said"
"$1" server >"$work/said" &
server=$!
exec 3<"$work/said"
read -r line <&3 || { echo "the server does not listen" >&2; exit 1; }
echo "$line"
"$1" client
cat <&3
wait "$server"
