#!/usr/bin/env bash
# Pods that cheat with a NIC and with a VF that were lent to them: the ignored tests of daemon/tests/hostile.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
node_places "$(mktemp -d)"
modprobe veth
vfs_up
export FAIRLEAD_DAEMON=$DIST/failpoints/fairleadd
export LAB_PF=$(nic $PF0) LAB_VF=$VF0 LAB_NIC=$(nic $VF0)
status=0
ignored_tests "$DIST/failpoints/hostile" --test-threads 1 || status=$?
echo 0 >/sys/bus/pci/devices/$PF0/sriov_numvfs # its NIC was down: the next script makes them anew
exit $status
