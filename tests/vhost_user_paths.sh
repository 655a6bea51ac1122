#!/usr/bin/env bash
# The paths of DPDK's own test plans for virtio-user with split rings: each of its ways to receive and send, through ports that ADD has made.
# One testpmd plays a file of frames for each queue, the other writes down what it gets: all of it, by the same queue, in order, byte for byte,
# and again after a stop and start of both their ports. What was agreed on and DPDK's log tell that it was this path.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/vswitch.sh"
NODE_PARTS=(dpdk)
enter_node "$@"

DAEMON_FLAGS="--config $NODE/config.yaml"
FRAMES=/run/frames # both applications' user may read and write here
LENGTHS=(64 128 512 1518)
# As many as find room in a ring of 1,024 buffers of 2 KiB: none is lost, however seldom the receiver runs.
COUNT=160

config() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s","ipam":{"type":"host-local","subnet":"10.79.0.0/16"}%s}' "$1" "$2" "${3:-}"
}

both_start() {
    mkdir -p $FRAMES
    chmod 777 $FRAMES
    switch_start
    daemon_start
}

# counted POD COUNTER
counted() { ports | jq --arg port "$1-sandbox/net1" --arg counter "$2" '.[] | select(.config.name == $port).counters[$counter]'; }
has_counted() { [ "$(counted "$1" "$2")" -ge "$3" ]; }

files() { local queue; for ((queue = 0; queue < $2; queue++)); do echo "$FRAMES/$1-$queue.pcap"; done; } # NAME QUEUES
device() { printf -- '--vdev=net_pcap0'; printf ",$1=%s" "${@:2}"; }                                        # rx_pcap|tx_pcap FILE…

# player POD PEER-MAC QUEUES PATH DIRECTION FILE…: a testpmd whose second port is files.
player() {
    local pod=$1 peer=$2 queues=$3 path=$4 direction=$5 server=0
    [ "$MODE" = client ] || server=1
    VIRTIO="queues=$queues,queue_size=1024,$path" FORWARD=${FORWARD:-io} \
        DEVICES="$(device "$direction" "${@:6}") --log-level=pmd.net.virtio.init:info" \
        OPTIONS="--txd=1024 --rxd=1024 --rxq=$queues --txq=$queues $LONG" application "$pod" "$server" "$peer"
}

# plays QUEUES ROUNDS: the receiver runs, and then the sender; all that is in the files comes out at the other end. The switch counts all rounds.
plays() {
    local count=$((COUNT * $1 * $2))
    say $r start
    eventually 60 has_begun $r "$2"
    eventually 20 has_queues $r "$1" || { ports; return 1; }
    say $s start
    eventually 60 has_counted $r to_guest_frames $count || { ports; return 1; }
    eventually 20 compare || compare
    equal "frames that were sent" "$(counted $s from_guest_frames)" $count
    equal "frames that were received" "$(counted $r to_guest_frames)" $count
}

# It says so once for each start.
has_begun() { [ "$(grep -c "io packet forwarding - " "$LOG/testpmd-$1")" -ge "$2" ]; }
compare() { "$ROOT/tests/frames.py" same "${sent[@]}" -- "${received[@]}"; }

has_queues() { # POD QUEUES
    ports | jq -e --arg port "$1-sandbox/net1" --argjson queues "$2" '.[] | select(.config.name == $port).active_queues == $queues'
}

# feature POD BIT: 1 if it was agreed on.
feature() {
    ports | jq --arg port "$1-sandbox/net1" --argjson bit "$2" '.[] | select(.config.name == $port).features / pow(2; $bit) | floor % 2'
}
logged() { grep -oE "virtio: using .* $2 path on port 0" "$LOG/testpmd-$1" | tail -1; } # POD Rx|Tx

# takes POD OPTIONS RX TX: what was agreed on is what the options have, and DPDK says of its ways to receive and send that they are these.
takes() {
    equal "mergeable buffers of $1" "$(feature "$1" 15)" "$(grep -oP 'mrg_rxbuf=\K.' <<<"$2")"
    equal "order of $1" "$(feature "$1" 35)" "$(grep -oP 'in_order=\K.' <<<"$2")"
    equal "how $1 receives" "$(logged "$1" Rx)" "virtio: using $3 Rx path on port 0"
    equal "how $1 sends" "$(logged "$1" Tx)" "virtio: using $4 Tx path on port 0"
}

# path MODE QUEUES MTU OPTIONS RX TX: both applications take this path.
path() {
    local MODE=$1 queues=$2 mtu=$3 path=$4 rx=$5 tx=$6 LONG='' sent received pod queue lengths=("${LENGTHS[@]}")
    local s=s$((passed + failed)) r=r$((passed + failed))
    [ "$mtu" = 1500 ] || { lengths=(64 1518 9018); LONG="--max-pkt-len=$((mtu + 18)) --disable-device-start"; }
    add $s paths "$MODE" ",\"queues\":$queues,\"mtu\":$mtu"
    add $r paths "$MODE" ",\"queues\":$queues,\"mtu\":$mtu"
    readarray -t sent < <(files $s "$queues")
    readarray -t received < <(files $r "$queues")
    for queue in "${!sent[@]}"; do
        "$ROOT/tests/frames.py" make "${sent[queue]}" "$(mac_of $s)" "$(mac_of $r)" $COUNT "$queue" "${lengths[@]}"
    done
    player $r "$(mac_of $s)" "$queues" "$path" tx_pcap "${received[@]}"
    player $s "$(mac_of $r)" "$queues" "$path" rx_pcap "${sent[@]}"
    [ -z "$LONG" ] || for pod in $s $r; do of_several_segments $pod; done
    eventually 20 has_memory $s
    eventually 20 has_memory $r
    plays "$queues" 1
    ports_anew $r
    ports_anew $s
    plays "$queues" 2
    for pod in $s $r; do takes $pod "$path" "$rx" "$tx"; done
    pods_end $s $r
}

has_memory() { ports | jq -e --arg port "$1-sandbox/net1" '.[] | select(.config.name == $port).connected'; }

# The device of files cannot be asked for it: so it is no option for all ports.
of_several_segments() {
    say "$1" 'port config 0 rx_offload scatter on'
    say "$1" 'port config 0 tx_offload multi_segs on'
    say "$1" 'port start all'
}

# Rings are set up anew, and what was written is written again.
ports_anew() {
    say "$1" stop
    say "$1" 'port stop all'
    say "$1" 'port start all'
}

# An application leaves checksums and segments to its interface, and the other one gets segments: it has not agreed on anything.
left_to_the_switch() {
    local MODE=client LONG="--max-pkt-len=9018 --disable-device-start" sent received pod line
    local s=s$((passed + failed)) r=r$((passed + failed))
    for pod in $s $r; do add $pod paths $MODE; done
    sent=$FRAMES/$s.pcap received=$FRAMES/$r.pcap
    "$ROOT/tests/frames.py" tcp "$sent" "$(mac_of $s)" "$(mac_of $r)" 20 8000
    LONG='' player $r "$(mac_of $s)" 1 mrg_rxbuf=1 tx_pcap "$received"
    FORWARD=csum player $s "$(mac_of $r)" 1 mrg_rxbuf=1 rx_pcap "$sent"
    for line in 'port config 0 rx_offload scatter on' 'port config 0 tx_offload multi_segs on' 'port config 0 tx_offload tcp_cksum on' 'port config 0 tx_offload tcp_tso on' \
        'csum set ip sw 0' 'csum set tcp hw 0' 'tso set 1400 0' 'port start all'; do say $s "$line"; done
    for pod in $s $r; do eventually 20 has_memory $pod; done
    say $r start
    eventually 60 has_begun $r 1
    say $s start
    eventually 60 has_counted $r to_guest_frames 120 || { ports; return 1; }
    eventually 20 "$ROOT/tests/frames.py" segments "$sent" "$received" 1400 || "$ROOT/tests/frames.py" segments "$sent" "$received" 1400
    equal "frames that were sent" "$(counted $s from_guest_frames)" 20
    pods_end $s $r
}

# NAME | MODE QUEUES MTU | the device's options | how it receives | how it sends, in DPDK's words
PATHS=(
    "mergeable|client 1 1500|mrg_rxbuf=1,in_order=0|mergeable buffer|standard"
    "mergeable, in order|client 1 1500|mrg_rxbuf=1,in_order=1|inorder|inorder"
    "not mergeable|client 1 1500|mrg_rxbuf=0,in_order=0|standard|standard"
    "not mergeable, in order|client 1 1500|mrg_rxbuf=0,in_order=1|inorder|inorder"
    "vectorized|client 1 1500|mrg_rxbuf=0,in_order=0,vectorized=1|vectorized|standard"
    "mergeable, of 9 KB|client 1 9000|mrg_rxbuf=1,in_order=0|mergeable buffer|standard"
    "mergeable, in order, of 9 KB|server 1 9000|mrg_rxbuf=1,in_order=1|inorder|inorder"
    "mergeable, by two queues|server 2 1500|mrg_rxbuf=1,in_order=0|mergeable buffer|standard"
    "vectorized, by two queues|client 2 1500|mrg_rxbuf=0,in_order=0,vectorized=1|vectorized|standard"
)

it "the switch and the daemon start" both_start
for row in "${PATHS[@]}"; do
    IFS='|' read -r name numbers options rx tx <<<"$row"
    # shellcheck disable=SC2086 # three words
    it "frames, $name: all of them arrive as they were sent, also after a port's restart" path $numbers "$options" "$rx" "$tx"
done
it "TCP frames of 8 KB whose segments and checksums are left to the switch come in segments that are whole" left_to_the_switch
finish
