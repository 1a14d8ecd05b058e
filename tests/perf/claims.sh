# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Shared by the parts: a claim is a name and a command, whose output is shown on failure. Sourced under `set -u`.

work=$(mktemp -d) || exit 1
server=
# shellcheck disable=SC2317 # called by the trap
tidy() {
	[ -z "$server" ] || kill -9 "$server" 2>/dev/null
	rm -rf "$work"
}
trap tidy EXIT
trap 'exit 1' INT TERM

claim() { # <name> <command...>
	local name=$1
	shift
	if "$@" >"$work/claim" 2>&1; then
		echo "ok   $name"
	else
		echo "FAIL $name: $*"
		tail -n 20 "$work/claim" | sed 's/^/     /'
	fi
}

skip() { # <name> <why>
	echo "skip $1: $2"
}

# Runs gdrfab-perf, server and client in one command, over a provider, with a time limit.
local_run() { # <provider> <arguments...>
	local provider=$1 at=()
	shift
	[ "$provider" != verbs ] || [ -z "${NODE:-}" ] || at=(--name "$NODE")
	timeout 60 "$PERF" "$@" --local -p "$provider" ${at[@]+"${at[@]}"}
}

# The wrong command line must end with status 2 and an error message that contains <text>.
refused() { # <text> <arguments...>
	local text=$1 status
	shift
	timeout 20 "$PERF" "$@" >"$work/out" 2>"$work/err"
	status=$?
	cat "$work/err"
	[ $status -eq 2 ] && grep -qF -e "$text" "$work/err"
}
