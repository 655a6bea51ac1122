#!/usr/bin/env bash
# What igb refuses, and 64 virtual functions, on the kernel's simulated NIC: the ignored tests of sriov/tests/netdevsim.rs.
# Its virtual functions are no PCI devices, so that none can be lent: it is about what is asked of the physical function.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
modprobe psample
insmod "$NETDEVSIM"
echo "10 1" >/sys/bus/netdevsim/new_device
echo 64 >/sys/kernel/debug/netdevsim/netdevsim10/max_vfs
# The kernel itself counts: messages that change a link, and functions whose settings are read.
trace=/sys/kernel/tracing
echo 'p:fairlead/set rtnl_setlink' >$trace/kprobe_events
echo 'p:fairlead/read nsim_get_vf_config' >>$trace/kprobe_events
echo 1 >$trace/events/fairlead/enable
status=0
LAB_NETDEVSIM=/sys/bus/netdevsim/devices/netdevsim10 ignored_tests "$DIST/netdevsim" --test-threads 1 --nocapture || status=$?
echo 0 >$trace/events/fairlead/enable
echo >$trace/kprobe_events
echo 10 >/sys/bus/netdevsim/del_device
exit $status
