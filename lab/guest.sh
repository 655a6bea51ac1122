# The lab machine seen from a test: its NICs, a peer out on the wire, and one plugin call as a runtime makes it.
# Sourced by the scripts in tests/, inside the guest.

. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../tests/lib.sh"

# Under emulation, on a busy machine, the daemon alone can take ten seconds to start.
PATIENCE=8

# What is written here is in the guest's memory, in which a copy of all plugins for each script is much.
LINKED_PLUGINS=1

# For a script that has nothing to say about other plugins.
about_the_daemon() {
    ours || { echo "${0##*/}: 0 passed, 0 failed (it is about the daemon)"; exit; }
}

# By PCI address, never by name: node 0, node 1, and the one without a node. All on one wire.
PF0=0000:21:00.0 PF1=0000:41:00.0 PF2=0000:01:00.0
VF0=0000:21:10.0 VF1=0000:21:10.2 # of PF0
nic() { local name=(/sys/bus/pci/devices/"$1"/net/*); echo "${name[0]##*/}"; }

# Makes them, for all scripts of one boot: their number can't be raised later, and PF0 must be up before.
vfs_up() {
    ip link set "$(nic $PF0)" up
    [ -e /sys/bus/pci/devices/$VF1 ] || echo 2 >/sys/bus/pci/devices/$PF0/sriov_numvfs
}

guest_up() {
    node_places "$(mktemp -d)"
    mkdir -p "$NODE/reference"
    ln -s "$BIN/plugins"/* "$NODE/reference"
    # What an earlier script's daemon has on record, and its pods held, is of other VFs and pods.
    rm -rf /run/fairlead /var/lib/fairlead /var/lib/cni /var/lib/kubelet /etc/fairlead
    mkdir -p /run/netns /var/lib/cni
    find /run/netns -mindepth 1 ! -name wire -printf '%f\n' | xargs -r -n 1 ip netns del
    eventually 10 test -d /sys/bus/pci/devices/$PF0/net # one of them may have had it
    ip link set lo up
    MASTER=$(nic $PF0)
    ip link set "$MASTER" up
    [ -e /run/netns/wire ] || peer_up # an earlier script of this boot did it
    eventually 10 linked wire "wire" && eventually 10 linked "" "$MASTER"
}

# 10.8.0.1, out on the wire
peer_up() {
    ip netns add wire
    ip link set "$(nic $PF1)" netns wire name wire
    ip -n wire link set lo up
    ip -n wire link set wire up
    ip -n wire address add 10.8.0.1/24 dev wire
}

linked() { # NETNS LINK
    ip ${1:+-n "$1"} -br link show dev "$2" | grep -q LOWER_UP
}

# Without a process, where bash can do it: one takes 30 ms in here, a jq 230.
target() { local to; to=$(readlink "$1") && echo "${to##*/}"; } # LINK
pf_of() { target "/sys/bus/pci/devices/$1/physfn"; }         # PCI
driver() { target "/sys/bus/pci/devices/$1/driver"; }       # PCI
group() { target "/sys/bus/pci/devices/$1/iommu_group"; }   # PCI

bind() { # PCI DRIVER
    local device=/sys/bus/pci/devices/$1
    [ "$2" = igbvf ] && echo >"$device/driver_override" || echo "$2" >"$device/driver_override"
    [ ! -e "$device/driver" ] || echo "$1" >"$device/driver/unbind"
    echo "$1" >/sys/bus/pci/drivers_probe
    equal "driver" "$(driver "$1")" "$2"
}

# Two lines: what an administrator can see of a VF's interface, if the host has it, and the settings as the PF reports
# them.
interface_and_settings() { # PCI
    local n
    for n in /sys/bus/pci/devices/"$1"/physfn/virtfn*; do
        [ ! "$n" -ef "/sys/bus/pci/devices/$1" ] || break
    done
    ip -j -d link show | jq -c --arg vf "$1" --arg pf "$(pf_of "$1")" --argjson n "${n##*virtfn}" '
        [.[] | select(.parentdev == $vf)
            | [.ifname, .address, .mtu, .ifalias, .altnames, (.flags | index("UP") != null)]][0],
        (.[] | select(.parentdev == $pf) | .vfinfo_list[] | select(.vf == $n)
            | [.address, .vlan_list[0].vlan, .vlan_list[0].qos, .rate.max_tx, .spoofchk, .trust, .link_state])'
}
# Every VF's driver has told its PF a MAC address. New ones have none for a moment, and are not what they will be found as.
vfs_have_macs() { ip -j -d link show | jq -e '[.[].vfinfo_list[]?.address] | length > 0 and all(. != "00:00:00:00:00:00")'; }
# igbvf gives a VF up that its PF did not answer in time, as on a slow machine: bound anew it asks again.
vfs_get_macs() {
    local vf
    eventually 10 vfs_have_macs && return
    for vf in /sys/bus/pci/devices/*/virtfn*; do
        vf=$(basename "$(readlink -f "$vf")")
        echo "$vf" >"/sys/bus/pci/devices/$vf/driver/unbind" || true
        echo "$vf" >/sys/bus/pci/drivers_probe
    done
    eventually 30 vfs_have_macs
}
settings() { interface_and_settings "$1" | sed -n 2p; } # PCI

# All that an administrator can see of a VF that is on the host.
home() { # PCI
    interface_and_settings "$1"
    driver "$1"
}

static() { printf '"ipam":{"type":"static","addresses":[{"address":"%s"}]}' "$1"; } # ADDRESS
config() { printf '{"cniVersion":"1.1.0","name":"lab","type":"%s",%s}' "$1" "$2"; } # TYPE FIELDS

# A jq takes a quarter of a second in here: what is done for every call is done without.
with_result() { printf '%s,"prevResult":%s}' "${1%\}}" "$2"; } # CONFIG RESULT
type_of() { [[ $1 =~ \"type\":\"([a-z-]+)\" ]] && echo "${BASH_REMATCH[1]}"; } # CONFIG

# plugin DIRECTORY COMMAND NETNS CONFIG: one call of the plugin that the config names, for net1 and without arguments if
# nothing else is set
plugin() {
    CNI_COMMAND=$2 CNI_CONTAINERID="$3" CNI_NETNS=/run/netns/$3 CNI_IFNAME=${CNI_IFNAME:-net1} CNI_PATH=$1 CNI_ARGS=${CNI_ARGS:-} \
        "$1/$(type_of "$4")" <<<"$4"
}

# What the runtime is told and what the pod sees of its interface, if it has one, without what differs from one link to
# the next.
told_and_seen() { # RESULT NETNS
    { echo "$1"; ip -n "$2" -j -d address show; ip -n "$2" -j route show table all; } | jq -S -s '
        (.[0] | del(.interfaces[]?.mac)),
        (.[1] | map(select(.ifname == "net1")
            | del(.ifindex, .link_index, .link_netnsid, .address, .operstate) # the wire takes a second to come up
            | .flags |= (. - ["NO-CARRIER", "LOWER_UP"] | sort)
            | .addr_info |= map(select(.scope != "link") | del(.stable_privacy)))),
        (.[2] // [] | map(select(.dev == "net1" and .protocol != "kernel")))'
}

# life DIRECTORY CONFIG [PROOF…]: ADD, CHECK, the proof (a command that gets the namespace's name), DEL; what is seen
# and told goes to standard output
life() {
    local directory=$1 config=$2 result
    shift 2
    ip netns del pod 2>/dev/null || true
    ip netns add pod
    result=$(plugin "$directory" ADD pod "$config") || { echo "$result"; return 1; }
    told_and_seen "$result" pod
    plugin "$directory" CHECK pod "$(with_result "$config" "$result")"
    [ $# = 0 ] || "$@" pod >&2
    plugin "$directory" DEL pod "$(with_result "$config" "$result")"
    equal "links of the pod after DEL" "$(ip -n pod -br link | grep -c net1 || true)" 0
    ip netns del pod
}

# same_as_reference CONFIG [PROOF…]
same_as_reference() {
    life "$NODE/reference" "$@" >"$NODE/wanted"
    life "$CNIBIN" "$@" >"$NODE/got"
    diff -u "$NODE/wanted" "$NODE/got"
}

# On an emulated NIC a frame can be lost just after the link is up.
reaches() { # ADDRESS NETNS
    local try
    for try in 1 2 3; do ip netns exec "$2" busybox ping -c 1 -W 5 -q "$1" && return; done
    return 1
}
