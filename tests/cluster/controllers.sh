# Pods that nobody creates by hand: kubelet's own (static) ones, and those of a StatefulSet. Sourced by tests/e2e.sh.

# static_pod NAME ANNOTATIONS-AS-JSON: kubelet runs it by itself, whatever the API server says; its pod there is NAME-node
static_pod() {
    jq -n --arg name "$1" --argjson annotations "$2" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name, namespace: "default", annotations: $annotations},
        spec: {enableServiceLinks: false, terminationGracePeriodSeconds: 0,
            containers: [{name: "main", image: "localhost/work:1", imagePullPolicy: "Never"}]}}' >"$K/static/.$1"
    mv "$K/static/.$1" "$K/static/$1.json"
}

# The second network's interface has the address that network-status tells.
has_what_is_told() { # POD INTERFACE
    equal "$2's address" "$(in_container "$1" ip -j -4 address show dev "$2" | jq '.[0].addr_info[0].local')" \
        "$(status_of "$1" '.[1].ips[0]')"
}

static_pods() {
    local name=by-kubelet-$NODE_NAME sandbox
    definition radio "$(macvlan 10.63.0.0/24)"
    static_pod by-kubelet "$(asking radio)"
    eventually 30 is_running "$name" || return 1
    eventually 10 has_status "$name" 2
    has_what_is_told "$name" net1
    # Its sandbox dies: the next one has the networks, too.
    sandbox=$(sandboxes "$name")
    ctr tasks kill -s KILL "$sandbox"
    eventually 60 another_sandbox "$name" "$sandbox"
    eventually 30 attached 2
    rm "$K/static/by-kubelet.json"
    eventually 60 no_pods
    eventually 20 attached 0
    eventually 10 nothing_held
}

# stateful_set NAME REPLICAS ANNOTATIONS-AS-JSON
stateful_set() {
    jq -n --arg name "$1" --argjson replicas "$2" --argjson annotations "$3" '{
        apiVersion: "apps/v1", kind: "StatefulSet", metadata: {name: $name, namespace: "default"},
        spec: {replicas: $replicas, serviceName: $name, podManagementPolicy: "Parallel",
            selector: {matchLabels: {app: $name}},
            template: {metadata: {labels: {app: $name}, annotations: $annotations},
                spec: {automountServiceAccountToken: false, enableServiceLinks: false, terminationGracePeriodSeconds: 0,
                    containers: [{name: "main", image: "localhost/work:1", imagePullPolicy: "Never"}]}}}}' |
        kubectl apply -f - >/dev/null
}
uid_of() { kube GET "$PODS/$1" | jq -r '.metadata.uid // empty'; } # POD
is_another() { # POD UID: it runs, and is not the one of that uid
    is_running "$1" && [ "$(uid_of "$1")" != "$2" ]
}

# The controller makes a pod of the same name as soon as the object is gone, while the old one's DEL is still due.
stateful_pods() {
    local before n
    definition radio "$(macvlan 10.63.0.0/24)"
    stateful_set db 2 "$(asking '[{"name": "radio", "interface": "radio0"}]')"
    eventually 60 all_running db 2
    for n in 1 2 3; do
        before=$(uid_of db-0)
        kube DELETE "$PODS/db-0?gracePeriodSeconds=0" >/dev/null
        eventually 60 is_another db-0 "$before"
    done
    eventually 20 attached 4
    eventually 10 has_status db-0 2
    has_what_is_told db-0 radio0
    kubectl delete statefulset db --wait=true --timeout=180s >/dev/null
    all_gone
}
