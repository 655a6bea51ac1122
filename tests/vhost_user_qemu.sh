#!/usr/bin/env bash
# QEMU is the frontend of sockets that ADD has made: two virtual machines, each of another user than root and with its pod's volume only, one
# that connects and one that makes its socket, and an ordinary kernel at the other end of the network's uplink.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/vswitch.sh"
. "$ROOT/tests/qemu_guests.sh"
NODE_PARTS=(guests)
enter_node "$@"

DAEMON_FLAGS="--config $NODE/config.yaml"
FAR=10.78.200.1
PAYLOAD=4 # MiB

# config NETWORK MODE [KEYS]
config() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s","master":"up0","ipam":{"type":"host-local","subnet":"10.78.0.0/16"}%s}' "$1" "$2" "${3:-}"
}

# An ordinary kernel's stack at the other end of a veth. Its checksums are whole: nobody after it fills them in.
far_end() {
    ip netns add far
    ip link add up0 type veth peer name far0 netns far
    ip link set up0 up
    ip -n far address add $FAR/16 dev far0
    ip -n far link set far0 up
    ip -n far link set lo up
    ip netns exec far ethtool -K far0 tx off
    mkdir -p "$NODE/www"
    dd if=/dev/urandom of="$NODE/www/payload" bs=1M count=$PAYLOAD status=none
    ip netns exec far busybox httpd -p 8080 -h "$NODE/www"
}

node_ready() {
    guests_ready
    far_end
    switch_start
    daemon_start
}

two_guests() {
    add a lan client
    add b lan server ',"queues":2'
    guest_start a 0 1
    guest_start b 1 2
    guest_up a
    guest_up b
    eventually 20 all_connected || { ports; return 1; }
    equal "pairs of queues" "$(ports | jq -c '[.[].active_queues]')" '[1,2]'
    check a
    check b
}

all_connected() { ports | jq -e 'length == 2 and all(.connected)'; }

# pings POD ADDRESS: all that are sent are answered.
pings() { guest "$1" "$(all_answered 20 0.05 1400 "$2")"; }

everybody_pings() {
    pings a $FAR
    pings a "$(ip_of b)"
    pings b "$(ip_of a)"
    answered far 20 0.05 1400 "$(ip_of b)"
}

checksum() { sha256sum "$1" | cut -d ' ' -f 1; }
# fetches POD ADDRESS: the sum of what is served there.
fetches() { guest "$1" "wget -q -O - http://$2:8080/payload | sha256sum | cut -d ' ' -f 1"; }

tcp_both_ways() {
    local pod
    for pod in a b; do
        equal "what $pod fetched" "$(fetches $pod $FAR)" "$(checksum "$NODE/www/payload")"
        guest $pod "dd if=/dev/urandom of=/tmp/payload bs=1M count=$PAYLOAD 2>/dev/null && httpd -p 8080 -h /tmp"
        equal "what $pod served" "$(fetched_from $pod)" "$(sum_in $pod)"
    done
    equal "what b fetched of a" "$(fetches b "$(ip_of a)")" "$(sum_in a)"
}

# counted POD COUNTER
counted() { ports | jq --arg port "$1-sandbox/net1" --arg counter "$2" '.[] | select(.config.name == $port).counters[$counter]'; }

# average POD from|to COMMAND…: the bytes of a frame that the pod sent, or got, while a command ran.
average() {
    local frames bytes
    frames=$(counted "$1" "$2_guest_frames") bytes=$(counted "$1" "$2_guest_bytes")
    "${@:3}" >/dev/null
    echo $((($(counted "$1" "$2_guest_bytes") - bytes) / ($(counted "$1" "$2_guest_frames") - frames)))
}

# has_agreed POD BIT…: the guest's driver has these features.
has_agreed() {
    local bits bit
    bits=$(guest "$1" 'cat /sys/class/net/eth0/device/features')
    for bit in "${@:2}"; do [ "${bits:bit:1}" = 1 ] || { echo "$1 has no feature $bit: $bits"; return 1; }; done
}

# A frame has 1,514 bytes at most, unless it leaves to be cut into segments by whom it does not concern.
long_frames() {
    local pod average uplink frames bytes
    for pod in a b; do has_agreed $pod 0 1 7 8 9 11 12 13 28 29; done # sums and TCP's segments, both ways; indirect descriptors, event index
    for pod in "a from" "b to"; do
        average=$(average $pod fetches b "$(ip_of a)")
        echo "$pod: $average bytes a frame, between the guests"
        [ "$average" -gt 1514 ]
    done
    for pod in a b; do
        average=$(average $pod from fetched_from $pod)
        echo "$pod from: $average bytes a frame, to the wire"
        [ "$average" -gt 1514 ]
    done
    uplink=$("$DIST/fairleadd" vswitch ports -o json | jq '.uplinks[0].counters')
    frames=$(jq .to_guest_frames <<<"$uplink") bytes=$(jq .to_guest_bytes <<<"$uplink")
    echo "$frames frames went to the wire, of $((bytes / frames)) bytes"
    [ $((bytes / frames)) -le 1514 ]
    equal "frames that were dropped for their headers" "$(ports | jq '[.[].counters.from_guest_drops.offload // 0] | add')" 0
}

sum_in() { guest "$1" "sha256sum /tmp/payload | cut -d ' ' -f 1"; }
fetched_from() { ip netns exec far curl -sS --max-time 120 "http://$(ip_of "$1"):8080/payload" | sha256sum | cut -d ' ' -f 1; }

# While a command runs, and until two transfers more are complete, the far end fetches from a pod again and again. None may fail.
# (The command's parts are joined by &&: bash ends nothing at their first failure here.)
while_it_flows() { # POD COMMAND…
    local pod=$1 rc=0 flow
    shift
    : >"$NODE/transfers"
    touch "$NODE/flow"
    while [ -e "$NODE/flow" ]; do fetched_from "$pod" >>"$NODE/transfers" 2>&1 || true; done &
    flow=$!
    eventually 60 transfers_complete 1 && "$@" && eventually 120 transfers_complete $(($(wc -l <"$NODE/transfers") + 2)) || rc=1
    rm "$NODE/flow"
    wait $flow
    [ $rc = 0 ] || ports
    equal "what was fetched" "$(sort -u "$NODE/transfers")" "$(sum_in "$pod")"
    return $rc
}

transfers_complete() { [ "$(wc -l <"$NODE/transfers")" -ge "$1" ]; }

memory_of() { guest "$1" "awk '/MemTotal/ {print int(\$2 / 1024)}' /proc/meminfo"; }
has_memory() { [ "$(memory_of a)" -gt "$1" ]; }
dimms() { monitor a '{"execute":"query-memory-devices"}' | jq length; }
has_dimms() { [ "$(dimms)" = "$1" ]; }
# Regions of both guests that the switch has mapped.
mapped() { grep -c memfd:memory-backend "/proc/$(cat "$NODE/vswitch.pid")/maps"; }
has_mapped() { [ "$(mapped)" = "$1" ]; }

# plug_memory NUMBER ONLINE
plug_memory() {
    guest a "echo $2 >/sys/devices/system/memory/auto_online_blocks" &&
        monitor a '{"execute":"object-add","arguments":{"qom-type":"memory-backend-memfd","id":"more'"$1"'","size":134217728,"share":true}}' &&
        monitor a '{"execute":"device_add","arguments":{"driver":"pc-dimm","id":"dimm'"$1"'","memdev":"more'"$1"'"}}'
}

unplug_memory() {
    monitor a '{"execute":"device_del","arguments":{"id":"dimm'"$1"'"}}' && eventually 60 has_dimms "$2" &&
        monitor a '{"execute":"object-del","arguments":{"id":"more'"$1"'"}}'
}

# The kernel takes what it needs for frames of the new memory before all other: it is the only one above 4 GiB.
more_memory() {
    local before mapped
    before=$(memory_of a)
    mapped=$(mapped)
    while_it_flows a plug_memory 0 online_kernel
    eventually 60 has_memory $((before + 100))
    equal "regions" "$(mapped)" $((mapped + 1))
    while_it_flows a plug_memory 1 online_movable
    eventually 60 has_memory $((before + 200))
    equal "regions" "$(mapped)" $((mapped + 2))
    while_it_flows a unplug_memory 1 1
    eventually 10 has_mapped $((mapped + 1))
    tcp_once a
}

tcp_once() { equal "what $1 fetched" "$(fetches "$1" $FAR)" "$(checksum "$NODE/www/payload")"; }

switch_anew() { switch_kill && switch_start && eventually 30 all_connected; }

# Both connect, and are connected to, by themselves; connections of TCP live on.
the_switch_anew() {
    while_it_flows a switch_anew
    while_it_flows b switch_anew
    pings a "$(ip_of b)"
}

daemon_anew() {
    daemon_kill
    daemon_start
}

# Not one ping may be lost.
the_daemon_anew() {
    guest a "{ $(all_answered 60 0.05 56 "$(ip_of b)"); echo \$? >/tmp/answered; } >/tmp/pings 2>&1 &"
    daemon_anew
    guest a 'wait; cat /tmp/pings; [ "$(cat /tmp/answered)" = 0 ]'
    all_connected
}

reboots() {
    guest a '(sleep 1; echo b >/proc/sysrq-trigger) &'
    guest_up a
    tcp_once a
    pings a "$(ip_of b)"
    # A reset from outside, in the middle of its traffic.
    guest a "wget -q -O /dev/null http://$FAR:8080/payload &"
    monitor a '{"execute":"system_reset"}'
    guest_up a
    tcp_once a
}

unplug_nic() {
    monitor a '{"execute":"device_del","arguments":{"id":"nic"}}'
    eventually 60 nic_is_gone
    # Its chardev goes with it.
    monitor a '{"execute":"netdev_del","arguments":{"id":"net"}}'
}

nic_is_gone() { ! monitor a '{"execute":"qom-list","arguments":{"path":"/machine/peripheral/nic"}}'; }
nobody_at() { ports | jq -e --arg port "$1-sandbox/net1" '.[] | select(.config.name == $port).connected | not'; }

plug_nic() { # [KEYS]
    local backend='{"type":"socket","data":{"server":false,"reconnect":1,"addr":{"type":"unix","data":{"path":"/mnt/net1.sock"}}}}'
    monitor a '{"execute":"chardev-add","arguments":{"id":"socket","backend":'"$backend"'}}'
    monitor a '{"execute":"netdev_add","arguments":{"type":"vhost-user","id":"net","chardev":"socket"}}'
    monitor a '{"execute":"device_add","arguments":{"driver":"virtio-net-pci","id":"nic","netdev":"net","mac":"'"$(mac_of a)"'"'"${1:-}"'}}'
}

# A guest that would be told an MTU above the port's gets no interface with traffic, and QEMU says why.
too_high_mtu() {
    plug_nic ',"host_mtu":1501'
    eventually 60 grep -iE '1501 ?bytes MTU not supported by the backend' "$LOG/qemu-a"
    unplug_nic
    eventually 20 nobody_at a
    eventually 20 guest a '! ip link show eth0'
}

# The device goes while its frames flow, and the port waits for the next one.
unplugged_alive() {
    guest a "ping -c 1000 -i 0.01 $FAR >/dev/null 2>&1 &"
    unplug_nic
    eventually 20 nobody_at a
    guest a '! ip link show eth0'
    check a
    pings b $FAR
    too_high_mtu
    plug_nic
    eventually 20 guest a 'ip link show eth0'
    guest_address a
    eventually 20 all_connected
    tcp_once a
    pings b "$(ip_of a)"
}

# QEMU dies with frames on their way, and another takes its place.
dies_and_another_comes() {
    guest b "ping -c 1000 -i 0.01 $FAR >/dev/null 2>&1 &"
    guest_end b
    eventually 20 nobody_at b
    pings a $FAR
    guest_start b 1 2
    guest_up b
    tcp_once b
    pings a "$(ip_of b)"
}

removed() {
    local pod
    for pod in a b; do
        guest_end $pod
        cni DEL $pod "$(cat "$NODE/$pod.config")"
        ip netns del $pod
    done
    equal "ports" "$(ports | jq length)" 0
    equal "what is left on the interface" "$(ip -details link show dev up0 | grep -oE 'prog/xdp|PROMISC' || true)" ""
    eventually 10 no_address_held
}

it "the guests' kernel, the wire, the switch and the daemon are there" node_ready
it "two virtual machines have the ports that ADD made, one connects and one is connected to" two_guests
it "each reaches the other, and a kernel's stack on the wire" everybody_pings
it "TCP carries files both ways, whole" tcp_both_ways
it "frames of many segments pass whole between the guests, and are cut for the wire" long_frames
it "memory is plugged and unplugged while TCP flows" more_memory
it "the switch dies, twice, and QEMU has a connection again: TCP goes on" the_switch_anew
it "the daemon dies, and no ping is lost" the_daemon_anew
it "a guest boots again, by itself and by a reset, and its rings are negotiated anew" reboots
it "the interface is unplugged from a running guest, and the port takes the next one" unplugged_alive
it "QEMU is killed under traffic, and another takes its place" dies_and_another_comes
it "DEL takes ports and uplink away" removed
finish
