# A node of Kubernetes, as its parts: etcd, kube-apiserver, containerd 2 and a kubelet. Sourced by the lab's tests of kubelet
# (lab/kubelet) and by cluster.sh beside this file. All of its state is in $K. Before it $LOG, $NETD and $CNIBIN are set, and
# these may be:

NODE_NAME=${NODE_NAME:-lab}
API_PORT=${API_PORT:-6443}
MAX_CONF=${MAX_CONF:-1}  # configurations of the conf dir that containerd takes, one interface for each

K=/run/cluster
KUBELET=/var/lib/kubelet
CONTAINERD=$K/containerd/containerd.sock

begun=${EPOCHREALTIME/./}
step() { printf '        [%5.1f s] %s\n' "$(((${EPOCHREALTIME/./} - begun) / 100000))e-1" "$*"; }

# kube METHOD PATH [curl's arguments]: as the administrator
kube() {
    curl -sS --max-time 60 --cacert $K/pki/ca.crt -H 'Authorization: Bearer lab' -H 'Content-Type: application/json' \
        -X "$1" "https://127.0.0.1:$API_PORT$2" "${@:3}"
}
ctr() { "$K/bin/ctr" -a $CONTAINERD -n k8s.io "$@"; }

certificates() ( # in a shell of its own
    cd $K/pki || exit
    exec 2>"$LOG/openssl" # it tells dots
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=lab -keyout ca.key -out ca.crt
    openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout api.key -out api.csr
    openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out api.crt \
        -extfile <(echo 'subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost')
    openssl genrsa -out accounts.key 2048
    printf '%s\n' 'lab,admin,admin,"system:masters"' 'peer,peer,peer,"system:masters"' "node,system:node:$NODE_NAME,node,\"system:nodes\"" >tokens.csv
)

etcd_up() {
    etcd --data-dir /var/lib/etcd/data --unsafe-no-fsync --heartbeat-interval 1000 --election-timeout 10000 \
        >"$LOG/etcd" 2>&1 &
    disown $!
}

# apiserver_up [FLAG…]: also one that comes after another
apiserver_up() {
    kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=10.250.0.2 --secure-port=$API_PORT \
        --tls-cert-file=$K/pki/api.crt --tls-private-key-file=$K/pki/api.key \
        --client-ca-file=$K/pki/ca.crt --token-auth-file=$K/pki/tokens.csv \
        --service-account-issuer=https://lab --service-account-key-file=$K/pki/accounts.key \
        --service-account-signing-key-file=$K/pki/accounts.key --service-cluster-ip-range=10.96.0.0/24 \
        --allow-privileged=true "$@" >>"$LOG/apiserver" 2>&1 &
    echo $! >$K/apiserver.pid
    disown $!
    eventually 30 apiserver_ready
}
apiserver_ready() { [ "$(kube GET /readyz)" = ok ]; }

# A machine that is itself a container allows neither a lower oom_score_adj nor huge pages' controller.
containerd_configuration() {
    cat <<C
version = 3
root = "$K/containerd/root"
state = "$K/containerd/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "$CONTAINERD"
[ttrpc]
  address = "$CONTAINERD.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["$CNIBIN"]
  conf_dir = "$NETD"
  max_conf_num = $MAX_CONF
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
C
}

# Also one that comes after another.
containerd_up() {
    containerd_configuration >$K/containerd.toml
    "$K/bin/containerd" -c $K/containerd.toml >>"$LOG/containerd" 2>&1 &
    echo $! >$K/containerd.pid
    disown $!
    eventually 10 ctr version
}

images_up() {
    python3 "$ROOT/tests/mkimage.py" $K/image.tar localhost/pause:1 localhost/work:1
    ctr images import $K/image.tar >/dev/null
}

kubelet_configuration() {
    cat <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://$CONTAINERD
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
makeIPTablesUtilChains: false
evictionHard: {memory.available: 50Mi, nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
enforceNodeAllocatable: [pods]
Y
}

# kubeconfig TOKEN
kubeconfig() {
    cat <<Y
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:$API_PORT", certificate-authority: $K/pki/ca.crt}}]
users: [{name: lab, user: {token: $1}}]
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
current-context: lab
Y
}

# Also one that comes after another. Its configuration is the node's own (node_kubelet) after the common one.
kubelet_up() {
    { kubelet_configuration; node_kubelet; } >$K/kubelet.yaml
    kubeconfig node >$K/kubelet.kubeconfig
    kubelet --config=$K/kubelet.yaml --kubeconfig=$K/kubelet.kubeconfig --hostname-override=$NODE_NAME \
        --node-ip=10.250.0.2 >>"$LOG/kubelet" 2>&1 &
    echo $! >$K/kubelet.pid
    disown $!
    eventually 60 kubelet_answers
}

killed() { # NAME: apiserver, kubelet or containerd
    local pid
    pid=$(cat $K/"$1".pid)
    kill -KILL "$pid"
    eventually 5 gone "$pid"
}

# ---- what the cluster sees ----
PODS=/api/v1/namespaces/default/pods

node() { kube GET /api/v1/nodes/$NODE_NAME; }
node_ready() { node | jq -e '.status.conditions[] | select(.type == "Ready") | .status == "True"' >/dev/null; }
phase() { kube GET $PODS/"$1" | jq -r '"\(.status.phase) \(.status.reason // "")"'; } # NAME
deleted() { # NAME
    kube DELETE $PODS/"$1" >/dev/null
    eventually 40 no_pod "$1"
}
no_pod() { kube GET $PODS/"$1" | jq -e '.code == 404' >/dev/null; }
