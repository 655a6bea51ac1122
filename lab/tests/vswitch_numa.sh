#!/usr/bin/env bash
# The switch on a machine with two NUMA nodes: a thread for each, bound to the node's processors, ports on the thread of their pod's node, an
# uplink on that of its interface's, and frames of two DPDK applications from one node to the other.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/vswitch.sh"
about_the_daemon
guest_up

both_start() {
    switch_start "$@"
    daemon_start
}

# Each thread that forwards frames: its processors.
threads() {
    local task
    for task in /proc/"$(cat "$NODE/vswitch.pid")"/task/*; do
        ! grep -q '^vswitch-poll' "$task/comm" || sed -n 's/^Cpus_allowed_list:\t//p' "$task/status"
    done | sort | paste -sd ' '
}
nodes() { cat /sys/devices/system/node/node{0,1}/cpulist | paste -sd ' '; }

a_thread_for_each_node() {
    equal "the processors of the threads" "$(threads)" "$(nodes)"
    grep -F 'a poll thread runs' "$LOG/fairlead-vswitch"
}

# config NETWORK MODE [KEYS]
config() { printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s"%s}' "$1" "$2" "${3:-}"; }
on_node() { printf ',"args":{"cni":{"numaNodes":[%s]}}' "$1"; }

node_of() { ports | jq --arg port "$1-sandbox/net1" '.[] | select(.config.name == $port).thread.numa_node'; }

ports_on_their_nodes() {
    add a blue client "$(on_node 0)"
    add b blue client "$(on_node 1)"
    add c blue client "$(on_node 1)"
    equal "the nodes of the ports" "$(node_of a) $(node_of b) $(node_of c)" "0 1 1"
    "$DIST/fairleadd" vswitch ports -o wide | tee /dev/stderr | grep -E '^PORT.* THREAD +NODE '
}

received() { ports | jq --arg port "$1-sandbox/net1" '[.[] | select(.config.name == $port).counters.to_guest_frames] | add // 0'; }

# Each gets a hundred frames, whose receiver and sender are on two nodes.
frames_from_node_to_node() {
    application a 0 "$(mac_of b)"
    application b 0 "$(mac_of a)"
    say b start
    say a 'start tx_first 4'
    eventually 60 more_than a 100 && eventually 60 more_than b 100
    application_end a
    application_end b
}

an_uplink_on_its_interfaces_node() {
    add d wire client ",\"master\":\"$MASTER\""
    equal "the node of the uplink" "$("$DIST/fairleadd" vswitch ports -o json | jq '.uplinks[0].thread.numa_node')" \
        "$(cat "/sys/class/net/$MASTER/device/numa_node")"
    cni DEL d "$(cat "$NODE/d.config")"
}

again_after_a_restart() {
    switch_kill
    switch_start
    eventually 20 both_there
    equal "the nodes of the ports" "$(node_of a) $(node_of b) $(node_of c)" "0 1 1"
}
both_there() { [ "$(ports | jq length)" = 3 ]; }

named_processors() {
    switch_kill
    switch_start --cpus 3 --cpus 0,2
    equal "the processors of the threads" "$(threads)" "0 2 3"
    eventually 20 both_there
    equal "the node of a port" "$(node_of a)" 0
}

it "the switch and the daemon start" both_start
it "each node has a thread, bound to the node's processors" a_thread_for_each_node
it "x9 a port is on the thread of its pod's node" ports_on_their_nodes
it "frames pass from node to node" frames_from_node_to_node
it "an uplink is on the thread of its interface's node" an_uplink_on_its_interfaces_node
it "a switch that was started again has its ports where they were" again_after_a_restart
it "threads are bound to the processors that are named" named_processors
it "the daemon stops on SIGTERM" daemon_stop
switch_kill
finish
