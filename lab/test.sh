#!/usr/bin/env bash
# Runs lab/tests/*.sh, or those that are named, one after the other in one boot of the lab machine.
#   PLUGINS=reference   the reference plugins in Fairlead's place: shows that the tests themselves are right
#   ROUNDS=10           how often tests/rounds.sh goes round (2)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
"$here/../tests/setup.sh" build runtimes reference dpdk
[ $# -gt 0 ] || set -- "$here"/tests/*.sh
case " $* " in *netdevsim.sh*) export LAB_NETDEVSIM=1 ;; esac
scripts=$(printf '%q ' "$@")
LAB_TIMEOUT=${LAB_TIMEOUT:-2400} exec "$here/up.sh" "
    status=0
    memory=\$(mktemp -d) # off 9p a large program takes seconds to start
    cp -a '$here/../dist/.' \$memory
    mount --bind \$memory '$here/../dist'
    for script in $scripts; do
        echo \"-- \${script##*/}\"
        PLUGINS=${PLUGINS:-fairlead} ROUNDS=${ROUNDS:-2} bash \"\$script\" || status=1
    done
    exit \$status"
