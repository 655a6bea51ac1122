#!/usr/bin/env bash
# Two DPDK applications (testpmd, as another user than root, each in a namespace of its own that has its volume only) exchange frames by
# sockets that ADD has made: the daemon, its executable and the switch as they are installed.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
NODE_PARTS=(dpdk reference)
enter_node "$@"

SOCKET=/run/fairlead/vswitch.sock
NOBODY=65534
VOLUMES=/var/lib/kubelet/pods

switch_start() {
    mkdir -p -m 700 /run/fairlead
    "$DIST/fairlead-vswitch" run --socket $SOCKET --user $NOBODY:$NOBODY >>"$LOG/fairlead-vswitch" 2>&1 &
    echo $! >"$NODE/vswitch.pid"
    disown $!
    eventually 10 test -S $SOCKET
}

switch_kill() {
    local pid
    pid=$(cat "$NODE/vswitch.pid")
    kill -KILL "$pid"
    eventually 10 gone "$pid"
}

both_start() { switch_start; daemon_start; }

volume() { echo "$VOLUMES/uid-$1/volumes/kubernetes.io~empty-dir/vhost-user"; }

fresh_pod() { # POD
    ip netns add "$1"
    mkdir -p "$(volume "$1")"
    chmod 777 "$(volume "$1")"
}

# config NETWORK MODE [KEYS]
config() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s","ipam":{"type":"host-local","subnet":"10.77.0.0/16"}%s}' "$1" "$2" "${3:-}"
}

# cni COMMAND POD CONFIG
cni() {
    CNI_COMMAND=$1 CNI_CONTAINERID=$2-sandbox CNI_NETNS=/run/netns/$2 CNI_IFNAME=net1 CNI_PATH=$CNIBIN \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=$2;K8S_POD_UID=uid-$2" "$DIST/fairlead" <<<"$3"
}

mac_of() { jq -r '.interfaces[0].mac' "$NODE/$1.result"; }

add() { # POD NETWORK MODE [KEYS]
    fresh_pod "$1"
    config "$2" "$3" "${4:-}" >"$NODE/$1.config"
    cni ADD "$1" "$(cat "$NODE/$1.config")" >"$NODE/$1.result" || { cat "$NODE/$1.result"; return 1; }
}

check() { cni CHECK "$1" "$(jq -c --slurpfile r "$NODE/$1.result" '. + {prevResult: $r[0]}' "$NODE/$1.config")"; }

# application POD SERVER PEER-MAC: testpmd, which sends back to its peer what it gets. It reads its commands from a FIFO.
application() {
    local pod=$1 server=$2 peer=$3
    rm -f "$NODE/$pod.commands" "$LOG/testpmd-$pod"
    mkfifo "$NODE/$pod.commands"
    mkdir -p "$NODE/$pod.run"
    chmod 777 "$NODE/$pod.run"
    ip netns exec "$pod" unshare --mount bash -c '
        mount --bind "$1" /mnt && mount -t tmpfs tmpfs '"$VOLUMES"' &&
        RUNTIME_DIRECTORY=$2 exec setpriv --reuid '$NOBODY' --regid '$NOBODY' --clear-groups stdbuf -oL dpdk-testpmd --no-pci --no-huge -m 128 \
            --no-telemetry --no-shconf --lcores "0@($3),1@($3)" --vdev "net_virtio_user0,path=/mnt/net1.sock,queues=1,queue_size=256,server=$4,mac=$5" \
            -- -i --forward-mode=mac --total-num-mbufs=4096 --txd=256 --rxd=256 --eth-peer="0,$6"' \
        application "$(volume "$pod")" "$NODE/$pod.run" "$(cpus)" "$server" "$(mac_of "$pod")" "$peer" \
        <>"$NODE/$pod.commands" >"$LOG/testpmd-$pod" 2>&1 &
    echo $! >"$NODE/$pod.pid"
    disown $!
    eventually 60 grep -q 'testpmd>' "$LOG/testpmd-$pod"
}

cpus() { taskset -cp $$ | sed 's/.*: //'; }
say() { echo "$2" >"$NODE/$1.commands"; }

application_end() {
    local pid
    pid=$(cat "$NODE/$1.pid")
    pkill -KILL -P "$pid" || true
    kill -KILL "$pid" 2>/dev/null || true
    eventually 10 gone "$pid"
}

# Frames that the pod's application got, as the switch counts them.
received() { ports | jq --arg port "$1-sandbox/net1" '[.[] | select(.config.name == $port).counters.to_guest_frames] | add // 0'; }
ports() { "$DIST/fairleadd" vswitch ports -o json | jq 'if has("ports") then .ports else error("the switch does not answer") end'; }
port_names() { ports | jq -r '[.[].config.name] | sort | join(" ")' || echo "no answer"; }
more_than() { [ "$(received "$1")" -gt "$2" ]; }

frames_flow() { # POD…: each gets a thousand more
    local pod before
    for pod; do
        before=$(received "$pod")
        eventually 60 more_than "$pod" $((before + 1000)) || { ports; return 1; }
    done
}

two_pods() {
    add a blue client
    add b blue client
    jq -e '.interfaces[0].socketPath | endswith("/vhost-user/net1.sock")' "$NODE/a.result"
    jq -e '.ips[0].address | startswith("10.77.")' "$NODE/a.result"
    application a 0 "$(mac_of b)"
    application b 0 "$(mac_of a)"
    say b start
    say a 'start tx_first 4'
    frames_flow a b
    check a
    check b
}

sent() { ports | jq --arg port "$1-sandbox/net1" '[.[] | select(.config.name == $port).counters.from_guest_frames] | add // 0'; }
has_sent() { [ "$(sent "$1")" -ge "$2" ]; }
at_rest() {
    local before
    before="$(received a) $(received b)"
    sleep 0.3
    [ "$(received a) $(received b)" = "$before" ]
}

another_network() {
    local before
    say a stop
    say b stop
    eventually 20 at_rest
    before="$(received a) $(received b)"
    add c red client
    application c 0 "$(mac_of a)"
    say c 'start tx_first 4'
    eventually 20 has_sent c 128
    sleep 0.3
    equal "what pods of another network got" "$(received a) $(received b)" "$before"
    equal "what the pod got" "$(received c)" 0
    cni DEL c "$(cat "$NODE/c.config")"
    application_end c
    say b start
    say a 'start tx_first 4'
    frames_flow a b
}

without_the_daemon() {
    local before
    before=$(received a)
    daemon_kill
    sleep 0.3
    daemon_start
    eventually 10 more_than a $((before + 1000))
    equal "ports" "$(port_names)" "a-sandbox/net1 b-sandbox/net1"
    frames_flow a b
}

the_switch_anew() {
    switch_kill
    switch_start
    eventually 10 both_ports_again
    # virtio_user as a client does not connect again by itself: its pod would be made anew.
    application_end a
    application_end b
    application a 0 "$(mac_of b)"
    application b 0 "$(mac_of a)"
    say b start
    say a 'start tx_first 4'
    frames_flow a b
}

both_ports_again() { [ "$(port_names)" = "a-sandbox/net1 b-sandbox/net1" ]; }

removed() {
    local pod
    for pod in a b; do
        cni DEL $pod "$(cat "$NODE/$pod.config")"
        cni DEL $pod "$(cat "$NODE/$pod.config")"
        application_end $pod
        equal "what is left of the volume" "$(ls -A "$(volume $pod)")" ""
        ip netns del $pod
    done
    equal "ports" "$(port_names)" ""
    eventually 10 no_address_held
}

pods_that_listen() {
    local kill
    add d green server
    add e green server
    application d 1 "$(mac_of e)"
    application e 1 "$(mac_of d)"
    eventually 20 both_connected || { ports; return 1; }
    say e start
    say d 'start tx_first 4'
    frames_flow d e
    switch_kill
    switch_start
    # Nobody tells the applications anything; what was on its way is sent once more.
    eventually 20 both_connected || { ports; return 1; }
    say d stop
    say d 'start tx_first 4'
    frames_flow d e
    for pod in d e; do
        cni DEL $pod "$(cat "$NODE/$pod.config")"
        application_end $pod
    done
    equal "ports" "$(port_names)" ""
}

both_connected() { [ "$(ports | jq '[.[] | select(.connected)] | length')" = 2 ]; }

what_a_person_sees() {
    "$DIST/fairleadd" vswitch ports | tee /dev/stderr | grep -F a-sandbox/net1
    "$DIST/fairleadd" vswitch mac-table | grep -F "$(mac_of a)"
    "$DIST/fairleadd" attachments | grep -F vhost-user
}

it "the switch and the daemon start" both_start
it "k29 two DPDK pods exchange frames by the sockets that ADD made" two_pods
it "a person sees ports, addresses and attachments" what_a_person_sees
it "a pod of another network gets no frame" another_network
it "the daemon dies, and frames go on" without_the_daemon
it "the switch dies, and has its ports again" the_switch_anew
it "DEL takes ports and sockets away" removed
it "pods that make their sockets themselves are connected to, and again when the switch has died" pods_that_listen
it "k18 the daemon stops on SIGTERM" daemon_stop
finish
