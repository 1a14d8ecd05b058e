# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# To be sourced first. Starts the script again in a network namespace of its own, beside another namespace, in which `there` runs
# commands. $peer is that namespace's process, which the script ends.

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
