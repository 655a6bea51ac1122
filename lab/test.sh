#!/usr/bin/env bash
# Runs the scripts that are named one after the other in one boot of the lab machine; or all of lab/tests in two machines at
# once, because an emulated one has one thread.
#   test.sh [--peer NAME=PATH] [SCRIPT…]
#   --peer              another plugin for tests/any_sriov_plugin.sh, which alone is run then if none is named
#   PLUGINS=reference   the reference plugins in Fairlead's place: shows that the tests themselves are right
#   ROUNDS=10           how often tests/rounds.sh goes round (2)
#   SCRIPT_LIMIT=900    seconds until one of several scripts is ended; a single one has the machine's own time (LAB_TIMEOUT)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
"$here/../tests/setup.sh" build runtimes reference dpdk
PEER=
case ${1:-} in --peer) PEER=${2:?NAME=PATH}; shift 2; [ $# -gt 0 ] || set -- "$here/tests/any_sriov_plugin.sh" ;; esac
variables=$(printf '%q ' PLUGINS="${PLUGINS:-fairlead}" ROUNDS="${ROUNDS:-2}" PEER="$PEER")

machine() { # SCRIPT…
    local scripts limit
    scripts=$(printf '%q ' "$@")
    case " $* " in *netdevsim.sh*) export LAB_NETDEVSIM=1 ;; esac
    export LAB_TIMEOUT=${LAB_TIMEOUT:-2400}
    if [ $# = 1 ]; then limit=$LAB_TIMEOUT; else limit=${SCRIPT_LIMIT:-900}; fi
    # A script is a process group of its own, so that no process of one is in the next one's way.
    exec "$here/up.sh" "
    status=0
    for script in $scripts; do
        echo \"-- \${script##*/}\"
        begun=\$EPOCHSECONDS
        timeout -k 10 $limit env $variables bash \"\$script\" </dev/null &
        wait \$! || { status=1; [ \$((EPOCHSECONDS - begun)) -lt $limit ] || echo \"not ok  it was ended after $limit s\"; }
        kill -KILL -- -\$! 2>/dev/null || true
        echo \"-- \${script##*/}: \$((EPOCHSECONDS - begun)) s\"
    done
    exit \$status"
}

[ $# = 0 ] || machine "$@"
cache=${LAB_CACHE:-$here/../.cache/lab}
mkdir -p "$cache"
status=0
echo "two machines: the second one's output comes when the first has ended"
LAB_SHARE=$cache/second machine "$here"/tests/[n-z]*.sh >"$cache/second.log" 2>&1 &
second=$!
trap 'kill $second 2>/dev/null || true' EXIT
(machine "$here"/tests/[a-m]*.sh) || status=1
tail -n +1 -f --pid=$second "$cache/second.log"
wait $second || status=1
exit $status
