# What is tried with the node of node.sh, one function each; test.sh says in which order. Sourced.

# ---- the machine and the daemon ----
pci() { echo /sys/bus/pci/devices/"$1"; }
node_of() { cat "$(pci "$1")/numa_node"; } # PCI
functions_up() {
    local pf
    modprobe vfio-pci
    for pf in $PF0 $PF1 $PF2; do
        ip link set "$(nic $pf)" up
        echo 7 >"$(pci $pf)/sriov_numvfs"
    done
}

fairlead_configuration() {
    cat <<Y
pools:
  - name: radio
    selectors: {pfNames: ["$(nic $PF0)#0-3", "$(nic $PF1)#0-3"]}
    profile: {vlan: 7, mtu: 1400}
    resourceName: intel.com/radio
  - name: dpdk
    selectors: {pfNames: ["$(nic $PF0)#4-6", "$(nic $PF1)#4-6"]}
    driver: vfio-pci
    resourceName: intel.com/dpdk
  - name: edge # of the NIC without a node
    selectors: {rootDevices: ["$PF2"]}
    resourceName: intel.com/edge
Y
}

# Every pod has eth0 in the cluster's network, and eth1 by what kubelet has given it.
networks() {
    local master
    master=$(nic $PF2)
    cat >"$NETD/10-cluster.conflist" <<J
{"cniVersion":"1.0.0","name":"cluster","plugins":[{"type":"macvlan","master":"$master",
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.62.0.0/24"}]]}}]}
J
    cat >"$NETD/20-fast.conflist" <<J
{"cniVersion":"1.1.0","name":"fast","plugins":[{"type":"fairlead",
 "paths":[{"type":"sriov","pool":"radio"},{"type":"sriov","pool":"dpdk"},{"type":"macvlan","master":"$master"}],
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/24"}]]}}]}
J
}

pools() { "$DIST/fairleadd" pools "$@"; }
state() { pools -o json | jq -r ".functions[] | select(.function == \"$1\") | .state"; } # PCI
stands() { [ "$(state "$1")" = "$2" ]; }                                                # PCI STATE
ready() { pools -o json | jq '[.functions[] | select(.state == "ready")] | length'; }
are_ready() { [ "$(ready)" = "$1" ]; } # NUMBER
at_rest() { # NUMBER: so many are ready, and kubelet has all as healthy
    eventually 10 are_ready "$1" || { pools; return 1; }
    witness watch intel.com/ 21 60 >/dev/null
    eventually 10 is_allocatable '["8","6","7"]' || { allocatable; return 1; }
}

# The VF that a pod has, as kubelet knows it.
function_of() { given "$1" | jq -r "[.devices[][]][0].id"; } # POD
# A pod's phase and its container.
begun_once() { kube GET $PODS/"$1" | jq -c '[.status.phase, .status.containerStatuses[0].containerID]'; } # POD

# ---- cases ----
offered() {
    eventually 20 node_ready
    step "the node is Ready"
    eventually 20 is_allocatable '["8","6","7"]' || { allocatable; return 1; }
    local of
    of=$(witness healthy | jq -c '[.["intel.com/radio", "intel.com/dpdk", "intel.com/edge"] | map(.node) | group_by(.) | map([.[0], length])]')
    equal "nodes and devices of radio, dpdk, edge" "$of" '[[[0,4],[1,4]],[[0,3],[1,3]],[[-1,7]]]'
}

# Half of two seconds nobody has anything to do: what kubelet and the API server begin with is over.
is_idle() {
    local before after field all=0
    read -ra before </proc/stat
    sleep 2
    read -ra after </proc/stat
    for field in {1..8}; do ((all += after[field] - before[field])); done
    ((2 * (after[4] - before[4]) > all))
}

# back: milliseconds from the daemon's start until kubelet has all 21 VFs again
back() {
    local watch begun
    witness watch intel.com/ 0 60 >/dev/null # it has noticed that they were gone
    eventually 120 is_idle || echo "    it does not come to rest" >&2
    witness watch intel.com/ 21 240 >"$NODE/back" &
    watch=$!
    sleep 2 # a Go program takes its time to start in here
    begun=${EPOCHREALTIME/./}
    daemon_start >&2
    wait $watch
    echo $((begun / 1000)) >"$NODE/begun"
    echo $(($(<"$NODE/back") - begun / 1000))
}

# What the daemon says that it did, and how long after its start, from its log.
since_its_start() { # LINES-OF-THE-LOG-BEFORE
    local begun at line
    begun=$(<"$NODE/begun")
    tail -n +$(($1 + 1)) "$LOG/fairleadd" | head -20 | grep -E 'configuration has|agrees|ready|registered' |
        while read -r at line; do
            printf '%8d ms %s\n' $(($(date -d "$at" +%s%3N) - begun)) "${line:0:60}"
        done
}

restarted_in_time() {
    local try took least=100000 lines
    for try in 1 2 3; do
        daemon_stop
        lines=$(wc -l <"$LOG/fairleadd")
        took=$(back)
        [ "$took" -lt "$least" ] || continue
        least=$took
        since_its_start "$lines" >"$NODE/figures"
    done
    printf '%8d ms all 21 are healthy, at best of %d\n' "$least" "$try" >>"$NODE/figures"
    local begun=${EPOCHREALTIME/./}
    for ((try = 0; try < 100000; try++)); do :; done
    printf '%8d ms bash counts to 100000 (a machine that is not emulated takes about 200)\n' \
        $(((${EPOCHREALTIME/./} - begun) / 1000)) >>"$NODE/figures"
    [ "$least" -le 20000 ] # a machine that is emulated, and emulates it slowly
}

# kubelet, the container itself and the machine agree about where a pod is
of_one_node() { # POD RESOURCE VARIABLE
    local function cpu node
    given "$1" && told "$1"
    function=$(function_of "$1")
    cpu=$(given "$1" | jq -c .cpus)
    node=$(node_of "$function")
    equal "resources" "$(given "$1" | jq -c '.devices | map_values(map(.node))')" "{\"intel.com/$2\":[$node]}"
    case $node in 0) [ "$cpu" = '[1]' ] ;; 1) [ "$cpu" = '[2]' ] || [ "$cpu" = '[3]' ] ;; *) return 1 ;; esac
    told "$1" | grep -Fx "$3=$function"
    told "$1" | grep -F "${3}_INFO=" | cut -d= -f2- | jq -e --arg f "$function" '.[$f].generic.deviceID == $f'
    told "$1" | grep -P "^Cpus_allowed_list:\t${cpu//[\[\]]/}$"
    equal "its address in kubelet's files" \
        "$(jq -r '.pci["pci-address"]' "/var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-$2-$function-device.json")" "$function"
}

kernel_pod() {
    pod kernel radio 1
    runs kernel
    of_one_node kernel radio PCIDEVICE_INTEL_COM_RADIO
    local function
    function=$(function_of kernel)
    told kernel | grep -E "^eth1 is $function "
    equal "MAC address" "$(told kernel | sed -n 's/^eth1 is .* //p')" "$(settings "$function" | jq -r '.[0]')"
    equal "VLAN" "$(settings "$function" | jq '.[1]')" 7
    eventually 10 stands "$function" lent
}

vfio_pod() {
    pod dpdk dpdk 1
    runs dpdk
    of_one_node dpdk dpdk PCIDEVICE_INTEL_COM_DPDK
    local function group
    function=$(function_of dpdk)
    group=$(basename "$(readlink "$(pci "$function")/iommu_group")")
    equal "driver" "$(driver "$function")" vfio-pci
    told dpdk | grep -Fx "opened /dev/vfio/$group"
    equal "groups in the pod" "$(told dpdk | grep -c '^opened /dev/vfio/')" 1
    told dpdk | grep -F PCIDEVICE_INTEL_COM_DPDK_INFO= | cut -d= -f2- |
        jq -e --arg f "$function" --arg g "/dev/vfio/$group" '.[$f].vfio == {"dev-mount": $g, "mount": "/dev/vfio/vfio"}'
    ! told dpdk | grep '^eth1 ' || return 1 # it has no interface, and none is pretended
    "$DIST/fairleadd" attachments -o json | jq -c ".[] | select(.link == \"given $function\")" >"$NODE/row"
    cat "$NODE/row"
    jq -e '.addresses[0] | tostring | contains("10.9.0.")' "$NODE/row"
}

plain_pod() {
    pod plain
    runs plain
    told plain | grep '^eth1 '
    "$DIST/fairleadd" attachments -o json | jq -c '.[] | select(.ifname == "eth1" and .type == "fairlead") | [.link, .passedOver]'
    "$DIST/fairleadd" attachments -o json | jq -e 'any(.[]; .ifname == "eth1" and (.passedOver | length) == 2)'
    deleted plain
}

# Three CPUs are free, and a VF is: but no node has all of that.
nowhere() {
    pod wide radio 3
    eventually 10 refused wide || { phase wide; return 1; }
    eventually 10 are_ready 21
    deleted wide
    at_rest 21
}
refused() { [ "$(phase "$1")" = "Failed TopologyAffinityError" ]; } # POD

kubelet_restarted() {
    local before
    before=$(begun_once kernel)$(begun_once dpdk)
    killed kubelet
    kubelet_up
    witness watch intel.com/ 21 120 >/dev/null
    eventually 20 node_ready
    pod after radio 1
    runs after
    of_one_node after radio PCIDEVICE_INTEL_COM_RADIO
    told after | grep -E "^eth1 is $(function_of after) "
    equal "pods of before" "$(begun_once kernel)$(begun_once dpdk)" "$before"
}

daemon_killed() {
    local before function of_dpdk took
    before=$(begun_once dpdk)
    function=$(function_of kernel) of_dpdk=$(function_of dpdk)
    daemon_kill
    kube DELETE $PODS/kernel >/dev/null # its DEL finds nobody
    took=$(back)
    echo "all functions were healthy $took ms after the start"
    eventually 40 no_pod kernel
    eventually 15 stands "$function" ready
    equal "pod dpdk" "$(begun_once dpdk)" "$before"
    eventually 10 stands "$of_dpdk" lent
    pod again radio 1
    runs again
    told again | grep -E "^eth1 is $(function_of again) "
}

pod_deleted() {
    local function
    function=$(function_of again)
    deleted again
    eventually 15 stands "$function" ready
    equal "VLAN" "$(settings "$function" | jq '.[1]')" 7
    equal "node of the interface" "$(driver "$function")" igbvf
    eventually 10 is_allocatable '["8","6","7"]'
}

# Whoever is in quarantine is not allocatable, as kubelet and the API see it; the same with VFs that vanish.
withdrawn() {
    local function=0000:21:10.0
    stands $function ready || function=0000:41:10.0
    pools quarantine $function
    witness watch intel.com/ 20 60
    eventually 15 is_allocatable '["7","6","7"]' || { allocatable; return 1; }
    pools release $function
    witness watch intel.com/ 21 60
    echo 0 >"$(pci $PF2)/sriov_numvfs"
    witness watch intel.com/ 14 60
    eventually 15 is_allocatable '["8","6","0"]' || { allocatable; return 1; }
    echo 7 >"$(pci $PF2)/sriov_numvfs"
    witness watch intel.com/ 21 120
    eventually 15 is_allocatable '["8","6","7"]' || { allocatable; return 1; }
}

runtime_killed() {
    local before function
    before=$(begun_once after)
    function=$(function_of dpdk)
    killed containerd
    containerd_up
    eventually 10 stands "$function" lent
    deleted dpdk
    eventually 15 stands "$function" ready
    equal "driver" "$(driver "$function")" vfio-pci
    equal "pod after" "$(begun_once after)" "$before"
}

# A pod in the host's network: kubelet allocates a VF to it, and nobody asks for an interface.
without_an_add() {
    local function of_next
    pod bare radio 1 '{"hostNetwork":true}'
    runs bare
    function=$(function_of bare)
    ip link set "$(nic "$function")" alias theirs promisc on mtu 1300
    deleted bare
    # kubelet prefers the same one again
    pod next radio 1 '{"hostNetwork":true}'
    runs next
    of_next=$(function_of next)
    equal "kubelet's choice" "$of_next" "$function"
    equal "alias, MTU and promiscuous mode" "$(ip -j link show dev "$(nic "$function")" |
        jq -c '.[0] | [.ifalias, .mtu, (.flags | index("PROMISC") != null)]')" '[null,1400,false]'
    deleted next
}

all_home() {
    deleted after
    nothing_left
}
nothing_left() {
    eventually 15 no_attachments || { "$DIST/fairleadd" attachments; return 1; }
    equal "spooled" "$(spooled)" 0
    equal "addresses" "$(addresses_held)" 0
    pools
}
no_attachments() { [ "$(attachments)" = 0 ]; }

# ---- the same VFs by a definition of the API ----
NADS=/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions
fairlead_is_the_node_network() {
    printf 'kubeconfig: %s\nnodeName: lab\n' $K/daemon.kubeconfig >>"$NODE/config.yaml"
    kubeconfig lab >$K/daemon.kubeconfig
    "$ROOT/.cache/k8s/now/kubectl" --kubeconfig=$K/daemon.kubeconfig create --validate=false -f "$ROOT/deploy/crds/nad-crd.yaml"
    eventually 20 kube GET $NADS --fail
    daemon_stop
    rm "$NETD/20-fast.conflist"
    echo '{"cniVersion":"1.1.0","name":"fairlead","plugins":[{"type":"fairlead","clusterNetwork":"cluster"}]}' >"$NETD/00-fairlead.conflist"
    daemon_start
    killed containerd
    MAX_CONF=1
    containerd_up
    witness watch intel.com/ 21 120 >/dev/null
    eventually 20 node_ready
}
definition() { # NAME RESOURCE CONFIGURATION
    jq -n --arg name "$1" --arg resource "$2" --arg config "$3" '{apiVersion: "k8s.cni.cncf.io/v1", kind: "NetworkAttachmentDefinition",
        metadata: {name: $name, namespace: "default", annotations: {"k8s.v1.cni.cncf.io/resourceName": $resource}},
        spec: {config: $config}}' >"$NODE/definition.json"
    kube POST $NADS -d @"$NODE/definition.json" | jq -e '.kind == "NetworkAttachmentDefinition"'
}
status() { kube GET $PODS/"$1" | jq -r '.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] // "[]"'; } # POD
has_status() { [ "$(status "$1" | jq length)" = "$2" ]; }                                                      # POD ENTRIES

by_definition() {
    fairlead_is_the_node_network
    definition fast intel.com/radio '{"cniVersion":"1.1.0","type":"sriov","vlan":9,"ipam":{"type":"host-local","subnet":"10.10.0.0/24"}}'
    pod defined radio 1 '{}' '{"k8s.v1.cni.cncf.io/networks":"fast@eth1"}'
    runs defined
    of_one_node defined radio PCIDEVICE_INTEL_COM_RADIO
    local function
    function=$(function_of defined)
    told defined | grep -E "^eth1 is $function "
    equal "VLAN" "$(settings "$function" | jq '.[1]')" 9
    eventually 10 has_status defined 2
    status defined
    status defined | jq -e '.[1] | .name == "default/fast" and .interface == "eth1" and .ips == ["10.10.0.2"]'
    deleted defined
    eventually 15 stands "$function" ready
    equal "VLAN" "$(settings "$function" | jq '.[1]')" 7
}

# Which VF kubelet gives is for the resource that the definition names: without it the pod waits, and an Event says why.
by_definition_without_a_resource() {
    pod unasked '' '' '{}' '{"k8s.v1.cni.cncf.io/networks":"fast@eth1"}'
    eventually 20 told_in_an_event unasked 'intel.com/radio'
    equal "the pod's phase" "$(phase unasked)" "Pending "
    deleted unasked
    eventually 10 are_ready 21
}
told_in_an_event() { # POD WORDS
    kube GET /api/v1/namespaces/default/events | jq -e --arg p "$1" --arg words "$2" \
        'any(.items[]; .involvedObject.name == $p and .source.component == "fairlead" and (.message | contains($words)))'
}
