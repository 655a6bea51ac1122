#!/usr/bin/env bash
# A node changes over from Multus and back with pods running, with a built Multus (4.x) and the reference plugins.
#
#   tests/multus.sh MULTUS DIST [PLUGINS]    Multus' thin executable, the directory of fairleadd and fairlead, that of the plugins
#
# By hand: Multus is not built in CI. `daemon/tests/multus/main.rs` does the same with files of Multus' form. All is done in namespaces of its
# own; nothing of this machine is touched.
set -euo pipefail
SELF=$(readlink -f "$0")
[ $# -ge 2 ] || { sed -n '2,8s/^# \?//p' "$SELF" >&2; exit 2; }
if [ -z "${MULTUS_NODE:-}" ]; then
    MULTUS_NODE=$(mktemp -d /tmp/fairlead-multus.XXXXXX)
    export MULTUS_NODE
    rc=0
    unshare --mount --net --pid --fork --kill-child --mount-proc -- bash "$SELF" "$@" || rc=$?
    rm -rf --one-file-system "$MULTUS_NODE"
    exit $rc
fi
MULTUS=$(readlink -f "$1") DIST=$(readlink -f "$2") PLUGINS=$(readlink -f "${3:-/usr/lib/cni}")
NODE=$MULTUS_NODE
mkdir -p "$NODE"/{run,state,data,net.d,bin,multus}
mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip link add eth0 type veth peer name wire0
ip link set wire0 up
ip link set eth0 up
for pod in p1 p2; do ip netns add $pod; done
for plugin in bridge host-local macvlan tuning; do cp "$PLUGINS/$plugin" "$NODE/bin/"; done
cp "$MULTUS" "$NODE/bin/multus"
export FAIRLEAD_SOCKET=$NODE/run/fairlead.sock FAIRLEAD_STATE_DIR=$NODE/state FAIRLEAD_TIMEOUT=20

die() { echo "failed: $*" >&2; tail -n 40 "$NODE/log" >&2 || true; exit 1; }
until_() { for _ in $(seq 600); do eval "$2" && return; sleep 0.1; done; die "it never came that $1"; }
ipam() { echo "{\"type\":\"host-local\",\"dataDir\":\"$NODE/data\",\"subnet\":\"$1\"}"; }
call() { # program command pod configuration
    CNI_COMMAND=$2 CNI_CONTAINERID=c-$3 CNI_NETNS=/run/netns/$3 CNI_IFNAME=eth0 CNI_PATH=$NODE/bin \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=$3;K8S_POD_INFRA_CONTAINER_ID=c-$3;K8S_POD_UID=u-$3" \
        "$NODE/bin/$1" <"$4" >"$NODE/answer" || die "$1 $2 $3: $(cat "$NODE/answer")"
}
interfaces() { ip -n "$1" -o link show | awk -F'[ :@]+' '$2 != "lo" { print $2 }' | sort | xargs; }
addresses() { find "$NODE/data" -type f ! -name lock ! -name 'last_reserved*' -printf '%P ' ; }
is() { [ "$2" = "$3" ] || die "$1: '$2', expected '$3'"; }
install() { printf 'reapAfter: 30ms\ninstall: {cni: %s}\n' "$1" >"$NODE/config.yaml"; }

pods="{\"cniVersion\":\"1.0.0\",\"name\":\"pods\",\"plugins\":[{\"type\":\"bridge\",\"bridge\":\"br0\",\"ipam\":$(ipam 10.11.0.0/24)},{\"type\":\"tuning\"}]}"
side="{\"cniVersion\":\"1.0.0\",\"name\":\"side\",\"type\":\"macvlan\",\"master\":\"eth0\",\"ipam\":$(ipam 10.12.0.0/24)}"
echo "$pods" >"$NODE/net.d/20-pods.conflist"
echo "$side" >"$NODE/net.d/30-side.conf"
# Without an API server Multus takes its networks from "delegates" only.
cat >"$NODE/net.d/00-multus.conf" <<END
{"cniVersion":"1.0.0","name":"multus-cni-network","type":"multus","delegates":[$pods,$side],
 "confDir":"$NODE/net.d","cniDir":"$NODE/multus","binDir":"$NODE/bin","logToStderr":true,"logLevel":"panic"}
END
cp "$NODE/net.d/00-multus.conf" "$NODE/as-it-was"

call multus ADD p1 "$NODE/net.d/00-multus.conf"
is "Multus' pod" "$(interfaces p1)" "eth0 net1"

install present
CNI_CONF_DIR=$NODE/net.d CNI_PLUGIN_DIR=$NODE/bin "$DIST/fairleadd" run \
    --run-dir "$NODE/run" --state-dir "$NODE/state" --config "$NODE/config.yaml" >"$NODE/log" 2>&1 &
until_ "the node is ours" '[ -e "$NODE/net.d/00-fairlead.conflist" ]'
python3 - "$NODE" <<'END'
import json, sys
node = sys.argv[1]
whole = json.load(open(f"{node}/net.d/00-fairlead.conflist"))
plugin = {"cniVersion": whole["cniVersion"], "name": whole["name"], **whole["plugins"][0]}
json.dump(plugin, open(f"{node}/own.json", "w"))
END
call fairlead DEL p1 "$NODE/own.json"
is "Multus' pod after our DEL" "$(interfaces p1)" ""
is "its addresses" "$(addresses)" ""
is "Multus' files" "$(find "$NODE/multus" -type f)" ""

call fairlead ADD p2 "$NODE/own.json"
is "our pod" "$(interfaces p2)" "eth0 net1"
install absent
until_ "Multus has the node" '[ ! -e "$NODE/net.d/00-fairlead.conflist" ] && [ -e "$NODE/multus/c-p2" ]'
cmp "$NODE/as-it-was" "$NODE/net.d/00-multus.conf" || die "Multus' file is another one"
call multus DEL p2 "$NODE/net.d/00-multus.conf"
until_ "nothing of our pod is left" '[ -z "$(interfaces p2)$(addresses)" ]'
is "Multus' files" "$(find "$NODE/multus" -type f)" ""
echo "ok: from Multus and back"
