#!/usr/bin/env bash
# Runs lab/tests/*.sh, or those that are named, one after the other in one boot of the lab machine.
#   test.sh [--peer NAME=PATH] [SCRIPT…]
#   --peer              another plugin for tests/functions.sh, which alone is run then if none is named
#   PLUGINS=reference   the reference plugins in Fairlead's place: shows that the tests themselves are right
#   ROUNDS=10           how often tests/rounds.sh goes round (2)
#   POOL_STEPS='…'      steps at which tests/pools.sh kills the daemon
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
"$here/../tests/setup.sh" build runtimes reference dpdk
PEER=
case ${1:-} in --peer) PEER=${2:?NAME=PATH}; shift 2; [ $# -gt 0 ] || set -- "$here/tests/functions.sh" ;; esac
[ $# -gt 0 ] || set -- "$here"/tests/*.sh
variables=$(printf '%q ' PLUGINS="${PLUGINS:-fairlead}" ROUNDS="${ROUNDS:-2}" POOL_STEPS="${POOL_STEPS:-}" PEER="$PEER")
case " $* " in *netdevsim.sh*) export LAB_NETDEVSIM=1 ;; esac
scripts=$(printf '%q ' "$@")
LAB_TIMEOUT=${LAB_TIMEOUT:-2400} exec "$here/up.sh" "
    status=0
    memory=\$(mktemp -d) # off 9p a large program takes seconds to start
    cp -a '$here/../dist/.' \$memory
    mount --bind \$memory '$here/../dist'
    for script in $scripts; do
        echo \"-- \${script##*/}\"
        begun=\$EPOCHSECONDS
        env $variables bash \"\$script\" || status=1
        echo \"-- \${script##*/}: \$((EPOCHSECONDS - begun)) s\"
    done
    exit \$status"
