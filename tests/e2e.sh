#!/usr/bin/env bash
# Fairlead in a real cluster of one node, from its own image and manifests: what `kubectl apply -k deploy` does, and what
# becomes of pods while things go wrong. Nothing is faked but the node's wire; see tests/cluster.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
PLUGINS=reference # what the node has before Fairlead comes
NODE_PARTS=(reference cluster dpdk)
enter_node "$@"
. "$ROOT/tests/cluster/cluster.sh"
. "$ROOT/tests/cluster/controllers.sh"
. "$ROOT/tests/cluster/reboot.sh"
. "$ROOT/tests/cluster/peer.sh"

cluster_places
. "$ROOT/tests/cluster/fairlead.sh"
. "$ROOT/tests/cluster/several_networks.sh"
. "$ROOT/tests/dpdk_pods.sh"
. "$ROOT/tests/cluster/vhost_user_pods.sh"

# name and content of every file that the node's runtime reads or executes
node_files() { find /etc/cni/net.d /opt/cni/bin -type f -exec sha256sum {} + | sort -k 2; }

# burst PREFIX NUMBER ANNOTATIONS-AS-JSON: pods at once, named PREFIX-1 …
burst() {
    local i
    for ((i = 1; i <= $2; i++)); do pod "$1-$i" "$3"; done
}
all_running() { # PREFIX NUMBER
    [ "$(kube GET $PODS | jq --arg p "$1-" '[.items[] | select((.metadata.name | startswith($p)) and .status.phase == "Running")] | length')" = "$2" ]
}
# Of pods whose names begin so, how often kubelet told that a sandbox could not be made.
refusals() { kube GET /api/v1/namespaces/default/events | jq --arg p "$1" '[.items[] | select(.reason == "FailedCreatePodSandBox" and (.involvedObject.name | startswith($p))) | .count // 1] | add // 0'; }

# ---- the cluster ----
before_fairlead() {
    pod before
    runs before
    [[ $(address before) == 10.62.* ]]
    node_files >"$NODE/files.before"
}

# ---- installing ----
zero_networks() {
    pod zero
    runs zero
    [[ $(address zero) == 10.62.* ]]
    eventually 5 attached 1
    [ -n "$PEER" ] || api /v1/attachments | jq -e '.[0] | .network == "pods" and .runtimeNetwork == "fairlead"'
    pod other
    runs other
    eventually 10 in_container zero busybox ping -c 1 -W 2 -q 10.62.0.1
    eventually 10 in_container zero busybox ping -c 1 -W 2 -q "$(address other)"
}

# The pod of before was attached by the node's own plugin.
deleted_pods() {
    deleted zero
    deleted other
    deleted before
    eventually 10 attached 0
    eventually 10 nothing_held
}

again() {
    node_files >"$NODE/files.installed"
    local inode
    inode=$(stat -c %i $CONFLIST $CNIBIN/fairlead)
    the_daemon rollout restart daemonset/fairlead
    rolled_out
    eventually 10 ready_daemon
    diff "$NODE/files.installed" <(node_files)
    equal "the files' inodes" "$(stat -c %i $CONFLIST $CNIBIN/fairlead)" "$inode"
}

# ---- rights ----
rights() {
    local who
    who=$(account fairlead fairlead)
    for verb in list watch; do
        may "$who" $verb pods -A
        may "$who" $verb namespaces
        may "$who" $verb network-attachment-definitions.k8s.cni.cncf.io -A
    done
    may "$who" patch pods/status -A
    may "$who" create events -A
    may_not "$who" get pods -A
    may_not "$who" patch events -A
    may_not "$who" patch pods -A
    may_not "$who" update pods/status -A
    may_not "$who" delete pods -A
    may_not "$who" create pods -A
    may_not "$who" create pods/exec -A
    may_not "$who" get secrets -A
    may_not "$who" get configmaps -n fairlead
    may_not "$who" get nodes
    may_not "$who" create network-attachment-definitions.k8s.cni.cncf.io -A
    may_not "$who" create serviceaccounts/token -n fairlead
    may_not "$(account default default)" get pods -A
}

# as_daemon POD PATCH [curl's arguments]: a PATCH with the token of the daemon's own pod; prints the HTTP status
as_daemon() {
    local own token
    own=$(the_daemon get pods -l app.kubernetes.io/name=fairlead -o jsonpath='{.items[0].metadata.name}')
    token=$(the_daemon create token fairlead --bound-object-kind Pod --bound-object-name "$own")
    curl -sS --cacert $K/pki/ca.crt -H "Authorization: Bearer $token" -X PATCH -o "$NODE/patched" -w '%{http_code}' \
        -H 'Content-Type: application/merge-patch+json' "https://127.0.0.1:$API_PORT$PODS/$1/status" -d "$2"
}

own_pods_only() {
    local status='{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[]"}}}'
    pod mine '{"kept":"yes"}'
    runs mine
    pod elsewhere '{}' '{"nodeName": "elsewhere"}'
    equal "the answer to its own annotation" "$(as_daemon mine "$status")" 200
    equal "the annotation" "$(network_status mine)" "[]"
    equal "the answer to userspace-cni's" "$(as_daemon mine '{"metadata":{"annotations":{"userspace/configuration-data":"[]","userspace/mapped-dir":"/x"}}}')" 200
    equal "the answer to a pod of another node" "$(as_daemon elsewhere "$status")" 422
    grep -q "its own node only" "$NODE/patched"
    local refused
    for refused in '{"metadata":{"annotations":{"other":"x"}}}' '{"metadata":{"annotations":{"kept":null}}}' \
        '{"metadata":{"labels":{"a":"b"}}}' '{"status":{"message":"hello"}}'; do
        equal "the answer to $refused" "$(as_daemon mine "$refused")" 422
    done
    deleted mine
    kube DELETE "$PODS/elsewhere?gracePeriodSeconds=0" >/dev/null
}

# ---- things go wrong ----
killed_in_a_burst() {
    definition radio "$(macvlan 10.63.0.0/24)"
    burst storm 30 "$(asking radio)"
    eventually 20 some_are_running
    kill_daemon
    eventually 120 all_running storm 30 || equal "running pods" "$(kube GET $PODS | jq -c '[.items[].status.phase]')" all
    eventually 60 ready_daemon # kubelet starts it again after a pause
    eventually 20 attached 60
    eventually 30 all_told storm 30
    equal "addresses" "$(kube GET $PODS | jq '[.items[].status.podIP] | unique | length')" 30
    equal "radio's addresses held" "$(held_of '10.63.*')" 30
    all_gone
}
some_are_running() { [ "$(attachments)" -ge 3 ]; }

same_name_at_once() {
    local i first
    pod web-0
    runs web-0
    first=$(address web-0)
    for i in 1 2 3; do
        kube DELETE "$PODS/web-0?gracePeriodSeconds=0" >/dev/null
        eventually 10 pod web-0
        runs web-0
    done
    eventually 20 attached 1
    [ "$(address web-0)" != "$first" ] || equal "addresses held" "$(addresses_held)" 1
    eventually 10 in_container web-0 busybox ping -c 1 -W 2 -q 10.62.0.1
    all_gone
}

# ---- examples ----
# Those that need nothing but an uplink and the plugins that every node has.
HERE="macvlan default-route fixed-address"
[ -n "$PEER" ] || HERE+=" first-available" # of Fairlead's own type
# example POD: its manifest with an image that is on this node
example() { sed 's|^\( *\)image: .*|\1image: localhost/work:1\n\1imagePullPolicy: Never|' "$ROOT/examples/pods/$1.yaml"; }
examples() {
    local file name
    kubectl apply -f "$ROOT/examples/networks"
    for file in "$ROOT"/examples/pods/*.yaml; do kubectl apply --dry-run=server -f "$file"; done
    for name in $HERE; do example "$name" | kubectl apply -f -; done
    for name in $HERE; do runs "$name" 60; done
    in_container macvlan ip -4 -o address show dev net1 | grep -c ' 10.101.0.'
    in_container default-route ip route show default | grep -c 'via 10.101.0.1 dev net1'
    in_container fixed-address ip -o address show dev net1 | grep -c ' 10.108.0.77/24 '
    in_container fixed-address ip -o link show dev net1 | grep -c 02:00:00:00:00:77
    [ -n "$PEER" ] || examples_of_ours
    all_gone
    kubectl delete -f "$ROOT/examples/networks"
}
examples_of_ours() {
    local file
    for file in "$ROOT"/examples/config/*.yaml; do
        kubectl -n fairlead create configmap example --from-file=config.yaml="$file" --dry-run=server
    done
    in_container first-available ip -4 -o address show dev net1 | grep -c ' 10.107.0.'
    # Not in a pipe: grep ends before all is printed.
    grep -q 'passed over  sriov: ' <<<"$(fairleadd describe default/first-available)"
    grep -q '  net1       default/macvlan: attached' <<<"$(fairleadd describe default/default-route)"
}

# By the reference plugins bridge, portmap and bandwidth, which are executed. What is said to the node's port is answered by a program
# in the pod's network.
ports_and_bandwidth() {
    kubectl apply -f "$ROOT/examples/networks/ports-and-bandwidth.yaml"
    example ports-and-bandwidth | kubectl apply -f -
    runs ports-and-bandwidth 60
    in_container ports-and-bandwidth ip -4 -o address show dev net1 | grep -c ' 10.104.0.'
    equal "limits of bandwidth" "$(limits)" "tbf 100Mbit"
    in_container ports-and-bandwidth busybox nc -ll -p 80 -e /bin/echo "by the node's port" &
    disown $!
    eventually 10 port_answers
    kubectl delete pod ports-and-bandwidth --grace-period=0
    all_gone
    equal "limits of bandwidth" "$(limits)" ""
    equal "rules for ports" "$(iptables-save -t nat | grep -c -- '--dport 8080\|10.104.0')" 0
    kubectl delete -f "$ROOT/examples/networks/ports-and-bandwidth.yaml"
    ip link delete br-ports
}
limits() { tc qdisc show | awk '$2 == "tbf" {for (i = 3; i < NF; i++) if ($i == "rate") print "tbf", $(i + 1)}'; }
port_answers() { [ "$(busybox nc -w 2 10.250.0.2 8080)" = "by the node's port" ]; }

# Its sandbox dies, and kubelet makes it another without asking anybody.
without_the_api() {
    local sandbox
    pod known "$(asking radio)"
    runs known
    sandbox=$(sandboxes known)
    killed apiserver
    kill_daemon
    ctr tasks kill -s KILL "$sandbox"
    eventually 90 another_sandbox known "$sandbox"
    eventually 20 attached 2
    apiserver_again
    runs known
    eventually 60 ready_daemon
    all_gone
}
sandboxes() { ctr containers ls -q "labels.\"io.kubernetes.pod.name\"==$1,labels.\"io.cri-containerd.kind\"==sandbox"; }
another_sandbox() { # POD SANDBOX
    local id
    for id in $(sandboxes "$1"); do
        [ "$id" = "$2" ] || ! ctr tasks ls | grep -c "^$id .*RUNNING" || return 0
    done
    return 1
}
apiserver_again() {
    node_apiserver_up
    eventually 60 node_ready # kubelet starts the daemon again after a pause, which grows with each kill
}

# With an empty directory containerd itself calls nobody, and its node is not Ready.
emptied_conf_dir() {
    pod stays
    runs stays
    mkdir "$NODE/aside"
    mv $NETD/* "$NODE/aside"
    eventually 30 node_not_ready
    eventually 10 in_container stays busybox ping -c 1 -W 2 -q 10.62.0.1
    mv "$NODE/aside/10-pods.conflist" $NETD
    eventually 10 test -e $CONFLIST
    eventually 30 node_ready
    pod after
    runs after
    eventually 5 attached 2
    all_gone
}
node_not_ready() { ! node_ready; }

# ---- upgrade ----
# Another image: both programs have other bytes.
next_image() {
    mkdir "$NODE/next"
    cp "$DIST/fairlead" "$DIST/fairleadd" "$DIST/fairlead-vswitch" "$NODE/next"
    for program in "$NODE"/next/*; do echo next >>"$program"; done
    "$ROOT/tests/mkimage.py" --fairlead "$NODE/next" --arch amd64 "$NODE/next.tar" $IMAGE:next
    ctr images import "$NODE/next.tar" >/dev/null
}
# time_without_daemon PID: the milliseconds from its end until another is ready
time_without_daemon() {
    local ended
    while running "$1"; do sleep 0.02; done
    ended=${EPOCHREALTIME/./}
    until daemon_ready; do sleep 0.05; done >/dev/null 2>&1
    echo $(((${EPOCHREALTIME/./} - ended) / 1000))
}
upgrade_under_load() {
    next_image
    definition radio "$(macvlan 10.63.0.0/24)"
    local before
    before=$(running_daemon)
    time_without_daemon "$before" >"$NODE/gap" &
    disown $!
    the_daemon set image daemonset/fairlead fairlead=$IMAGE:next
    local i
    for ((i = 1; i <= 20; i++)); do
        pod load-$i "$(asking radio)"
        sleep 0.2
    done
    rolled_out
    [ "$(running_daemon)" != "$before" ]
    eventually 10 test -s "$NODE/gap"
    figure "from the old daemon's end until the new one is ready: $(cat "$NODE/gap") ms"
    # An ADD waits for the next daemon for so long.
    [ "$(cat "$NODE/gap")" -lt 30000 ] || { echo "the node was without a daemon for $(cat "$NODE/gap") ms"; return 1; }
    eventually 60 all_running load 20
    equal "sandboxes that were refused" "$(refusals load-)" 0
    eventually 10 attached 40
    eventually 30 all_told load 20
    cmp "$NODE/next/fairlead" $CNIBIN/fairlead
    all_gone
}

# ---- uninstalling ----
network_of_node() { [[ "$(fairleadd status)" == *"node network: $1"* ]]; } # HOW IT BEGINS
uninstalled() {
    pod last
    runs last
    network_of_node 'Fairlead (cluster network pods)'
    config absent
    eventually 90 network_of_node 'not Fairlead: '
    [ ! -e $CONFLIST ]
    cmp "$NODE/next/fairlead" $CNIBIN/fairlead # the pod may still need it
    pod old-way
    runs old-way
    equal "sandboxes that were refused" "$(refusals last) $(refusals old-way)" "0 0"
    eventually 5 attached 1
    kube DELETE "$PODS?gracePeriodSeconds=0" >/dev/null
    eventually 60 no_pods
    eventually 20 nothing_held
    fairleadd gc # the bridge plugin got the DEL: nobody told the daemon
    eventually 90 test ! -e $CNIBIN/fairlead
    diff "$NODE/files.before" <(node_files)
    kubectl delete -k "$ROOT/deploy/base" --wait=true --timeout=180s
    kubectl get crd network-attachment-definitions.k8s.cni.cncf.io # nobody's definitions went with it
    pod afterwards
    runs afterwards
    deleted afterwards
}
by_chart() {
    helm --kubeconfig $K/admin.kubeconfig install fairlead "$ROOT/deploy/helm/fairlead" -n fairlead --create-namespace --wait --timeout 180s
    eventually 10 test -e $CONFLIST
    pod charted
    runs charted
    eventually 5 attached 1
    all_gone
    left_by_the_notes
}
# The command that helm tells takes out of the configuration all that it says, whatever the release had there.
left_by_the_notes() {
    local command
    helm --kubeconfig $K/admin.kubeconfig upgrade fairlead "$ROOT/deploy/helm/fairlead" -n fairlead --reset-then-reuse-values \
        --set config.devicePluginConfig=/etc/fairlead/none.json --set-json 'config.pools=[{"name":"none","selectors":{"vendors":["ffff"]}}]'
    kubectl -n fairlead get configmap fairlead -o yaml >"$NODE/set"
    grep -q 'devicePluginConfig: /etc/fairlead/none.json' "$NODE/set"
    command=$(helm --kubeconfig $K/admin.kubeconfig get notes fairlead -n fairlead | grep '^ *helm upgrade ')
    eval "${command/CHART/$ROOT/deploy/helm/fairlead} --kubeconfig $K/admin.kubeconfig"
    kubectl -n fairlead get configmap fairlead -o yaml >"$NODE/left"
    grep -q 'cni: absent' "$NODE/left"
    grep -q 'pools: \[\]' "$NODE/left"
    ! grep devicePluginConfig "$NODE/left" || return 1
}

configuration() { sed -n '/^  config.yaml: |/,/^kind: /p'; }
applied_by_a_server() {
    python3 "$ROOT/deploy/render.py" --check
    local overlay
    for overlay in "$ROOT"/deploy/overlays/*/; do kubectl apply -k "$overlay" --dry-run=server; done
    kubectl kustomize "$ROOT/deploy/overlays/sriov-metrics" >"$NODE/both"
    grep -q device-plugins "$NODE/both"
    grep -q 9808 "$NODE/both"
    # Whatever the base's configuration says, an overlay leaves it as it is.
    kubectl kustomize "$ROOT/deploy/base" >"$NODE/base"
    for overlay in "$ROOT"/deploy/overlays/*/; do
        equal "configuration of $overlay" "$(kubectl kustomize "$overlay" | configuration)" "$(configuration <"$NODE/base")"
    done
    # What is not the default of any value of the chart.
    helm template fairlead "$ROOT/deploy/helm/fairlead" -n fairlead --set vfio=true,vhostUser=true,ovsDpdk=true,openshift=true \
        --set priorityClassName=other,updateStrategy.type=OnDelete --set-json 'tolerations=[{"key":"other","operator":"Exists"}]' \
        --set config.metrics.listen=0.0.0.0:9909,config.metrics.tokenReview=true,config.kubelet.dir=/var/lib/other \
        --set directories.plugins=/usr/lib/cni,directories.networks=/etc/other/net.d,multusDaemonConfig='\{\}' \
        --set config.install.multusDaemonConfig=/etc/fairlead/daemon-config.json \
        --set 'imagePullSecrets[0].name=registry' >"$NODE/charted"
    kubectl apply -n fairlead --dry-run=server -f "$NODE/charted"
    for part in 'containerPort: 9909' 'privileged: true' 'mountPath: /host/usr/lib/cni}' 'value: /etc/other/net.d}' \
        'path: /var/lib/other/pods,' 'daemon-config.json: |' '[{"name":"registry"}]' \
        'priorityClassName: "other"' 'operator: In, values: ["other"]' 'tolerations: [{"key":"other",' '"type":"OnDelete"' 'resourceNames: [privileged]'; do
        grep -qF -- "$part" "$NODE/charted" || { echo "the chart has no $part"; return 1; }
    done
    chart_of_the_example
    chart_refuses
}
chart_of_the_example() {
    local part
    helm lint "$ROOT/deploy/helm/fairlead" -f "$ROOT/examples/chart/values.yaml"
    helm template fairlead "$ROOT/deploy/helm/fairlead" -n fairlead -f "$ROOT/examples/chart/values.yaml" >"$NODE/charted"
    kubectl apply -n fairlead --dry-run=server -f "$NODE/charted" -o json |
        jq '[.items[] | select(.kind == "DaemonSet") | {(.metadata.name): .spec}] | add' >"$NODE/sets.json"
    for part in '.fairlead.template.spec.containers[0].volumeMounts | any(.name == "certificate" and .readOnly and .mountPath == "/etc/fairlead-tls")' \
        '.fairlead.template.spec.containers[0].volumeMounts | any(.name == "addresses" and .mountPath == "/host/srv/addresses")' \
        '.fairlead.template.spec.volumes | any(.secret.secretName == "fairlead-metrics")' \
        '.fairlead.template.spec.volumes | any(.hostPath.path == "/srv/addresses")' \
        '.fairlead.template.spec.containers[0].securityContext.capabilities.add | contains(["NET_ADMIN", "IPC_LOCK", "SYS_MODULE"])' \
        '."fairlead-vswitch".template.spec.containers[0].args == ["--cpus=2,4-5", "--polling=always", "--guest-memory=1024", "--storm-frames=20000"]' \
        '."fairlead-vswitch".template.spec.containers[0].resources == {requests: {cpu: "100m", memory: "64Mi"}, limits: {memory: "1280Mi"}}' \
        '."fairlead-vswitch".updateStrategy.type == "OnDelete"' \
        'map(.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions) | unique |
            . == [[{key: "kubernetes.io/arch", operator: "In", values: ["amd64", "arm64"]}, {key: "pool", operator: "NotIn", values: ["build"]}]]'; do
        jq -e "$part" "$NODE/sets.json" >/dev/null || { echo "not so with the example's values: $part"; return 1; }
    done
}
# Values that would have no effect, or none that is wanted.
chart_refuses() {
    local value
    for value in extraVolume=x 'extraVolumes[0].name=x' 'extraVolumes[0].name=x,extraVolumes[0].hostpath.path=/x' \
        'extraVolumeMounts[0].name=x' 'extraVolumeMounts[0].name=x,extraVolumeMounts[0].mountPath=x' \
        'extraCapabilities[0]=CAP_CHOWN' 'extraCapabilities[0]=chown' vswitch.cpus=4 'vswitch.args[0]=--cpu=4' \
        'vswitch.args[0]=--socket=/x' 'vswitch.args[0]=--cpus' 'vswitch.args[0]=--storm-frames=0' vswitch.resources.limit.memory=1Gi vswitch.updateStrategy.type=Recreate \
        updateStrategy.type=Recreate updateStrategy.rollingUpdate.maxSurge=1 affinity.nodeaffinity.x=y 'tolerations[0].keys=x' priorityClassName= priorityClassName=null tolerations=null openshift=yes \
        config.metrics.listen=0.0.0.0:9808 config.metrics.listen=0.0.0.0:9808,config.metrics.tokenReview=false multusDaemonConfig=x \
        config.devicePluginConfig= config.kubeconfig= config.nodeName= config.delegateCgroup= config.devicePluginResourcePrefix=Intel.com; do
        ! helm template fairlead "$ROOT/deploy/helm/fairlead" --set "$value" >/dev/null 2>&1 || { echo "the chart takes $value"; return 1; }
    done
}

of_ours() { # cases of Fairlead's daemon alone
    [ -n "$PEER" ] || it "$@"
}

it "a cluster of one node is up" cluster_up
it "a pod runs before Fairlead comes" before_fairlead
if [ -n "$PEER" ]; then
    without_own_daemon
    it "$PEER is installed" peer_installed
else
    it "kubectl apply: the daemon is ready, then the node's network is Fairlead" installed
fi
it "a pod without networks of its own goes Running by the cluster network" zero_networks
alone "nothing is left of deleted pods, nor of one that was there before Fairlead" deleted_pods
of_ours "x18 installing twice changes nothing on the node" again
of_ours "the daemon has the rights that it needs and no other" rights
of_ours "the daemon writes network-status to pods of its own node, and nothing else" own_pods_only
it "k23 m14 a pod with three networks has them all, one default route, and its network-status" several_networks
alone "m09 nothing is left of its networks when it is deleted" several_networks_deleted
alone "m08 x14 x21 a pod whose definition is missing waits, an Event says so, and it goes Running when the definition comes" missing_definition
alone "x14 a broken definition is told in an Event, and put right" broken_definition
of_ours "m14 a definition without a configuration is the network of its name in the conf dir" named_definition
alone "a pod has another default network, by Multus' annotation" another_default
of_ours "m01 m02 m05 m07 a pod with the legacy annotation has what its objects Network say" legacy_networks
alone "m09 a definition deleted while a pod uses it: the pod's deletion leaves nothing" deleted_definition
alone "every example is taken by the API server, and those that need an uplink alone go Running as they say" examples
of_ours "m12 a port of the node leads to the example's pod, whose bandwidth is limited, by the executed portmap and bandwidth" ports_and_bandwidth
alone "k13 x11 twenty pods with a network each: one PATCH for each, and no other request" no_request_on_the_way
alone "k14 x01 the daemon killed in a burst of 30 pods: all go Running, none without its network" killed_in_a_burst
alone "k09 a pod recreated under its name while its DEL is due goes Running" same_name_at_once
alone "k09 k12 pods of a StatefulSet that are deleted have their networks again under their names" stateful_pods
alone "k12 a static pod has the networks that it asks for, and is told of them" static_pods
alone "k07 API server and daemon gone: a pod with a network of its own gets a new sandbox" without_the_api
apiserver_ready || apiserver_again
of_ours "the conf dir emptied: pods keep their network, and the node is Fairlead's again when its first network is back" emptied_conf_dir
alone "k14 x11 the node goes down with 100 pods and comes back: all have their networks again, and no address leaks" rebooted
of_ours "k29 DPDK applications in two pods of the example exchange frames, and again when the switch has been started anew" sockets_in_volumes
of_ours "k29 x10 pods of the example get ports that kubelet counts and mounts" ports_that_kubelet_allocates
of_ours "x01 upgrade to a new image under load: no pod fails" upgrade_under_load
of_ours "overlay and chart are taken by a real API server" applied_by_a_server
of_ours "uninstall gives the old state back, and no pod fails by it" uninstalled
of_ours "the chart installs the same" by_chart
finish
