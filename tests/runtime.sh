# A containerd of the node's own: its configuration, start, images, and what its CRI answers. Sourced after lib.sh.

containerd_config() {
    cat <<C
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  # a machine that is itself a container or a small virtual machine allows neither
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNIBIN"
    conf_dir = "$NETD"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
C
}

containerd_up() {
    containerd_config >"$NODE/containerd.toml"
    containerd -c "$NODE/containerd.toml" >"$LOG/containerd" 2>&1 &
    echo $! >"$NODE/containerd.pid"
    eventually 20 ctr version || { tail -20 "$LOG/containerd"; return 1; }
    "$ROOT/tests/mkimage.py" "$NODE/image.tar" localhost/pause:1
    ctr -n k8s.io images import "$NODE/image.tar" >"$LOG/import" 2>&1
    eventually 10 cri status
}

cri() { local command=$1; shift; "$BIN/cri" "$command" -cgroup "$NODE_CGROUP" "$@"; }
pods() { cri list | wc -l; }

# Ends containerd's pods, live ones too, so that no process is left in the cgroups.
containerd_down() {
    cri stop -all -c 10 >/dev/null && cri remove -all -c 10 >/dev/null
    kill "$(cat "$NODE/containerd.pid")"
    eventually 10 gone "$(cat "$NODE/containerd.pid")"
}

# in_pod NETNS COMMAND…
in_pod() { nsenter --net="$1" -- "${@:2}"; }
ping_from() { eventually 10 in_pod "$1" busybox ping -c 1 -W 2 -q "$2"; } # NETNS ADDRESS
