#!/usr/bin/env bash
# Fairlead in a real cluster of one node, from its own image and manifests: what `kubectl apply -k deploy/base` does, and what
# becomes of pods while things go wrong. Nothing is faked but the node's wire; see tests/cluster.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
PLUGINS=reference # what the node has before Fairlead comes
NODE_PARTS=(reference cluster)
enter_node "$@"
. "$ROOT/tests/cluster/cluster.sh"
. "$ROOT/tests/cluster/controllers.sh"
. "$ROOT/tests/cluster/reboot.sh"
. "$ROOT/tests/cluster/peer.sh"

cluster_places

IMAGE=ghcr.io/fairlead/fairlead
VERSION=0.1.0
CONFLIST=$NETD/00-fairlead.conflist

fairleadd() { "$DIST/fairleadd" "$@"; }
the_daemon() { kubectl -n fairlead "$@"; }
rolled_out() { the_daemon rollout status daemonset/fairlead --timeout="${1:-60}s"; }
running_daemon() { api /v1/status | jq .pid; }
kill_daemon() { kill -KILL "$(running_daemon)"; }
ready_daemon() { fairleadd status --ready; }
# name and content of every file that the node's runtime reads or executes
node_files() { find /etc/cni/net.d /opt/cni/bin -type f -exec sha256sum {} + | sort -k 2; }
attached() { [ "$(attachments)" = "$1" ]; }
no_pods() { [ "$(kube GET $PODS | jq '.items | length')" = 0 ]; }
nothing_held() { [ "$(addresses_held)" = 0 ] && [ "$(netns_of_pods)" = 0 ]; }

all_gone() {
    kube DELETE "$PODS?gracePeriodSeconds=0" >/dev/null
    eventually 60 no_pods
    eventually 30 attached 0
    eventually 20 nothing_held || { ls /run/netns /var/lib/cni/networks/pods; ctr containers ls; return 1; }
}

# burst PREFIX NUMBER: pods at once, named PREFIX-1 …
burst() {
    local i
    for ((i = 1; i <= $2; i++)); do pod "$1-$i"; done
}
all_running() { # PREFIX NUMBER
    [ "$(kube GET $PODS | jq --arg p "$1-" '[.items[] | select((.metadata.name | startswith($p)) and .status.phase == "Running")] | length')" = "$2" ]
}
# Of this prefix, how often kubelet told that a sandbox could not be made.
refusals() { kube GET /api/v1/namespaces/default/events | jq --arg p "$1-" '[.items[] | select(.reason == "FailedCreatePodSandBox" and (.involvedObject.name | startswith($p))) | .count // 1] | add // 0'; }

# ---- the cluster ----
before_fairlead() {
    pod before
    runs before
    [[ $(address before) == 10.62.* ]]
    node_files >"$NODE/files.before"
}

# ---- installing ----
installed() {
    ctr images import "$DIST/fairlead-image.tar" >/dev/null
    kubectl apply -k "$ROOT/deploy/base"
    rolled_out
    eventually 10 test -e $CONFLIST
    grep -q '"clusterNetwork": "pods"' $CONFLIST
    cmp "$DIST/fairlead" $CNIBIN/fairlead
}

zero_networks() {
    pod zero
    runs zero
    [[ $(address zero) == 10.62.* ]]
    eventually 5 attached 1
    [ -n "$PEER" ] || api /v1/attachments | jq -e '.[0].network == "fairlead"'
    pod other
    runs other
    in_container zero busybox ping -c 1 -W 2 -q 10.62.0.1
    in_container zero busybox ping -c 1 -W 2 -q "$(address other)"
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

# ---- several networks ----
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

several_networks() {
    definition radio "$(macvlan 10.63.0.0/24)"
    definition storage "$(executed 10.64.0.0/24)"
    pod three "$(asking 'radio, storage@data0')"
    runs three
    [[ $(address three) == 10.62.* ]]
    eventually 10 has_status three 3
    equal "network-status" "$(status_of three 'map([.name, .interface, .default // false])')" \
        '[["pods","eth0",true],["default/radio","net1",false],["default/storage","data0",false]]'
    equal "radio's address" "$(status_of three '.[1].ips')" '["10.63.0.2"]'
    in_container three ip -4 -o address show dev net1 | grep -c 10.63.0.2/24
    in_container three ip -4 -o address show dev data0 | grep -c 10.64.0.2/24
    equal "default routes" "$(in_container three ip route show default | wc -l)" 1
    in_container three ip route show default | grep -c 'dev eth0'
    pod peer "$(asking '[{"name": "radio", "interface": "radio0", "ips": ["10.63.0.77"], "default-route": ["10.63.0.1"]}]')"
    runs peer
    in_container peer ip route show default | grep -c 'via 10.63.0.1 dev radio0'
    eventually 10 in_container three busybox ping -I net1 -c 1 -W 1 -q 10.63.0.77
    fairleadd describe default/three
}

# What the executed ones made, too.
several_networks_deleted() {
    all_gone
    equal "addresses held" "$(find /var/lib/cni/networks -type f -name '10.6[34].*' | wc -l)" 0
}

events_of() { kube GET /api/v1/namespaces/default/events | jq -r --arg p "$1" '.items[] | select(.involvedObject.name == $p and .source.component == "fairlead") | .message'; }
told_of() { events_of "$1" | grep -qe "$2"; } # POD WORDS
none_held_of() { [ -z "$(find /var/lib/cni/networks -type f -name "$1" -print -quit)" ]; } # PATTERN
missing_definition() {
    pod waits "$(asking 'radio,later')"
    eventually 20 told_of waits "default/later"
    equal "the pod's phase" "$(phase waits)" "Pending "
    # The Event may be there before what was attached until then is undone.
    eventually 10 none_held_of '10.6[23].*'
    definition later "$(macvlan 10.65.0.0/24)"
    runs waits 60
    eventually 10 has_status waits 3
    all_gone
}
broken_definition() {
    definition broken '{"cniVersion": "1.0.0", "type": "macvlan", "mastr": "eth0", "mode": "brigde"}'
    pod refused "$(asking broken)"
    eventually 20 told_of refused "brigde"
    definition broken "$(macvlan 10.66.0.0/24)"
    runs refused 60
    all_gone
}
deleted_definition() {
    definition short "$(macvlan 10.67.0.0/24)"
    pod uses "$(asking short)"
    runs uses
    no_definition short
    deleted uses
    eventually 10 attached 0
    equal "addresses held" "$(find /var/lib/cni/networks -type f -name '10.67.*' | wc -l)" 0
}

# What the daemon asked of the API server, from line $1 of the log on: verb and resource, counted. That it looks now and then
# whether there are objects Network by now is no pod's.
asked_since() {
    tail -n +"$1" "$LOG/audit" | jq -r '"\(.verb) \(.objectRef.resource)\(if .objectRef.subresource then "/" + .objectRef.subresource else "" end)"' |
        grep -v '^list networks$' | sort | uniq -c | awk '{print $2, $3 ": " $1}'
}
no_request_on_the_way() {
    local line i
    sleep 2 # what is still to be written of the cases before
    line=$(($(wc -l <"$LOG/audit") + 1))
    for ((i = 1; i <= 20; i++)); do pod many-$i "$(asking radio)"; done
    eventually 60 all_running many 20
    for ((i = 1; i <= 20; i++)); do eventually 10 has_status many-$i 2; done
    figure "what was asked for 20 pods: $(asked_since "$line" | paste -s -d ',' | sed 's/,/, /g')"
    equal "what was asked for 20 pods" "$(asked_since "$line")" "patch pods/status: 20"
    all_gone
}

# ---- things go wrong ----
killed_in_a_burst() {
    burst storm 30
    eventually 20 some_are_running
    kill_daemon
    eventually 120 all_running storm 30 || equal "running pods" "$(kube GET $PODS | jq -c '[.items[].status.phase]')" all
    eventually 30 ready_daemon # kubelet starts it again after a pause
    eventually 20 attached 30
    equal "addresses" "$(kube GET $PODS | jq '[.items[].status.podIP] | unique | length')" 30
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
    in_container web-0 busybox ping -c 1 -W 2 -q 10.62.0.1
    all_gone
}

# ---- examples ----
# Those that need nothing but an uplink and the plugins that this node has.
HERE="macvlan default-route fixed-address first-available"
# example POD: its manifest with an image that is on this node
example() { sed 's|^\( *\)image: .*|\1image: localhost/work:1\n\1imagePullPolicy: Never|' "$ROOT/examples/pods/$1.yaml"; }
examples() {
    local file name
    kubectl apply -f "$ROOT/examples/networks"
    for file in "$ROOT"/examples/pods/*.yaml; do kubectl apply --dry-run=server -f "$file"; done
    for file in "$ROOT"/examples/config/*.yaml; do
        kubectl -n fairlead create configmap example --from-file=config.yaml="$file" --dry-run=server
    done
    for name in $HERE; do example "$name" | kubectl apply -f -; done
    for name in $HERE; do runs "$name" 60; done
    in_container macvlan ip -4 -o address show dev net1 | grep -c ' 10.101.0.'
    in_container default-route ip route show default | grep -c 'via 10.101.0.1 dev net1'
    in_container fixed-address ip -o address show dev net1 | grep -c ' 10.108.0.77/24 '
    in_container fixed-address ip -o link show dev net1 | grep -c 02:00:00:00:00:77
    in_container first-available ip -4 -o address show dev net1 | grep -c ' 10.107.0.'
    # Not in a pipe: grep ends before all is printed.
    grep -q 'passed over  sriov: ' <<<"$(fairleadd describe default/first-available)"
    grep -q '  net1       default/macvlan: attached' <<<"$(fairleadd describe default/default-route)"
    all_gone
    kubectl delete -f "$ROOT/examples/networks"
}

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
    eventually 30 ready_daemon
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
    eventually 20 node_ready
}

# With an empty directory containerd itself calls nobody, and its node is not Ready.
emptied_conf_dir() {
    pod stays
    runs stays
    mkdir "$NODE/aside"
    mv $NETD/* "$NODE/aside"
    eventually 30 node_not_ready
    in_container stays busybox ping -c 1 -W 2 -q 10.62.0.1
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
upgrade_under_load() {
    next_image
    local before
    before=$(running_daemon)
    the_daemon set image daemonset/fairlead fairlead=$IMAGE:next
    local i
    for ((i = 1; i <= 20; i++)); do
        pod load-$i
        sleep 0.2
    done
    rolled_out
    [ "$(running_daemon)" != "$before" ]
    eventually 60 all_running load 20
    equal "sandboxes that were refused" "$(refusals load)" 0
    eventually 10 attached 20
    cmp "$NODE/next/fairlead" $CNIBIN/fairlead
    all_gone
}

# ---- vhost-user ----
vhost_user_pods() { kubectl get pods -l app=vhost-user -o json | jq -r '.items[].metadata.name'; }
vhost_user_ports() { fairleadd vswitch ports -o json | jq 'if has("ports") then .ports | length else "no answer" end'; }
two_vhost_user_ports() { [ "$(vhost_user_ports)" = 2 ]; }
no_vhost_user_port() { [ "$(vhost_user_ports)" = 0 ]; }
vhost_user_status() { # POD
    kubectl get pod "$1" -o json | jq -e '.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] | fromjson | .[1]
        | .name == "default/vhost-user" and (.ips[0] | startswith("10.97.8.")) and ."device-info"."vhost-user".path == "/run/vhost-user/net1.sock"'
}

# The example, with sockets that ADD makes: the image has no application that would make them.
sockets_in_volumes() {
    kubectl apply -k "$ROOT/deploy/overlays/vhost-user"
    kubectl -n fairlead rollout status daemonset/fairlead-vswitch --timeout=120s
    rolled_out
    sed 's/"mode": "server", //' "$ROOT/examples/networks/vhost-user.yaml" | kubectl apply -f -
    # Its process does not end when it is told to.
    example vhost-user | sed 's/^    spec:$/&\n      terminationGracePeriodSeconds: 0/' | kubectl apply -f -
    kubectl rollout status deployment/vhost-user --timeout=60s || {
        kubectl get events -o custom-columns=:.message | tail -5
        the_daemon logs daemonset/fairlead-vswitch --tail=5
        return 1
    }
    local name
    for name in $(vhost_user_pods); do
        test -S "/proc/$(process_of "$name")/root/run/vhost-user/net1.sock"
        eventually 10 vhost_user_status "$name"
    done
    eventually 5 two_vhost_user_ports
    # The switch dies with its pod, and the next one has the ports again.
    kubectl -n fairlead rollout restart daemonset/fairlead-vswitch
    kubectl -n fairlead rollout status daemonset/fairlead-vswitch --timeout=120s
    eventually 20 two_vhost_user_ports
    kubectl delete deployment vhost-user
    all_gone
    eventually 10 no_vhost_user_port
    kubectl delete -f "$ROOT/examples/networks/vhost-user.yaml"
    the_daemon delete daemonset fairlead-vswitch
}

# ---- uninstalling ----
uninstalled() {
    pod last
    runs last
    config absent
    eventually 90 test ! -e $CONFLIST
    cmp "$NODE/next/fairlead" $CNIBIN/fairlead # the pod may still need it
    pod old-way
    runs old-way
    eventually 5 attached 1
    kube DELETE "$PODS?gracePeriodSeconds=0" >/dev/null
    eventually 60 no_pods
    eventually 20 nothing_held
    fairleadd gc # the bridge plugin got the DEL: nobody told the daemon
    eventually 90 test ! -e $CNIBIN/fairlead
    diff "$NODE/files.before" <(node_files)
    kubectl delete -k "$ROOT/deploy/base" --wait=true --timeout=90s
    pod afterwards
    runs afterwards
    deleted afterwards
}
config() { # present or absent
    the_daemon patch configmap fairlead --type merge \
        -p "$(jq -n --arg c "install: {cni: $1}" '{data: {"config.yaml": $c}}')"
}

by_chart() {
    helm --kubeconfig $K/admin.kubeconfig install fairlead "$ROOT/deploy/helm/fairlead" -n fairlead --create-namespace --wait --timeout 60s
    eventually 10 test -e $CONFLIST
    pod charted
    runs charted
    eventually 5 attached 1
    all_gone
}

applied_by_a_server() {
    python3 "$ROOT/deploy/render.py" --check
    local overlay
    for overlay in "$ROOT"/deploy/overlays/*/; do kubectl apply -k "$overlay" --dry-run=server; done
    kubectl kustomize "$ROOT/deploy/overlays/sriov-metrics" >"$NODE/both"
    grep -q device-plugins "$NODE/both"
    grep -q 9808 "$NODE/both"
    helm template fairlead "$ROOT/deploy/helm/fairlead" -n fairlead --set sriov=true --set vhostUser=true | kubectl apply -n fairlead --dry-run=server -f -
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
it "nothing is left of deleted pods, nor of one that was there before Fairlead" deleted_pods
of_ours "x18 installing twice changes nothing on the node" again
of_ours "the daemon has the rights that it needs and no other" rights
of_ours "the daemon writes network-status to pods of its own node, and nothing else" own_pods_only
it "k23 m14 a pod with three networks has them all, one default route, and its network-status" several_networks
it "m09 nothing is left of its networks when it is deleted" several_networks_deleted
it "m08 x14 a pod whose definition is missing waits, an Event says so, and it goes Running when the definition comes" missing_definition
it "x14 a broken definition is told in an Event, and put right" broken_definition
it "m09 a definition deleted while a pod uses it: the pod's deletion leaves nothing" deleted_definition
it "every example is taken by the API server, and those that need no VF go Running as they say" examples
it "k13 x11 twenty pods with a network each: one PATCH for each, and no other request" no_request_on_the_way
it "k14 x01 the daemon killed in a burst of 30 pods: all go Running, none without its network" killed_in_a_burst
it "k09 a pod recreated under its name while its DEL is due goes Running" same_name_at_once
it "k09 k12 pods of a StatefulSet that are deleted have their networks again under their names" stateful_pods
it "k12 a static pod has the networks that it asks for, and is told of them" static_pods
it "k07 API server and daemon gone: a pod with a network of its own gets a new sandbox" without_the_api
apiserver_ready || apiserver_again
of_ours "the conf dir emptied: pods keep their network, and the node is Fairlead's again when its first network is back" emptied_conf_dir
it "k14 x11 the node goes down with 100 pods and comes back: all have their networks again, and no address leaks" rebooted
of_ours "k29 pods of the example have sockets in their volumes, and the switch that is started again has their ports" sockets_in_volumes
of_ours "x01 upgrade to a new image under load: no pod fails" upgrade_under_load
of_ours "overlay and chart are taken by a real API server" applied_by_a_server
of_ours "uninstall gives the old state back, and no pod fails by it" uninstalled
of_ours "the chart installs the same" by_chart
finish
