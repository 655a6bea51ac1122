# The same cases with another node plugin, for comparison: PEER=multus=DIR, where DIR has its program `multus`; with MULTUS=thick
# `multus-daemon` and `multus-shim`. What only Fairlead has (its daemon, its installer, its own commands) is left out; what is not so
# with the peer is told as a case that failed. What a case leaves with the peer is told as that case's failure, and removed: the next
# one stands on its own.
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
    some_are_running() { [ "$(ctr tasks ls | grep -c RUNNING)" -ge 6 ]; }
    events_of() { kube GET /api/v1/namespaces/default/events | jq -r --arg p "$1" '.items[] | select(.involvedObject.name == $p) | .message'; }
}

# alone SENTENCE COMMAND…: a case at whose end no pod is left, nor anything of one.
alone() {
    if [ -z "$PEER" ]; then
        it "$@"
    else
        it "$1" leaving_nothing "${@:2}"
        clean_slate
    fi
}
leaving_nothing() {
    "$@"
    eventually 10 nothing_is_left || { echo "what is left:"; what_is_left; return 1; }
}
what_is_left() {
    find /run/netns -name 'cni-*' 2>/dev/null || true
    find /var/lib/cni/networks -type f -name '10.*' 2>/dev/null || true
    find /var/lib/cni/multus -maxdepth 1 -type f 2>/dev/null || true
}
nothing_is_left() { [ -z "$(what_is_left)" ]; }

# Whatever became of the case before: no pod, nothing of any pod, and an API server.
clean_slate() {
    apiserver_ready || apiserver_again
    rm -f "$K"/static/*.json
    kubectl delete statefulsets --all >/dev/null
    kube DELETE "$PODS?gracePeriodSeconds=0" >/dev/null
    eventually 60 no_pods || die "pods of a case stay; the next one would not stand on its own"
    # What is still on its way is not taken for what stays.
    ! eventually 20 nothing_is_left || return 0
    local left
    while read -r left; do
        [[ $left != /run/netns/* ]] || umount -l "$left" || true
        rm -f "$left"
    done < <(what_is_left)
}
