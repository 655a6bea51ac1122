#!/usr/bin/env bash
# The unit as systemd runs it. The commands of docs/install.md put Fairlead on a node whose first process is systemd, in
# namespaces of its own; there the daemon is called, restarted, killed and stopped, and a plugin that it executes takes
# twice the memory that the daemon may have.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"

self=$(readlink -f "$0")
PLUGIN_DIR=/opt/cni/bin

# ---- a node with systemd ----
CGROUPS=/sys/fs/cgroup
# The units of a node that does nothing else: those of the whole machine cost 40 s under emulation.
export SYSTEMD_UNIT_PATH=/run/node-units:/etc/systemd/system
UNITS=(basic.target sysinit.target multi-user.target shutdown.target)

node_outside() {
    guest_up
    mkdir -p $CGROUPS/node
    echo "+memory +pids" >$CGROUPS/cgroup.subtree_control
    unshare --pid --mount --fork --kill-child --mount-proc -- bash "$self" init </dev/null >"$LOG/systemd" 2>&1 &
    outside=$!
    trap 'kill -9 $outside || true; rm -rf $PLUGIN_DIR' EXIT # and with it the whole node; the plugins are in this machine's memory
    eventually 30 node_is_up || { tail -20 "$LOG/systemd"; exit 1; }
    in_node bash "$self" inside
}

in_node() { nsenter -t "$(tr -d ' ' </proc/$outside/task/$outside/children)" -m -p -C -- "$@"; }
node_is_up() { in_node systemctl is-active basic.target; }

# Nothing but systemd may be in the node's topmost cgroup, or it can give its units no limits.
node_init() {
    echo 0 >$CGROUPS/node/cgroup.procs
    exec unshare --cgroup -- bash "$self" first
}

first() {
    mount -t tmpfs -o mode=755 tmpfs /run
    umount $CGROUPS
    mount -t cgroup2 cgroup2 $CGROUPS
    mkdir -p /run/node-units /run/netns
    (cd /lib/systemd/system && cp "${UNITS[@]}" /run/node-units)
    exec env container=lab /lib/systemd/systemd --system --unit=basic.target --show-status=no --log-target=console
}

case ${1:-} in
init) node_init ;;
first) first ;;
inside) ;;
*)
    ! ours || { node_outside; exit; }
    echo "systemd.sh: 0 passed, 0 failed (it is about the daemon)"
    exit
    ;;
esac

# ---- on that node ----
node_places "$(mktemp -d)"
MASTER=$(nic $PF0)
UNIT_CGROUP=$CGROUPS/system.slice/fairleadd.service

# The first block of "On one node, with systemd", as it stands there; dist/ is built.
documented_commands() {
    sed -n '/^## On one node, with systemd/,$p' "$ROOT/docs/install.md" | sed -n '/^```$/,/^```$/p' | sed '1d; /^```$/,$d; /^make build/d'
}

as_documented() {
    mkdir -p /run/node-units/fairleadd.service.d # the log to a file: there is no journal here
    printf '[Service]\nStandard%s=append:'"$LOG"'/fairleadd\n' Output Error >/run/node-units/fairleadd.service.d/log.conf
    mkdir -p $PLUGIN_DIR /etc/cni/net.d
    cp "$BIN/plugins"/* $PLUGIN_DIR
    witness >$PLUGIN_DIR/witness
    chmod 755 $PLUGIN_DIR/witness
    list cluster '{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.rp_filter":"2"}}' \
        '{"type":"portmap","capabilities":{"portMappings":true},"snat":false}' >/etc/cni/net.d/10-cluster.conflist
    list hungry >/etc/cni/net.d/20-hungry.conflist
    documented_commands | tee "$NODE/commands"
    [ "$(wc -l <"$NODE/commands")" -ge 5 ] || return 1
    runtime_configuration
    # The directories are those of the unit, and not this script's.
    (cd "$ROOT" && env -u CNI_CONF_DIR -u CNI_PLUGIN_DIR bash -euo pipefail "$NODE/commands")
}

# Debian's containerd looks for plugins elsewhere, and podman's network has one that is not there: doctor warns of both, rightly.
runtime_configuration() {
    mkdir -p /etc/containerd
    rm -f /etc/cni/net.d/*podman*
    cat >/etc/containerd/config.toml <<C
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$PLUGIN_DIR"
  conf_dir = "/etc/cni/net.d"
C
}

# A plugin that tells how it was run, and takes as much memory as it is told to.
witness() {
    cat <<'W'
#!/bin/bash
config=$(cat)
[ ! -e /run/witness-takes ] || dd if=/dev/zero of=/dev/null bs="$(cat /run/witness-takes)" count=1 2>/dev/null || exit 9
{ cat /proc/self/cgroup; umask; } >>"/run/witness"
[ "$CNI_COMMAND" != ADD ] || { result=${config#*\"prevResult\":}; printf '%s' "${result%,\"type\":\"witness\"\}}"; }
W
}

# list NAME PLUGIN…: macvlan, these, the witness
list() {
    local name=$1
    shift
    printf '{"cniVersion":"1.0.0","name":"%s","plugins":[{"type":"macvlan","master":"%s","ipam":%s}' "$name" "$MASTER" \
        '{"type":"host-local","subnet":"10.8.0.0/24","rangeStart":"10.8.0.20"}'
    printf ',%s' "$@" '{"type":"witness"}'
    printf ']}'
}

unit() { systemctl show -P "$1" fairleadd; } # PROPERTY
is() { equal "$1" "$(unit "$1")" "$2"; }     # PROPERTY VALUE
main_pid_is_not() { [ "$(unit MainPID)" != "$1" ] && [ "$(unit MainPID)" != 0 ] && api /readyz >/dev/null; }

active_and_ready() {
    is ActiveState active
    is Type notify
    api /readyz >/dev/null
    equal "access" "$(stat -c %a /run/fairlead /run/fairlead/fairlead.sock /var/lib/fairlead | tr '\n' ' ')" "700 600 700 "
    equal "what systemd says of the unit" "$(systemd-analyze verify --man=no fairleadd.service 2>&1)" ""
}

# ---- calls of one network, and of a whole list ----
ONE=$(config macvlan "\"master\":\"$MASTER\",$(static 10.8.0.11/24)")
ALL=$(config fairlead '"clusterNetwork":"cluster","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}')
HUNGRY=$(config fairlead '"clusterNetwork":"hungry"')
new_pod() {
    ip netns del "$1" 2>/dev/null || true
    ip netns add "$1"
}

a_pod_of_one_network() {
    new_pod one
    plugin $PLUGIN_DIR ADD one "$ONE" >/run/one.result
    reaches 10.8.0.1 one
}

a_pod_of_a_whole_list() {
    new_pod all
    plugin $PLUGIN_DIR ADD all "$ALL" >/run/all.result
    reaches 10.8.0.1 all
    equal "rp_filter" "$(ip netns exec all cat /proc/sys/net/ipv4/conf/net1/rp_filter)" 2
    iptables -t nat -S | grep -F -e "--dport 8080"
    equal "the plugin's cgroup and umask" "$(cat /run/witness)" "0::/system.slice/fairlead-delegates
0022"
    plugin $PLUGIN_DIR DEL all "$ALL"
    ! iptables -t nat -S | grep -F -e "--dport 8080" || return 1
}

still_there() {
    equal "attachments" "$(attachments)" 1
    plugin $PLUGIN_DIR CHECK one "$(with_result "$ONE" "$(cat /run/one.result)")"
    reaches 10.8.0.1 one
}

restarted() {
    local pid
    pid=$(unit MainPID)
    systemctl restart fairleadd
    main_pid_is_not "$pid"
    still_there
}

reloaded() {
    local pid
    pid=$(unit MainPID)
    systemctl reload fairleadd
    is MainPID "$pid"
    still_there
}

killed() {
    local pid
    pid=$(unit MainPID)
    kill -9 "$pid"
    eventually 20 main_pid_is_not "$pid"
    still_there
}

nothing_is_attached() { [ "$(attachments)" = 0 ]; }

stopped() {
    systemctl stop fairleadd
    is ActiveState inactive
    is Result success
    is ExecMainStatus 0
    plugin $PLUGIN_DIR DEL one "$ONE"
    equal "spooled" "$(spooled)" 1
    systemctl start fairleadd
    eventually 10 nothing_is_attached
    equal "spooled" "$(spooled)" 0
}

# ---- memory ----
oom_kills() { sed -n 's/^oom_kill //p' $UNIT_CGROUP/memory.events; }

takes_twice_as_much() {
    local pid kills
    systemctl set-property --runtime fairleadd MemoryMax=64M
    equal "the daemon's limit" "$(cat $UNIT_CGROUP/memory.max)" $((64 << 20))
    pid=$(unit MainPID) kills=$(oom_kills)
    echo 128M >/run/witness-takes
    new_pod big
    plugin $PLUGIN_DIR ADD big "$HUNGRY" >/dev/null
    plugin $PLUGIN_DIR DEL big "$HUNGRY"
    equal "processes killed for memory" "$(oom_kills)" "$kills"
    is MainPID "$pid"
}

# That the limit bites: the same in the daemon's own cgroup.
takes_it_from_the_daemon() {
    local pid kills
    mkdir -p /etc/fairlead
    echo "delegateCgroup: /system.slice/fairleadd.service" >/etc/fairlead/config.yaml
    systemctl restart fairleadd
    pid=$(unit MainPID) kills=$(oom_kills)
    new_pod big
    ! plugin $PLUGIN_DIR ADD big "$HUNGRY" >"$NODE/error" || { echo "the limit does not bite"; return 1; }
    grep -F witness "$NODE/error"
    [ "$(oom_kills)" -gt "$kills" ]
    is MainPID "$pid"
    rm /run/witness-takes
    equal "links of the pod" "$(ip -n big -br link | grep -c net1 || true)" 0
    # Killed in the undo as well, it owes the daemon that it is done: the address goes with it.
    plugin $PLUGIN_DIR DEL big "$HUNGRY"
    eventually 10 no_address_held || { find /var/lib/cni/networks; return 1; }
}

it "the documented commands put Fairlead on a node with systemd" as_documented
it "systemctl start returns when the daemon is ready, and systemd has no complaint about the unit" active_and_ready
it "a pod gets its network through the unit" a_pod_of_one_network
it "plugins that the daemon executes do their work in the unit, in a cgroup and with a umask of their own" a_pod_of_a_whole_list
it "systemctl restart keeps what is attached" restarted
it "systemctl reload keeps the daemon and what is attached" reloaded
it "a daemon that is killed is started again and keeps what is attached" killed
it "systemctl stop exits 0, and a DEL made then is carried out at the start" stopped
it "a plugin takes 128 MiB while the daemon may have 64, and nobody is killed" takes_twice_as_much
it "in the daemon's own cgroup it is killed, the daemon is not, and the ADD is undone" takes_it_from_the_daemon
finish
