#!/usr/bin/env bash
# What comes and goes while the daemon runs: VFs that are made, removed, unbound or taken away by hand are offered
# or withdrawn by their pool, without a restart.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
about_the_daemon
guest_up
ip link set "$(nic $PF2)" up
MADE=0000:01:10.0 ALSO=0000:01:10.2 # of PF2
cat >"$NODE/config.yaml" <<Y
pools:
  - name: hotplug
    selectors: {rootDevices: ["$PF2"], vendors: ["8086"]}
Y
DAEMON_FLAGS="--config $NODE/config.yaml"

numvfs() { echo "$1" >/sys/bus/pci/devices/$PF2/sriov_numvfs; } # NUMBER
state() { api /v1/pools | jq -r ".functions[] | select(.function == \"$1\") | .state"; } # PCI
stands() { [ "$(state "$1")" = "$2" ]; }                                                 # PCI STATE
mac() { cat /sys/bus/pci/devices/"$1"/net/*/address; }                                   # PCI

made() {
    local pid
    pid=$(daemon_pid)
    equal "functions" "$(api /v1/pools | jq '.functions | length')" 0
    numvfs 2
    eventually 10 stands $MADE ready
    eventually 10 stands $ALSO ready
    equal "daemon" "$(daemon_pid)" "$pid"
}

removed() {
    numvfs 0
    eventually 5 stands $MADE gone
    eventually 5 stands $ALSO gone
}

made_again() {
    local before
    before=$(mac $MADE)
    removed
    numvfs 2
    eventually 10 stands $MADE ready
    eventually 10 stands $ALSO ready
    equal "MAC address" "$(mac $MADE)" "$before"
}

unbound() {
    echo $MADE >/sys/bus/pci/devices/$MADE/driver/unbind
    eventually 10 bound $MADE igbvf
    eventually 10 stands $MADE ready
}
bound() { [ "$(driver "$1")" = "$2" ]; } # PCI DRIVER

taken() {
    local name
    name=$(nic $MADE)
    ip netns add theirs
    ip link set "$name" netns theirs
    eventually 5 stands $MADE foreign
    ip -n theirs link set "$name" netns 1
    ip netns del theirs
    eventually 10 stands $MADE ready
}

numvfs 0
it "the daemon starts and is ready" daemon_start
it "x17 VFs that are made are offered" made
it "x17 one that loses its driver is made ready anew" unbound
it "x17 one that somebody takes away is left to him, and offered again when it is back" taken
it "x17 VFs that are removed are withdrawn, and made again they are who they were" made_again
it "x17 the last ones are withdrawn too" removed
it "the daemon stops on SIGTERM" daemon_stop
finish
