#!/usr/bin/env bash
# 21 pods at once on all 21 VFs of the three NICs, under igbvf and under vfio-pci, with the daemon killed in the middle;
# then what else may die under a pod. After each everything is as it was before: names, MAC addresses, MTU, drivers,
# settings, pools.
#   ROUNDS=10   how often (2 without it)
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
modprobe vfio-pci
# Its VFs are wanted here, and nobody out on the wire.
ip -n wire link set wire netns 1
ip netns del wire

numvfs() { echo "$2" >/sys/bus/pci/devices/"$1"/sriov_numvfs; } # PF COUNT
FUNCTIONS=()
for pf in $PF0 $PF1 $PF2; do
    numvfs $pf 0
    ip link set "$(nic $pf)" up
    eventually 10 linked "" "$(nic $pf)"
    numvfs $pf 7
    for slot in 10.0 10.2 10.4 10.6 11.0 11.2 11.4; do FUNCTIONS+=("${pf%00.0}$slot"); done
done

# Of each NIC's seven the first four keep their interfaces.
is_dpdk() { (($1 % 7 > 3)); } # NUMBER
kernel='' dpdk=''
for n in "${!FUNCTIONS[@]}"; do
    if is_dpdk "$n"; then dpdk+=",\"${FUNCTIONS[n]}\""; else kernel+=",\"${FUNCTIONS[n]}\""; fi
done
cat >"$NODE/config.yaml" <<Y
pools:
  - name: kernel
    selectors: {pciAddresses: [${kernel#,}]}
    profile: {vlan: 7, mtu: 1400}
  - name: dpdk
    selectors: {pciAddresses: [${dpdk#,}]}
    driver: vfio-pci
Y
DAEMON_FLAGS="--config $NODE/config.yaml"

# What the pod of each asks for: a VLAN of its own, and something else.
CALLS=()
for n in "${!FUNCTIONS[@]}"; do
    case $((n % 7)) in
    0 | 4) also=",$(static "10.9.$n.1/24")" ;;
    1) also=',"spoofchk":"off","max_tx_rate":200' ;;
    2 | 5) also=",\"mac\":\"02:00:00:00:00:$((n + 10))\"" ;;
    *) also='' ;;
    esac
    CALLS+=("$(config sriov "\"deviceID\":\"${FUNCTIONS[n]}\",\"vlan\":$((100 + n))$also")")
done

# A process takes 30 ms in here, a jq 230: everything of all VFs is read by two.
everything() {
    local vf driver
    ip -j -d link show | jq -r '.[]
        | (.ifname as $pf | .vfinfo_list[]? | "\($pf) \(.vf) \([.address, .vlan_list[0].vlan, .vlan_list[0].qos,
            .rate.max_tx, .spoofchk, .trust, .link_state] | tojson)"),
          (select(.parentdev) | "\(.parentdev) \([.ifname, .address, .mtu, .ifalias, .altnames,
            (.flags | index("UP") != null)] | tojson)")' | sort
    for vf in "${FUNCTIONS[@]}"; do
        for driver in igbvf vfio-pci; do
            [ ! "/sys/bus/pci/devices/$vf/driver" -ef /sys/bus/pci/drivers/$driver ] || echo "$vf $driver"
        done
    done
}
is_as() { diff -u <(echo "$1") <(everything); } # WHAT-IT-WAS

all_ready() {
    local told rest
    told=$(api /v1/pools)
    rest=${told//'"state":"ready"'/}
    [ $(((${#told} - ${#rest}) / 15)) = ${#FUNCTIONS[@]} ] || { sleep 0.3; return 1; }
}

# Nobody has one, all are ready, and the machine is as it was when they first were.
all_at_rest() {
    eventually 30 all_ready || { "$DIST/fairleadd" pools; return 1; }
    equal "attachments" "$(attachments)" 0
    equal "spooled" "$(spooled)" 0
    is_as "$(<"$NODE/ready")"
}

call() { plugin "$CNIBIN" "$1" "pod$2" "${CALLS[$2]}"; } # COMMAND NUMBER
check() { plugin "$CNIBIN" CHECK "pod$1" "$(with_result "${CALLS[$1]}" "$2")"; } # NUMBER RESULT

# As a runtime, which tries again.
persistent() { # COMMAND NUMBER
    local try
    for try in {1..20}; do
        if call "$1" "$2" >"$NODE/$1.$2"; then
            : >"$NODE/$1.$2.ok"
            return
        fi
        sleep 0.5
    done
    echo "$try times:" && cat "$NODE/$1.$2"
    return 1
}
at_once() { # COMMAND NUMBER…: begun, not waited for
    local command=$1 n
    shift
    rm -f "$NODE/$command".*
    calls=()
    for n in "$@"; do
        persistent "$command" "$n" &
        calls+=($!)
    done
}
have_ended() { # COMMAND COUNT
    local all=("$NODE/$1".*.ok)
    [ ${#all[@]} -ge "$2" ]
}
all_succeed() {
    local pid failed=0
    for pid in "${calls[@]}"; do wait "$pid" || failed=$((failed + 1)); done
    equal "failures" $failed 0
}

pods() { # add|del NUMBER…; what an earlier case has left is removed
    [ "$1" = del ] || printf 'netns del pod%d\n' "${@:2}" | ip -force -batch - 2>/dev/null || true
    printf "netns $1 pod%d\n" "${@:2}" | ip -batch -
}

vlans() {
    ip -j link show | jq -r '.[] | .ifname as $pf | .vfinfo_list[]? | "\($pf) \(.vf) \(.vlan_list[0].vlan)"' | sort
}
as_asked_for() {
    local pfs n
    pfs=("$(nic $PF0)" "$(nic $PF1)" "$(nic $PF2)")
    for n in "${!FUNCTIONS[@]}"; do echo "${pfs[n / 7]} $((n % 7)) $((100 + n))"; done | sort
}

has_its_own() { # NUMBER
    local vf=${FUNCTIONS[$1]} told seen
    told=$(<"$NODE/ADD.$1")
    [[ $told =~ \"pciID\":\ *\"$vf\" ]] || { echo "pod$1 was told $told"; return 1; }
    if is_dpdk "$1"; then
        [ "/sys/bus/pci/devices/$vf/driver" -ef /sys/bus/pci/drivers/vfio-pci ]
        return
    fi
    seen=$(ip -n "pod$1" -d address show dev net1)
    [[ $seen == *"parentdev $vf"* ]] || { echo "pod$1 has $seen"; return 1; }
    [[ ${CALLS[$1]} != *static* || $seen == *"inet 10.9.$1.1/24"* ]]
}

attached() {
    local n
    pods add "${!FUNCTIONS[@]}"
    at_once ADD "${!FUNCTIONS[@]}"
    eventually 10 have_ended ADD 5
    daemon_kill
    daemon_start
    all_succeed
    equal "attachments" "$(attachments)" ${#FUNCTIONS[@]}
    equal "VLANs" "$(vlans)" "$(as_asked_for)"
    for n in "${!FUNCTIONS[@]}"; do has_its_own "$n"; done
}

# Three have lost their namespaces by then; one is asked for while nobody is there.
detached() {
    local last=$((${#FUNCTIONS[@]} - 1))
    pods del 2 9 18
    at_once DEL $(seq 0 $((last - 1)))
    eventually 10 have_ended DEL 5
    daemon_kill
    call DEL $last
    [ "$(spooled)" -gt 0 ]
    daemon_start
    all_succeed
    all_at_rest
    pods del 0 1 {3..8} {10..17} 19 20
}

starts() {
    daemon_start
    eventually 60 all_ready || { "$DIST/fairleadd" pools; return 1; }
    everything >"$NODE/ready"
}

drained() {
    local pool
    for pool in kernel dpdk; do "$DIST/fairleadd" pools drain $pool >/dev/null; done
    eventually 5 is_as "$BEFORE" || is_as "$BEFORE"
    for pool in kernel dpdk; do "$DIST/fairleadd" pools fill $pool >/dev/null; done
    all_at_rest
}

# ---- what else may die under a pod: VFs 0 and 4 of a NIC, one of each pool ----
with_pods() { # NUMBER…
    local n
    pods add "$@"
    for n in "$@"; do call ADD "$n" >"$NODE/ADD.$n"; done
}
without_pods() { # NUMBER…
    local n
    for n in "$@"; do call DEL "$n"; done
    all_at_rest
    pods del "$@"
}
is_broken() { # NUMBER
    ! check "$1" "$(<"$NODE/ADD.$1")" >"$NODE/error" || { echo "CHECK finds nothing"; return 1; }
    cat "$NODE/error"
}

unbound() {
    with_pods 0 4
    echo "${FUNCTIONS[0]}" >/sys/bus/pci/drivers/igbvf/unbind
    echo "${FUNCTIONS[4]}" >/sys/bus/pci/drivers/vfio-pci/unbind
    is_broken 0
    without_pods 0 4
}

# igbvf (6.12) resets itself while it has no link, and its close does not wait for that: whoever closes and unbinds the VF just
# then waits for ever. Its link is waited for, and that it stays.
link_down() {
    with_pods 0 4
    ip link set "$(nic $PF0)" down
    eventually 10 has_no_link
    check 4 "$(<"$NODE/ADD.4")"
    ip link set "$(nic $PF0)" up
    eventually 10 linked pod0 net1
    sleep 3
    eventually 10 linked pod0 net1
    check 0 "$(<"$NODE/ADD.0")"
    without_pods 0 4
}
has_no_link() { ! linked pod0 net1; }

made_anew() {
    with_pods 0 4
    numvfs $PF0 0
    is_broken 0
    is_broken 4
    numvfs $PF0 7
    is_broken 0
    equal "links of the old pod" "$(ip -n pod0 -br link | grep -c net1 || true)" 0
    without_pods 0 4
}

# The driver of all three NICs, with pods on two of them.
module_reloaded() {
    local pf n names=()
    with_pods 0 4 14 18
    for pf in $PF0 $PF1 $PF2; do names+=("$(nic $pf)"); done
    modprobe -r igb
    for n in 0 4 14 18; do is_broken $n; done
    call DEL 18
    modprobe igb
    for pf in $PF0 $PF1 $PF2; do # what udev and the machine's own configuration do
        ip link set "$(nic $pf)" name "${names[0]}"
        ip link set "${names[0]}" up
        names=("${names[@]:1}")
    done
    for pf in $PF0 $PF1 $PF2; do numvfs $pf 7; done
    for n in 0 4 14; do is_broken $n; done
    for n in 0 14; do equal "links of pod$n" "$(ip -n pod$n -br link | grep -c net1 || true)" 0; done
    without_pods 0 4 14 18
}

# What a runtime's end does to the calls that it has begun.
callers_killed() {
    local try n killed=0 pids
    for try in 1 2 3 4 5; do
        pods add 0 4
        pids=()
        for n in 0 4; do
            call ADD "$n" >/dev/null &
            pids+=($!)
        done
        for n in "${pids[@]}"; do ! kill_plugin_of "$n" || killed=$((killed + 1)); done
        wait "${pids[@]}" || true
        without_pods 0 4
        [ $killed = 0 ] || { echo "$killed killed, try $try"; return 0; }
    done
    echo "every call had ended before it could be killed"
    return 1
}
kill_plugin_of() { # PID of the shell that calls it
    local end=$((SECONDS + 20)) child name
    while [ -d "/proc/$1" ] && [ $SECONDS -lt $end ]; do
        child='' name=''
        read -r child _ 2>/dev/null <"/proc/$1/task/$1/children" || true
        [ -z "$child" ] || read -r name 2>/dev/null <"/proc/$child/comm" || true
        [ "$name" != sriov ] || { kill -9 "$child" && return; }
    done
    return 1
}

# The machine's own tables say which NIC is near a pod, and how far the others are.
TOLD=/var/run/k8s.cni.cncf.io/devinfo/cni/of-pod0.json
by_node() { # NUMA NODE PATH [RUNTIME-CONFIG]
    config fairlead "\"numa\":\"$1\",\"args\":{\"cni\":{\"numaNodes\":[$2]}},\"ipam\":{},\"paths\":[{\"type\":\"sriov\"$3}],
        \"runtimeConfig\":{\"CNIDeviceInfoFile\":\"$TOLD\"${4:-}}"
}
is_near() { # CONFIG NIC LOCALITY
    local told
    told=$(plugin "$DIST" ADD pod0 "$1") || { echo "$told"; return 1; }
    [[ $told =~ \"pciID\":\ *\"${2%00.0} ]] || { echo "not of $2: $told"; return 1; }
    told=$(<"$TOLD")
    [[ $told == *"\"numa\":$3"* ]] || { echo "$told"; return 1; }
    plugin "$DIST" DEL pod0 "$1"
    [ ! -e "$TOLD" ]
}
near_and_far() {
    local given=",\"deviceID\":\"${FUNCTIONS[0]}\""
    pods add 0
    is_near "$(by_node strict 0 ',"pool":"kernel"')" $PF0 '{"locality":"local","node":0,"distance":10}'
    is_near "$(by_node strict 1 ',"pool":"kernel"')" $PF1 '{"locality":"local","node":1,"distance":10}'
    is_near "$(by_node preferred 1 '' "$given")" $PF0 '{"locality":"remote","node":0,"pod":[1],"distance":21}'
    ! plugin "$DIST" ADD pod0 "$(by_node strict 1 '' "$given")" >"$NODE/error"
    grep -q 'numa is strict' "$NODE/error" || { cat "$NODE/error"; return 1; }
    api /metrics | grep '^fairlead_numa_distance_sum{locality="remote"} 21'
    all_at_rest
    pods del 0
}

vfs_get_macs
BEFORE=$(everything)
it "k25 x23 21 VFs of three NICs are ready, under igbvf and vfio-pci" starts
for ((round = 1; round <= ${ROUNDS:-2}; round++)); do
    it "x05 x08 round $round: 21 pods at once, the daemon killed meanwhile: each has its own VF and VLAN" attached
    it "x05 x06 x07 round $round: 21 DELs, killed again, three pods dead before: all are ready, and as they were" detached
done
it "k26 drained, everything is as it was before the daemon was there" drained
it "x09 the NIC of the pod's node is taken, and how far one is that was given is told or refused" near_and_far
it "x05 callers are killed in the middle of their ADDs" callers_killed
it "x17 drivers are unbound under two pods" unbound
it "the PF goes down and up under two pods" link_down
it "x17 x22 VFs are made again under two pods: both are reported as broken, and get none of the new ones" made_anew
it "x17 x22 the NICs' driver is unloaded and loaded under four pods: told as broken, and none gets a new one" module_reloaded
it "the daemon stops on SIGTERM" daemon_stop
for pf in $PF0 $PF1 $PF2; do numvfs $pf 0; done
finish
