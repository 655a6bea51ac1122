#!/usr/bin/env bash
# A real kubelet (CPU manager static, topology manager single-numa-node) on a real one-node cluster in the lab machine, with
# Fairlead's device plugin and Fairlead as its pods' CNI plugin: 21 VFs of three NICs, under igbvf and vfio-pci.
# Runs in the guest: `make lab-kubelet`, or lab/test.sh lab/kubelet/test.sh once the programs are built.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/../guest.sh"
. "$ROOT/lab/kubelet/node.sh"
. "$ROOT/lab/kubelet/cases.sh"
about_the_daemon

all_up() {
    node_places "$(mktemp -d)"
    "$DIST/fairleadd" install --as fairlead --bin-dir "$CNIBIN" --from "$DIST/fairlead" >/dev/null
    places_up "$ROOT/.cache/k8s/now"
    network_up
    step "the programs are in memory"
    etcd_up
    functions_up
    step "etcd is begun, VFs are made"
    certificates
    apiserver_up --bind-address=127.0.0.1 --authorization-mode=AlwaysAllow \
        --disable-admission-plugins=ServiceAccount,TaintNodesByCondition
    step "kube-apiserver is ready"
    fairlead_configuration >"$NODE/config.yaml"
    DAEMON_FLAGS="--config $NODE/config.yaml"
    networks
    mkdir -p $KUBELET/device-plugins $KUBELET/pod-resources
    daemon_start
    eventually 30 are_ready 21 || pools
    step "fairleadd has 21 VFs ready"
    containerd_up
    images_up
    step "containerd is up"
    kubelet_up
    step "kubelet answers"
}

all_up
it "k27 the node is Ready and has all 21 VFs, each on its NUMA node" offered
it "k27 after the daemon's restart kubelet has all 21 again" restarted_in_time
sed "s/^/    /" "$NODE/figures"
it "a pod that no NUMA node has room for is refused, and nothing is kept of it" nowhere
it "x10 a pod's VF, its NIC, its CPUs and its eth1 are of one NUMA node" kernel_pod
it "d24 a pod's VF under vfio-pci can be opened in it, and is of its CPUs' node" vfio_pod
it "x19 a pod without a VF has the next path" plain_pod
it "x17 kubelet killed: all is offered again, pods stay, a new pod is served" kubelet_restarted
it "x17 the daemon killed: kubelet has all again, a DEL of meanwhile is carried out, a new pod is served" daemon_killed
it "x07 a pod's VF comes back and is ready, and kubelet's count is right" pod_deleted
it "x17 what is in quarantine or has vanished is not allocatable, until it is back" withdrawn
it "containerd killed: pods stay, and their DEL brings their VFs back" runtime_killed
it "x07 a VF that a pod had without an ADD is cleaned before the next one has it" without_an_add
it "nothing is left of the pods" all_home
it "x09 a definition with a resource gives the pod the VF that kubelet gave it, and network-status names it" by_definition
it "x14 a pod without the definition's resource waits, and an Event says so" by_definition_without_a_resource
it "nothing is left of these either" nothing_left
it "the daemon stops on SIGTERM" daemon_stop
finish
