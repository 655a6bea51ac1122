#!/usr/bin/env bash
# What is Fairlead's alone with sriov on real VFs (igb): a daemon that is not there, or is killed at a step; and
# VFs that sriov-cni gave to pods before. What any plugin should do is in any_sriov_plugin.sh.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
vfs_up

sriov() { config sriov "\"deviceID\":\"$1\"${2:+,$2}"; } # PCI [FIELDS]
add() { plugin "$CNIBIN" ADD "$1" "$(sriov "$2" "${3:-}")"; }         # POD PCI [FIELDS]
del() { plugin "$CNIBIN" DEL "$1" "$(sriov "$2" "${3:-}")"; }         # POD PCI [FIELDS]

is_home() { [ "$(home "$1")" = "$2" ]; } # PCI WHAT-IT-WAS
eventually_home() { eventually 15 is_home "$1" "$2" || { diff -u <(echo "$2") <(home "$1"); return 1; }; }
comes_home() { equal "the function" "$(home "$1")" "$2"; }

pods_gone() {
    local pod
    for pod in pod other; do ip netns del $pod 2>/dev/null || true; done
}

# A VF with marks of its own; `before` is what it is.
marked() { # PCI
    local name
    pods_gone
    name=$(nic "$1")
    ip link set "$name" down
    ip link set "$name" mtu 1400 alias mine
    ip link property add dev "$name" altname "mark-$name" 2>/dev/null || true
    before=$(home "$1")
    ip netns add pod
}

TAKEN='"vlan":100,"vlanQoS":3,"spoofchk":"off","trust":"on","max_tx_rate":200'
AS_WANTED='[100,3,200,false,true]'

its_pod_dies_and_nobody_is_there() {
    local before
    marked $VF0
    add pod $VF0 "$TAKEN" >/dev/null
    daemon_kill
    ip netns del pod
    daemon_start
    eventually_home $VF0 "$before"
}

del_while_the_daemon_is_down() {
    local before
    marked $VF0
    add pod $VF0 "$TAKEN" >/dev/null
    daemon_kill
    del pod $VF0 "$TAKEN"
    equal "spooled" "$(spooled)" 1
    daemon_start
    eventually_home $VF0 "$before"
    equal "attachments" "$(attachments)" 0
}

# A daemon that dies at this step, where nobody but the machine's own namespace has the driver's new interface.
dies_at() { # STEP
    local before fields
    fields="\"mac\":\"02:00:00:00:00:77\",$TAKEN"
    marked $VF0
    daemon_stop
    FAIRLEAD_FAILPOINT=$1 daemon_start "$DIST/failpoints/fairleadd"
    ! add pod $VF0 "$fields" || del pod $VF0 "$fields" || true
    eventually 10 gone "$(daemon_pid)"
    daemon_start
    eventually_home $VF0 "$before"
    del pod $VF0 "$fields"
    comes_home $VF0 "$before"
}

# ---- VFs that sriov-cni gave to pods before ----
NOTED=/var/lib/cni/sriov

# What its release 2.10 does at ADD with what TAKEN asks for, and what it notes then.
given_by_sriov_cni() { # PCI
    local name mac mtu admin
    name=$(nic "$1")
    mac=$(cat "/sys/class/net/$name/address") mtu=$(cat "/sys/class/net/$name/mtu") admin=$(settings "$1" | jq -r '.[0]')
    taken_settings "$1" 0
    ip link set dev "$name" netns pod name net1
    ip -n pod link set net1 up
    noted_by_sriov_cni "$1" "\"AdminMAC\":\"$admin\",\"EffectiveMAC\":\"$mac\",\"HostIFName\":\"$name\",\"MTU\":$mtu"
}

taken_settings() { # PCI INDEX
    ip link set "$(nic "$(pf_of "$1")")" vf "$2" vlan 100 qos 3 spoofchk off trust on max_tx_rate 200
}

noted_by_sriov_cni() { # PCI ORIGINAL
    mkdir -p $NOTED/pci
    cat >$NOTED/pod-net1 <<J
{"MAC":"","MTU":1500,"Master":"eth0","OrigVfState":{$2,"LinkState":0,"MaxTxRate":0,"MinTxRate":0,"SpoofChk":true,"Trust":false,
 "Vlan":0,"VlanProto":33024,"VlanQoS":0},"VFID":0,"cniVersion":"1.1.0","deviceID":"$1","ipam":{},"max_tx_rate":200,"min_tx_rate":null,
 "name":"lab","runtimeConfig":{},"spoofchk":"off","trust":"on","type":"sriov","vlan":100,"vlanProto":"802.1q","vlanQoS":3}
J
    printf /run/netns/pod >$NOTED/pci/"$1"
}
none_is_noted() { equal "its files" "$(find $NOTED -type f -not -name '*.lock')" ""; }

its_old_sandbox_ends() {
    local before
    marked $VF0
    given_by_sriov_cni $VF0
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
    none_is_noted
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

its_old_sandbox_lives() {
    local before
    marked $VF0
    ip netns add other
    given_by_sriov_cni $VF0
    ! add other $VF0 >"$NODE/error" || return 1
    cat "$NODE/error"
    equal "code" "$(jq .code "$NODE/error")" 11
    grep -F 'sriov-cni has given it to a pod (pod-net1)' "$NODE/error"
    "$DIST/fairleadd" doctor >"$NODE/doctor" || true
    grep -F "$VF0 (pod-net1)" "$NODE/doctor"
    equal "settings" "$(settings $VF0 | jq -c '.[1:6]')" "$AS_WANTED"
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

its_old_sandbox_is_dead() {
    local before
    marked $VF0
    ip link add net1 type dummy # the pod's name for it is taken: the kernel finds it another
    given_by_sriov_cni $VF0
    ip netns del pod
    ip netns add other
    eventually 15 at_home $VF0
    add other $VF0 >/dev/null
    none_is_noted
    equal "vlan" "$(settings $VF0 | jq '.[1]')" null
    del pod $VF0 "$TAKEN" # late, and nobody's any more
    ip -n other link show dev net1
    del other $VF0
    eventually_home $VF0 "$before"
    ip link del net1
}
at_home() { [ -e /sys/bus/pci/devices/"$1"/net ] && [ -n "$(ls /sys/bus/pci/devices/"$1"/net)" ]; } # PCI

its_old_sandbox_ends_and_the_daemon_dies() {
    local before
    marked $VF0
    given_by_sriov_cni $VF0
    daemon_stop
    FAIRLEAD_FAILPOINT=del.home daemon_start "$DIST/failpoints/fairleadd"
    FAIRLEAD_TIMEOUT=20 del pod $VF0 "$TAKEN" || true
    eventually 10 gone "$(daemon_pid)"
    daemon_start
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
    none_is_noted
}

its_old_sandbox_had_it_in_user_space() {
    local before
    pods_gone
    ip netns add pod
    bind $VF1 vfio-pci
    before=$(settings $VF1)
    taken_settings $VF1 1
    noted_by_sriov_cni $VF1 '"AdminMAC":"00:00:00:00:00:00","EffectiveMAC":"","HostIFName":"","MTU":0'
    del pod $VF1 "$TAKEN"
    equal "settings" "$(settings $VF1)" "$before"
    equal "driver" "$(driver $VF1)" vfio-pci
    none_is_noted
    bind $VF1 igbvf
}

it "the daemon starts and is ready" daemon_start
it "a VF whose pod died with the daemon down comes back at the start" its_pod_dies_and_nobody_is_there
it "a DEL while the daemon is down brings it back at the start" del_while_the_daemon_is_down
for step in add.prepared add.linked del.home del.unlinked; do
    it "k14 the daemon killed at $step, a MAC address given: the restart brings it back" dies_at $step
done
it "the DEL of a pod that sriov-cni made brings its VF back as it noted it" its_old_sandbox_ends
it "a VF of a living pod of sriov-cni's is handed to nobody, and doctor tells of it" its_old_sandbox_lives
it "a VF of a dead pod of sriov-cni's is brought back before it is handed out" its_old_sandbox_is_dead
it "k14 the daemon killed in that DEL: the next one brings it back" its_old_sandbox_ends_and_the_daemon_dies
it "a VF of sriov-cni's in user space has its settings back and keeps its driver" its_old_sandbox_had_it_in_user_space
it "the daemon stops on SIGTERM" daemon_stop
pods_gone
# VF0's own MAC address is the administrator's now: the next script makes them anew.
echo 0 >/sys/bus/pci/devices/$PF0/sriov_numvfs
finish
