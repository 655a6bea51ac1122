#!/usr/bin/env bash
# The network types that need this kernel, each beside the reference plugin: result, interface, routes, CHECK, a ping
# to a peer on the wire, DEL.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
guest_up
modprobe -a ipvlan macvlan 8021q

on_master() { # TYPE FIELDS [ADDRESS]
    config "$1" "\"master\":\"$MASTER\",$2,$(static "${3:-10.8.0.7/24}")"
}

# In the layer 3 modes the pod answers no ARP: the peer is told the parent's address, as a router would be.
reaches_routed() {
    ip -n wire neigh replace 10.8.0.7 lladdr "$(cat "/sys/class/net/$MASTER/address")" dev wire
    reaches 10.8.0.1 "$1"
    ip -n wire neigh del 10.8.0.7 dev wire
}

on_the_vlan() {
    ip -n wire link add link wire name wire.100 type vlan id 100
    ip -n wire address add 10.9.0.1/24 dev wire.100
    ip -n wire link set wire.100 up
    same_as_reference "$(on_master vlan '"vlanId":100' 10.9.0.7/24)" reaches 10.9.0.1
    ip -n wire link del wire.100
}

# The kernel says of the id what it says of a name: it is there.
id_taken() {
    local vlan told rc=0
    vlan=$(on_master vlan '"vlanId":100' 10.9.0.7/24)
    ip netns add first
    ip netns add second
    plugin "$CNIBIN" ADD first "$vlan" >"$NODE/answer"
    told=$(plugin "$CNIBIN" ADD second "$vlan") || rc=$?
    plugin "$CNIBIN" DEL first "$vlan"
    ip netns del first
    ip netns del second
    [ $rc != 0 ] && [[ $told == *"VLAN id 100"* ]] || { echo "$rc $told"; return 1; }
}

mode_in() { ip -n "$1" -d link show dev net1 | grep -o 'mode l[23]s\?'; } # NETNS

# The kernel would give both the mode of the second.
mode_kept() {
    local l2 l3 told rc=0
    l2=$(on_master ipvlan '"mode":"l2"')
    l3=$(on_master ipvlan '"mode":"l3"' 10.8.0.8/24)
    ip netns add first
    ip netns add second
    plugin "$CNIBIN" ADD first "$l2" >"$NODE/answer"
    told=$(plugin "$CNIBIN" ADD second "$l3") || rc=$?
    mode_in first >"$NODE/kept"
    plugin "$CNIBIN" DEL first "$l2"
    plugin "$CNIBIN" ADD second "$l3" >"$NODE/answer"
    mode_in second >"$NODE/then"
    plugin "$CNIBIN" DEL second "$l3"
    ip netns del first
    ip netns del second
    [ $rc != 0 ] && [[ $told == *"container first"* ]] || { echo "$rc $told"; return 1; }
    [ "$(cat "$NODE/kept" "$NODE/then")" = $'mode l2\nmode l3' ] || { cat "$NODE/kept" "$NODE/then"; return 1; }
}

! ours || it "the daemon starts and is ready" daemon_start
it "ipvlan l2 is as the reference makes it" \
    same_as_reference "$(on_master ipvlan '"mode":"l2"')" reaches 10.8.0.1
for mode in l3 l3s; do
    it "ipvlan $mode is as the reference makes it" \
        same_as_reference "$(on_master ipvlan "\"mode\":\"$mode\"")" reaches_routed
done
! ours || it "an ipvlan in another mode than another pod's on its master is refused, and changes nothing" mode_kept
it "vlan 100 is as the reference makes it" on_the_vlan
! ours || it "x14 a VLAN id that another interface of the master has is named as such" id_taken
it "macvlan passthru is as the reference makes it" \
    same_as_reference "$(on_master macvlan '"mode":"passthru"')" reaches 10.8.0.1
it "macvlan bridge on a real NIC is as the reference makes it" \
    same_as_reference "$(on_master macvlan '"mode":"bridge","mtu":1400')" reaches 10.8.0.1
! ours || it "the daemon stops on SIGTERM" daemon_stop
finish
