#!/usr/bin/env bash
# The switch on a machine with two NUMA nodes: a thread for each, bound to the node's processors, ports on the thread of their pod's node, an
# uplink on that of its interface's with its memory there, and frames of two DPDK applications from one node to the other.
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

# The pages that the switch has mapped of such files, of each node.
pages() { # BEGINNING-OF-THE-NAME
    awk -v file=" file=$1" 'index($0, file) { for (i = 1; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, of, "="); pages[of[1]] += of[2] } }
        END { for (node in pages) print node "=" pages[node] }' "/proc/$(cat "$NODE/vswitch.pid")/numa_maps" | sort | paste -sd ' '
}

# uplink POD INTERFACE NODE MEMORY: its thread is of that node ("null": any), and all of its memory is there.
uplink() {
    local queues rings
    add "$1" wire client ",\"master\":\"$2\""
    queues=$("$DIST/fairleadd" vswitch ports -o json | jq '.uplinks[0].queues')
    rings=$(pages socket:)
    echo "$2: $queues queues, memory $(pages /memfd:fairlead-uplink), rings $rings"
    [ "$3" = null ] || equal "the node of $2's thread" "$("$DIST/fairleadd" vswitch ports -o json | jq '.uplinks[0].thread.numa_node')" "$3"
    equal "the pages of $2's frames" "$(pages /memfd:fairlead-uplink)" "N$4=$((queues * 4096))"
    equal "the node of $2's rings" "${rings%=*}" "N$4"
    cni DEL "$1" "$(cat "$NODE/$1.config")"
    ip netns del "$1"
}

daemon_on_node() { taskset -acp "$(cat "/sys/devices/system/node/node$1/cpulist")" "$(daemon_pid)"; }

# Where the daemon runs would be where it gets memory: it runs on the other node, and has an interface of no node last, as a proof of that.
uplinks_on_their_interfaces_nodes() {
    local node=$((1 - $(cat "/sys/class/net/$MASTER/device/numa_node")))
    daemon_on_node $node
    uplink d "$MASTER" $((1 - node)) $((1 - node))
    ip link add link "$MASTER" name up0 type vlan id 5
    ip link set up0 up
    uplink e up0 $((1 - node)) $((1 - node))
    ip link del up0
    ip link add up0 type veth peer name up1
    ip link set up0 up
    uplink f up0 null $node
    ip link del up0
    equal "what the daemon says of a policy that is refused" "$(grep -c 'its policy is refused' "$LOG/fairleadd")" 0
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
it "an uplink is on the thread of its interface's node, and so are its frames and rings" uplinks_on_their_interfaces_nodes
it "a switch that was started again has its ports where they were" again_after_a_restart
it "threads are bound to the processors that are named" named_processors
it "the daemon stops on SIGTERM" daemon_stop
switch_kill
finish
