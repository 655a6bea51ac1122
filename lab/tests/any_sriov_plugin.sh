#!/usr/bin/env bash
# How a plugin treats real VFs, case by case, as a table: Fairlead alone, or with PEER=NAME=PATH beside another
# plugin. The cases are in contest/src/vf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
modprobe -a vfio-pci uio_pci_generic dummy macvlan
cd "$ROOT"
exec "$DIST/fairlead-contest" --part functions --nic $PF0 $PF2 ${PEER:+--peer "$PEER"} ${ONLY:+--only "$ONLY"}
