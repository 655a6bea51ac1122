#!/usr/bin/env bash
# The daemon killed at every step of ADD and DEL of what needs this kernel or these NICs: the ignored tests of
# daemon/tests/crash, one after the other.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
modprobe -a ipvlan 8021q veth macvlan
vfs_up
programs=$DIST/failpoints
status=0
LAB_PF=$(nic $PF0) LAB_VF=$VF0 LAB_NIC=$(nic $VF0) FAIRLEAD_DAEMON=$programs/fairleadd FAIRLEAD_SHIM=$DIST/fairlead \
    "$programs/crash" --ignored --test-threads 1 || status=$?
echo 0 >/sys/bus/pci/devices/$PF0/sriov_numvfs # its NIC was down: the next script makes them anew
exit $status
