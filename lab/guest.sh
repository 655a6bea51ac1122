# The lab machine seen from a test: its NICs, a peer out on the wire, and one plugin call as a runtime makes it.
# Sourced by the scripts in tests/, inside the guest.

. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../tests/lib.sh"

# By PCI address, never by name: node 0, node 1, and the one without a node. All on one wire.
PF0=0000:21:00.0 PF1=0000:41:00.0 PF2=0000:01:00.0
nic() { basename "$(echo /sys/bus/pci/devices/"$1"/net/*)"; }

guest_up() {
    node_places "$(mktemp -d)"
    mkdir -p "$NODE/reference"
    cp "$BIN/plugins"/* "$NODE/reference"
    mkdir -p /run/netns /var/lib/cni
    ip link set lo up
    MASTER=$(nic $PF0)
    ip netns add wire
    ip link set "$(nic $PF1)" netns wire name wire
    ip -n wire link set lo up
    ip -n wire link set wire up
    ip -n wire address add 10.8.0.1/24 dev wire
    ip link set "$MASTER" up
    eventually 10 linked wire "wire" && eventually 10 linked "" "$MASTER"
}

linked() { # NETNS LINK
    ip ${1:+-n "$1"} -br link show dev "$2" | grep -q LOWER_UP
}

# plugin DIRECTORY COMMAND NETNS CONFIG: one call of the plugin that the config names
plugin() {
    CNI_COMMAND=$2 CNI_CONTAINERID="$3" CNI_NETNS=/run/netns/$3 CNI_IFNAME=net1 CNI_PATH=$1 CNI_ARGS='' \
        "$1/$(jq -r .type <<<"$4")" <<<"$4"
}

# What a pod sees of its interface, without what differs from one link to the next.
seen() { # NETNS
    ip -n "$1" -j -d address show dev net1 | jq -S 'map(
        del(.ifindex, .link_index, .link_netnsid, .address, .operstate) # the wire takes a second to come up
        | .flags |= (. - ["NO-CARRIER", "LOWER_UP"] | sort)
        | .addr_info |= map(select(.scope != "link") | del(.stable_privacy)))'
    ip -n "$1" -j route show table all | jq -S 'map(select(.dev == "net1" and .protocol != "kernel"))'
}

# The result without what differs: MAC addresses.
told() { jq -S 'del(.interfaces[]?.mac)'; }

# life DIRECTORY CONFIG [PROOF…]: ADD, CHECK, the proof (a command that gets the namespace's name), DEL; what is seen
# and told goes to standard output
life() {
    local directory=$1 config=$2 result
    shift 2
    ip netns del pod 2>/dev/null || true
    ip netns add pod
    result=$(plugin "$directory" ADD pod "$config") || { echo "$result"; return 1; }
    told <<<"$result"
    seen pod
    plugin "$directory" CHECK pod "$(jq --argjson r "$result" '.prevResult = $r' <<<"$config")"
    [ $# = 0 ] || "$@" pod >&2
    plugin "$directory" DEL pod "$(jq --argjson r "$result" '.prevResult = $r' <<<"$config")"
    equal "links of the pod after DEL" "$(ip -n pod -br link | grep -c net1 || true)" 0
    ip netns del pod
}

# same_as_reference CONFIG [PROOF…]
same_as_reference() {
    life "$NODE/reference" "$@" >"$NODE/wanted"
    life "$CNIBIN" "$@" >"$NODE/got"
    diff -u "$NODE/wanted" "$NODE/got"
}

reaches() { ip netns exec "$2" busybox ping -c 1 -W 5 -q "$1"; } # ADDRESS NETNS
