#!/usr/bin/env bash
# The network types that need this kernel, each beside the reference plugin: result, interface, routes, CHECK, a ping
# to a peer on the wire, DEL.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
guest_up
modprobe -a ipvlan macvlan 8021q

static() { printf '{"type":"static","addresses":[{"address":"%s"}]}' "$1"; }
config() { # TYPE FIELDS ADDRESS
    jq -c . <<<"{\"cniVersion\":\"1.1.0\",\"name\":\"lab\",\"type\":\"$1\",$2,\"ipam\":$(static "$3")}"
}

# In the layer 3 modes the pod answers no ARP: the peer is told the parent's address, as a router would be.
reaches_routed() {
    ip -n wire neigh replace 10.8.0.7 lladdr "$(cat "/sys/class/net/$MASTER/address")" dev wire
    reaches 10.8.0.1 "$1"
    ip -n wire neigh del 10.8.0.7 dev wire
}

back_on_the_host() { # PCI NAME, after a DEL
    equal "name of the device" "$(nic "$1")" "$2"
}

host_device() { # FIELD VALUE
    local device
    device=$(nic $PF2)
    same_as_reference "$(config host-device "\"$1\":\"$2\"" 10.8.0.9/24)" reaches 10.8.0.1
    back_on_the_host $PF2 "$device"
}

on_the_vlan() {
    ip -n wire link add link wire name wire.100 type vlan id 100
    ip -n wire address add 10.9.0.1/24 dev wire.100
    ip -n wire link set wire.100 up
    same_as_reference "$(config vlan "\"master\":\"$MASTER\",\"vlanId\":100" 10.9.0.7/24)" reaches 10.9.0.1
    ip -n wire link del wire.100
}

! ours || it "the daemon starts and is ready" daemon_start
it "ipvlan l2 is as the reference makes it" \
    same_as_reference "$(config ipvlan "\"master\":\"$MASTER\",\"mode\":\"l2\"" 10.8.0.7/24)" reaches 10.8.0.1
for mode in l3 l3s; do
    it "ipvlan $mode is as the reference makes it" \
        same_as_reference "$(config ipvlan "\"master\":\"$MASTER\",\"mode\":\"$mode\"" 10.8.0.7/24)" reaches_routed
done
it "vlan 100 is as the reference makes it" on_the_vlan
it "macvlan passthru is as the reference makes it" \
    same_as_reference "$(config macvlan "\"master\":\"$MASTER\",\"mode\":\"passthru\"" 10.8.0.7/24)" reaches 10.8.0.1
it "macvlan bridge on a real NIC is as the reference makes it" \
    same_as_reference "$(config macvlan "\"master\":\"$MASTER\",\"mode\":\"bridge\",\"mtu\":1400" 10.8.0.7/24)" reaches 10.8.0.1
it "host-device by name goes to the pod and comes back" host_device device "$(nic $PF2)"
it "host-device by MAC goes to the pod and comes back" host_device hwaddr "$(cat "/sys/class/net/$(nic $PF2)/address")"
it "host-device by PCI address goes to the pod and comes back" host_device pciBusID $PF2
! ours || it "the daemon stops when it is told to" daemon_stop
finish
