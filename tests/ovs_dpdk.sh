#!/usr/bin/env bash
# Two DPDK applications (testpmd, as another user than root, each in a namespace that has its volume only, or only what kubelet's Allocate
# answered) exchange frames over a real OVS-DPDK, by ports that ADD has made: OVS, the daemon and its executable as they are installed.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/dpdk_pods.sh"
NODE_PARTS=(ovs reference)
enter_node "$@"

OVS=$ROOT/.cache/ovs/usr
export OVS_RUNDIR=/run/openvswitch OVS_LOGDIR=$LOG OVS_DBDIR=$NODE OVS_SYSCONFDIR=$NODE
MOUNTS=/run/fairlead/ovs
DAEMON_FLAGS="--config $NODE/config.yaml"
TIMED=30

vsctl() { "$OVS/bin/ovs-vsctl" --timeout=60 "$@"; }

database_start() {
    mkdir -p $OVS_RUNDIR
    rm -f $OVS_RUNDIR/db.sock
    "$OVS/sbin/ovsdb-server" "$NODE/conf.db" --remote=punix:$OVS_RUNDIR/db.sock --unixctl=$OVS_RUNDIR/db.ctl \
        >>"$LOG/ovsdb-server" 2>&1 &
    echo $! >"$NODE/ovsdb.pid"
    disown $!
    eventually 10 test -S $OVS_RUNDIR/db.sock
}

# Pages of 4 KiB, as vhost/tests/ovs/real_ovs.rs has it; its poll thread leaves the core to others when it has nothing to do.
database_create() {
    rm -f "$NODE/conf.db"
    "$OVS/bin/ovsdb-tool" create "$NODE/conf.db" "$OVS/share/openvswitch/vswitch.ovsschema"
    database_start
    vsctl --no-wait init
    vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-lcore-mask=0x1 other_config:pmd-maxsleep=200 \
        other_config:pmd-cpu-mask=$([ "$(nproc)" -gt 1 ] && echo 0x2 || echo 0x1) other_config:per-port-memory=true \
        other_config:dpdk-extra="--no-pci --no-huge --legacy-mem -m 768 --no-telemetry --file-prefix=ovs${NODE##*.}"
}

# In a network namespace of its own: a bridge of the datapath type netdev makes a tap device.
switch_start() {
    unshare --net "$OVS/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk" unix:$OVS_RUNDIR/db.sock --unixctl=$OVS_RUNDIR/vs.ctl \
        >>"$LOG/ovs-vswitchd" 2>&1 &
    echo $! >"$NODE/vswitchd.pid"
    disown $!
}

ended() { # NAME
    local pid
    pid=$(cat "$NODE/$1.pid")
    kill -KILL "$pid"
    eventually 10 gone "$pid"
}

bridge() { vsctl add-br br0 -- set bridge br0 datapath_type=netdev; }

ovs_start() {
    database_create
    switch_start
    bridge
    vsctl add-port br0 theirs -- set Interface theirs type=dpdkvhostuserclient options:vhost-server-path="$NODE/theirs"
}

all_start() {
    ovs_start
    cat >"$NODE/config.yaml" <<'END'
vhostUser:
  ovs: {database: "unix:/run/openvswitch/db.sock"}
  pools: [{name: red, resourceName: example.com/red, count: 2, mode: server}]
END
    daemon_start
}

# config NAME MODE [KEYS]
config() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"vhost-user","switch":"ovs-dpdk","mode":"%s","ipam":{"type":"host-local","subnet":"10.77.0.0/16"}%s}' "$1" "$2" "${3:-}"
}

port_of() { vsctl --bare --columns=name find Interface "external_ids:fairlead-container=$1-sandbox"; }
our_ports() { vsctl list-ports br0 | grep -vx theirs | wc -l; }
no_port_of_ours() { [ "$(our_ports)" = 0 ]; }
connected() { [ "$(vsctl --bare --columns=name find Interface status:status=connected | grep -c vhu)" = "$1" ]; }

# frames POD rx|tx: that OVS has had from its application, or that the application got.
frames() {
    "$OVS/bin/ovs-ofctl" dump-ports "${BRIDGE:-br0}" "$(port_of "$1")" | grep -o "$2 pkts=[0-9]*" | grep -o '[0-9]*$'
}
received() { frames "$1" tx; }

exchange() { # POD POD: each gets a thousand frames more
    eventually 30 connected 2 && eventually 60 back_and_forth "$@" || { vsctl show; return 1; }
}

# A port is called connected before OVS' poll threads have it, and what is sent to it until then is lost. The few frames that go round
# would all be lost by that: they are sent again if they don't come back.
back_and_forth() { # POD POD
    local one other
    one=$(received "$1") other=$(received "$2")
    say "$1" stop
    say "$2" stop
    say "$2" start
    say "$1" 'start tx_first 4'
    eventually 3 more_than "$1" $((one + 1000)) && eventually 3 more_than "$2" $((other + 1000))
}

two_pods() {
    local pod
    for pod in a b; do
        add $pod data server ',"vlan":10'
        equal "tag of $pod" "$(vsctl get Port "$(port_of $pod)" tag)" 10
        equal "pod" "$(vsctl get Port "$(port_of $pod)" external_ids:fairlead-pod)" $pod
    done
    jq -e '.interfaces[0].socketPath | endswith("/vhost-user/net1.sock")' "$NODE/a.result"
    application a 1 "$(mac_of b)"
    application b 1 "$(mac_of a)"
    exchange a b
    check a
    check b
}

has_had() { [ "$(frames "$1" rx)" -ge "$2" ]; }

another_vlan() {
    local before
    say a stop
    say b stop
    eventually 20 at_rest a b
    before="$(received a) $(received b)"
    add c data server ',"vlan":20'
    application c 1 "$(mac_of a)"
    eventually 20 connected 3
    say c 'start tx_first 4'
    eventually 20 has_had c 128
    sleep 0.3
    equal "what pods of another VLAN got" "$(received a) $(received b)" "$before"
    equal "what the pod got" "$(received c)" 0
    cni DEL c "$(cat "$NODE/c.config")"
    application_end c
    equal "ports" "$(our_ports)" 2
    exchange a b
}

what_somebody_changed() {
    local port told
    port=$(port_of a)
    vsctl set Port "$port" tag=11
    told=$(check a) && return 1
    [[ $told == *"has other settings"* ]] || { echo "$told"; return 1; }
    vsctl set Port "$port" tag=10
    eventually 5 check a
    exchange a b
}

a_careless_hand() {
    put_back a
    taken_again put_back a
    exchange a b
}
put_back() { vsctl del-port "$(port_of "$1")" && eventually 20 both_ports; } # POD
both_ports() { [ "$(our_ports)" = 2 ]; }

the_switch_anew() {
    ended vswitchd
    switch_start
    # Until then the database has what the last one said.
    eventually 30 "$OVS/bin/ovs-ofctl" show br0
    eventually 30 both_served
    taken_again switch_again
    exchange a b
}

# taken_again COMMAND…: DPDK's virtio_user, as a server on a busy machine, can miss a connection that comes while it is still ending the one
# before: it hears of the next one, which it may miss as well. Nobody but OVS makes it, and the command has it do so (docs/vhost-user.md).
taken_again() {
    local try
    for try in 1 2 3; do
        eventually 10 connected 2 && return
        echo "missed a connection for the ${try}th time"
        "$@"
    done
    eventually 30 connected 2
}
switch_again() { ended vswitchd && switch_start; }
both_served() { frames a rx && frames b rx; }

all_of_ovs_anew() {
    ended vswitchd
    ended ovsdb
    ovs_start
    eventually 30 both_ports
    taken_again switch_again
    exchange a b
}

the_daemon_anew() {
    local before
    before=$(received a)
    daemon_kill
    # Lost while nobody looks.
    vsctl del-port "$(port_of b)"
    daemon_start
    eventually 20 both_ports
    taken_again put_back b
    exchange a b
    more_than a "$before"
}

# listens NAME SOCKET: somebody who tells of each connection, and ends it.
listens() {
    local program='
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
while True:
    listener.accept()[0].close()
    print("accepted", flush=True)'
    python3 -c "$program" "$2" >"$NODE/$1.accepted" &
    echo $! >"$NODE/$1.pid"
    disown $!
    eventually 10 test -S "$2"
}
accepted() { wc -l <"$NODE/$1.accepted"; } # NAME
has_accepted() { [ "$(accepted "$1")" -ge "$2" ]; }

# The pod's link leads OVS to another socket: by the port's path it follows none. One thread of OVS' tries all ports that are not connected in
# turn, each second: it has tried this one as often as that of `theirs`.
a_pod_that_cheats() {
    application_end a
    rm -f "$(volume a)/net1.sock"
    listens led "$NODE/led.sock"
    ln -s "$NODE/led.sock" "$(volume a)/net1.sock"
    eventually 20 connected 1
    listens theirs "$NODE/theirs"
    eventually 30 has_accepted theirs 4
    equal "connections of OVS where the link leads" "$(accepted led)" 0
    # By a path that is not the daemon's it is led there.
    vsctl add-port br0 led -- set Interface led type=dpdkvhostuserclient options:vhost-server-path="$(volume a)/net1.sock"
    eventually 30 has_accepted led 1
    vsctl del-port led
    ended led
    ended theirs
    rm "$NODE/theirs" "$(volume a)/net1.sock"
    application a 1 "$(mac_of b)"
    exchange a b
}

removed() {
    local pod
    for pod in a b; do
        cni DEL $pod "$(cat "$NODE/$pod.config")"
        cni DEL $pod "$(cat "$NODE/$pod.config")"
        application_end $pod
        ip netns del $pod
    done
    nothing_is_left
    eventually 10 no_address_held
}

nothing_is_left() {
    equal "ports" "$(vsctl list-ports br0)" theirs
    equal "what is left of mounts" "$(ls -A $MOUNTS)$(grep -c " $MOUNTS/" /proc/mounts || true)" 0
}

while_ovs_is_away() {
    add g data server
    ended ovsdb
    eventually 20 told_by_status "$(config data server)" ovsdb-server || { cni STATUS g "$(config data server)"; return 1; }
    # Again and again: a machine that is busy elsewhere answers nobody within 95 ms.
    eventually 20 told_by_status "$(of_paths ovs ovs ovs)" ovsdb-server
    eventually 20 cni STATUS g "$(of_paths ovs macvlan)"
    cni DEL g "$(cat "$NODE/g.config")"
    database_start
    eventually 20 no_port_of_ours
    nothing_is_left
    ip netns del g
}

# Says what is away, and blames nobody else: an answer that comes too late is taken for that of a daemon that hangs.
told_by_status() { # CONFIG PROGRAM
    local told
    told=$(cni STATUS g "$1") && return 1
    [ "$(jq .code <<<"$told")" = 50 ] && [[ $told == *"$2"* && $told != *fairleadd* ]]
}

# of_paths PATH…: a network of type fairlead with these: ovs, or macvlan.
of_paths() {
    local path paths=()
    for path in "$@"; do
        case $path in
        ovs) paths+=('{"type":"vhost-user","switch":"ovs-dpdk","mode":"server"}') ;;
        *) paths+=('{"type":"macvlan","master":"eth0"}') ;;
        esac
    done
    printf '{"cniVersion":"1.1.0","name":"several","type":"fairlead","ipam":{},"paths":[%s]}' "$(IFS=,; echo "${paths[*]}")"
}

# The database is there, and nobody does what it says.
while_the_switch_is_away() {
    local pod told
    for pod in a b g; do
        rm -rf "$(volume $pod)" # with the socket that an application has left
        add $pod data server
        check $pod
    done
    application a 1 "$(mac_of b)"
    application b 1 "$(mac_of a)"
    exchange a b
    ended vswitchd
    # STATUS has it asked, and tells some seconds later that it has not answered.
    eventually 60 told_by_status "$(config data server)" ovs-vswitchd
    eventually 20 cni STATUS g "$(of_paths ovs macvlan)"
    told=$(check a) && return 1
    [[ $(jq .code <<<"$told") == 11 && $told == *"ovs-vswitchd does not run"* ]] || { echo "$told"; return 1; }
    cni DEL g "$(config data server)"
    equal "ports" "$(our_ports)" 2
    told=$(STARTED_BY="timeout 4" cni ADD g "$(config data server)") && return 1
    [[ $(jq .code <<<"$told") == 11 && $told == *"ovs-vswitchd does not run"* ]] || { echo "$told"; return 1; }
    cni DEL g "$(config data server)"
    cni ADD g "$(of_paths ovs macvlan)" >"$NODE/g.result" || { cat "$NODE/g.result"; return 1; }
    ip -n g -o link show net1 type macvlan
    cni DEL g "$(of_paths ovs macvlan)"
    switch_start
    eventually 60 cni STATUS g "$(config data server)"
    check a
    eventually 30 both_served
    taken_again switch_again
    exchange a b
    pods_end a b
    ip netns del g
    nothing_is_left
}

# The ports' own words name the node that made them.
another_name() {
    add g data server
    add h data server
    daemon_kill
    printf 'nodeName: renamed\n' >>"$NODE/config.yaml"
    daemon_start
    eventually 20 has_name g renamed
    eventually 20 has_name h renamed
    check g
    check h
    cni DEL g "$(cat "$NODE/g.config")"
    daemon_kill
    sed -i /nodeName/d "$NODE/config.yaml"
    daemon_start
    cni DEL h "$(cat "$NODE/h.config")"
    nothing_is_left
    ip netns del g
    ip netns del h
}
has_name() { [ "$(vsctl get Port "$(port_of "$1")" external_ids:fairlead)" = "$2" ]; } # POD NODE

collected() {
    add h data server
    equal "ports" "$(our_ports)" 1
    cni GC "" "$(config data server ',"cni.dev/valid-attachments":[]')"
    nothing_is_left
    ip netns del h
}

shared_dir() { echo "$VOLUMES/uid-$1/volumes/kubernetes.io~empty-dir/shared-dir"; }

# userspace-cni's own example, but for the kubeconfig: no cluster is here.
userspace_config() {
    printf '{"cniVersion":"0.3.1","type":"userspace","name":"userspace-ovs-net-1","logFile":"/var/log/userspace.log","logLevel":"debug",
        "host":{"engine":"ovs-dpdk","iftype":"vhostuser","netType":"bridge","vhost":{"mode":"client"},"bridge":{"bridgeName":"br-4"}},
        "container":{"engine":"ovs-dpdk","iftype":"vhostuser","netType":"interface","vhost":{"mode":"server"}},
        "ipam":{"type":"host-local","subnet":"10.56.217.0/24","rangeStart":"10.56.217.131","rangeEnd":"10.56.217.190",
            "routes":[{"dst":"0.0.0.0/0"}],"gateway":"10.56.217.1"}}'
}

add_of_userspace() { # POD
    local told
    ip netns add "$1"
    mkdir -p "$(shared_dir "$1")"
    chmod 777 "$(shared_dir "$1")"
    userspace_config >"$NODE/$1.config"
    cni ADD "$1" "$(cat "$NODE/$1.config")" >"$NODE/$1.result" || { cat "$NODE/$1.result"; return 1; }
    told=$(shared_dir "$1")/configData-$1-sandbox-net1.json
    equal "mode" "$(jq -r .config.vhost.mode "$told")" server
    equal "address" "$(jq -r '.ipResult.ips[0].address' "$told")" "$(jq -r '.ips[0].address' "$NODE/$1.result")"
    SOCKET_OF[$1]=/mnt/$(jq -r .config.vhost.socketfile "$told")
}
declare -A SOCKET_OF

userspace_cnis_own() {
    local pod BRIDGE=br-4
    for pod in u w; do add_of_userspace $pod; done
    equal "datapath" "$(vsctl get Bridge br-4 datapath_type)" netdev
    testpmd u 1 "$(mac_of w)" "$OF_VOLUME" "${SOCKET_OF[u]}" "$(shared_dir u)"
    testpmd w 1 "$(mac_of u)" "$OF_VOLUME" "${SOCKET_OF[w]}" "$(shared_dir w)"
    exchange u w
    pods_end u w
    for pod in u w; do
        [ ! -e "$(shared_dir $pod)/configData-$pod-sandbox-net1.json" ]
    done
    equal "ports" "$(vsctl list-ports br-4)" ""
    vsctl del-br br-4
    nothing_is_left
}

add_of_port() { # POD PORT
    allocate "$1" "$2"
    ip netns add "$1"
    printf '{"cniVersion":"1.1.0","name":"net","type":"vhost-user","switch":"ovs-dpdk","k8s.v1.cni.cncf.io/resourceName":"example.com/%s"}' "${2%-*}" >"$NODE/$1.config"
    cni ADD "$1" "$(cat "$NODE/$1.config")" >"$NODE/$1.result" || { cat "$NODE/$1.result"; return 1; }
    check "$1"
}

ports_of_a_pool() {
    add_of_port d red-00
    add_of_port e red-01
    application_of_port d 1 "$(mac_of e)"
    application_of_port e 1 "$(mac_of d)"
    exchange d e
    pods_end d e
    kubelet_end
    nothing_is_left
}

# timed PROGRAM ARGUMENT…: microseconds from its start to its end. It is started as runtimes start it, without a fork: that of this shell
# takes a third of an ADD.
timed() {
    local program='
import os, sys, time
silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
begun = time.perf_counter_ns()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent)
status = os.waitpid(child, 0)[1]
print((time.perf_counter_ns() - begun) // 1000)
sys.exit(status != 0)'
    python3 -c "$program" "$@"
}
median() { sort -n | sed -n "$((TIMED / 2))p"; }

beside_ovs_vsctl() {
    local n ours=() theirs=()
    # A switch whose poll threads sleep takes ten milliseconds more for each change.
    vsctl remove Open_vSwitch . other_config pmd-maxsleep
    # Before and after: the end of a namespace takes processor time.
    for ((n = 0; n < TIMED; n++)); do fresh_pod t$n; done
    for ((n = 0; n < TIMED; n++)); do
        ours+=("$(STARTED_BY=timed cni ADD t$n "$(config data server ',"ipam":{}')")")
        theirs+=("$(timed "$OVS/bin/ovs-vsctl" --timeout=60 add-port br0 v$n \
            -- set Interface v$n type=dpdkvhostuserclient options:vhost-server-path="$NODE/v$n")")
        vsctl del-port v$n
        cni DEL t$n "$(config data server)"
    done
    for ((n = 0; n < TIMED; n++)); do ip netns del t$n; done
    local p50 other
    p50=$(printf '%s\n' "${ours[@]}" | median) other=$(printf '%s\n' "${theirs[@]}" | median)
    figure "ADD of a port of OVS, p50 of $TIMED with the executable's start: $p50 µs; ovs-vsctl add-port: $other µs, $((other * 100 / p50)) % of it"
    vsctl set Open_vSwitch . other_config:pmd-maxsleep=200
    nothing_is_left
}

it "OVS-DPDK and the daemon start" all_start
it "k29 two DPDK pods exchange frames over OVS by ports that ADD made" two_pods
it "a pod of another VLAN gets no frame, and sends none" another_vlan
it "CHECK tells what somebody changed" what_somebody_changed
it "a port that somebody deleted is put back" a_careless_hand
it "ovs-vswitchd dies, and frames flow again" the_switch_anew
it "OVS with a new database has the ports again" all_of_ovs_anew
it "the daemon dies, and puts back what was lost meanwhile" the_daemon_anew
it "OVS is led to no socket by a link of the pod's" a_pod_that_cheats
it "DEL takes ports and mounts away, and nobody else's port" removed
it "DEL while OVS is away is a success, and the port goes when it is back" while_ovs_is_away
it "ovs-vswitchd is away: STATUS and CHECK tell, ADD fails at once or takes the next path, DEL is a success" while_the_switch_is_away
it "the daemon is called otherwise, and its ports are its own" another_name
it "GC removes the port of a pod that is no more" collected
it "k29 x10 pods with nothing but what kubelet's Allocate answered exchange frames over OVS" ports_of_a_pool
it "pods of userspace-cni's own example exchange frames over a bridge that was made for them" userspace_cnis_own
it "how long an ADD takes beside ovs-vsctl" beside_ovs_vsctl
it "k18 the daemon stops on SIGTERM" daemon_stop
finish
