# Pods with networks of their own. Sourced by tests/e2e.sh.

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
    [ -n "$PEER" ] || equal "who told of the annotations" "$(told_by three)" "the runtime's call"
}
# Who has told what the pod is annotated with: its record has what containerd handed over with the ADD.
told_by() { fairleadd describe "default/$1" -o json | jq -r '.asked[0].toldBy'; } # POD

# What the executed ones made, too.
several_networks_deleted() {
    all_gone
    eventually 10 none_held_of '10.6[34].*'
}

events_of() { kube GET /api/v1/namespaces/default/events | jq -r --arg p "$1" '.items[] | select(.involvedObject.name == $p and .source.component == "fairlead") | .message'; }
told_of() { events_of "$1" | grep -qe "$2"; } # POD WORDS
none_held_of() { [ "$(held_of "$1")" = 0 ]; } # PATTERN
missing_definition() {
    pod waits "$(asking 'radio,later')"
    # In our words, and in those of a peer.
    eventually 20 told_of waits 'default/later\|(later) in namespace (default)'
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
    doctor_tells 'default/broken: unknown key "mastr"'
    definition broken "$(macvlan 10.66.0.0/24)"
    runs refused 60
    all_gone
}
# Its configuration is a file of the node.
named_definition() {
    jq -n --argjson plugin "$(macvlan 10.69.0.0/24)" '{cniVersion: "1.0.0", name: "named", plugins: [$plugin | del(.cniVersion)]}' \
        >$NETD/20-named.conflist
    definition named
    pod by-name "$(asking named)"
    runs by-name
    in_container by-name ip -4 -o address show dev net1 | grep -c ' 10.69.0.'
    eventually 10 has_status by-name 2
    equal "network-status" "$(status_of by-name 'map([.name, .interface])')" '[["pods","eth0"],["default/named","net1"]]'
    all_gone
    no_definition named
    rm $NETD/20-named.conflist
    equal "addresses held" "$(held_of '10.69.*')" 0
}
another_default() {
    definition oam "$(macvlan 10.68.0.0/24)"
    pod elsewhere '{"v1.multus-cni.io/default-network": "default/oam"}'
    runs elsewhere
    [[ $(address elsewhere) == 10.68.* ]]
    eventually 10 has_status elsewhere 1
    equal "network-status" "$(status_of elsewhere 'map([.interface, .default])')" '[["eth0",true]]'
    no_definition oam
    all_gone
    eventually 10 none_held_of '10.68.*'
}
# Objects of before the NPWG specification: the first of the annotation is the default network, by the configuration of its name in
# the conf dir; the second names a plugin, which is executed.
legacy_networks() {
    legacy_kind | kubectl apply -f - >/dev/null
    eventually 20 legacy_network pods '{}'
    legacy_network layer2 '{"plugin": "bridge"}'
    pod old '{"alpha.network.k8s.io/networks": "pods, layer2"}'
    runs old 90
    [[ $(address old) == 10.62.* ]]
    in_container old ip -o link show dev net1 | grep -c 'link-netns\|link-netnsid'
    eventually 10 has_status old 2
    equal "network-status" "$(status_of old 'map([.interface, .default // false])')" '[["eth0",true],["net1",false]]'
    pod unknown '{"alpha.network.k8s.io/networks": "pods, nowhere"}'
    eventually 20 told_of unknown 'default/nowhere (alpha.network.k8s.io/v1)'
    legacy_kind | kubectl delete -f - >/dev/null
    all_gone
}
legacy_kind() {
    jq -n '{apiVersion: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition",
        metadata: {name: "networks.alpha.network.k8s.io", annotations: {"api-approved.kubernetes.io": "unapproved, of before that rule"}},
        spec: {group: "alpha.network.k8s.io", scope: "Namespaced",
            names: {plural: "networks", singular: "network", kind: "Network"},
            versions: [{name: "v1", served: true, storage: true,
                schema: {openAPIV3Schema: {type: "object", properties: {spec: {type: "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}}'
}
legacy_network() { # NAME SPEC
    jq -n --arg name "$1" --argjson spec "$2" '{apiVersion: "alpha.network.k8s.io/v1", kind: "Network",
        metadata: {name: $name, namespace: "default"}, spec: $spec}' | kubectl apply -f - >/dev/null
}
deleted_definition() {
    definition short "$(macvlan 10.67.0.0/24)"
    pod uses "$(asking short)"
    runs uses
    no_definition short
    deleted uses
    eventually 10 attached 0
    eventually 10 none_held_of '10.67.*'
}

# What the daemon asked of the API server, from line $1 of the log on: verb and resource, counted. No pod's doing are a watch, which is
# begun again after some minutes, and a look whether there are objects Network by now.
asked_since() {
    tail -n +"$1" "$LOG/audit" | jq -r '"\(.verb) \(.objectRef.resource)\(if .objectRef.subresource then "/" + .objectRef.subresource else "" end)"' |
        sed '/^watch /d; /^list networks$/d' | sort | uniq -c | awk '{print $2, $3 ": " $1}'
}
# The connections to the API server that the daemon has ever opened. A peer has nobody to tell them.
connections() { [ -n "$PEER" ] || api /metrics | awk '$1 == "fairlead_api_connections_total" {print $2; n++} END {exit n != 1}'; }
# Four PATCHes are under way at once, each of which needs one; those that are open are used again. Each of the four watches may need
# another when it is begun again.
MOST_CONNECTIONS=8
no_request_on_the_way() {
    local line i before opened
    sleep 2 # what is still to be written of the cases before
    line=$(($(wc -l <"$LOG/audit") + 1))
    before=$(connections)
    for ((i = 1; i <= 20; i++)); do pod many-$i "$(asking radio)"; done
    eventually 60 all_running many 20
    for ((i = 1; i <= 20; i++)); do eventually 10 has_status many-$i 2; done
    figure "what was asked for 20 pods: $(asked_since "$line" | paste -s -d ',' | sed 's/,/, /g')"
    equal "what was asked for 20 pods" "$(asked_since "$line")" "patch pods/status: 20"
    opened=$(($(connections) - before))
    figure "connections opened meanwhile: $opened"
    [ $opened -le $MOST_CONNECTIONS ] || { echo "$opened connections to the API server were opened for 20 pods"; return 1; }
    all_gone
}
