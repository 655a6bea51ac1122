# The node of Kubernetes inside the lab machine: a kubelet with exclusive CPUs and one NUMA node for each pod. Sourced by
# test.sh, after guest.sh. All of its state is in a tmpfs, and in tmpfs over the directories that kubelet wants.

MAX_CONF=2 # one interface for each: eth0 and eth1
. "$ROOT/tests/cluster/node.sh"

witness() { "$K/bin/witness" $KUBELET/pod-resources/kubelet.sock "$@"; }
kubelet_answers() { witness healthy; }

places_up() { # DIRECTORY-OF-PROGRAMS
    local directory
    for directory in $K $KUBELET /var/lib/etcd /var/log/pods /var/lib/cni; do
        mkdir -p $directory
        mount -t tmpfs tmpfs $directory
    done
    mount --make-rshared /
    mkdir -p $K/bin $K/pki $K/containerd
    # Off 9p a large program takes long to start.
    cp "$1"/{etcd,kube-apiserver,kubelet,containerd,containerd-shim-runc-v2,ctr,witness} $K/bin
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

node_kubelet() {
    cat <<Y
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
Y
}

allocatable() { node | jq -c '[.status.allocatable | .["intel.com/radio"], .["intel.com/dpdk"], .["intel.com/edge"]]'; }
is_allocatable() { [ "$(allocatable)" = "$1" ]; } # [RADIO,DPDK,EDGE]

# ---- pods ----
# What a container of ours tells of itself, on its standard output, and then it sleeps.
TELLS='b=/bin/busybox; $b env; $b grep Cpus_allowed_list /proc/self/status
for i in /sys/class/net/eth*; do $b echo "$($b basename $i) is $($b basename "$($b readlink $i/device)") $($b cat $i/address)"; done
for g in /dev/vfio/[0-9]*; do [ ! -e $g ] || { $b sh -c "exec 3<>$g" && $b echo "opened $g"; }; done
$b echo told; $b sleep 100000'

# pod NAME [RESOURCE CPUS [MORE-OF-SPEC [ANNOTATIONS]]]: with exclusive CPUs and a VF, or with nothing of its own
pod() {
    jq -n --arg name "$1" --arg resource "${2:-}" --arg cpus "${3:-}" --arg tells "$TELLS" --argjson more "${4:-{\}}" \
        --argjson annotations "${5:-{\}}" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name, namespace: "default", annotations: $annotations},
        spec: ({nodeName: "lab", automountServiceAccountToken: false, enableServiceLinks: false,
            terminationGracePeriodSeconds: 1, restartPolicy: "Never",
            containers: [{name: "main", image: "localhost/work:1", imagePullPolicy: "Never",
                command: ["/bin/busybox", "sh", "-c", $tells],
                resources: (if $resource == "" then {} else
                    {limits: {cpu: $cpus, memory: "32Mi", ("intel.com/" + $resource): "1"}} end)}]} + $more)}' >"$NODE/pod.json"
    kube POST $PODS -d @"$NODE/pod.json" >"$NODE/posted.json"
    [ "$(jq -r .kind "$NODE/posted.json")" = Pod ] || { cat "$NODE/posted.json"; return 1; }
}

has_told() { grep -qs ' told$' /var/log/pods/default_"$1"_*/main/0.log; }              # NAME
runs() { # NAME
    eventually 30 has_told "$1" || { kube GET $PODS/"$1" | jq -c .status; return 1; }
}
told() { sed 's/^[^ ]* [^ ]* F //' /var/log/pods/default_"$1"_*/main/0.log; } # NAME: what its container told

# What kubelet has given it, by the witness.
given() { witness list | jq -c "select(.pod == \"$1\")"; } # NAME
