# A cluster of one node on this machine: etcd, kube-apiserver with RBAC, controllers, scheduler, containerd 2 and kubelet, in
# the namespaces that enter_node of tests/lib.sh makes, so that all of it ends with the script. Sourced after lib.sh. What a
# node has below /etc and /opt is this one's own too: /etc/cni/net.d and /opt/cni/bin are what kubelet's pods mount.

NODE_NAME=node API_PORT=443
. "$ROOT/tests/cluster/node.sh"
PROGRAMS=${PROGRAMS:-$ROOT/.cache/k8s/now}

kubelet_answers() { [ "$(curl -sS --max-time 5 http://127.0.0.1:10248/healthz)" = ok ]; }
kubectl() { "$K/bin/kubectl" --kubeconfig=$K/admin.kubeconfig --request-timeout=60s "$@"; }

# After enter_node. Layers over the directories that the node's programs and pods use by their fixed names.
cluster_places() {
    local directory
    mount --make-rshared /
    for directory in /etc /opt /var/log; do
        mkdir -p "$NODE/over$directory" "$NODE/work$directory"
        mount -t overlay -o "lowerdir=$directory,upperdir=$NODE/over$directory,workdir=$NODE/work$directory" overlay $directory
    done
    rm -rf /etc/cni /opt/cni
    NETD=/etc/cni/net.d CNIBIN=/opt/cni/bin
    export CNI_CONF_DIR=$NETD CNI_PLUGIN_DIR=$CNIBIN
    mkdir -p $NETD $CNIBIN $K/bin $K/pki $K/static $K/containerd /var/lib/etcd $KUBELET
    cp "$BIN/plugins"/{bandwidth,bridge,host-local,loopback,macvlan,portmap,static,tuning} $CNIBIN
    ln -s "$PROGRAMS"/* $K/bin
    export PATH=$K/bin:$PATH
    ip address add 10.96.0.1/32 dev lo # the cluster's own service, which has no proxy here
    # cgroups of pods are below the node's own, so that they are gone when it is.
    for directory in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do
        [ ! -e "$directory" ] || mkdir -p "${directory%/*}$NODE_CGROUP-pods"
    done
}

node_kubelet() {
    cat <<Y
cgroupRoot: $NODE_CGROUP-pods
staticPodPath: $K/static
oomScoreAdj: 0
maxPods: 250
address: 127.0.0.1
serializeImagePulls: false
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
Y
}

# The network that the cluster has before Fairlead comes.
default_network() {
    cat <<'J'
{ "cniVersion": "1.0.0", "name": "pods", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.62.0.0/16" }]], "routes": [{ "dst": "0.0.0.0/0" }] } } ] }
J
}

# Also one that comes after another.
node_apiserver_up() {
    apiserver_up --bind-address=0.0.0.0 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --admission-control-config-file=$K/admission.yaml --audit-policy-file=$K/audit.yaml --audit-log-path="$LOG/audit"
}

# What the daemon, or its peer, asks of the API server is written down, and nothing else.
audit_policy() {
    cat <<'Y'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:fairlead:fairlead", "peer"]
  - level: None
Y
}

# As on GKE: pods of the classes of the system are made only in a namespace with a quota that names one.
admission_configuration() {
    cat <<'Y'
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
Y
}

control_plane_up() {
    certificates
    kubeconfig lab >$K/admin.kubeconfig
    etcd_up
    audit_policy >$K/audit.yaml
    admission_configuration >$K/admission.yaml
    node_apiserver_up
    step "kube-apiserver is ready"
    kube-controller-manager --kubeconfig=$K/admin.kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
        --root-ca-file=$K/pki/ca.crt --service-account-private-key-file=$K/pki/accounts.key \
        --concurrent-serviceaccount-token-syncs=1 >"$LOG/controllers" 2>&1 &
    disown $!
    kube-scheduler --kubeconfig=$K/admin.kubeconfig --leader-elect=false --bind-address=127.0.0.1 >"$LOG/scheduler" 2>&1 &
    disown $!
}

# After cluster_places, which sets this script's own variables.
cluster_up() {
    default_network >$NETD/10-pods.conflist
    control_plane_up
    containerd_up
    images_up
    step "containerd has its images"
    kubelet_up
    eventually 30 node_ready
    step "the node is Ready"
    eventually 20 has_account default
}
has_account() { kube GET /api/v1/namespaces/"$1"/serviceaccounts/default | jq -e .metadata.uid >/dev/null; } # NAMESPACE

# ---- rights ----
# may USER VERB RESOURCE [kubectl's arguments], and may_not: what the API server answers, and not that nothing came
may() { equal "the right of $1 to $2 $3" "$(right "$@")" yes; }
may_not() { equal "the right of $1 to $2 $3" "$(right "$@")" no; }
right() { kubectl auth can-i --as "$1" "$2" "${3%%/*}" --subresource="$(subresource "$3")" "${@:4}" 2>/dev/null || true; }
subresource() { [[ $1 != */* ]] || echo "${1#*/}"; } # kubectl itself takes pods/status for the pod of that name
account() { echo "system:serviceaccount:$1:$2"; } # NAMESPACE NAME

# ---- pods ----
# pod NAME [ANNOTATIONS-AS-JSON [MORE-OF-SPEC-AS-JSON]]: one that sleeps
pod() {
    jq -n --arg name "$1" --argjson annotations "${2:-{\}}" --argjson more "${3:-{\}}" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name, namespace: "default", annotations: $annotations},
        spec: ({automountServiceAccountToken: false, enableServiceLinks: false, terminationGracePeriodSeconds: 0,
            containers: [{name: "main", image: "localhost/work:1", imagePullPolicy: "Never"}]} + $more)}' >"$NODE/pod.json"
    kube POST $PODS -d @"$NODE/pod.json" >"$NODE/posted.json"
    [ "$(jq -r .kind "$NODE/posted.json")" = Pod ] || { cat "$NODE/posted.json"; return 1; }
}
is_running() { [ "$(phase "$1")" = "Running " ]; } # NAME
runs() { # NAME [SECONDS]
    eventually "${2:-30}" is_running "$1" && return 0
    kube GET $PODS/"$1" | jq -c .status
    kubectl get events --field-selector "involvedObject.name=$1" -o custom-columns=:.message
    return 1
}
address() { kube GET $PODS/"$1" | jq -r .status.podIP; }                                                                 # NAME
network_status() { kube GET $PODS/"$1" | jq -r '.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] // empty'; } # NAME
in_container() { # NAME COMMAND…: in the pod's network, with the node's own programs
    local pid
    pid=$(process_of "$1")
    nsenter --net=/proc/"$pid"/ns/net -- "${@:2}"
}
process_of() { ctr tasks ls | awk -v id="$(container_of "$1")" '$1 == id {print $2}'; } # NAME
container_of() { kube GET $PODS/"$1" | jq -r '.status.containerStatuses[0].containerID | sub(".*//"; "")'; } # NAME

# definition NAME [CONFIGURATION-AS-JSON]: a NetworkAttachmentDefinition; one that is there already gets this configuration
definition() {
    jq -n --arg name "$1" --arg config "${2:-}" '{apiVersion: "k8s.cni.cncf.io/v1", kind: "NetworkAttachmentDefinition",
        metadata: {name: $name, namespace: "default"}, spec: {config: $config}}' | kubectl apply -f - >/dev/null
}
no_definition() { kubectl delete network-attachment-definitions "$1" >/dev/null; } # NAME

# ---- what the node has ----
netns_of_pods() { find /run/netns -name 'cni-*' 2>/dev/null | wc -l; }
held_of() { find /var/lib/cni/networks -type f -name "$1" | wc -l; } # PATTERN, of addresses of any network
addresses_held() { find /var/lib/cni/networks/pods -type f -name '10.*' 2>/dev/null | wc -l; }
