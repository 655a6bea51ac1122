#!/usr/bin/env bash
# podman with its CNI back end as the caller, on an unchanged macvlan conflist
# (PLUGINS=reference: the same with the reference plugins).
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
NODE_PARTS=(reference)
enter_node "$@"

container() { podman --cgroup-manager=cgroupfs --events-backend=none --storage-driver=vfs "$@"; }

podman_config() {
    cat <<C
[network]
network_backend = "cni"
cni_plugin_dirs = ["$CNIBIN"]
network_config_dir = "$NETD"
[engine]
runtime = "runc"
C
}

start() { # NAME
    container run -d --name "$1" --network pods --cgroup-parent "$NODE_CGROUP" --rootfs "$NODE/rootfs" \
        /bin/busybox sleep 1000
}

netns_of() { container inspect -f '{{.NetworkSettings.SandboxKey}}' "$1"; }
address_of() { container inspect -f '{{.NetworkSettings.Networks.pods.IPAddress}}' "$1"; }

back_end_is_cni() { equal "podman's network back end" "$(container info -f '{{.Host.NetworkBackend}}')" cni; }

a_container_has_an_address() {
    start first
    address_of first | grep -F 10.60.
    nsenter --net="$(netns_of first)" ip -br address show dev eth0 | grep -F "$(address_of first)/16"
}

containers_reach_each_other() {
    start second
    eventually 10 nsenter --net="$(netns_of first)" busybox ping -c 1 -W 2 -q "$(address_of second)"
    eventually 10 nsenter --net="$(netns_of second)" busybox ping -c 1 -W 2 -q 10.60.0.1
}

nothing_is_left() {
    container rm -f -t 0 first second
    eventually 10 no_address_held || { find /var/lib/cni/networks; return 1; }
    ! ours || equal "the daemon's attachments" "$(attachments)" 0
}

podman_config >"$NODE/containers.conf"
export CONTAINERS_CONF=$NODE/containers.conf
"$ROOT/tests/mkimage.py" --rootfs "$NODE/rootfs"
network_config pods 10.60.0.0/16 >"$NETD/10-pods.conflist"
! ours || it "the daemon starts and is ready" daemon_start
it "podman uses its CNI back end" back_end_is_cni
it "a container has eth0 and its address" a_container_has_an_address
it "containers reach each other and their gateway" containers_reach_each_other
it "nothing is left when they are gone" nothing_is_left
! ours || it "the daemon stops on SIGTERM" daemon_stop
finish
