# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# A script sources this file before anything else. The script then starts again in a network namespace of its own, and `there` runs
# commands in a second namespace. $peer is the process that holds the second namespace; the script must end this process.

if [ "${1-}" != --inside ]; then
	as=-Urn
	unshare -n true 2>/dev/null && as=-n
	exec unshare $as "$0" --inside "$@"
fi
shift
unshare -n sleep 100000 &
peer=$!
while [ "$(readlink /proc/$peer/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
there() { nsenter -t "$peer" -n "$@"; }
