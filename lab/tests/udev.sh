#!/usr/bin/env bash
# Beside a real udev, which names the interfaces of VFs some time after they were made: a pool takes them by those names, lends
# them and gives them back so.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
VFS=(0000:01:10.0 0000:01:10.2) # of PF2
echo 0 >/sys/bus/pci/devices/$PF2/sriov_numvfs
ip link set "$(nic $PF2)" up
cat >"$NODE/config.yaml" <<Y
pools:
  - name: named
    selectors: {rootDevices: ["$PF2"]}
    numvfs: 2
Y
ln -s "$LAB_SHARE/systemd-udevd" "$NODE/udevadm" # one file is both, by its name
DAEMON_FLAGS="--config $NODE/config.yaml"

udev_starts() {
    "$LAB_SHARE/systemd-udevd" --daemon
    [ -S /run/udev/control ]
}

all_ready() { [ "$(api /v1/pools | jq -c '[.functions[].state]')" = '["ready","ready"]' ]; }
names() { for vf in "${VFS[@]}"; do nic "$vf"; done; }
# Names of the kernel's would be eth<n>.
named_by_udev() {
    local name
    for name in $(names); do
        # udev's own rule, and not its record: that has no name of an interface that was bound anew while udev was at work on it.
        "$NODE/udevadm" test-builtin net_id "/sys/class/net/$name" 2>/dev/null | grep -q "^ID_NET_NAME_PATH=$name$" || { ip link; return 1; }
    done
}

# udev is held up until the VFs are there and have the kernel's names.
made() {
    "$NODE/udevadm" control --stop-exec-queue
    daemon_start
    eventually 10 [ -e /sys/bus/pci/devices/${VFS[1]}/net ]
    sleep 1
    [[ $(names) == eth*eth* ]] || { names; return 1; }
    "$NODE/udevadm" control --start-exec-queue
    eventually 20 all_ready
    eventually 10 named_by_udev || { named_by_udev; cat "$LOG/fairleadd"; return 1; }
    names >"$NODE/names"
}

lent() {
    local config
    config=$(config sriov "\"deviceID\":\"${VFS[0]}\"")
    ip netns add pod
    plugin "$CNIBIN" ADD pod "$config" >"$NODE/ADD"
    ip -n pod link show dev net1
    plugin "$CNIBIN" DEL pod "$config"
    ip netns del pod
    eventually 10 all_ready
    diff "$NODE/names" <(names)
}

drained() {
    "$DIST/fairleadd" pools drain named
    diff "$NODE/names" <(names)
    eventually 10 named_by_udev || named_by_udev # udev's own record follows
}

it "udev runs" udev_starts
it "VFs that a pool makes have the names that udev gives them" made
it "one that was lent comes back by that name" lent
it "drained, they have those names" drained
it "the daemon stops on SIGTERM" daemon_stop
pkill -f "$LAB_SHARE/systemd-udevd"
rm -rf /run/udev
echo 0 >/sys/bus/pci/devices/$PF2/sriov_numvfs
finish
