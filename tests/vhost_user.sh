#!/usr/bin/env bash
# Two DPDK applications (testpmd, as another user than root, each in a namespace of its own that has its volume only, or only what
# kubelet's Allocate answered) exchange frames by sockets that ADD has made: the daemon, its executable and the switch as they are installed.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/vswitch.sh"
NODE_PARTS=(dpdk reference)
enter_node "$@"

DAEMON_FLAGS="--config $NODE/config.yaml"

both_start() { switch_start; daemon_start; }

# config NETWORK MODE [KEYS]
config() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","mode":"%s","ipam":{"type":"host-local","subnet":"10.77.0.0/16"}%s}' "$1" "$2" "${3:-}"
}

# Frames that the pod's application got, as the switch counts them.
received() { ports | jq --arg port "$1-sandbox/net1" '[.[] | select(.config.name == $port).counters.to_guest_frames] | add // 0'; }
port_names() { ports | jq -r '[.[].config.name] | sort | join(" ")' || echo "no answer"; }

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

another_network() {
    local before
    say a stop
    say b stop
    eventually 20 at_rest a b
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

spoofed() { ports | jq --arg port "$1-sandbox/net1" '[.[] | select(.config.name == $port).counters.from_guest_drops.spoofed] | add // 0'; }
has_spoofed() { [ "$(spoofed "$1")" -ge "$2" ]; }

# Two pods of a VLAN, one of another and one that takes the address of its neighbour, in one network.
vlans_and_false_addresses() {
    local pod before
    for pod in n o; do add $pod tagged client ',"vlan":10'; done
    add q tagged client ',"vlan":20'
    add p tagged client ',"vlan":10'
    application n 0 "$(mac_of o)"
    application o 0 "$(mac_of n)"
    say o start
    say n 'start tx_first 4'
    frames_flow n o
    for pod in n o; do
        equal "false addresses of $pod" "$(spoofed $pod)" 0
        say $pod stop
    done
    eventually 20 at_rest n o
    before="$(received n) $(received o)"
    application q 0 "$(mac_of n)"
    say q 'start tx_first 4'
    eventually 20 has_sent q 128
    MAC=$(mac_of o) application p 0 "$(mac_of n)"
    say p 'start tx_first 4'
    eventually 20 has_spoofed p 128
    sleep 0.3
    equal "what pods of another VLAN, and those that it is false to, got" "$(received n) $(received o)" "$before"
    equal "what the pod of the other VLAN got" "$(received q)" 0
    # The address is still where it was.
    say o start
    say n 'start tx_first 4'
    frames_flow n o
    equal "what the pod of the other VLAN got" "$(received q)" 0
    pods_end n o p q
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

# The new one never sleeps.
the_switch_anew() {
    switch_kill
    by_doctor wrong 'fairlead-vswitch, needed by wide: '
    mv "$NETD/80-wide.conf" "$NODE"
    eventually 5 by_doctor wrong '2 ports that pods have are in no switch: '
    switch_start --polling always
    eventually 10 both_ports_again
    # virtio_user as a client does not connect again by itself: its pod would be made anew.
    application_end a
    application_end b
    application a 0 "$(mac_of b)"
    application b 0 "$(mac_of a)"
    say b start
    say a 'start tx_first 4'
    frames_flow a b
    say a stop
    say b stop
    eventually 20 at_rest a b
    does_not_sleep
}

# Its poll thread runs, or waits for a processor, though no frame comes.
does_not_sleep() {
    local thread
    thread=$(dirname "$(grep -l vswitch-poll "/proc/$(cat "$NODE/vswitch.pid")/task"/*/comm)")
    for _ in {1..20}; do
        equal "state of the poll thread" "$(awk '/^State/ { print $2 }' "$thread/status")" R
        sleep 0.02
    done
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

# Of two pods that are no more GC takes away the one that is not named.
collected() {
    local pod
    for pod in x y; do add $pod gone client; done
    cni GC "" "$(config gone client ',"cni.dev/valid-attachments":[{"containerID":"x-sandbox","ifname":"net1"}]')"
    equal "ports" "$(port_names)" x-sandbox/net1
    equal "what is left of the volume" "$(ls -A "$(volume y)")" ""
    cni GC "" "$(config gone client ',"cni.dev/valid-attachments":[]')"
    equal "ports" "$(port_names)" ""
    equal "what is left of the volume" "$(ls -A "$(volume x)")" ""
    eventually 10 no_address_held
    for pod in x y; do ip netns del $pod; done
}

KEPT=/proc/sys/vm/nr_hugepages
HUGE=/run/hugepages
HUGE_PAGES=96 # of 2 MiB: the applications have 64 of them

# The machine has them for this case alone.
in_huge_pages() {
    local before pod
    before=$(cat $KEPT)
    trap "echo $before >$KEPT" EXIT
    eventually 10 keeps $((before + HUGE_PAGES)) ||
        { echo "the kernel keeps $(cat $KEPT) huge pages of 2 MiB, and not $HUGE_PAGES more than before: free memory, or let $KEPT be written"; return 1; }
    mkdir $HUGE
    mount -t hugetlbfs -o pagesize=2M,uid=$NOBODY,gid=$NOBODY,mode=700 hugetlbfs $HUGE
    add a huge client
    add b huge client
    MEMORY="--huge-dir=$HUGE --single-file-segments --file-prefix=a -m 64" application a 0 "$(mac_of b)"
    MEMORY="--huge-dir=$HUGE --single-file-segments --file-prefix=b -m 64" application b 0 "$(mac_of a)"
    say b start
    say a 'start tx_first 4'
    frames_flow a b
    for pod in a b; do has_mapped $pod; done
    pods_end a b
    for pod in a b; do equal "what is still mapped of $pod" "$(has_mapped $pod || true)" ""; done
    umount $HUGE
}
keeps() { echo "$1" >$KEPT && [ "$(cat $KEPT)" = "$1" ]; } # PAGES
has_mapped() { grep "$HUGE/$1map" "/proc/$(cat "$NODE/vswitch.pid")/maps"; } # POD: the switch, its pages

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

# add_of_port POD PORT
add_of_port() {
    allocate "$1" "$2"
    ip netns add "$1"
    printf '{"cniVersion":"1.1.0","name":"net","type":"vhost-user","k8s.v1.cni.cncf.io/resourceName":"example.com/%s"}' "${2%-*}" >"$NODE/$1.config"
    cni ADD "$1" "$(cat "$NODE/$1.config")" >"$NODE/$1.result" || { cat "$NODE/$1.result"; return 1; }
    check "$1"
}

port_state() { "$DIST/fairleadd" pools -o json | jq -r --arg port "$1" '.ports[] | select(.port == $port).state'; }

# pods_of_pool POOL SERVER POD POD: both have traffic, and leave nothing to the next pod.
pods_of_pool() {
    local pool=$1 server=$2 first=$3 second=$4 pod before number
    add_of_port "$first" "$pool-00"
    add_of_port "$second" "$pool-01"
    readarray -t before < <(stat -c %i /run/fairlead/vhost-user/"$pool"-0{0,1})
    application_of_port "$first" "$server" "$(mac_of "$second")"
    application_of_port "$second" "$server" "$(mac_of "$first")"
    eventually 20 both_connected || { ports; return 1; }
    say "$second" start
    say "$first" 'start tx_first 4'
    frames_flow "$first" "$second"
    equal "port" "$(port_state "$pool-00")" taken
    for pod in "$first" "$second"; do
        equal "whether $pod may write there" "$(leaves_something "$pod")" "$([ "$server" = 0 ] && echo no || echo yes)"
        cni DEL "$pod" "$(cat "$NODE/$pod.config")"
        application_end "$pod"
        ip netns del "$pod"
    done
    equal "ports" "$(port_names)" ""
    equal "port" "$(port_state "$pool-00")" ready
    for number in 0 1; do
        [ "${before[number]}" != "$(stat -c %i "/run/fairlead/vhost-user/$pool-0$number")" ] || { echo "$pool-0$number is still the same"; return 1; }
    done
    eventually 10 nothing_gone_is_left
}

leaves_something() {
    nsenter --target "$(cat "$NODE/$1.pid")" --mount touch "$(jq -r '.mounts[0].container_path' "$NODE/$1.allocated")/left" 2>/dev/null &&
        echo yes || echo no
}

nothing_gone_is_left() { [ "$(find /run/fairlead/vhost-user -mindepth 1 | wc -l)" = $((4 + 2)) ]; }

ports_of_pools() {
    cat >"$NODE/config.yaml" <<'END'
vhostUser:
  pools:
    - {name: blue, resourceName: example.com/blue, count: 2}
    - {name: red, resourceName: example.com/red, count: 2, mode: server}
END
    eventually 10 has_pools
    pods_of_pool blue 0 f g
    pods_of_pool red 1 h i
    kubelet_end
}

has_pools() { [ "$(port_state red-01)" = ready ]; }

# Two threads that forward frames: each pod's port is on its own.
pods_on_two_threads() {
    switch_kill
    switch_start --cpus "$(cpus)" --cpus "$(cpus)"
    add j blue client
    add k blue client
    equal "threads" "$(ports | jq -c '[.[].thread.number] | sort')" "[0,1]"
    application j 0 "$(mac_of k)"
    application k 0 "$(mac_of j)"
    say k start
    say j 'start tx_first 4'
    frames_flow j k
    equal "frames that found no room between the threads" "$(ports | jq '[.[].counters.to_guest_drops["link-full"]] | add // 0')" 0
    pods_end j k
    switch_kill
    switch_start
}

# A pod that answers ARP and pings, on a network whose uplink is one end of a veth. At the other end, in a namespace of its own, is an
# ordinary kernel's stack.
reaches_the_wire() {
    ip netns add far
    ip link add up0 type veth peer name far0 netns far
    ip link set up0 up
    ip -n far address add 10.77.200.1/16 dev far0
    ip -n far link set far0 up
    add w wire client ',"master":"up0"'
    FORWARD=icmpecho application w 0 02:00:00:00:00:01
    say w start
    eventually 20 answers_pings w
    answered far 200 0.01 1400 "$(ip_of w)"
    check w
    "$DIST/fairleadd" vswitch ports | tee /dev/stderr | grep -E '^up0 .*native'
}

answers_pings() { ip netns exec far busybox ping -q -c 1 -W 1 "$(ip_of "$1")"; }

# A pod of the kernel's own kind at the other end: a macvlan beside a vhost-user pod.
beside_a_macvlan() {
    local config='{"cniVersion":"1.1.0","name":"wire","type":"macvlan","master":"far-br","ipam":{"type":"static","addresses":[{"address":"10.77.200.2/16"}]}}'
    ip link add far-br type bridge
    ip link set far-br up
    ip -n far link set far0 netns $$
    ip link set far0 master far-br up
    ip netns add m
    cni ADD m "$config"
    eventually 20 ip netns exec m busybox ping -q -c 3 -i 0.2 -W 2 "$(ip_of w)"
    cni DEL m "$config"
    ip netns del m
    # For what follows: somebody at the other end who is no pod.
    ip netns add m2
    ip link add m2 type veth peer name eth0 netns m2
    ip link set m2 master far-br up
    ip -n m2 address add 10.77.200.3/16 dev eth0
    ip -n m2 link set eth0 up
    eventually 20 ip netns exec m2 busybox ping -q -c 1 -W 2 "$(ip_of w)"
}

the_daemon_and_the_switch_anew_with_an_uplink() {
    daemon_kill
    answered m2 20 0.05 56 "$(ip_of w)"
    daemon_start
    switch_kill
    equal "what the dead switch has left" "$(ip -details link show dev up0 | grep -o prog/xdp || true)" ""
    switch_start
    eventually 10 has_uplink
    application_end w
    FORWARD=icmpecho application w 0 02:00:00:00:00:01
    say w start
    eventually 20 ip netns exec m2 busybox ping -q -c 3 -i 0.2 -W 2 "$(ip_of w)"
}

has_uplink() { "$DIST/fairleadd" vswitch ports -o json | jq -e '.uplinks[0].config.interface == "up0"'; }

wire_of_the_bridge() {
    ip link add up0 type veth peer name far0
    ip link set up0 up
    ip link set far0 master far-br up
}

# Another one of the same name takes its place, and the pod's application goes on.
the_interface_anew() {
    ip link del up0
    eventually 10 no_answer
    wire_of_the_bridge
    eventually 10 has_uplink_of "$(ip -j link show dev up0 | jq '.[0].ifindex')"
    eventually 20 ip netns exec m2 busybox ping -q -c 3 -i 0.2 -W 2 "$(ip_of w)"
    check w
}
no_answer() { ! ip netns exec m2 busybox ping -q -c 1 -W 1 "$(ip_of w)"; }
has_uplink_of() { "$DIST/fairleadd" vswitch ports -o json | jq -e --argjson index "$1" '.uplinks[0].config.index == $index'; }

gives_the_interface_back() {
    ip -details link show dev up0 | grep -F PROMISC
    ip -details link show dev up0 | grep -F prog/xdp
    cni DEL w "$(cat "$NODE/w.config")"
    application_end w
    ip netns del w
    equal "what is left on the interface" "$(ip -details link show dev up0 | grep -oE 'prog/xdp|PROMISC' || true)" ""
    equal "uplinks" "$("$DIST/fairleadd" vswitch ports -o json | jq '.uplinks | length')" 0
    ip link del up0
}

what_a_person_sees() {
    "$DIST/fairleadd" vswitch ports | tee /dev/stderr | grep -F a-sandbox/net1
    "$DIST/fairleadd" vswitch mac-table | grep -F "$(mac_of a)"
    "$DIST/fairleadd" vswitch stats | tee /dev/stderr | grep -E 'a-sandbox/net1 +default/a +received +[0-9]{4}'
    "$DIST/fairleadd" attachments | grep -F vhost-user
    config wide client >"$NETD/80-wide.conf"
    by_doctor good 'fairlead-vswitch serves, needed by wide'
}

by_doctor() { # VERDICT WHAT: of the switch that a network of the conf dir needs
    ("$DIST/fairleadd" doctor -o json || true) | jq -e --arg verdict "$1" --arg what "$2" '
        [.[] | select(.about == "switches")] | length == 1 and (.[0] | .verdict == $verdict and (.seen | startswith($what)))'
}

# Frames of both directions, by port and by pod; the length and addresses are those that testpmd sends.
captured() {
    local frames
    "$DIST/fairleadd" vswitch capture a-sandbox/net1 -c 200 -w "$NODE/a.pcapng"
    equal "its rights" "$(stat -c %a "$NODE/a.pcapng")" 600
    frames=$(tcpdump -e -n -r "$NODE/a.pcapng" 2>/dev/null)
    equal "frames" "$(wc -l <<<"$frames")" 200
    equal "addresses" "$(grep -oE '([0-9a-f:]{17}) > ([0-9a-f:]{17})' <<<"$frames" | sort -u | wc -l)" 2
    grep -m 3 -F "$(mac_of a) > $(mac_of b)" <<<"$frames"
    "$DIST/fairleadd" vswitch capture default/a -c 50 -Q sent -s 20 -w - | tcpdump -e -n -r - 2>/dev/null >"$NODE/sent"
    equal "frames that it sent" "$(grep -cF "$(mac_of a) > $(mac_of b)" "$NODE/sent")" 50
    # It ends with its command, and costs nobody a frame.
    "$DIST/fairleadd" vswitch capture default/a -w "$NODE/b.pcapng" &
    eventually 30 has_bytes "$NODE/b.pcapng" 200000
    kill -INT $!
    wait $!
    [ "$(tcpdump -n -r "$NODE/b.pcapng" 2>/dev/null | wc -l)" -gt 1000 ]
    frames_flow a b
    "$DIST/fairleadd" vswitch capture nobody -c 1 -w - >"$NODE/nobody" 2>&1 && return 1
    grep -F '"nobody" names no port' "$NODE/nobody"
}

has_bytes() { [ "$(stat -c %s "$1")" -ge "$2" ]; } # FILE BYTES

it "the switch and the daemon start" both_start
it "k29 two DPDK pods exchange frames by the sockets that ADD made" two_pods
it "a person sees ports, addresses and attachments" what_a_person_sees
it "frames of a pod are captured for tcpdump" captured
it "a pod of another network gets no frame" another_network
it "the daemon dies, and frames go on" without_the_daemon
it "a pod of another VLAN, and one that sends as its neighbour, reach nobody" vlans_and_false_addresses
it "the switch dies, and has its ports again" the_switch_anew
it "DEL takes ports and sockets away" removed
it "GC removes the ports of pods that are no more" collected
it "pods whose memory is huge pages exchange frames, and the switch keeps none of them" in_huge_pages
it "pods that make their sockets themselves are connected to, and again when the switch has died" pods_that_listen
it "k29 x10 pods with nothing but what kubelet's Allocate answered exchange frames, in both modes" ports_of_pools
it "pods on two threads of the switch exchange frames" pods_on_two_threads
it "a DPDK pod and a kernel's stack at the other end of the wire reach each other, by AF_XDP" reaches_the_wire
it "a macvlan pod on the bridge at the other end of its veth reaches it" beside_a_macvlan
it "daemon and switch die, and the pod reaches the wire again" the_daemon_and_the_switch_anew_with_an_uplink
it "the uplink's interface goes away and is made again, and the pod reaches the wire again" the_interface_anew
it "the DEL of the last port gives the interface back" gives_the_interface_back
it "k18 the daemon stops on SIGTERM" daemon_stop
finish
