#!/usr/bin/env bash
# sriov on real VFs (igb) that vfio-pci has: the daemon killed at every step, what doctor says; and a pool, from
# which kubelet allocates two VFs to a pod that DPDK's testpmd drives, root or not: its /dev and its environment are what the
# daemon's device plugin has answered. What any plugin should do is in any_sriov_plugin.sh.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
vfs_up
VF2=0000:01:10.0 # of PF2
ip link set "$(nic $PF2)" up
[ -e /sys/bus/pci/devices/$VF2 ] || echo 1 >/sys/bus/pci/devices/$PF2/sriov_numvfs
modprobe vfio-pci

sriov() { config sriov "\"deviceID\":\"$1\"${2:+,$2}"; }              # PCI [FIELDS]
add() { plugin "$CNIBIN" ADD "$1" "$(sriov "$2" "${3:-}")"; }         # POD PCI [FIELDS]
del() { plugin "$CNIBIN" DEL "$1" "$(sriov "$2" "${3:-}")"; }         # POD PCI [FIELDS]

are() { [ "$(settings $VF0)" = "$1" ]; } # SETTINGS

MAC='"mac":"02:00:00:00:aa:00"'
TAKEN="$MAC,\"vlan\":100,\"vlanQoS\":3,\"trust\":\"on\",\"max_tx_rate\":200"

pod_anew() {
    ip netns del pod 2>/dev/null || true
    ip netns add pod
}
nothing_left() {
    equal "attachments" "$(attachments)" 0
    equal "addresses" "$(addresses_held)" 0
}

none_left() { [ "$(attachments)" = 0 ]; }

IPAM='"ipam":{"type":"host-local","ranges":[[{"subnet":"10.20.0.0/24"}]]}'

dies_at() { # STEP
    local before fields="$TAKEN,$IPAM"
    pod_anew
    before=$(settings $VF0)
    daemon_stop
    FAIRLEAD_FAILPOINT=$1 daemon_start "$DIST/failpoints/fairleadd"
    ! FAIRLEAD_TIMEOUT=20 add pod $VF0 "$fields" || FAIRLEAD_TIMEOUT=5 del pod $VF0 "$fields" || true
    eventually 10 gone "$(daemon_pid)"
    daemon_start
    del pod $VF0 "$fields"
    eventually 15 are "$before" || { diff <(echo "$before") <(settings $VF0); return 1; }
    equal "driver" "$(driver $VF0)" vfio-pci
    nothing_left
}

doctor() {
    "$DIST/fairleadd" doctor >"$NODE/doctor" || true
    grep -F "/dev/vfio/$(group $VF0), /dev/vfio/$(group $VF2): root's alone" "$NODE/doctor"
    grep -F memlock "$NODE/doctor"
}

cat >"$NODE/config.yaml" <<Y
pools:
  - name: dpdk
    selectors: {pciAddresses: ["$VF0", "$VF2"]}
    driver: vfio-pci
    resourceName: intel.com/dpdk
Y
NETWORK=$(config fairlead '"ipam":{},"paths":[{"type":"sriov","pool":"dpdk","vlan":100}]')

pool_stands() { # STATE DRIVER: of both
    equal "the pool" "$("$DIST/fairleadd" pools -o json | jq -c '[.functions[].state]')" "[\"$1\",\"$1\"]" &&
        equal "drivers" "$(driver $VF0) $(driver $VF2)" "$2 $2"
}
pool_begins() {
    local vf
    daemon_stop
    for vf in $VF0 $VF2; do bind $vf igbvf; done
    daemon_start
    eventually 30 pool_stands ready vfio-pci || pool_stands ready vfio-pci
}
pool_ends() {
    "$DIST/fairleadd" pools drain dpdk
    pool_stands drained igbvf
}

# Kubelet's part: it allocates both VFs to the pod. What the device plugin has answered is in $NODE/answer.
kubelet_gives() {
    "$DIST/failpoints/kubelet" lab/pod intel.com/dpdk $VF2 $VF0 >"$NODE/answer" 2>"$LOG/kubelet" &
    kubelet=$!
    eventually 30 grep -q '}$' "$NODE/answer" || { cat "$LOG/kubelet"; return 1; }
    cat "$NODE/answer"
    jq -r '.devices[] | "\(.host_path) \(.container_path)"' "$NODE/answer" >"$NODE/devices"
    jq -r '.envs | to_entries[] | "\(.key)=\(.value)"' "$NODE/answer" >"$NODE/variables"
    equal "mounts" "$(jq -c .mounts "$NODE/answer")" '[]'
    equal "its own list" "$(cut -d ' ' -f 1 "$NODE/devices" | sort | xargs)" \
        "$(printf '/dev/vfio/%s\n' "$(group $VF0)" "$(group $VF2)" vfio | sort | xargs)"
}

# As a runtime makes a container of that: its /dev has what every container has, huge pages, and the devices that are
# listed, as the user's where it is not root (containerd's device_ownership_from_security_context); its environment has
# the variables.
container() { # UID COMMAND…
    local variables
    mapfile -t variables <"$NODE/variables"
    # shellcheck disable=SC2016
    exec unshare -m env -i PATH="$PATH" "${variables[@]}" bash -euo pipefail -c '
        node=$1 uid=$2 dev=$(mktemp -d)
        shift 2
        mount -t tmpfs tmpfs "$dev"
        for name in null zero full random urandom; do cp -a "/dev/$name" "$dev"; done
        while read -r host inside; do
            mkdir -p "$dev$(dirname "${inside#/dev}")"
            cp -a "$host" "$dev${inside#/dev}"
            chown "$uid" "$dev${inside#/dev}"
        done <"$node/devices"
        mkdir "$dev/hugepages"
        mount -t hugetlbfs -o "uid=$uid" nodev "$dev/hugepages"
        mount --rbind "$dev" /dev
        find /dev -type c >"$node/nodes"
        exec "$@"' - "$NODE" "$@"
}

of_pod() { # COMMAND INTERFACE
    CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME=pod' CNI_IFNAME=$2 plugin "$DIST" "$1" pod "$NETWORK"
}
pod_has() { # INTERFACE PCI: tells its MAC address
    of_pod ADD "$1" >"$NODE/$1" || { cat "$NODE/$1" >&2; return 1; }
    jq -re "select(.interfaces[0].pciID == \"$2\") | .interfaces[0].mac" "$NODE/$1" || { cat "$NODE/$1" >&2; return 1; }
}

type_in() { echo "$1" >&7; }
received() { awk '/RX-packets:/ { last[++n] = $2 } END { print last[n - 1] + 0, last[n] + 0 }' "$NODE/testpmd"; }
both_get() { # PACKETS
    local one other
    type_in "show port stats all"
    sleep 1
    read -r one other <<<"$(received)"
    echo "received: $one $other"
    [ "$one" -gt "$1" ] && [ "$other" -gt "$1" ]
}

# Each port sends on to the other what it gets. The application takes its VFs from its environment.
testpmd() { # UID MAC MAC [COMMAND…]
    local uid=$1 first=$2 second=$3
    shift 3
    # shellcheck disable=SC2016
    container "$uid" nsenter --net=/run/netns/pod "$@" timeout 400 bash -c '
        for function in ${PCIDEVICE_INTEL_COM_DPDK//,/ }; do functions+=(-a "$function"); done
        exec dpdk-testpmd "${functions[@]}" "$@"' - -l 1,2,3 -n 2 --socket-mem 96,96 --file-prefix=pod --no-telemetry -- \
        -i --nb-cores=2 --total-num-mbufs=8192 --no-lsc-interrupt --forward-mode=mac --eth-peer="0,$second" --eth-peer="1,$first"
}

packets_cross() { # UID [COMMAND…] for a process of that user
    local before kubelet first second pid
    before=$(settings $VF0; settings $VF2)
    pod_anew
    kubelet_gives
    first=$(pod_has net1 $VF2)
    second=$(pod_has net2 $VF0)
    rm -f "$NODE/typed"
    mkfifo "$NODE/typed"
    exec 7<>"$NODE/typed"
    testpmd "$1" "$first" "$second" "${@:2}" <"$NODE/typed" >"$NODE/testpmd" 2>&1 7>&- &
    pid=$!
    eventually 60 grep -q 'testpmd>' "$NODE/testpmd" && type_in "start tx_first 4" && eventually 60 both_get 1000 ||
        { tail -30 "$NODE/testpmd"; kill $pid $kubelet; wait $pid || true; of_pod DEL net1; of_pod DEL net2; return 1; }
    received
    grep -F "Port 0: ${first^^}" "$NODE/testpmd"
    grep -F "Port 1: ${second^^}" "$NODE/testpmd"
    equal "what /dev has" "$(sort "$NODE/nodes" | xargs)" \
        "$({ printf '/dev/%s\n' null zero full random urandom; cut -d ' ' -f 2 "$NODE/devices"; } | sort | xargs)"
    ! of_pod DEL net1 7>&- >"$NODE/error" || return 1 # it has the group
    equal "code" "$(jq .code "$NODE/error")" 11
    type_in stop
    type_in quit
    eventually 20 gone $pid
    exec 7>&-
    of_pod DEL net2
    eventually 60 none_left # no runtime need call again for the first
    eventually 30 pool_stands ready vfio-pci || pool_stands ready vfio-pci
    equal "settings" "$(settings $VF0; settings $VF2)" "$before"
    nothing_left
    kill $kubelet
}

as_a_user() {
    local home user=(setpriv --reuid 1000 --regid 1000 --clear-groups)
    home=$(mktemp -d)
    chown 1000 "$home"
    # What doctor asks the operator for.
    packets_cross 1000 prlimit --memlock=536870912 "${user[@]}" env XDG_RUNTIME_DIR="$home"
    ! "${user[@]}" test -r "/dev/vfio/$(group $VF0)" || return 1 # the host's own is root's, as it was
}

# The kernel gives what it finds, and is content with less. DPDK takes 96 MiB of each node.
huge_pages() {
    local node
    for node in /sys/devices/system/node/node[01]; do
        echo 64 >"$node/hugepages/hugepages-2048kB/nr_hugepages"
        grep -H . "$node/hugepages/hugepages-2048kB/nr_hugepages"
        [ "$(<"$node/hugepages/hugepages-2048kB/nr_hugepages")" -ge 48 ]
    done
}

it "each node has the huge pages that DPDK takes" huge_pages
for vf in $VF0 $VF2; do bind $vf vfio-pci; done
it "the daemon starts and is ready" daemon_start
for step in add.begun add.prepared add.configured add.committed del.removing del.home del.released; do
    it "k14 the daemon killed at $step: the restart and the DEL leave nothing" dies_at $step
done
it "doctor says what a pod that is not root needs" doctor
DAEMON_FLAGS="--config $NODE/config.yaml"
it "k25 a pool that kubelet allocates from has bound two VFs to vfio-pci" pool_begins
it "k27 DPDK drives them in a pod that has what Allocate answered, and packets cross" packets_cross 0
it "k27 DPDK does so for a user who is not root" as_a_user
it "k26 drained, they have their kernel driver again" pool_ends
it "the daemon stops on SIGTERM" daemon_stop
for node in /sys/devices/system/node/node[01]; do echo 0 >$node/hugepages/hugepages-2048kB/nr_hugepages; done
for pf in $PF0 $PF2; do echo 0 >/sys/bus/pci/devices/"$pf"/sriov_numvfs; done
finish
