# A node of Kubernetes inside the lab machine, as its parts: etcd, kube-apiserver, containerd 2 and a kubelet with exclusive CPUs
# and one NUMA node for each pod. Sourced by test.sh, after guest.sh. All of its state is in $K, a tmpfs, and in tmpfs over
# the directories that kubelet wants.

K=/run/cluster
KUBELET=/var/lib/kubelet
CONTAINERD=$K/containerd/containerd.sock

begun=${EPOCHREALTIME/./}
step() { printf '        [%5.1f s] %s\n' "$(((${EPOCHREALTIME/./} - begun) / 100000))e-1" "$*"; }

# kube METHOD PATH [curl's arguments]
kube() {
    curl -sS --max-time 60 --cacert $K/pki/ca.crt -H 'Authorization: Bearer lab' -H 'Content-Type: application/json' \
        -X "$1" "https://127.0.0.1:6443$2" "${@:3}"
}
ctr() { "$K/bin/ctr" -a $CONTAINERD -n k8s.io "$@"; }
witness() { "$K/bin/witness" $KUBELET/pod-resources/kubelet.sock "$@"; }

places_up() { # DIRECTORY-OF-PROGRAMS
    local directory
    for directory in $K $KUBELET /var/lib/etcd /var/log/pods /var/lib/cni; do
        mkdir -p $directory
        mount -t tmpfs tmpfs $directory
    done
    mount --make-rshared /
    mkdir -p $K/bin $K/pki $K/containerd
    cp "$1"/* $K/bin # off 9p a large program takes long to start
    export PATH=$K/bin:$PATH
}

network_up() {
    modprobe -a overlay dummy
    ip link set lo up
    ip link add node type dummy
    ip address add 10.250.0.2/24 dev node
    ip link set node up
    ip route add default via 10.250.0.1
}

certificates() ( # in a shell of its own
    cd $K/pki || exit
    exec 2>"$LOG/openssl" # it tells dots
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=lab -keyout ca.key -out ca.crt
    openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout api.key -out api.csr
    openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out api.crt \
        -extfile <(echo 'subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost')
    openssl genrsa -out accounts.key 2048
    echo 'lab,admin,admin,"system:masters"' >tokens.csv
)

etcd_up() {
    etcd --data-dir /var/lib/etcd/data --unsafe-no-fsync --heartbeat-interval 1000 --election-timeout 10000 \
        >"$LOG/etcd" 2>&1 &
    disown $!
}

apiserver_up() {
    kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --advertise-address=10.250.0.2 \
        --secure-port=6443 --tls-cert-file=$K/pki/api.crt --tls-private-key-file=$K/pki/api.key \
        --client-ca-file=$K/pki/ca.crt --token-auth-file=$K/pki/tokens.csv --authorization-mode=AlwaysAllow \
        --service-account-issuer=https://lab --service-account-key-file=$K/pki/accounts.key \
        --service-account-signing-key-file=$K/pki/accounts.key --service-cluster-ip-range=10.96.0.0/24 \
        --disable-admission-plugins=ServiceAccount,TaintNodesByCondition --allow-privileged=true >"$LOG/apiserver" 2>&1 &
    disown $!
    eventually 30 apiserver_ready
}
apiserver_ready() { [ "$(kube GET /readyz)" = ok ]; }

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
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["$CNIBIN"]
  conf_dir = "$NETD"
  max_conf_num = 2 # one interface for each: eth0 and eth1
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
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://$CONTAINERD
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
makeIPTablesUtilChains: false
evictionHard: {memory.available: 50Mi, nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
enforceNodeAllocatable: [pods]
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
Y
}

kubeconfig() {
    cat <<Y
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $K/pki/ca.crt}}]
users: [{name: lab, user: {token: lab}}]
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
current-context: lab
Y
}

# Also one that comes after another.
kubelet_up() {
    kubelet_configuration >$K/kubelet.yaml
    kubeconfig >$K/kubeconfig
    kubelet --config=$K/kubelet.yaml --kubeconfig=$K/kubeconfig --hostname-override=lab --node-ip=10.250.0.2 \
        >>"$LOG/kubelet" 2>&1 &
    echo $! >$K/kubelet.pid
    disown $!
    eventually 20 kubelet_answers
}
kubelet_answers() { witness healthy; }

killed() { # NAME: kubelet or containerd
    local pid
    pid=$(cat $K/"$1".pid)
    kill -KILL "$pid"
    eventually 5 gone "$pid"
}

# ---- what the cluster sees ----
node() { kube GET /api/v1/nodes/lab; }
node_ready() { node | jq -e '.status.conditions[] | select(.type == "Ready") | .status == "True"' >/dev/null; }
allocatable() { node | jq -c '[.status.allocatable | .["intel.com/radio"], .["intel.com/dpdk"], .["intel.com/edge"]]'; }
is_allocatable() { [ "$(allocatable)" = "$1" ]; } # [RADIO,DPDK,EDGE]

# ---- pods ----
PODS=/api/v1/namespaces/default/pods

# What a container of ours tells of itself, on its standard output, and then it sleeps.
TELLS='b=/bin/busybox; $b env; $b grep Cpus_allowed_list /proc/self/status
for i in /sys/class/net/eth*; do $b echo "$($b basename $i) is $($b basename "$($b readlink $i/device)") $($b cat $i/address)"; done
for g in /dev/vfio/[0-9]*; do [ ! -e $g ] || { $b sh -c "exec 3<>$g" && $b echo "opened $g"; }; done
$b echo told; $b sleep 100000'

# pod NAME [RESOURCE CPUS [MORE-OF-SPEC]]: with exclusive CPUs and a VF, or with nothing of its own
pod() {
    jq -n --arg name "$1" --arg resource "${2:-}" --arg cpus "${3:-}" --arg tells "$TELLS" --argjson more "${4:-{\}}" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name, namespace: "default"},
        spec: ({nodeName: "lab", automountServiceAccountToken: false, enableServiceLinks: false,
            terminationGracePeriodSeconds: 1, restartPolicy: "Never",
            containers: [{name: "main", image: "localhost/work:1", imagePullPolicy: "Never",
                command: ["/bin/busybox", "sh", "-c", $tells],
                resources: (if $resource == "" then {} else
                    {limits: {cpu: $cpus, memory: "32Mi", ("intel.com/" + $resource): "1"}} end)}]} + $more)}' >"$NODE/pod.json"
    kube POST $PODS -d @"$NODE/pod.json" >"$NODE/posted.json"
    [ "$(jq -r .kind "$NODE/posted.json")" = Pod ] || { cat "$NODE/posted.json"; return 1; }
}

phase() { kube GET $PODS/"$1" | jq -r '"\(.status.phase) \(.status.reason // "")"'; } # NAME
has_told() { grep -qs ' told$' /var/log/pods/default_"$1"_*/main/0.log; }              # NAME
runs() { # NAME
    eventually 30 has_told "$1" || { kube GET $PODS/"$1" | jq -c .status; return 1; }
}
told() { sed 's/^[^ ]* [^ ]* F //' /var/log/pods/default_"$1"_*/main/0.log; } # NAME: what its container told

deleted() { # NAME
    kube DELETE $PODS/"$1" >/dev/null
    eventually 40 no_pod "$1"
}
no_pod() { kube GET $PODS/"$1" | jq -e '.code == 404' >/dev/null; }

# What kubelet has given it, by the witness.
given() { witness list | jq -c "select(.pod == \"$1\")"; } # NAME
