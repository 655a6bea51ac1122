#!/usr/bin/env bash
# The rows of the equality table that need this kernel: ipvlan, vlan, dummy. A row that cannot be run fails.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
modprobe -a ipvlan macvlan 8021q dummy veth bridge
if [ "${PLUGINS:-fairlead}" = reference ]; then
    exec dist/fairlead-contest --lab-only --require-all --workers 2 --subject .cache/bin/plugins
fi
exec dist/fairlead-contest --lab-only --require-all --workers 2
