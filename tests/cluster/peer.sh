# The same cases with another node plugin, for comparison: PEER=multus=DIR, where DIR has its program `multus`; with MULTUS=thick
# `multus-daemon` and `multus-shim`. What only Fairlead
# has (its daemon, its installer, its own commands) is left out; what is not so with the peer is told as a case that failed.
# Sourced by the scripts that compare, and by multus_cluster.sh.

PEER=${PEER:-}
case $PEER in
'' | multus=*) ;;
*) die "PEER is multus=DIR, not '$PEER'" ;;
esac

peer_installed() {
    kubectl apply -f "$ROOT/deploy/crds/nad-crd.yaml" >/dev/null
    "multus_${MULTUS:-thin}" "${PEER#*=}"
}

multus_program() { # DIRECTORY NAME
    [ -x "$1/$2" ] || { echo "$1/$2 is no program"; return 1; }
    cp "$1/$2" $CNIBIN
}

multus_thin() { # DIRECTORY
    multus_program "$1" multus
    kubeconfig peer >$K/peer.kubeconfig
    jq -n --arg kubeconfig $K/peer.kubeconfig --slurpfile cluster $NETD/10-pods.conflist '{cniVersion: "0.3.1",
        name: "multus-cni-network", type: "multus", kubeconfig: $kubeconfig, delegates: $cluster}' >$NETD/00-multus.conf
}

# As its own DaemonSet has it, but a process of the node: it finds the API server by what a pod has.
multus_thick() { # DIRECTORY
    local account=/run/secrets/kubernetes.io/serviceaccount
    multus_program "$1" multus-shim
    mkdir -p $account $NETD/multus.d
    cp $K/pki/ca.crt $account/ca.crt
    printf peer >$account/token
    printf kube-system >$account/namespace
    jq -n --arg conf $NETD --arg bin $CNIBIN '{cniVersion: "0.3.1", logLevel: "verbose", logToStderr: true, cniConfigDir: $conf,
        multusAutoconfigDir: $conf, multusConfigFile: "auto", socketDir: "/run/multus/", binDir: $bin}' >$NETD/multus.d/daemon-config.json
    multus_daemon_up "$1"
    eventually 20 test -e $NETD/00-multus.conf
}
multus_daemon_up() { # DIRECTORY: also one that comes after another
    KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=$API_PORT MULTUS_NODE_NAME=$NODE_NAME \
        "$1/multus-daemon" -config $NETD/multus.d/daemon-config.json >>"$LOG/multus" 2>&1 &
    echo $! >$K/multus.pid
    disown $!
}

# What is asked of Fairlead's own daemon has no answer here.
without_own_daemon() {
    attached() { true; }
    ready_daemon() { true; }
    running_daemon() { echo; }
    kill_daemon() { true; }
    fairleadd() { true; }
    doctor_tells() { true; }
    events_of() { kube GET /api/v1/namespaces/default/events | jq -r --arg p "$1" '.items[] | select(.involvedObject.name == $p) | .message'; }
}
