#!/usr/bin/env bash
# Pools of real VFs (igb): ready before a pod asks, clean after it, given back as they were, whatever dies.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
KERNEL=(0000:21:10.0 0000:21:10.2 0000:21:10.4) # of PF0
DPDK=(0000:01:10.0 0000:01:10.2)                # of PF2
# All that a pool's work has. One of setting up is before one of giving back, which sets all up before: so whatever was
# interrupted is done to the end.
STEPS="adopted stripped unbound restored reset rebound set given bound"

numvfs() { echo "$2" >/sys/bus/pci/devices/"$1"/sriov_numvfs; } # PF COUNT
ip link set "$(nic $PF0)" up
ip link set "$(nic $PF2)" up
for pf in $PF0 $PF2; do numvfs $pf 0; done
numvfs $PF0 3
numvfs $PF2 2

cat >"$NODE/config.yaml" <<'J'
pools:
  - name: radio
    selectors: { rootDevices: ["0000:21:00.0"] }
    profile: { vlan: 7, trust: off, maxTxRate: 300, mtu: 1400 } # a rate, which igb takes only with a carrier
    numvfs: 3
  - name: dpdk
    selectors: { rootDevices: ["0000:01:00.0"], drivers: [igbvf] }
    driver: vfio-pci
J
DAEMON_FLAGS="--config $NODE/config.yaml"

pools() { "$DIST/fairleadd" pools "$@"; }
states() { pools -o json | jq -c "[.functions[] | select(.pool == \"$1\") | .state]"; } # POOL
stand() { [ "$(states "$1")" = "$2" ] || { pools; return 1; }; }                        # POOL STATES
all_ready() { stand radio '["ready","ready","ready"]' && stand dpdk '["ready","ready"]'; }
mac() { cat /sys/bus/pci/devices/"$1"/net/*/address; } # PCI
index() { cat /sys/bus/pci/devices/"$1"/net/*/ifindex; } # PCI
in_the_dark() { pools | grep -F "by $PF0, which has no carrier"; }
homes() { # PCI…
    local vf
    for vf in "$@"; do home "$vf"; done
}

pods() { # NAME…: anew
    local pod
    for pod in "$@"; do
        ip netns del "$pod" 2>/dev/null || true
        ip netns add "$pod"
    done
}
add() { plugin "$CNIBIN" ADD "$1" "$(config sriov "\"deviceID\":\"$2\"${3:+,$3}")"; } # POD PCI [FIELDS]
del() { plugin "$CNIBIN" DEL "$1" "$(config sriov "\"deviceID\":\"$2\"${3:+,$3}")"; } # POD PCI [FIELDS]

vfs_get_macs
BEFORE=$(homes "${KERNEL[@]}" "${DPDK[@]}")
BEFORE_RADIO=$(homes "${KERNEL[@]}")

starts() {
    ip link set "$(nic $PF0)" down
    daemon_start
    eventually 30 in_the_dark
    ip link set "$(nic $PF0)" up
    eventually 60 all_ready
    pools
    local vf
    for vf in "${KERNEL[@]}"; do
        equal "VLAN, rate and trust of $vf" "$(settings "$vf" | jq -c '[.[1], .[3], .[5]]')" '[7,300,false]'
        equal "its own MAC address" "$(mac "$vf")" "$(settings "$vf" | jq -r '.[0]')"
        equal "its MTU" "$(cat /sys/bus/pci/devices/"$vf"/net/*/mtu)" 1400
    done
    for vf in "${DPDK[@]}"; do equal "driver of $vf" "$(driver "$vf")" vfio-pci; done
    api /metrics | grep -E '^fairlead_pool_(functions.*ready|work_seconds_(sum|count))'
}

untouched() {
    local before begun
    before=$(index "${KERNEL[0]}")
    daemon_stop
    begun=${EPOCHREALTIME/./}
    daemon_start
    all_ready
    echo "ready after $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"
    equal "the interface" "$(index "${KERNEL[0]}")" "$before"
}

lent_and_back() {
    local before lasting
    lasting=$(mac "${KERNEL[0]}")
    before=$(index "${KERNEL[0]}")
    pods pod
    add pod "${KERNEL[0]}"
    stand radio '["lent","ready","ready"]'
    ip -n pod link set net1 down
    ip -n pod link set net1 alias theirs promisc on up
    del pod "${KERNEL[0]}"
    eventually 30 all_ready
    [ "$(index "${KERNEL[0]}")" != "$before" ] || { echo "it was not bound anew"; return 1; }
    equal "MAC address" "$(mac "${KERNEL[0]}")" "$lasting"
    pods other
    add other "${KERNEL[0]}" '"vlan":100,"max_tx_rate":200' # at once the next one
    equal "settings" "$(settings "${KERNEL[0]}" | jq -c '[.[1], .[3]]')" '[100,200]'
    del other "${KERNEL[0]}"
    eventually 30 all_ready
    equal "settings" "$(settings "${KERNEL[0]}" | jq -c '[.[1], .[3]]')" '[7,300]'
}

drained() {
    pools drain radio
    pools drain dpdk
    equal "everything" "$(homes "${KERNEL[@]}" "${DPDK[@]}")" "$BEFORE"
    daemon_stop
    daemon_start
    stand radio '["drained","drained","drained"]'
    equal "everything" "$(homes "${KERNEL[@]}" "${DPDK[@]}")" "$BEFORE"
    pools fill radio
    pools fill dpdk
    all_ready
}

# A driver_override of somebody else: nothing but that may have it.
quarantined() {
    local vf=${KERNEL[1]}
    pods pod
    add pod "$vf"
    echo nobody >/sys/bus/pci/devices/"$vf"/driver_override
    del pod "$vf"
    eventually 30 stand radio '["ready","quarantined","ready"]'
    ! add pod "$vf" >"$NODE/error" || return 1
    cat "$NODE/error"
    equal "code" "$(jq .code "$NODE/error")" 11
    grep -F "VF $vf cannot be had" "$NODE/error" | grep -F quarantined
    "$DIST/fairleadd" doctor >"$NODE/findings" || true
    grep -F "fairleadd pools release $vf" "$NODE/findings"
    daemon_stop
    daemon_start
    stand radio '["ready","quarantined","ready"]'
    echo >/sys/bus/pci/devices/"$vf"/driver_override
    pools release "$vf"
    all_ready
    add pod "$vf"
    del pod "$vf"
    eventually 30 all_ready
}

used_by_others() {
    local vf=${KERNEL[2]} before
    before=$(index "$vf")
    daemon_stop
    ip address add 192.0.2.7/24 dev "$(nic "$vf")"
    daemon_start
    stand radio '["ready","ready","foreign"]'
    pools | grep -F 192.0.2.7/24
    equal "the interface" "$(index "$vf")" "$before"
    ip address del 192.0.2.7/24 dev "$(nic "$vf")"
    pools fill radio >/dev/null
    eventually 30 all_ready
}

# At the second passage of a step, with VFs in all stages. Drained before and after.
killed_at() { # STEP
    daemon_stop
    FAIRLEAD_FAILPOINT=pool.$1:2 daemon_start "$DIST/failpoints/fairleadd"
    pools fill radio >/dev/null 2>&1 && pools drain radio >/dev/null 2>&1 || true
    eventually 15 gone "$(daemon_pid)"
    daemon_start
    pools drain radio >/dev/null
    equal "everything" "$(homes "${KERNEL[@]}")" "$BEFORE_RADIO"
}
filled() {
    pools fill radio
    all_ready
}

vanished() {
    numvfs $PF2 0
    eventually 15 stand dpdk '["gone","gone"]'
    numvfs $PF2 2
    eventually 30 all_ready
}

# The namespace of the old sandbox is gone, its DEL comes late, the new one has the VF already.
old_and_new() {
    local vf=${KERNEL[0]}
    pods old new
    add old "$vf" >/dev/null
    ip netns del old
    add new "$vf" >/dev/null
    del old "$vf"
    ip -n new link show dev net1
    stand radio '["lent","ready","ready"]'
    del new "$vf"
    eventually 30 all_ready
}

rebooted() {
    local macs vf pf
    macs=$(for vf in "${KERNEL[@]}"; do mac "$vf"; done)
    pods pod
    add pod "${KERNEL[0]}" >/dev/null
    daemon_kill
    ip netns del pod
    rm -rf /run/fairlead
    for pf in $PF0 $PF2; do numvfs $pf 0; done
    numvfs $PF2 2 # those of PF0 are the daemon's affair
    echo 11111111-2222-3333-4444-555555555555 >"$NODE/boot_id"
    mount --bind "$NODE/boot_id" /proc/sys/kernel/random/boot_id
    daemon_start
    eventually 60 all_ready
    equal "the lasting MAC addresses" "$(for vf in "${KERNEL[@]}"; do mac "$vf"; done)" "$macs"
    pods pod
    add pod "${KERNEL[0]}" >/dev/null
    del pod "${KERNEL[0]}"
    eventually 30 all_ready
}

it "k25 x23 every VF is set up and verified when it is ready, with a rate as soon as its NIC has a carrier" starts
it "k25 a restart finds them ready and touches none" untouched
it "x07 a VF that comes back is reset, bound again and ready for the next pod" lent_and_back
it "k26 drained VFs are as they were, and filled ones ready" drained
it "x07 a VF that fails twice is quarantined, named, and released" quarantined
it "a VF that somebody else uses is left alone and reported" used_by_others
it "x22 the late DEL of an old sandbox changes nothing for the one that has the VF now" old_and_new
pools drain radio >/dev/null
for step in $STEPS; do
    it "x05 killed at pool.$step, the next start ends what was begun" killed_at "$step"
done
it "x05 after all that they can be filled" filled
it "x17 VFs that vanish are withdrawn, and offered when they are back" vanished
it "x24 after a reboot the VFs are ready again, with their lasting MAC addresses" rebooted
it "the daemon stops on SIGTERM" daemon_stop
umount /proc/sys/kernel/random/boot_id 2>/dev/null || true
for pf in $PF0 $PF2; do numvfs $pf 0; done
finish
