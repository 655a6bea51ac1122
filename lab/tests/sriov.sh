#!/usr/bin/env bash
# sriov on real virtual functions (igb): every setting that the NIC takes is set, read back and given back; what it
# refuses is named; VLANs keep pods apart; a function comes home with everything, however its pod ends.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
vfs_up
VF2=0000:01:10.0 # of PF2
ip link set "$(nic $PF2)" up
[ -e /sys/bus/pci/devices/$VF2 ] || echo 1 >/sys/bus/pci/devices/$PF2/sriov_numvfs

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

# A function with marks of its own; `before` is what it is.
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

every_setting() {
    local before result call
    marked $VF0
    call=$(sriov $VF0 "$TAKEN")
    result=$(plugin "$CNIBIN" ADD pod "$call")
    equal "MTU and PCI address" "$(jq -c '.interfaces[0] | [.mtu, .pciID]' <<<"$result")" "[1400,\"$VF0\"]"
    equal "settings" "$(settings $VF0 | jq -c '.[1:6]')" "$AS_WANTED"
    equal "arp_notify" "$(ip netns exec pod cat /proc/sys/net/ipv4/conf/net1/arp_notify)" 1
    plugin "$CNIBIN" CHECK pod "$(with_result "$call" "$result")"
    ip link set "$(nic $PF0)" vf 0 vlan 7
    ! plugin "$CNIBIN" CHECK pod "$(with_result "$call" "$result")" >"$NODE/error" || return 1
    grep -F 'vlan 7 qos 0' "$NODE/error" || grep -F 'vlan 7 instead of vlan 100' "$NODE/error"
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

refused() { # FIELDS SETTING
    local before
    marked $VF0
    ! add pod $VF0 "\"vlan\":100,\"trust\":\"on\",$1" >"$NODE/error" || return 1
    cat "$NODE/error"
    equal "code" "$(jq .code "$NODE/error")" 7
    grep -F "setting $2 for function $VF0" "$NODE/error"
    comes_home $VF0 "$before"
}

explicit_0() {
    local before
    ip link set "$(nic $PF0)" vf 0 vlan 55
    marked $VF0
    add pod $VF0 '"vlan":0' >/dev/null
    equal "vlan" "$(settings $VF0 | jq '.[1]')" null
    del pod $VF0 '"vlan":0'
    comes_home $VF0 "$before"
    ip link set "$(nic $PF0)" vf 0 vlan 0
}

its_mac() {
    local before fields
    fields="\"mac\":\"02:00:00:00:00:77\",$(static 10.8.0.9/24)"
    marked $VF0
    equal "MAC address" "$(add pod $VF0 "$fields" | jq -r '.interfaces[0].mac')" 02:00:00:00:00:77
    equal "the pod's" "$(ip netns exec pod cat /sys/class/net/net1/address 2>/dev/null ||
        ip -n pod -j link show net1 | jq -r '.[0].address')" 02:00:00:00:00:77
    equal "the administrator's" "$(settings $VF0 | jq -r '.[0]')" 02:00:00:00:00:77
    eventually 15 reaches 10.8.0.1 pod
    del pod $VF0 "$fields"
    eventually_home $VF0 "$before"
}

on_vlans() { # VLAN-OF-ONE VLAN-OF-THE-OTHER
    pods_gone
    ip netns add pod
    ip netns add other
    add pod $VF0 "\"vlan\":$1,$(static 10.9.0.1/24)" >/dev/null
    add other $VF2 "\"vlan\":$2,$(static 10.9.0.2/24)" >/dev/null
    eventually 15 linked pod net1
    eventually 15 linked other net1
}
off_vlans() {
    del pod $VF0
    del other $VF2
}
together() {
    on_vlans 100 100
    eventually 15 reaches 10.9.0.2 pod
    off_vlans
}
apart() { # VLAN-OF-ONE VLAN-OF-THE-OTHER
    local n
    on_vlans "$1" "$2"
    for n in 1 2 3; do ! ip netns exec pod busybox ping -c 1 -W 1 -q 10.9.0.2 || return 1; done
    off_vlans
}

heard() { ip -n wire neigh show "$1" dev wire | grep -q lladdr; } # ADDRESS
the_wire_hears_of_it() {
    local fields
    fields=$(static 10.8.0.9/24)
    pods_gone
    ip netns exec wire sh -c 'echo 1 >/proc/sys/net/ipv4/conf/wire/arp_accept'
    ip -n wire neigh flush dev wire
    ip netns add pod
    add pod $VF0 "$fields" >/dev/null
    eventually 15 linked pod net1
    eventually 5 heard 10.8.0.9
    del pod $VF0 "$fields"
}

whatever_the_pod_did() {
    local before
    marked $VF0
    add pod $VF0 "$TAKEN" >/dev/null
    ip -n pod link set net1 down
    ip -n pod link set net1 mtu 1300 address 02:00:00:00:00:66 alias theirs
    ip -n pod link property add dev net1 altname theirs
    ip -n pod link property del dev net1 altname "mark-$(jq -r '.[0]' <<<"${before%%$'\n'*}")"
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

its_pod_dies() {
    local before
    marked $VF0
    ip link add net1 type dummy # the pod's name for it is taken: the kernel finds it another
    add pod $VF0 "$TAKEN" >/dev/null
    ip netns del pod
    eventually_home $VF0 "$before"
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
    ip link del net1
    equal "attachments" "$(attachments)" 0
}

its_pod_dies_just_before_its_del() {
    local before
    marked $VF0
    add pod $VF0 "$TAKEN" >/dev/null
    ip netns del pod
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

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

its_driver_is_taken_away() {
    local before
    marked $VF0
    add pod $VF0 "$TAKEN" >/dev/null
    echo $VF0 >/sys/bus/pci/devices/$VF0/driver/unbind
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

its_functions_are_made_anew() {
    local before
    marked $VF2
    add pod $VF2 "$TAKEN" >/dev/null
    echo 0 >/sys/bus/pci/devices/$PF2/sriov_numvfs
    del pod $VF2 "$TAKEN"
    equal "attachments" "$(attachments)" 0
    echo 1 >/sys/bus/pci/devices/$PF2/sriov_numvfs
    marked $VF2
    add pod $VF2 "$TAKEN" >/dev/null
    echo 0 >/sys/bus/pci/devices/$PF2/sriov_numvfs
    echo 1 >/sys/bus/pci/devices/$PF2/sriov_numvfs
    del pod $VF2 "$TAKEN"
    comes_home $VF2 "$before"
}

one_pod_at_a_time() {
    local before
    marked $VF0
    ip netns add other
    add pod $VF0 "$TAKEN" >/dev/null
    ! add other $VF0 >"$NODE/error" || return 1
    cat "$NODE/error"
    equal "code" "$(jq .code "$NODE/error")" 11
    grep -F 'of container pod' "$NODE/error"
    equal "settings" "$(settings $VF0 | jq -c '.[1:6]')" "$AS_WANTED"
    ip -n pod link show dev net1
    del pod $VF0 "$TAKEN"
    comes_home $VF0 "$before"
}

gc_brings_it_home() {
    local before call
    marked $VF0
    add pod $VF0 "$TAKEN" >/dev/null
    call=$(sriov $VF0 '"cni.dev/valid-attachments":[]')
    plugin "$CNIBIN" GC pod "$call"
    eventually_home $VF0 "$before"
}

# ---- functions that sriov-cni gave to pods before ----
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
    FAIRLEAD_TIMEOUT=5 del pod $VF0 "$TAKEN" || true
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
    echo vfio-pci >/sys/bus/pci/devices/$VF1/driver_override
    echo $VF1 >/sys/bus/pci/devices/$VF1/driver/unbind
    echo $VF1 >/sys/bus/pci/drivers_probe
    before=$(settings $VF1)
    taken_settings $VF1 1
    noted_by_sriov_cni $VF1 '"AdminMAC":"00:00:00:00:00:00","EffectiveMAC":"","HostIFName":"","MTU":0'
    del pod $VF1 "$TAKEN"
    equal "settings" "$(settings $VF1)" "$before"
    equal "driver" "$(driver $VF1)" vfio-pci
    none_is_noted
    echo >/sys/bus/pci/devices/$VF1/driver_override
    echo $VF1 >/sys/bus/pci/devices/$VF1/driver/unbind
    echo $VF1 >/sys/bus/pci/drivers_probe
}

it "the daemon starts and is ready" daemon_start
it "the wire hears of a pod's address unasked, though a function's first carrier takes seconds" the_wire_hears_of_it
it "k27 every setting that the NIC takes is set, checked, and as before after DEL" every_setting
it "a link state, which igb refuses, is named, and everything is as before" \
    refused '"link_state":"enable"' "link_state enable"
it "802.1ad, which igb refuses, is named, and everything is as before" \
    refused '"vlanProto":"802.1ad"' "vlan 100 proto 802.1ad"
it "a guaranteed rate, which igb refuses, is named, and everything is as before" \
    refused '"min_tx_rate":5' "min_tx_rate 5 max_tx_rate 0"
it "a vlan of 0 takes the administrator's away until DEL" explicit_0
it "k27 a MAC address is given by the physical function, taken over, and the own one comes back" its_mac
it "pods on one VLAN reach each other over two NICs" together
it "pods on two VLANs do not" apart 100 200
it "a pod on a VLAN and one on none do not" apart 100 0
it "whatever the pod did to it, a function comes home as it was" whatever_the_pod_did
it "x06 a function whose pod dies comes home without anybody's DEL, and the late DEL is success" its_pod_dies
it "x06 the DEL right after the pod's death brings it home" its_pod_dies_just_before_its_del
it "a function whose pod died with the daemon down comes home at the start" its_pod_dies_and_nobody_is_there
it "a DEL while the daemon is down brings it home at the start" del_while_the_daemon_is_down
for step in add.prepared add.linked del.home del.unlinked; do
    it "k14 the daemon killed at $step, a MAC address given: the restart brings it home" dies_at $step
done
it "a function whose driver is taken away under the pod has it back after DEL" its_driver_is_taken_away
it "the DEL of a function that is gone is success, and one that was made anew is as before" its_functions_are_made_anew
it "a function that is lent is refused to the next pod, and stays as it is" one_pod_at_a_time
it "GC brings a function of no valid attachment home" gc_brings_it_home
it "the DEL of a pod that sriov-cni made brings its function home as it noted it" its_old_sandbox_ends
it "a function of a living pod of sriov-cni's is handed to nobody, and doctor tells of it" its_old_sandbox_lives
it "a function of a dead pod of sriov-cni's is brought home before it is handed out" its_old_sandbox_is_dead
it "k14 the daemon killed in that DEL: the next one brings it home" its_old_sandbox_ends_and_the_daemon_dies
it "a function of sriov-cni's in user space has its settings back and keeps its driver" its_old_sandbox_had_it_in_user_space
it "the daemon stops when it is told to" daemon_stop
pods_gone
# VF0's own MAC address is the administrator's now: the next script makes them anew.
for pf in $PF0 $PF2; do echo 0 >/sys/bus/pci/devices/"$pf"/sriov_numvfs; done
finish
