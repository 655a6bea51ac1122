#!/usr/bin/env bash
# How long a pod takes from its POST until it runs, by the whole path of kubelet, one at a time and 30 at once: with the node's own
# plugin alone, with Fairlead and a second network, and, with PEER=multus=DIR, with Multus and the same second network. Nothing is judged.
#
#   DEFAULT=macvlan tests/time_to_running.sh     the cluster's network is a built-in type and no executed bridge
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
PLUGINS=reference
NODE_PARTS=(reference cluster)
enter_node "$@"
. "$ROOT/tests/cluster/cluster.sh"
. "$ROOT/tests/cluster/peer.sh"

cluster_places
. "$ROOT/tests/cluster/fairlead.sh"

DEFAULT=${DEFAULT:-bridge}
SECOND=$(asking second)
if [ "$DEFAULT" = macvlan ]; then
    default_network() { network_config pods 10.60.0.0/16; }
fi

timed() { # LABEL ANNOTATIONS [METRICS]
    API=127.0.0.1:$API_PORT CA=$K/pki/ca.crt TOKEN=lab "$ROOT/tests/cluster/time_to_running.py" "$@" >"$NODE/times.json"
    figure "$(jq -r '"\(.label): one \(.one_p50_ms) ms (\(.one_min_ms) to \(.one_max_ms)); 30 at once \(.all_30_running_s) s" +
        if .share_percent then "; ADD \(.add_mean_ms) ms, \(.share_percent) % of it" else "" end' "$NODE/times.json")"
}
alone() { timed "the node's $DEFAULT alone" '{}'; }
fairlead() {
    installed
    definition second "$(macvlan 10.63.0.0/16)"
    timed "Fairlead, $DEFAULT alone" '{}' "curl -sS --unix-socket /run/fairlead/fairlead.sock http://fairlead/metrics"
    timed "Fairlead, $DEFAULT and macvlan" "$SECOND" "curl -sS --unix-socket /run/fairlead/fairlead.sock http://fairlead/metrics"
}
without_fairlead() {
    config absent
    eventually 90 test ! -e "$CONFLIST"
    kubectl delete -k "$ROOT/deploy/base" --wait=true --timeout=90s >/dev/null
}
multus() {
    peer_installed
    definition second "$(macvlan 10.63.0.0/16)"
    timed "Multus, $DEFAULT and macvlan" "$SECOND"
}

it "a cluster of one node is up" cluster_up
it "with the node's own plugin" alone
it "with Fairlead" fairlead
if [ -n "$PEER" ]; then
    it "Fairlead is gone again" without_fairlead
    it "with $PEER" multus
fi
finish
