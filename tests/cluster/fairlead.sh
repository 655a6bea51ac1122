# Fairlead on the node of cluster.sh, by its own image and manifests, and what definitions and pods of tests look like. Sourced after
# cluster.sh and cluster_places.

IMAGE=ghcr.io/fairlead/fairlead
VERSION=0.1.0
CONFLIST=$NETD/00-fairlead.conflist

fairleadd() { "$DIST/fairleadd" "$@"; }
the_daemon() { kubectl -n fairlead "$@"; }
rolled_out() { the_daemon rollout status daemonset/fairlead --timeout="${1:-180}s"; }
running_daemon() { api /v1/status | jq .pid; }
kill_daemon() { kill -KILL "$(running_daemon)"; }
ready_daemon() { fairleadd status --ready; }
doctor_tells() { [[ "$(fairleadd doctor)" == *"$1"* ]]; }
attached() { [ "$(attachments)" = "$1" ]; }
no_pods() { [ "$(kube GET $PODS | jq '.items | length')" = 0 ]; }
nothing_held() { [ "$(addresses_held)" = 0 ] && [ "$(netns_of_pods)" = 0 ]; }

installed() {
    ctr images import "$DIST/fairlead-image.tar" >/dev/null
    kubectl apply -k "$ROOT/deploy"
    rolled_out
    eventually 10 test -e $CONFLIST
    grep -q '"clusterNetwork": "pods"' $CONFLIST
    cmp "$DIST/fairlead" $CNIBIN/fairlead
}

config() { # present or absent
    the_daemon patch configmap fairlead --type merge \
        -p "$(jq -n --arg c "install: {cni: $1}" '{data: {"config.yaml": $c}}')"
}

all_gone() {
    kube DELETE "$PODS?gracePeriodSeconds=0" >/dev/null
    eventually 60 no_pods
    # Kubelet's watch, after an API server that was away, is tried again after up to 30 s, and later on a busy machine.
    eventually 90 attached 0
    eventually 20 nothing_held || { ls /run/netns /var/lib/cni/networks/pods; ctr containers ls; return 1; }
}

# asking NETWORKS: what the annotation of a pod says
asking() { jq -cn --arg networks "$1" '{"k8s.v1.cni.cncf.io/networks": $networks}'; }
macvlan() { # SUBNET
    jq -cn --arg subnet "$1" '{cniVersion: "1.0.0", type: "macvlan", master: "eth0", mode: "bridge",
        ipam: {type: "host-local", subnet: $subnet, routes: [{dst: "0.0.0.0/0"}]}}'
}
# Executed, and a list.
executed() { # SUBNET
    jq -cn --arg subnet "$1" '{cniVersion: "0.4.0", name: "storage-net", plugins: [{type: "bridge", bridge: "br-storage",
        ipam: {type: "host-local", subnet: $subnet}}, {type: "tuning", sysctl: {"net.core.somaxconn": "500"}}]}'
}
status_of() { network_status "$1" | jq -c "$2"; } # POD JQ
has_status() { [ "$(status_of "$1" length)" = "$2" ]; } # POD ENTRIES
