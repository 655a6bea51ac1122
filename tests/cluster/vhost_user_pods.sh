# The examples with vhost-user: sockets in volumes, and ports that kubelet counts. Sourced by tests/e2e.sh.

vhost_user_pods() { kubectl get pods -l app=vhost-user -o json | jq -r '.items[].metadata.name'; }
vhost_user_ports() { fairleadd vswitch ports -o json | jq 'if has("ports") then .ports | length else "no answer" end'; }
two_vhost_user_ports() { [ "$(vhost_user_ports)" = 2 ]; }
no_vhost_user_port() { [ "$(vhost_user_ports)" = 0 ]; }
vhost_user_status() { # POD
    kubectl get pod "$1" -o json | jq -e '.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] | fromjson | .[1]
        | .name == "default/vhost-user" and (.ips[0] | startswith("10.97.8.")) and ."device-info"."vhost-user".path == "/run/vhost-user/net1.sock"'
}

# ---- applications: the node's testpmd, in the network and with the volume of a pod, whose image has none ----
mac_of() { status_of "$1" '.[1].mac' | tr -d '"'; } # POD
volume_of() { echo "$KUBELET/pods/$(uid_of "$1")/volumes/kubernetes.io~empty-dir/vhost-user"; } # POD
# listens POD PEER: makes its socket, and sends back to its peer what it gets
listens() {
    ip netns attach "$1" "$(process_of "$1")"
    testpmd "$1" 1 "$(mac_of "$2")" 'mount --bind "$1" /mnt' /mnt/net1.sock "$(volume_of "$1")"
    test -S "/proc/$(process_of "$1")/root/run/vhost-user/net1.sock"
}
both_connected() { [ "$(fairleadd vswitch ports -o json | jq '[.ports[] | select(.connected)] | length')" = 2 ]; }
# What went to each of the two: the frames of that which got fewer.
received_by_each() { fairleadd vswitch ports -o json | jq '[.ports[].counters.to_guest_frames] | if length == 2 then min else -1 end'; }
each_has() { [ "$(received_by_each)" -gt "$1" ]; } # FRAMES
frames_go_round() { # POD
    local before
    eventually 20 both_connected || { fairleadd vswitch ports; return 1; }
    before=$(received_by_each)
    say "$1" stop
    say "$1" 'start tx_first 4'
    eventually 60 each_has $((before + 1000)) || { fairleadd vswitch ports -o json; return 1; }
    figure "frames that each of the two has got: $(received_by_each)"
}

sockets_in_volumes() {
    kubectl apply -k "$ROOT/deploy/overlays/vhost-user"
    kubectl -n fairlead rollout status daemonset/fairlead-vswitch --timeout=180s
    rolled_out
    kubectl apply -f "$ROOT/examples/networks/vhost-user.yaml"
    # Its process does not end when it is told to.
    example vhost-user | sed 's/^    spec:$/&\n      terminationGracePeriodSeconds: 0/' | kubectl apply -f -
    kubectl rollout status deployment/vhost-user --timeout=180s || {
        kubectl get events -o custom-columns=:.message | tail -5
        the_daemon logs daemonset/fairlead-vswitch --tail=5
        return 1
    }
    local name first second
    for name in $(vhost_user_pods); do eventually 10 vhost_user_status "$name"; done
    read -r first second <<<"$(vhost_user_pods | paste -s -d ' ')"
    listens "$first" "$second"
    listens "$second" "$first"
    eventually 20 two_vhost_user_ports
    say "$second" start
    frames_go_round "$first"
    # The switch dies with its pod; the next one has the ports again, and the applications are told nothing.
    kubectl -n fairlead rollout restart daemonset/fairlead-vswitch
    kubectl -n fairlead rollout status daemonset/fairlead-vswitch --timeout=180s
    eventually 20 two_vhost_user_ports
    frames_go_round "$first"
    for name in "$first" "$second"; do
        application_end "$name"
        ip netns del "$name"
    done
    kubectl delete deployment vhost-user
    all_gone
    eventually 10 no_vhost_user_port
    kubectl delete -f "$ROOT/examples/networks/vhost-user.yaml"
}

allocatable_ports() { kubectl get nodes -o json | jq -e --arg n "$1" '.items[0].status.allocatable["example.com/blue"] == $n'; }
ready_ports() { [ "$(fairleadd pools -o json | jq '[.ports[] | select(.state == "ready")] | length')" = "$1" ]; }
variable_of() { tr '\0' '\n' <"/proc/$(process_of "$1")/environ" | sed -n "s/^$2=//p"; } # POD NAME
is_told_of() { # POD SOCKET MAC
    kubectl get pod "$1" -o json | jq -e --arg socket "$2" --arg mac "$3" '.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] | fromjson | .[1]
        | .name == "default/vhost-user-port" and .mac == $mac and ."device-info"."vhost-user" == {"mode": "client", "path": $socket}'
}

# The example with a pool: kubelet counts the ports, and mounts the one that it gives.
ports_that_kubelet_allocates() {
    the_daemon get configmap fairlead -o json | jq --rawfile pool "$ROOT/examples/config/ports.yaml" '.data["config.yaml"] += $pool' | kubectl apply -f -
    the_daemon rollout restart daemonset/fairlead
    rolled_out
    eventually 30 allocatable_ports 16
    kubectl apply -f "$ROOT/examples/networks/vhost-user-port.yaml"
    example vhost-user-port | sed 's/^    spec:$/&\n      terminationGracePeriodSeconds: 0/' | kubectl apply -f -
    kubectl rollout status deployment/vhost-user-port --timeout=180s || {
        kubectl get events -o custom-columns=:.message | tail -5
        return 1
    }
    local name socket mac sockets=
    for name in $(kubectl get pods -l app=vhost-user-port -o json | jq -r '.items[].metadata.name'); do
        socket=$(variable_of "$name" VHOSTUSER_EXAMPLE_COM_BLUE)
        mac=$(variable_of "$name" VHOSTUSER_EXAMPLE_COM_BLUE_MAC)
        [ -n "$mac" ]
        test -S "/proc/$(process_of "$name")/root$socket"
        [[ $sockets != *$socket* ]]
        sockets+=" $socket"
        eventually 10 is_told_of "$name" "$socket" "$mac"
    done
    eventually 5 two_vhost_user_ports
    ready_ports 14
    kubectl delete deployment vhost-user-port
    all_gone
    eventually 10 no_vhost_user_port
    eventually 10 ready_ports 16
    kubectl delete -f "$ROOT/examples/networks/vhost-user-port.yaml"
    kubectl apply -k "$ROOT/deploy/overlays/vhost-user"
    the_daemon rollout restart daemonset/fairlead
    rolled_out
    the_daemon delete daemonset fairlead-vswitch
}
