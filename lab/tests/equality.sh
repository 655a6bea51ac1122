#!/usr/bin/env bash
# The rows of the equality table that need this kernel: ipvlan, vlan, dummy. A row that cannot be run fails. The
# specification's cases need no such kernel: they are run on the machine under this one.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
modprobe -a ipvlan macvlan 8021q dummy veth bridge
subject=()
[ "${PLUGINS:-fairlead}" = fairlead ] || subject=(--subject .cache/bin/plugins)
exec dist/fairlead-contest --part equality --lab-only --require-all --workers 4 "${subject[@]}"
