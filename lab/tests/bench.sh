#!/usr/bin/env bash
# The latency suite with VFs runs and verifies; nobody looks at its small numbers. And what it cannot see: how
# much of an ADD the kernel is asked of a PF, however many VFs that has.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
node_places "$(mktemp -d)"

functions() { # PF COUNT
    ip link set "$(nic "$1")" up
    echo 0 >/sys/bus/pci/devices/"$1"/sriov_numvfs
    echo "$2" >/sys/bus/pci/devices/"$1"/sriov_numvfs
}

# The kernel itself counts: messages that change a link, but for those that set what the interface does in its own namespace
# (arp_notify), of which its NIC hears nothing; and VFs whose settings are read.
trace=/sys/kernel/tracing
counting() {
    echo 'p:fairlead/set rtnl_setlink' >$trace/kprobe_events
    echo 'p:fairlead/own inet_set_link_af' >>$trace/kprobe_events
    echo 'p:fairlead/read igb_ndo_get_vf_config' >>$trace/kprobe_events
    echo 1 >$trace/events/fairlead/enable
}
not_counting() {
    echo 0 >$trace/events/fairlead/enable
    echo >$trace/kprobe_events
}
counted() { awk '{ n[$1] = $2 } END { print n["set"] - n["own"], n["read"] + 0 }' $trace/kprobe_profile; }

# The messages and the readings of one ADD.
asked() { # PF [FIELDS]: of its first function
    local vf set read now_set now_read
    vf=$(basename "$(readlink /sys/bus/pci/devices/"$1"/virtfn0)")
    eventually 60 ready "$vf"
    ip netns add pod
    read -r set read <<<"$(counted)"
    plugin "$CNIBIN" ADD pod "$(config sriov "\"deviceID\":\"$vf\"${2:+,$2}")" >"$NODE/result" || { cat "$NODE/result"; return 1; }
    read -r now_set now_read <<<"$(counted)"
    echo "$((now_set - set)) $((now_read - read))"
    plugin "$CNIBIN" DEL pod "$(config sriov "\"deviceID\":\"$vf\"${2:+,$2}")"
    ip netns del pod
}
ready() { [[ $(api /v1/pools) =~ \"function\":\"$1\"[^}]*\"state\":\"ready\" ]]; }

nothing_is_asked() {
    local pf read now_read
    functions $PF0 4
    functions $PF2 7
    mkdir -p "$NODE/etc"
    cat >"$NODE/etc/config.yaml" <<J
pools: [{ name: first, selectors: { pciAddresses: ["$VF0", "0000:01:10.0"] } }]
J
    DAEMON_FLAGS="--config $NODE/etc/config.yaml"
    rm -rf /run/fairlead /var/lib/fairlead /var/lib/cni
    mkdir -p /run/netns /var/lib/cni
    daemon_start
    counting
    read -r _ read <<<"$(counted)"
    ip link show dev "$(nic $PF0)" >/dev/null # reads all 4 once or twice
    read -r _ now_read <<<"$(counted)"
    [ $((now_read - read)) -ge 4 ] || { echo "of a reading of all 4 the kernel counts $((now_read - read))"; return 1; }
    for pf in $PF0 $PF2; do
        equal "messages and readings of an ADD that fits" "$(asked $pf)" "0 0"
        equal "and with another VLAN and rate" "$(asked $pf '"vlan":100,"max_tx_rate":100')" "1 0"
    done
    not_counting
    daemon_stop
}

suite() {
    FUNCTIONS=2 VFIO_FUNCTIONS=0 BESIDE=$PF2 bash "$ROOT/lab/bench.sh" --inside --quick >"$NODE/table" || { cat "$NODE/table"; return 1; }
    grep -F 'nothing failed' "$NODE/table"
    grep -E 'ours ready again +2 ' "$NODE/table"
    grep -E 'floor ADD +2 ' "$NODE/table"
}

it "an ADD that fits sends no message to the NIC and reads nothing of it, with 4 VFs and with 7" nothing_is_asked
it "VFs are lent by the daemon and by the floor, and every one comes back as it was" suite
for pf in $PF0 $PF2; do echo 0 >/sys/bus/pci/devices/"$pf"/sriov_numvfs; done
finish
