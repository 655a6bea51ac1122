#!/usr/bin/env bash
# A cluster goes from Multus to Fairlead and back with pods running, by the steps of docs/migrate-from-multus.md: real kubelet,
# containerd, API server, and a built Multus 4.
#
#   PEER=multus=DIR tests/multus_cluster.sh                  thin: DIR has `multus`
#   PEER=multus=DIR MULTUS=thick tests/multus_cluster.sh     thick: DIR has `multus-daemon` and `multus-shim`
#
# By hand: Multus is not built in CI. `daemon/tests/multus/main.rs` does the same there with files of Multus' form.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
PLUGINS=reference
NODE_PARTS=(reference cluster)
enter_node "$@"
. "$ROOT/tests/cluster/cluster.sh"
. "$ROOT/tests/cluster/peer.sh"
[ -n "$PEER" ] || die "PEER=multus=DIR names a built Multus"

cluster_places
. "$ROOT/tests/cluster/fairlead.sh"

OWN_NETWORKS=$(asking 'radio, storage')
start() { # POD…: each with two networks of its own
    local name
    for name in "$@"; do pod "$name" "$OWN_NETWORKS"; done
    for name in "$@"; do runs "$name" 60; done
    for name in "$@"; do eventually 10 has_status "$name" 3; done
}
held() { find "/var/lib/cni/networks/$1" -type f -name '10.*' 2>/dev/null | wc -l; } # DIRECTORY
held_are() { [ "$(held "$1")" = "$2" ]; }                                             # DIRECTORY NUMBER
cached() { find /var/lib/cni/multus -maxdepth 1 -type f 2>/dev/null | wc -l; }
cached_are() { [ "$(cached)" = "$1" ]; } # NUMBER
no_netns() { [ "$(netns_of_pods)" = 0 ]; }
bridge_ports() { ip -o link show master br-storage 2>/dev/null | wc -l; }
bridge_ports_are() { [ "$(bridge_ports)" = "$1" ]; } # NUMBER

# Whoever made them, no two pods have one address, and what network-status tells is there and answers.
pods_are_sound() { # POD…
    local name all
    all=$(for name in "$@"; do status_of "$name" '.[].ips[]'; done)
    equal "addresses of $#" "$(sort -u <<<"$all" | wc -l)" $(($# * 3))
    for name in "$@"; do
        equal "$name's net1" "$(in_container "$name" ip -j -4 address show dev net1 | jq '.[0].addr_info[0].local')" "$(status_of "$name" '.[1].ips[0]')"
        eventually 10 in_container "$name" busybox ping -I net1 -c 1 -W 2 -q "$(status_of "$1" '.[1].ips[0]' | tr -d '"')"
        eventually 10 in_container "$name" busybox ping -c 1 -W 2 -q 10.62.0.1
    done
}

by_multus() {
    definition radio "$(macvlan 10.63.0.0/24)"
    definition storage "$(executed 10.64.0.0/24)"
    start m1 m2 m3 m4
    pods_are_sound m1 m2 m3 m4
    equal "files of Multus" "$(cached)" 4
    sha256sum "$NETD/00-multus.conf" >"$NODE/multus.sum"
}

# As the document says: Multus' own settings go beside ours.
there() {
    cp -r "$ROOT/deploy" "$NODE/deploy"
    if [ "${MULTUS:-thin}" = thick ]; then
        {
            sed 's|^      cni: present|&\n      multusDaemonConfig: /etc/fairlead/daemon-config.json|' "$ROOT/deploy/base/config.yaml"
            printf '  daemon-config.json: |\n'
            sed 's/^/    /' "$NETD/multus.d/daemon-config.json"
        } >"$NODE/deploy/base/config.yaml"
    fi
    ctr images import "$DIST/fairlead-image.tar" >/dev/null
    kubectl apply -k "$NODE/deploy/base"
    rolled_out
    eventually 10 test -e $CONFLIST
    grep -q '"clusterNetwork": "pods"' $CONFLIST
    sha256sum -c "$NODE/multus.sum"
    pods_are_sound m1 m2 m3 m4
    eventually 20 held_are radio@default 4
}

beside_pods_of_multus() {
    start f1 f2
    pods_are_sound m1 m2 m3 m4 f1 f2
    eventually 5 attached 6
    equal "files of Multus" "$(cached)" 4
}

# Its pod is Multus', its DEL is ours; and one that comes again under its name is ours, too.
pods_of_multus_deleted() {
    local name
    deleted m1
    deleted m2
    start m2
    pods_are_sound m2 m3 m4 f1 f2
    for name in m2 f1 f2; do address "$name"; done >"$NODE/own-addresses"
    eventually 20 cached_are 2
    equal "addresses of Multus' pods" "$(held radio)" 2
    equal "addresses of all" "$(held radio@default)" 5
    eventually 10 bridge_ports_are 5
}

daemon_of_multus_gone() {
    kill "$(cat $K/multus.pid)"
    eventually 10 gone "$(cat $K/multus.pid)"
}

back() {
    if [ "${MULTUS:-thin}" = thick ]; then
        # By itself it would take the first file of the directory, which is ours.
        jq '. + {multusMasterCNI: "10-pods.conflist"}' $NETD/multus.d/daemon-config.json >"$NODE/daemon-config.json"
        cp "$NODE/daemon-config.json" $NETD/multus.d
        multus_daemon_up "${PEER#*=}"
        eventually 20 test -e $NETD/00-multus.conf
        sha256sum $NETD/00-multus.conf >"$NODE/multus.sum"
    fi
    the_daemon get configmap fairlead -o json | jq '.data["config.yaml"] |= sub("cni: present"; "cni: absent")' | kubectl apply -f -
    eventually 90 test ! -e $CONFLIST
    eventually 10 cached_are 5
    pods_are_sound m2 m3 m4 f1 f2
    start n1 n2
    pods_are_sound m2 m3 m4 f1 f2 n1 n2
    equal "files of Multus" "$(cached)" 7
}

pods_of_ours_deleted() {
    deleted f1
    deleted m2
    eventually 20 attached 3
    eventually 10 cached_are 5
    pods_are_sound m3 m4 f2 n1 n2
    eventually 90 held_are radio@default 1
    equal "addresses of all" "$(held radio)" 5
}

nothing_left() {
    kube DELETE "$PODS?gracePeriodSeconds=0" >/dev/null
    eventually 60 no_pods
    eventually 30 attached 0
    eventually 20 no_netns
    local directory address
    while read -r address; do [ ! -e "/var/lib/cni/networks/pods/$address" ]; done <"$NODE/own-addresses"
    # Multus' thick plugin deletes a list of the conf dir without most of its keys, host-local's ranges among them.
    figure "addresses of the cluster network that Multus' own DEL left: $(addresses_held)"
    for directory in radio radio@default storage-net storage-net@default; do
        eventually 90 held_are $directory 0 || { find /var/lib/cni/networks; return 1; }
    done
    eventually 20 cached_are 0
    bridge_ports_are 0
    eventually 90 test ! -e $CNIBIN/fairlead
    sha256sum -c "$NODE/multus.sum"
    kubectl delete -k "$NODE/deploy/base" --wait=true --timeout=90s
}

it "a cluster of one node is up" cluster_up
it "$PEER (${MULTUS:-thin}) is installed" peer_installed
it "pods have their networks from Multus" by_multus
it "m07 there: pods of Multus go on, and its settings are taken over" there
[ "${MULTUS:-thin}" = thin ] || it "the daemon of Multus ends" daemon_of_multus_gone
it "m09 pods of ours have other addresses than those of Multus" beside_pods_of_multus
it "k10 m09 deleted pods of Multus leave nothing, and one that comes again is ours" pods_of_multus_deleted
it "back: pods go on, new ones are Multus'" back
it "m09 Multus deletes pods of ours, and what was on file for its own is given up" pods_of_ours_deleted
it "nothing is left of any pod, of Fairlead or of what Multus had been given" nothing_left
finish
