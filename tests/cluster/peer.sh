# The same cases with another node plugin, for comparison: PEER=multus=DIR, where DIR has its program `multus`. What only Fairlead
# has (its daemon, its installer, its own commands) is left out; what is not so with the peer is told as a case that failed.
# Sourced by tests/e2e.sh.

PEER=${PEER:-}
case $PEER in
'' | multus=*) ;;
*) die "PEER is multus=DIR, not '$PEER'" ;;
esac

peer_installed() {
    local dir=${PEER#*=}
    [ -x "$dir/multus" ] || { echo "$dir/multus is no program"; return 1; }
    cp "$dir/multus" $CNIBIN
    kubectl apply -f "$ROOT/deploy/base/nad-crd.yaml" >/dev/null
    kubeconfig peer >$K/peer.kubeconfig
    jq -n --arg kubeconfig $K/peer.kubeconfig --slurpfile cluster $NETD/10-pods.conflist '{cniVersion: "0.3.1",
        name: "multus-cni-network", type: "multus", kubeconfig: $kubeconfig, delegates: $cluster}' >$NETD/00-multus.conf
}

# What is asked of Fairlead's own daemon has no answer here.
without_own_daemon() {
    attached() { true; }
    ready_daemon() { true; }
    running_daemon() { echo; }
    kill_daemon() { true; }
    fairleadd() { true; }
    events_of() { kube GET /api/v1/namespaces/default/events | jq -r --arg p "$1" '.items[] | select(.involvedObject.name == $p) | .message'; }
}
