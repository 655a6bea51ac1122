#!/usr/bin/env bash
# The two ends of `up.sh --shell`: lines of standard input become commands of the guest, through the shared
# directory. `lines.sh outside` reads and sends them, `lines.sh inside` runs them, in one bash, so that a directory or
# a variable stays.
set -uo pipefail
q=$LAB_SHARE/lines

outside() {
    local line n=0
    rm -rf "$q" && mkdir -p "$q"
    [ ! -t 0 ] || echo "The lab is up. Type commands; ^D ends it." >&2
    while { [ ! -t 0 ] || printf 'lab# ' >&2; } && IFS= read -r line; do
        n=$((n + 1))
        printf '%s\n' "$line" >"$q/$n.new"
        mv "$q/$n.new" "$q/$n.in"
        until [ -e "$q/$n.done" ]; do
            kill -0 "$LAB_PID" 2>/dev/null || { echo "the machine has ended" >&2; return 1; }
            sleep 0.1
        done
        cat "$q/$n.out"
    done
    touch "$q/end"
}

inside() {
    local n=1
    until [ -e "$q/end" ]; do
        [ -e "$q/$n.in" ] || { sleep 0.1; continue; }
        . "$q/$n.in" >"$q/$n.out" 2>&1
        touch "$q/$n.done"
        n=$((n + 1))
    done
}

"$1"
