#!/usr/bin/env bash
# host-device on real PCI devices: a VF found in each way, beside the reference plugin; what comes back,
# however the pod ends; and a VF that a process in user space has (vfio-pci), which is never touched.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
guest_up
vfs_up

host_device() { config host-device "$1"; } # FIELDS

# What an administrator can see of a device that is on the host.
home() { # PCI
    ip -j link show dev "$(nic "$1")" | jq -c '.[0] | [.ifname, .address, .mtu, .ifalias, (.flags | index("UP") != null)]'
}
is_home() { [ "$(home "$1")" = "$2" ]; } # PCI WHAT-IT-WAS
eventually_home() { eventually 10 is_home "$1" "$2" || { home "$1"; return 1; }; }

# The reference plugin leaves it down and without an alias whatever it was, so it is that before.
lent() { # PCI FIELDS
    local before
    ip link set "$(nic "$1")" down alias ""
    before=$(home "$1")
    same_as_reference "$(host_device "$2,$(static 10.8.0.9/24)")" reaches 10.8.0.1
    equal "the device" "$(home "$1")" "$before"
}

# lend PCI: a device with marks of its own goes to a new pod; `before` is what it was
lend() {
    ip link set "$(nic "$1")" mtu 1400 alias mine
    ip link set "$(nic "$1")" up
    before=$(home "$1")
    ip netns del pod 2>/dev/null || true
    ip netns add pod
    plugin "$CNIBIN" ADD pod "$(host_device "\"pciBusID\":\"$1\"")" >/dev/null
}
takes_back() { plugin "$CNIBIN" DEL pod "$(host_device "\"pciBusID\":\"$1\"")"; } # PCI

whatever_the_pod_did() {
    local before
    lend $VF0
    ip -n pod link set net1 down
    ip -n pod link set net1 mtu 1300 address 02:00:00:00:00:77
    takes_back $VF0
    equal "the device" "$(home $VF0)" "$before"
    ip netns del pod
}

its_pod_dies() {
    local before
    ip link add net1 type dummy # the pod's name for it is taken: the kernel finds it another
    lend $VF0
    ip netns del pod
    eventually_home $VF0 "$before"
    takes_back $VF0
    equal "the device after DEL" "$(home $VF0)" "$before"
    ip link del net1
    equal "attachments" "$(attachments)" 0
}

its_pod_dies_and_nobody_is_there() {
    local before
    lend $VF0
    daemon_kill
    ip netns del pod
    eventually 5 test -d "/sys/bus/pci/devices/$VF0/net"
    daemon_start
    eventually_home $VF0 "$before"
}

one_pod_at_a_time() {
    local before
    lend $VF0
    ip netns del other 2>/dev/null || true
    ip netns add other
    ! plugin "$CNIBIN" ADD other "$(host_device "\"pciBusID\":\"$VF0\"")" >"$NODE/error" || return 1
    equal "code" "$(jq .code "$NODE/error")" 7
    grep -F "it may be lent to another pod" "$NODE/error"
    ip -n pod link show dev net1
    takes_back $VF0
    equal "the device" "$(home $VF0)" "$before"
    ip netns del other
}

# ---- a VF that a process in user space has ----
in_user_space() { # FIELDS
    same_as_reference "$(host_device "$1")"
    equal "driver" "$(driver $VF1)" vfio-pci
}

its_address_is_free_again() {
    local call
    call=$(host_device "\"pciBusID\":\"$VF1\",\"ipam\":{\"type\":\"host-local\",\"subnet\":\"10.44.0.0/24\"}")
    ip netns add pod
    equal "address" "$(plugin "$CNIBIN" ADD pod "$call" | jq -r '.ips[0].address')" 10.44.0.2/24
    equal "addresses held" "$(addresses_held)" 1
    plugin "$CNIBIN" DEL pod "$call"
    equal "addresses held" "$(addresses_held)" 0
    ip netns del pod
}

its_driver_changes() {
    local call before
    call=$(host_device "\"pciBusID\":\"$VF1\"")
    ip netns add pod
    plugin "$CNIBIN" ADD pod "$call" >/dev/null
    bind $VF1 igbvf
    before=$(home $VF1)
    plugin "$CNIBIN" DEL pod "$call"
    equal "the device" "$(home $VF1)" "$before"
    equal "attachments" "$(attachments)" 0
    ip netns del pod
}

! ours || it "the daemon starts and is ready" daemon_start
it "a VF by PCI address is lent as the reference does it" lent $VF0 "\"pciBusID\":\"$VF0\""
it "a VF by the runtime's device id is lent as the reference does it" \
    lent $VF0 "\"runtimeConfig\":{\"deviceID\":\"$VF0\"}"
it "a VF by its path in /sys is lent as the reference does it" \
    lent $VF0 "\"kernelpath\":\"$(readlink -f /sys/bus/pci/devices/$VF0)\""
it "a VF by MAC address is lent as the reference does it" \
    lent $VF0 "\"hwaddr\":\"$(cat "/sys/class/net/$(nic $VF0)/address")\""
it "a VF by name is lent as the reference does it" lent $VF0 "\"device\":\"$(nic $VF0)\""
it "a whole NIC is lent as the reference does it" lent $PF2 "\"pciBusID\":\"$PF2\""
if ours; then
    it "whatever the pod did to it, a device comes back with its name, MTU, MAC address, alias, and up" whatever_the_pod_did
    it "a device whose pod dies comes back without anybody's DEL, and the late DEL is success" its_pod_dies
    it "a device whose pod died with the daemon down comes back at the start" its_pod_dies_and_nobody_is_there
    it "a device that is lent is refused to the next pod by name" one_pod_at_a_time
fi
bind $VF1 vfio-pci
it "a VF under vfio-pci is answered and left alone as by the reference" in_user_space "\"pciBusID\":\"$VF1\""
it "the same by the runtime's device id and with an address" \
    in_user_space "\"runtimeConfig\":{\"deviceID\":\"$VF1\"},$(static 10.8.0.9/24)"
if ours; then
    it "the address of a VF under vfio-pci is held from ADD to DEL" its_address_is_free_again
    it "a VF that went back to the kernel's driver before its DEL is left alone" its_driver_changes
    it "the daemon stops on SIGTERM" daemon_stop
fi
finish
