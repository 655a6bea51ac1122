#!/usr/bin/env bash
# containerd as the caller: pod sandboxes over CRI on an unchanged macvlan conflist, with Fairlead in the plugins'
# place (PLUGINS=reference: the same with the reference plugins, without the cases that concern the daemon).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/runtime.sh"
NODE_PARTS=(reference)
enter_node "$@"

remove_all() { cri stop -all -c 10 >/dev/null; cri remove -all -c 10 >/dev/null; }

nothing_left() {
    equal "number of pods" "$(cri list -all | wc -l)" 0
    clean
}

# What is there is what the living pods have: addresses, namespaces, the daemon's own records.
matches_pods() {
    local live=$1
    equal "addresses held" "$(addresses_held)" "$live" &&
        equal "namespaces" "$(find /run/netns -name 'cni-*' | wc -l)" "$live" &&
        equal "the node's links" "$(ip -br link | awk '{print $1}' | sort | tr '\n' ' ')" "eth0@if2 lo " &&
        { ! ours || equal "the daemon's attachments" "$(attachments)" "$live"; }
}

clean() { eventually 10 matches_pods 0 || matches_pods 0; }

# ---- cases ----
a_pod_has_an_address() {
    cri run -prefix one >"$NODE/one"
    jq -e '.ip | startswith("10.60.")' "$NODE/one"
    jq -e '.result.Interfaces.eth0.IPConfigs[0].IP' "$NODE/one" || jq -e .result "$NODE/one"
    in_pod "$(jq -r .netns "$NODE/one")" ip -br address show dev eth0 | grep -F "$(jq -r .ip "$NODE/one")/16"
}

pods_reach_each_other() {
    cri run -prefix other >"$NODE/other"
    ping_from "$(jq -r .netns "$NODE/one")" "$(jq -r .ip "$NODE/other")"
    ping_from "$(jq -r .netns "$NODE/other")" "$(jq -r .ip "$NODE/one")"
    ping_from "$(jq -r .netns "$NODE/one")" 10.60.0.1 # and the gateway, out on the wire
}

all_of_it_goes() { remove_all; nothing_left; }

twenty_at_once() {
    cri run -n 20 -c 20 -prefix many >"$NODE/many"
    equal "number of different addresses" "$(jq -r .ip "$NODE/many" | sort -u | grep -c ^10.60.)" 20
    matches_pods 20
    local first last
    first=$(head -1 "$NODE/many" | jq -r .netns)
    last=$(tail -1 "$NODE/many" | jq -r .ip)
    ping_from "$first" "$last"
    remove_all
    nothing_left
}

status_is_polled() {
    local i
    for ((i = 0; i < 20; i++)); do cri status; done
}

kill_in_a_burst() {
    local burst live
    cri run -n 40 -c 20 -prefix burst >"$NODE/burst" &
    burst=$!
    eventually 10 a_few_are_up
    daemon_kill
    sleep 0.3
    daemon_start
    wait $burst || echo "$(jq -r 'select(.error)' "$NODE/burst" | grep -c error) of 40 were refused; the runtime retries those"
    live=$(pods)
    [ "$live" -ge 5 ]
    eventually 10 matches_pods "$live" || matches_pods "$live"
    ping_from "$(jq -rs 'map(select(.ip))[0].netns' "$NODE/burst")" "$(jq -rs 'map(select(.ip))[-1].ip' "$NODE/burst")"
    remove_all
    nothing_left
}

a_few_are_up() { [ "$(grep -c '"ip"' "$NODE/burst")" -ge 5 ]; }

del_while_the_daemon_is_down() {
    cri run -n 5 -c 5 -prefix down >/dev/null
    daemon_kill
    remove_all # the runtime is told success, and forgets the pods
    [ "$(spooled)" -ge 5 ]
    daemon_start
    eventually 10 spool_is_empty || equal "spooled calls" "$(spooled)" 0
    nothing_left
}

spool_is_empty() { [ "$(spooled)" = 0 ]; }

add_waits_for_the_daemon() {
    daemon_stop
    cri run -prefix waits >"$NODE/waits" &
    local run=$!
    sleep 1
    running $run # it waits, it is not refused
    daemon_start
    wait $run
    jq -e .ip "$NODE/waits"
    remove_all
    nothing_left
}

network_config pods 10.60.0.0/16 >"$NETD/10-pods.conflist"
! ours || it "the daemon starts and is ready" daemon_start
it "containerd starts and its network is ready" containerd_up
it "a pod has eth0, its address and a result" a_pod_has_an_address
it "pods reach each other and their gateway" pods_reach_each_other
it "nothing is left when they are gone" all_of_it_goes
it "twenty pods at once get twenty addresses" twenty_at_once
it "the runtime's status polls are answered" status_is_polled
if ours; then
    it "k14 x05 killed in a burst, the daemon leaves nothing behind" kill_in_a_burst
    it "x02 a DEL made while the daemon is down is carried out at its restart" del_while_the_daemon_is_down
    it "x01 an ADD waits for a daemon that restarts" add_waits_for_the_daemon
fi
it "containerd ends" containerd_down
finish
