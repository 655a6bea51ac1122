#!/usr/bin/env bash
# What restarts cost: numbered frames go from one DPDK pod to another and back while the daemon, the switch or the pod's application die and
# come back, in every order; and many ports at once. What must hold is judged; times are printed, and judged by nobody.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/vswitch.sh"
NODE_PARTS=(dpdk)
enter_node "$@"

DAEMON_FLAGS="--config $NODE/config.yaml"
TRAFFIC=${TRAFFIC:-0.5} # seconds before and after what happens
PODS=${PODS:-100} # that come at once

config() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s","ipam":{"type":"host-local","subnet":"10.80.0.0/16"}%s}' "$1" "$2" "${3:-}"
}

# The frames come by a veth, whose end the first pod's application has as its second port; the other pod sends them back. Both applications
# make their sockets, so that whoever dies is connected to again.
two_pods() {
    switch_start
    daemon_start
    add a echo server
    add b echo server
    ip link add echo0 type veth peer name echo1 netns a
    ip link set echo0 up
    ip -n a link set echo1 up
    source_of_frames
    echoing
    eventually 30 both_connected || { ports; return 1; }
    measure 60 true
    frames_are 0 lost
}

source_of_frames() {
    RIGHTS='--inh-caps +net_raw,+net_admin --ambient-caps +net_raw,+net_admin' FORWARD=io DEVICES='--vdev net_af_packet0,iface=echo1' application a 1 "$(mac_of b)"
    say a start
}

echoing() { FORWARD=macswap application b 1 "$(mac_of a)" && say b start; }

both_connected() { ports | jq -e 'length == 2 and all(.connected and .active_queues == 1)'; }

# measure AGE COMMAND…: the command is carried out in the middle of the traffic.
measure() {
    local age=$1 pid
    shift
    rm -f "$NODE/measured"
    "$ROOT/tests/echo.py" echo0 "$(mac_of a)" "$(mac_of b)" "$age" >"$NODE/measured" &
    pid=$!
    eventually 60 grep begun "$NODE/measured"
    sleep "$TRAFFIC"
    "$@" || { kill -KILL $pid; return 1; }
    sleep "$TRAFFIC"
    kill -TERM $pid
    wait $pid
    MEASURED=$(tail -1 "$NODE/measured")
    figure "$MEASURED"
}

# frames_are NUMBER WHAT…
frames_are() {
    local what
    for what in "${@:2}"; do equal "frames $what" "$(jq ".$what" <<<"$MEASURED")" "$1"; done
    [ "$(jq .sent <<<"$MEASURED")" -gt 0 ]
}

again() { eventually 60 both_connected || { ports; return 1; }; }

# The daemon is not on the way of any frame.
the_daemon_dies() {
    measure 60 daemon_anew
    frames_are 0 lost twice disordered
}

# DPDK refuses the socket that its predecessor has left, and does not come up before it is connected to.
application_dies() { application_end b && rm "$(volume b)/net1.sock"; }
daemon_anew() { daemon_kill && daemon_start; }
switch_anew() { switch_kill && switch_start && again; }
application_anew() { application_dies && echoing && again; }
switch_and_daemon() { switch_kill && daemon_kill && switch_start && daemon_start && again; }
daemon_and_switch() { daemon_kill && switch_kill && daemon_start && switch_start && again; }
switch_and_application() { switch_kill && application_dies && switch_start && echoing && again; }
application_and_switch() { application_dies && switch_kill && switch_start && echoing && again; }
all_at_once() { application_dies && switch_kill && daemon_kill && switch_start && daemon_start && echoing && again; }

# dies COMMAND…: frames that are on their way then are lost, or come twice where the switch dies before it has told of them, and the rest of
# the flow goes on in order. No more than a window of echo.py's are on their way.
dies() {
    measure 0.5 "$@"
    frames_are 0 disordered
    [ "$(jq .twice <<<"$MEASURED")" -le 32 ] || { echo "more came twice than were on their way"; return 1; }
    measure 60 true
    frames_are 0 lost
}

pods_at_once() {
    local number begun took adds=()
    for ((number = 0; number < PODS; number++)); do fresh_pod "m$number"; config many client >"$NODE/m$number.config"; done
    begun=${EPOCHREALTIME/./}
    for ((number = 0; number < PODS; number++)); do
        cni ADD "m$number" "$(<"$NODE/m$number.config")" >"$NODE/m$number.result" &
        adds+=($!)
    done
    for number in "${adds[@]}"; do wait "$number"; done
    took=$((${EPOCHREALTIME/./} - begun))
    figure "$PODS ADDs at once, their processes' starts included: $((took / 1000)) ms, $((PODS * 1000000 / took)) ports a second"
    equal "ports" "$(ports | jq '[.[] | select(.config.network == "many")] | length')" "$PODS"
    equal "addresses" "$(cat "$NODE"/m*.result | jq -r '.ips[0].address' | sort -u | wc -l)" "$PODS"
    equal "MAC addresses" "$(cat "$NODE"/m*.result | jq -r '.interfaces[0].mac' | sort -u | wc -l)" "$PODS"
    # With so many ports the flow of the others goes on.
    measure 60 true
    frames_are 0 lost
    for ((number = 0; number < PODS; number++)); do cni DEL "m$number" "$(<"$NODE/m$number.config")" & done
    wait
    equal "ports" "$(ports | jq length)" 2
}

it "numbered frames go from pod to pod and back, and none is lost" two_pods
it "the daemon dies and comes back: no frame is lost, doubled or out of order" the_daemon_dies
it "the switch dies and comes back" dies switch_anew
it "the application dies and comes back" dies application_anew
it "the switch dies, then the daemon" dies switch_and_daemon
it "the daemon dies, then the switch" dies daemon_and_switch
it "the switch dies, then the application" dies switch_and_application
it "the application dies, then the switch" dies application_and_switch
it "the application, the switch and the daemon die at once" dies all_at_once
it "many pods come and go at once" pods_at_once
finish
