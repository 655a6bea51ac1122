#!/usr/bin/env bash
# libcni as the caller (cnitool): every command of the specification in the versions that libcni sends
# (PLUGINS=reference: the same with the reference plugins, without the cases that concern the daemon).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
NODE_PARTS=(reference)
enter_node "$@"

# call COMMAND NETWORK
call() { CNI_PATH=$CNIBIN NETCONFPATH=$NETD "$BIN/cnitool" "$1" "$2" /run/netns/pod; }

fresh_pod() {
    ip netns del pod 2>/dev/null || true
    ip netns add pod
}

released() { eventually 10 equal_now 0 || equal_now 0; }
equal_now() { equal "addresses held" "$(addresses_held)" "$1"; }

a_call_of_each_kind() { # VERSION
    fresh_pod
    call add "net-$1" >"$NODE/result"
    jq -e --arg v "$1" '.cniVersion == $v' "$NODE/result"
    jq -e '.interfaces[0].name == "eth0" and .interfaces[0].sandbox == "/run/netns/pod"' "$NODE/result"
    jq -e '.ips[0].address | startswith("10.60.")' "$NODE/result"
    ip -n pod -j address show dev eth0 | jq -e --slurpfile r "$NODE/result" \
        '.[0].address == $r[0].interfaces[0].mac and any(.[0].addr_info[]; "\(.local)/\(.prefixlen)" == $r[0].ips[0].address)'
    eventually 10 ip netns exec pod busybox ping -c 1 -W 2 -q 10.60.0.1
    [ "$1" = 0.3.1 ] || call check "net-$1"
    call del "net-$1"
    call del "net-$1" # once more is success too
    # silent at once, under no name of its own; the link itself may go a moment later
    equal "addresses of the pod" "$(ip -n pod -br address | grep -c -F -e 10.60. -e eth0 || true)" 0
    eventually 10 only_loopback || { ip -n pod link; return 1; }
    released
}

only_loopback() { [ "$(ip -n pod -br link | wc -l)" = 1 ]; }

check_really_looks() {
    fresh_pod
    call add net-1.1.0 >/dev/null
    ip -n pod address flush dev eth0 scope global
    ! call check net-1.1.0 || { echo "CHECK did not see that the address is gone"; return 1; }
    call del net-1.1.0
    released
}

del_without_namespace() {
    fresh_pod
    call add net-1.1.0 >/dev/null
    ip netns del pod
    call del net-1.1.0
    released
}

gc_collects() {
    fresh_pod
    call add net-1.1.0 >/dev/null
    equal_now 1
    call gc net-1.1.0
    released
}

an_error_is_an_error_object() {
    fresh_pod
    ip -n pod link add eth0 type veth peer name other
    ! call add net-1.1.0 >"$NODE/error" 2>&1 || { echo "ADD took a name that is taken"; return 1; }
    grep -F eth0 "$NODE/error"
    released
}

status_with_the_daemon_down() {
    daemon_kill
    ! call status net-1.1.0 >"$NODE/error" 2>&1 || { echo "STATUS is success without a daemon"; return 1; }
    cat "$NODE/error"
    grep -F fairlead.sock "$NODE/error"
    daemon_start
    call status net-1.1.0
}

# The fewest page faults of three runs of a program, as the kernel counts them: where its stack begins is a matter of chance.
page_faults() { # COMMAND PROGRAM
    local config
    config=$(jq -c '{cniVersion, name} + .plugins[0]' "$NETD/net-1.1.0.conflist")
    env -i PATH=/usr/bin:/bin CNI_COMMAND="$1" CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/pod CNI_IFNAME=net1 \
        CNI_PATH="$CNIBIN" CONFIG="$config" python3 -c '
import os, sys
def run(environment):
    config = os.memfd_create("config")
    os.write(config, environment["CONFIG"].encode())
    os.lseek(config, 0, os.SEEK_SET)
    streams = [(os.POSIX_SPAWN_DUP2, config, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.argv[1], [sys.argv[1]], environment, file_actions=streams)
    _, status, used = os.wait4(child, 0)
    assert status == 0, status
    return used.ru_minflt
def one():
    faults = run(dict(os.environ))
    run(dict(os.environ, CNI_COMMAND="DEL"))
    return faults
print(min(one() for _ in range(3)))' "$2"
}

# What a usual call runs is in one stretch of the file (shim/usual_path.ld): without that it makes eleven more.
as_few_page_faults() {
    local of_empty command faults
    fresh_pod
    of_empty=$(page_faults ADD "$DIST/fairlead-empty")
    for command in ADD DEL; do
        faults=$(page_faults $command "$DIST/fairlead")
        echo "$command: $faults page faults, an empty program: $of_empty"
        [ "$faults" -le $((of_empty + 4)) ] || { echo "too many; was it built for musl?"; return 1; }
    done
    released
}

# The dhcp plugin's daemon looks the interface up in the pod before it asks a server.
dhcp_serves() {
    local config=$NODE/udhcpd.conf
    cp /usr/lib/cni/dhcp "$CNIBIN"
    network_config dhcp unused 1.0.0 | jq '.plugins[0].ipam = {type: "dhcp"}' >"$NETD/dhcp.conflist"
    printf '%s\n' "interface wire" "start 10.250.7.1" "end 10.250.7.9" "lease_file $NODE/leases" "pidfile $NODE/udhcpd.pid" \
        "option subnet 255.255.0.0" "option router 10.250.0.1" "option lease 600" >"$config"
    touch "$NODE/leases"
    ip netns exec wire busybox udhcpd -f "$config" >"$LOG/udhcpd" 2>&1 &
    local server=$!
    mkdir -p /run/cni
    "$CNIBIN/dhcp" daemon >"$LOG/dhcp" 2>&1 &
    # shellcheck disable=SC2064 # both are known now, and gone later
    trap "kill $server $!; cat '$LOG/udhcpd' '$LOG/dhcp'; rm '$NETD/dhcp.conflist'" EXIT
    eventually 5 test -S /run/cni/dhcp.sock
    fresh_pod
    call add dhcp >"$NODE/result"
    jq -e '.ips[0].address | startswith("10.250.7.")' "$NODE/result"
    eventually 10 ip netns exec pod busybox ping -c 1 -W 2 -q 10.250.0.1
    call check dhcp
    call del dhcp
    eventually 10 only_loopback
    grep -F 'lease acquired' "$LOG/dhcp"
    grep -F 'releasing lease' "$LOG/dhcp"
}

for version in 0.3.1 0.4.0 1.0.0 1.1.0; do
    network_config net-$version 10.60.0.0/16 $version >"$NETD/net-$version.conflist"
done
! ours || it "the daemon starts and is ready" daemon_start
for version in 0.3.1 0.4.0 1.0.0 1.1.0; do
    it "libcni adds, checks and deletes with version $version" a_call_of_each_kind $version
done
it "CHECK fails when the address is gone" check_really_looks
it "a pod has an address of a DHCP server by the reference plugin, and gives it back" dhcp_serves
it "r03 DEL succeeds when the namespace is gone" del_without_namespace
it "GC collects what no longer counts" gc_collects
it "STATUS is success" call status net-1.1.0
it "an ADD on a name that is taken fails and holds no address" an_error_is_an_error_object
if ours; then
    it "a call of the executable makes hardly more page faults than an empty program" as_few_page_faults
    it "k03 STATUS is refused while the daemon is down" status_with_the_daemon_down
    it "k18 the daemon stops on SIGTERM" daemon_stop
fi
finish
