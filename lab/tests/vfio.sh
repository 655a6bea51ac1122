#!/usr/bin/env bash
# sriov on real virtual functions (igb) that vfio-pci has: settings, groups in use, death in every order, device information;
# and DPDK's testpmd drives two of them for a pod whose /dev has nothing but what it needs, root or not.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
vfs_up
VF2=0000:01:10.0 # of PF2
ip link set "$(nic $PF2)" up
[ -e /sys/bus/pci/devices/$VF2 ] || echo 1 >/sys/bus/pci/devices/$PF2/sriov_numvfs
modprobe vfio-pci
INFO=/run/devinfo/cni/of-pod.json

group() { basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")"; }     # PCI
bind() { # PCI DRIVER
    local device=/sys/bus/pci/devices/$1
    [ "$2" = igbvf ] && echo >"$device/driver_override" || echo "$2" >"$device/driver_override"
    [ ! -e "$device/driver" ] || echo "$1" >"$device/driver/unbind"
    echo "$1" >/sys/bus/pci/drivers_probe
    equal "driver" "$(driver "$1")" "$2"
}

sriov() { config sriov "\"deviceID\":\"$1\"${2:+,$2}"; }              # PCI [FIELDS]
add() { plugin "$CNIBIN" ADD "$1" "$(sriov "$2" "${3:-}")"; }         # POD PCI [FIELDS]
del() { plugin "$CNIBIN" DEL "$1" "$(sriov "$2" "${3:-}")"; }         # POD PCI [FIELDS]

# The administrator's settings of function 0 as its physical function tells them.
settings() { # PF
    ip -j link show dev "$(nic "$1")" | jq -c '.[0].vfinfo_list[0]
        | [.address, .vlan_list[0].vlan, .vlan_list[0].qos, .rate.max_tx, .spoofchk, .trust]'
}
are() { [ "$(settings $PF0)" = "$1" ]; } # SETTINGS

MAC='"mac":"02:00:00:00:aa:00"'
TAKEN="$MAC,\"vlan\":100,\"vlanQoS\":3,\"trust\":\"on\",\"max_tx_rate\":200"
AS_WANTED='["02:00:00:00:aa:00",100,3,200,true,true]'

pods() { # `before` is how it is with nobody there
    local pod
    for pod in pod other; do
        ip netns del $pod 2>/dev/null || true
        ip netns add $pod
    done
    before=$(settings $PF0)
}
as_before() {
    eventually 15 are "$before" || { diff <(echo "$before") <(settings $PF0); return 1; }
    equal "driver" "$(driver $VF0)" "${1:-vfio-pci}"
    equal "attachments" "$(attachments)" 0
    equal "addresses" "$(addresses_held)" 0
}

IPAM='"ipam":{"type":"host-local","ranges":[[{"subnet":"10.20.0.0/24"}]]}'

its_life() {
    local before fields call result
    pods
    fields="$TAKEN,$IPAM,\"runtimeConfig\":{\"CNIDeviceInfoFile\":\"$INFO\"}"
    call=$(sriov $VF0 "$fields")
    result=$(plugin "$CNIBIN" ADD pod "$call")
    equal "answer" "$(jq -cS '[.interfaces[0], .ips[0].address, .ips[0].interface]' <<<"$result")" \
        "[{\"mac\":\"02:00:00:00:aa:00\",\"name\":\"net1\",\"pciID\":\"$VF0\",\"sandbox\":\"/run/netns/pod\"},\"10.20.0.2/24\",0]"
    equal "settings" "$(settings $PF0)" "$AS_WANTED"
    equal "links of the pod" "$(ip -n pod -br link | wc -l)" 1
    equal "device information" "$(jq -cS . $INFO)" \
        "{\"pci\":{\"pci-address\":\"$VF0\",\"pf-pci-address\":\"$PF0\"},\"type\":\"pci\",\"version\":\"1.1.0\"}"
    equal "its mode" "$(stat -c %a $INFO)" 444
    plugin "$CNIBIN" CHECK pod "$(with_result "$call" "$result")"
    ip link set "$(nic $PF0)" vf 0 vlan 7
    ! plugin "$CNIBIN" CHECK pod "$(with_result "$call" "$result")" >"$NODE/error" || return 1
    grep -F 'settings of its function' "$NODE/error"
    ip link set "$(nic $PF0)" vf 0 vlan 100 qos 3
    plugin "$CNIBIN" DEL pod "$call"
    [ ! -e $INFO ]
    as_before
}

one_pod_at_a_time() {
    local before
    pods
    add pod $VF0 "$TAKEN" >/dev/null
    ! add other $VF0 >"$NODE/error" || return 1
    equal "code" "$(jq .code "$NODE/error")" 11
    grep -F 'of container pod' "$NODE/error"
    equal "settings" "$(settings $PF0)" "$AS_WANTED"
    del pod $VF0 "$TAKEN"
    as_before
}

held() { exec 8<>"/dev/vfio/$(group $VF0)"; } # as a process that drives it does
let_go() { exec 8>&-; }

in_use() {
    local before
    pods
    held
    ! add pod $VF0 "$TAKEN" 8>&- >"$NODE/error" || return 1
    equal "code" "$(jq .code "$NODE/error")" 11
    grep -F "a process has its IOMMU group $(group $VF0) open" "$NODE/error"
    let_go
    as_before
}

settings_stay_under_a_process() {
    local before
    pods
    add pod $VF0 "$TAKEN" >/dev/null
    held
    ! del pod $VF0 "$TAKEN" 8>&- >"$NODE/error" || return 1
    equal "code" "$(jq .code "$NODE/error")" 11
    equal "settings" "$(settings $PF0)" "$AS_WANTED"
    let_go
    del pod $VF0 "$TAKEN"
    as_before
}

its_pod_dies() {
    local before
    pods
    add pod $VF0 "$TAKEN,$IPAM" >/dev/null
    ip netns del pod
    as_before
}

dies_at() { # STEP
    local before fields="$TAKEN,$IPAM"
    pods
    daemon_stop
    FAIRLEAD_FAILPOINT=$1 daemon_start "$DIST/failpoints/fairleadd"
    ! FAIRLEAD_TIMEOUT=5 add pod $VF0 "$fields" || FAIRLEAD_TIMEOUT=5 del pod $VF0 "$fields" || true
    eventually 10 gone "$(daemon_pid)"
    daemon_start
    del pod $VF0 "$fields"
    as_before
}

its_driver_changes() {
    local before
    pods
    add pod $VF0 "$TAKEN" >/dev/null
    bind $VF0 igbvf
    del pod $VF0 "$TAKEN"
    as_before igbvf
    bind $VF0 vfio-pci
}

other_drivers() {
    local before
    pods
    modprobe uio_pci_generic
    bind $VF0 uio_pci_generic
    ! add pod $VF0 >"$NODE/error" || return 1
    grep -F "function $VF0 is bound to uio_pci_generic" "$NODE/error"
    bind $VF0 vfio-pci
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
    del pod $VF0
    del other $VF2
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
it "k27 d24 settings, addresses and device information are set and told, checked, and as before after DEL" its_life
it "a function that a pod has is refused to the next, and stays as it is" one_pod_at_a_time
it "a function whose group a process has is refused before anything is changed" in_use
it "settings stay while a process has the function, and DEL says so" settings_stay_under_a_process
it "x06 a function whose pod dies gets its settings back without anybody's DEL" its_pod_dies
for step in add.begun add.prepared add.configured add.committed del.removing del.home del.released; do
    it "k14 the daemon killed at $step: the restart and the DEL leave nothing" dies_at $step
done
it "a function that has another driver at DEL gets its settings back and keeps that" its_driver_changes
it "a function of another driver for user space is refused by name" other_drivers
it "doctor says what a pod that is not root needs" doctor
it "k27 DPDK drives two functions that were given to pods, and packets cross" packets_cross 0
it "k27 DPDK does so for a user who is not root" as_a_user
it "the daemon stops when it is told to" daemon_stop
for node in /sys/devices/system/node/node[01]; do echo 0 >$node/hugepages/hugepages-2048kB/nr_hugepages; done
for pf in $PF0 $PF2; do echo 0 >/sys/bus/pci/devices/"$pf"/sriov_numvfs; done
finish
