#!/usr/bin/env bash
# sriov on real virtual functions (igb) that vfio-pci has: the daemon killed at every step, what doctor says; and DPDK's testpmd
# drives two of them for a pod whose /dev has nothing but what it needs, root or not. What any plugin should do is in
# functions.sh.
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

pods() { # `before` is how it is with nobody there
    local pod
    for pod in pod other; do
        ip netns del $pod 2>/dev/null || true
        ip netns add $pod
    done
    before=$(settings $VF0)
}
as_before() {
    eventually 15 are "$before" || { diff <(echo "$before") <(settings $VF0); return 1; }
    equal "driver" "$(driver $VF0)" vfio-pci
    equal "attachments" "$(attachments)" 0
    equal "addresses" "$(addresses_held)" 0
}

none_left() { [ "$(attachments)" = 0 ]; }

IPAM='"ipam":{"type":"host-local","ranges":[[{"subnet":"10.20.0.0/24"}]]}'

dies_at() { # STEP
    local before fields="$TAKEN,$IPAM"
    pods
    daemon_stop
    FAIRLEAD_FAILPOINT=$1 daemon_start "$DIST/failpoints/fairleadd"
    ! FAIRLEAD_TIMEOUT=20 add pod $VF0 "$fields" || FAIRLEAD_TIMEOUT=5 del pod $VF0 "$fields" || true
    eventually 10 gone "$(daemon_pid)"
    daemon_start
    del pod $VF0 "$fields"
    as_before
}

doctor() {
    "$DIST/fairleadd" doctor >"$NODE/doctor" || true
    grep -F "/dev/vfio/$(group $VF0), /dev/vfio/$(group $VF2): root's alone" "$NODE/doctor"
    grep -F memlock "$NODE/doctor"
}

# In a mount namespace of its own, whose /dev has what a container always has, huge pages, and the nodes of the two groups.
pod_dev() { # UID COMMAND…
    # shellcheck disable=SC2016
    unshare -m bash -euo pipefail -c '
        dev=$(mktemp -d)
        mount -t tmpfs tmpfs "$dev"
        for node in null zero full random urandom vfio/vfio "vfio/$1" "vfio/$2"; do
            mkdir -p "$(dirname "$dev/$node")"
            touch "$dev/$node"
            mount --bind "/dev/$node" "$dev/$node"
        done
        mkdir "$dev/hugepages"
        mount -t hugetlbfs -o "uid=$3" nodev "$dev/hugepages"
        mount --rbind "$dev" /dev
        shift 3
        exec "$@"' - "$(group $VF0)" "$(group $VF2)" "$@"
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

# Two functions of two NICs, on a VLAN of their own; each port sends on what it gets.
packets_cross() { # UID COMMAND… for a process of that user
    local uid=$1 before pid fields="\"vlan\":100,\"mac\""
    shift
    pods
    add pod $VF0 "$fields:\"02:00:00:00:aa:00\"" >/dev/null
    add other $VF2 "$fields:\"02:00:00:00:bb:00\"" >/dev/null
    rm -f "$NODE/typed"
    mkfifo "$NODE/typed"
    exec 7<>"$NODE/typed"
    pod_dev "$uid" nsenter --net=/run/netns/pod "$@" timeout 200 dpdk-testpmd -l 1,2,3 -n 2 -a $VF0 -a $VF2 \
        --socket-mem 96,96 --file-prefix=pod --no-telemetry -- -i --nb-cores=2 --total-num-mbufs=8192 \
        --no-lsc-interrupt --forward-mode=mac --eth-peer=0,02:00:00:00:bb:00 --eth-peer=1,02:00:00:00:aa:00 \
        <"$NODE/typed" >"$NODE/testpmd" 2>&1 7>&- &
    pid=$!
    eventually 60 grep -q 'testpmd>' "$NODE/testpmd" && type_in "start tx_first 4" && eventually 60 both_get 1000 ||
        { tail -30 "$NODE/testpmd"; kill $pid; wait $pid || true; del pod $VF0; del other $VF2; return 1; }
    received
    ! del pod $VF0 7>&- >"$NODE/error" || return 1 # it has the group
    equal "code" "$(jq .code "$NODE/error")" 11
    type_in stop
    type_in quit
    eventually 20 gone $pid
    exec 7>&-
    del other $VF2
    eventually 60 none_left # no runtime need call again for the first
    as_before
}

as_a_user() {
    local group home
    home=$(mktemp -d)
    chown 1000 "$home"
    ! setpriv --reuid 1000 --regid 1000 --clear-groups test -r "/dev/vfio/$(group $VF0)" || return 1
    # What doctor asks the operator for.
    for group in "$(group $VF0)" "$(group $VF2)"; do chown 1000 "/dev/vfio/$group"; done
    packets_cross 1000 prlimit --memlock=536870912 setpriv --reuid 1000 --regid 1000 --clear-groups \
        env XDG_RUNTIME_DIR="$home"
}

for node in /sys/devices/system/node/node[01]; do echo 64 >$node/hugepages/hugepages-2048kB/nr_hugepages; done
for vf in $VF0 $VF2; do bind $vf vfio-pci; done
it "the daemon starts and is ready" daemon_start
for step in add.begun add.prepared add.configured add.committed del.removing del.home del.released; do
    it "k14 the daemon killed at $step: the restart and the DEL leave nothing" dies_at $step
done
it "doctor says what a pod that is not root needs" doctor
it "k27 DPDK drives two functions that were given to pods, and packets cross" packets_cross 0
it "k27 DPDK does so for a user who is not root" as_a_user
it "the daemon stops when it is told to" daemon_stop
for node in /sys/devices/system/node/node[01]; do echo 0 >$node/hugepages/hugepages-2048kB/nr_hugepages; done
for pf in $PF0 $PF2; do echo 0 >/sys/bus/pci/devices/"$pf"/sriov_numvfs; done
finish
