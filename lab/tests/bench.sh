#!/usr/bin/env bash
# The latency suite with virtual functions runs and verifies; nobody looks at its small numbers.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
node_places "$(mktemp -d)"

suite() {
    FUNCTIONS=2 VFIO_FUNCTIONS=0 BESIDE=$PF2 bash "$ROOT/lab/bench.sh" --inside --quick >"$NODE/table" || { cat "$NODE/table"; return 1; }
    grep -F 'nothing failed' "$NODE/table"
    grep -E 'ours ready again +2 ' "$NODE/table"
    grep -E 'floor ADD +2 ' "$NODE/table"
}

it "functions are lent by the daemon and by the floor, and every one comes home as it was" suite
for pf in $PF0 $PF2; do echo 0 >/sys/bus/pci/devices/"$pf"/sriov_numvfs; done
finish
