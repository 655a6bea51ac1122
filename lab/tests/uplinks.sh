#!/usr/bin/env bash
# Uplinks of the switch on interfaces that the build machine has not: a VLAN's interface, a bond, a NIC (igb) and a VF (igbvf). At the other end
# an ordinary kernel's stack pings a DPDK application, and sends TCP in bulk; afterwards the interface is the kernel's own, which pings back.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/vswitch.sh"
about_the_daemon
guest_up
vfs_up

POD=10.8.0.7 HOST=10.8.0.9 FAR=10.8.0.1

both_start() {
    switch_start
    daemon_start
}

# config NETWORK MODE [KEYS]
config() { printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s",%s%s}' "$1" "$2" "$(static $POD/24)" "${3:-}"; }

the_uplink() { "$DIST/fairleadd" vswitch ports -o json | jq -c --arg network "$1" '[.uplinks[] | select(.config.network == $network)][0]'; } # NETWORK
settings_of() { # INTERFACE
    ip -j -d link show dev "$1" | jq -c '.[0] | [(.flags | index("PROMISC") != null), .promiscuity, .xdp]'
    ethtool -k "$1" | grep -E '^(rx|tx)-vlan-offload'
}

# frames INTERFACE FAR-NETNS MODE [KEYS]: ARP and pings of several sizes between the pod and the far stack. LOWER is the link below by which
# the frames come, if there is one: a download over it comes as it was sent.
frames() {
    local interface=$1 far=$2 mode=$3 pod=of-${1/./-} before bytes n merges
    before=$(settings_of "$interface")
    [ -z "${LOWER:-}" ] || merge_below
    merges=$([ -z "${LOWER:-}" ] || ethtool -k "$LOWER")
    add "$pod" "$pod" client ",\"master\":\"$interface\"${4:-}"
    "$DIST/fairleadd" vswitch ports | tee /dev/stderr | grep -E "^$interface .*$mode"
    FORWARD=icmpecho application "$pod" 0 02:00:00:00:00:01
    say "$pod" start
    eventually 20 reaches $POD "$far" || { the_uplink "$pod"; "$DIST/fairleadd" vswitch stats; return 1; }
    for bytes in 1 56 1400; do answered "$far" 10 0.1 $bytes $POD; done
    # Other addresses are other flows, which a NIC puts into other queues.
    for n in {1..8}; do eventually 10 ping_from $n "$far"; done
    [ -z "${LOWER:-}" ] || download "$pod" "$far"
    check "$pod"
    equal "frames of $interface that the kernel had no room for" "$(the_uplink "$pod" | jq .lost_frames)" 0
    pods_end "$pod"
    equal "uplinks" "$(the_uplink "$pod")" null
    equal "the settings of $interface" "$(settings_of "$interface")" "$before"
    if [ -n "${LOWER:-}" ]; then
        equal "the features of $LOWER" "$(ethtool -k "$LOWER")" "$merges"
        echo 0 >"/sys/class/net/$LOWER/gro_flush_timeout"
    fi
    ip address add $HOST/24 dev "$interface"
    ping_of_host "$interface"
    ip address del $HOST/24 dev "$interface"
}
# What comes within a tick is merged, in however many polls it comes.
merge_below() {
    ethtool -K "$LOWER" gro on
    echo 20000000 >"/sys/class/net/$LOWER/gro_flush_timeout"
    ethtool -k "$LOWER" | grep '^generic-receive-offload: on'
}
download() { # POD FAR-NETNS
    local before
    ethtool -k "$LOWER" | grep '^generic-receive-offload: off'
    before=$(came "$1")
    segments "$2" "$(mac_of "$1")" 400
    eventually 20 more_came "$1" $((before + 399)) || { the_uplink "$1"; return 1; }
    equal "frames that were too long" "$(the_uplink "$1" | jq '.counters.from_guest_drops.length // 0')" 0
}
came() { the_uplink "$1" | jq .counters.from_guest_frames; } # POD
more_came() { [ "$(came "$1")" -gt "$2" ]; }                  # POD FRAMES

# segments NETNS MAC COUNT: so many TCP segments of one flow to the pod's address, each whole and with its checksums, as fast as they go.
segments() {
    ip netns exec "$1" python3 -c '
import socket, struct, sys

link, mac, count, source, target = sys.argv[1:]
mac, source, target = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(source), socket.inet_aton(target)
payload = bytes(1400)

def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def frame(n):
    tcp = struct.pack("!HHIIBBHHH", 5001, 5002, 1 + n * len(payload), 1, 0x50, 0x10, 0xffff, 0, 0)
    length = len(tcp) + len(payload)
    total = checksum(source + target + struct.pack("!HH", 6, length) + tcp + payload)
    tcp = tcp[:16] + struct.pack("!H", total) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, n, 0x4000, 64, 6, 0) + source + target
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return mac + wire.getsockname()[4] + b"\x08\x00" + ip + tcp + payload

wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((link, 0))
for frame in [frame(n) for n in range(int(count))]:
    wire.send(frame)
' "$(ip -n "$1" -j route get $POD | jq -r '.[0].dev')" "$2" "$3" $FAR $POD
}
ping_from() { ip netns exec "$2" busybox ping -c 1 -W 5 -q -I 10.8.0.1$1 $POD; } # NUMBER NETNS
ping_of_host() { eventually 20 busybox ping -c 1 -W 5 -q -I "$1" $FAR; } # INTERFACE

far_addresses() { # NETNS LINK
    local n
    ip -n "$1" address add $FAR/24 dev "$2"
    for n in {1..8}; do ip -n "$1" address add 10.8.0.1$n/24 dev "$2"; done
}

far_veth() { # up0 and its other end
    ip netns add far
    ip link add up0 type veth peer name far0 netns far
    ip link set up0 up
    ip -n far link set far0 up
}
far_end() { ip link del up0; ip netns del far; }

vlan_of_a_veth() {
    far_veth
    ip link add link up0 name up0.5 type vlan id 5
    ip link set up0.5 up
    ip -n far link add link far0 name far0.5 type vlan id 5
    far_addresses far far0.5
    ip -n far link set far0.5 up
    LOWER=up0 frames up0.5 far generic
    far_end
}

# Natively the programs would run for the bond's port, whose sockets the bond's are not: nothing would come.
bond() { # PORT FAR-NETNS
    ip link set "$1" down
    ip link add bond0 type bond mode active-backup miimon 100
    ip link set "$1" master bond0
    ip link set bond0 up
    eventually 10 linked "" bond0
    LOWER=$1 frames bond0 "$2" generic
    ip link del bond0
}

bond_of_a_veth() {
    far_veth
    far_addresses far far0
    bond up0 far
    far_end
}

# The bond itself would get the VLAN's frames without their tag.
vlan_of_a_bond() {
    far_veth
    ip -n far link add link far0 name far0.5 type vlan id 5
    far_addresses far far0.5
    ip -n far link set far0.5 up
    ip link set up0 down
    ip link add bond0 type bond mode active-backup miimon 100
    ip link set up0 master bond0
    ip link set bond0 up
    eventually 10 linked "" bond0
    ip link add link bond0 name bond0.5 type vlan id 5
    ip link set bond0.5 up
    LOWER=up0 frames bond0.5 far generic
    ip link del bond0
    far_end
}

bond_of_a_nic() {
    bond "$(nic $PF2)" wire
    ip link set "$(nic $PF2)" down
}

nic_itself() {
    ip -n wire address flush dev wire
    far_addresses wire wire
    frames "$MASTER" wire native
}

# A VF hears frames to its own address alone, so the pod has that.
vf() {
    local vf
    bind $VF0 igbvf # whatever a test before has left
    vf=$(nic $VF0)
    ip link set "$vf" up
    eventually 10 linked "" "$vf"
    frames "$vf" wire generic ",\"mac\":\"$(cat "/sys/class/net/$vf/address")\""
    ip link set "$vf" down
}

it "the switch and the daemon start" both_start
it "frames pass over a VLAN's interface on a veth" vlan_of_a_veth
it "frames pass over a bond of a veth" bond_of_a_veth
it "frames pass over a VLAN's interface on a bond" vlan_of_a_bond
it "frames pass over a NIC" nic_itself
it "frames pass over a bond of a NIC with several queues" bond_of_a_nic
it "frames pass over a VF" vf
it "the daemon stops on SIGTERM" daemon_stop
switch_kill
finish
