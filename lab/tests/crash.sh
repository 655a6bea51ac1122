#!/usr/bin/env bash
# The daemon killed at every step of ADD and DEL of what needs this kernel or these NICs: the ignored tests of
# daemon/tests/crash.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
node_places "$(mktemp -d)"
modprobe -a ipvlan 8021q veth macvlan
vfs_up
program=$DIST/failpoints/crash
export FAIRLEAD_DAEMON=$DIST/failpoints/fairleadd FAIRLEAD_SHIM=$DIST/fairlead
status=0
# Much of it is waiting for links to go: those that need no NIC run beside those that do, which have one between them.
ignored_tests "$program" --test-threads 2 -- k14_x05_ipvlan k14_x05_vlan >"$NODE/links" 2>&1 &
LAB_PF=$(nic $PF0) LAB_VF=$VF0 LAB_NIC=$(nic $VF0) ignored_tests "$program" --test-threads 1 -- a_lent_nic a_vf_survives || status=$?
wait $! || status=$?
cat "$NODE/links"
echo 0 >/sys/bus/pci/devices/$PF0/sriov_numvfs # its NIC was down: the next script makes them anew
exit $status
