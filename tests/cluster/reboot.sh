# The end of a node and its next beginning, with many pods on it. Sourced by tests/e2e.sh.

# What a power failure ends: kubelet, containerd, every container with the daemon among them, and all that is in memory.
# Kubernetes' objects, containerd's and kubelet's files and the addresses on disk stay.
node_dies() {
    local program netns
    for program in kubelet containerd; do kill -KILL "$(cat $K/$program.pid)" || true; done
    pkill -KILL containerd-shim || true
    eventually 30 no_containers_left
    for netns in /run/netns/cni-*; do
        umount -l "$netns" || true
        rm -f "$netns"
    done
    awk -v below="$K/containerd/state/" 'index($2, below) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
    rm -rf /run/fairlead/* $K/containerd/state
    ip link delete cni0 || true
    written_by_an_earlier_boot
}
# This machine's boot id stays as it is: what is on the disk is made to be of another one.
written_by_an_earlier_boot() {
    python3 - <<'P'
import os

LABEL = "user.fairlead.boot"
for directory, _, files in os.walk("/var/lib/cni/networks"):
    for path in (os.path.join(directory, name) for name in files):
        if LABEL in os.listxattr(path):
            os.setxattr(path, LABEL, b"an-earlier-boot")
P
}
no_containers_left() {
    local list
    for list in $(find /sys/fs/cgroup -path "*$NODE_CGROUP-pods/*" -name cgroup.procs); do
        xargs -r kill -KILL <"$list" || true
    done
    [ -z "$(find /sys/fs/cgroup -path "*$NODE_CGROUP-pods/*" -name cgroup.procs -exec cat {} +)" ]
}

rebooted() {
    local begun
    definition radio "$(macvlan 10.63.0.0/24)"
    begun=$EPOCHSECONDS
    burst crowd 100 "$(asking radio)"
    eventually 240 all_running crowd 100
    eventually 30 attached 200
    figure "100 pods at once are Running after $((EPOCHSECONDS - begun)) s, $(memory_of_daemon)"
    mountpoint -q /run || return 1
    node_dies
    begun=$EPOCHSECONDS
    containerd_up
    kubelet_up
    eventually 120 ready_daemon
    eventually 300 attached 200
    eventually 300 all_have_containers crowd 100 || { what_runs crowd; return 1; }
    figure "after the reboot all have their networks again after $((EPOCHSECONDS - begun)) s, $(memory_of_daemon)"
    # Until then kubelet may still tell the address that a pod had before, which another one has now.
    eventually 60 all_told crowd 100
    equal "addresses" "$(kube GET $PODS | jq '[.items[].status.podIP] | unique | length')" 100
    equal "radio's addresses held" "$(held_of '10.63.*')" 100
    eventually 10 in_container crowd-1 busybox ping -c 1 -W 2 -q 10.62.0.1
    [ -n "$PEER" ] || [ "$(peak_of_daemon)" -le $((45 * 1024)) ] || { memory_of_daemon; return 1; }
    all_gone
    equal "radio's addresses held" "$(held_of '10.63.*')" 0
}
# The networks that are told are those that the pod has: two, with the address that kubelet tells of the first.
all_told() { # PREFIX NUMBER
    [ "$(kube GET $PODS | jq --arg p "$1-" '[.items[] | select(.metadata.name | startswith($p)) |
        select((.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] // "[]" | fromjson) as $told |
            ($told | length) == 2 and $told[0].ips[0] == .status.podIP)] | length')" = "$2" ]
}
# Running by kubelet's last word may be of before the reboot: these run now.
all_have_containers() { # PREFIX NUMBER
    [ "$(ctr tasks ls | grep -c RUNNING)" -ge $((2 * $2)) ] && all_running "$1" "$2"
}
what_runs() { # PREFIX
    echo "tasks: $(ctr tasks ls | awk 'NR > 1 {print $3}' | sort | uniq -c | tr '\n' ' ')"
    kube GET $PODS | jq -c --arg p "$1-" '[.items[] | select(.metadata.name | startswith($p)) |
        .status | {phase, ready: .containerStatuses[0].state}] | group_by(.) | map([length, .[0]])'
}
peak_of_daemon() { awk '/^VmHWM/ {print $2}' "/proc/$(running_daemon)/status"; }
memory_of_daemon() { [ -n "$PEER" ] || echo "the daemon's peak is $(($(peak_of_daemon) / 1024)) MiB"; }
