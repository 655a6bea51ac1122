#!/usr/bin/env bash
# Upgrade, roll back and upgrade again under load, with two real daemons: nothing is lost, and what only the newer one can read
# is left alone by the older one.
#
#   tests/rollback.sh OLDER NEWER FAIRLEAD    two builds of fairleadd, and the executable
#
# The newer one is a build with the feature `next-format`: its attachments with addresses have fields that the older one does not
# know, the others a kind of link. All is done in namespaces of its own; nothing of this machine is touched.
set -euo pipefail
SELF=$(readlink -f "$0")
[ $# = 3 ] || { sed -n '2,8s/^# \?//p' "$SELF" >&2; exit 2; }
if [ -z "${ROLLBACK_NODE:-}" ]; then
    ROLLBACK_NODE=$(mktemp -d /tmp/fairlead-rollback.XXXXXX)
    export ROLLBACK_NODE
    rc=0
    unshare --mount --net --pid --fork --kill-child --mount-proc -- bash "$SELF" "$@" || rc=$?
    rm -rf --one-file-system "$ROLLBACK_NODE"
    exit $rc
fi
OLDER=$(readlink -f "$1") NEWER=$(readlink -f "$2") EXECUTABLE=$(readlink -f "$3")
NODE=$ROLLBACK_NODE
WORKERS=${WORKERS:-3} SECONDS_OF_LOAD=${SECONDS_OF_LOAD:-1}
mkdir -p "$NODE"/{run,state,data,net.d,bin,told}
mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns
ip link add eth0 type veth peer name wire0
ip link set wire0 up
ip link set eth0 up
echo 'reapAfter: 30ms' >"$NODE/config.yaml"
export FAIRLEAD_SOCKET=$NODE/run/fairlead.sock FAIRLEAD_STATE_DIR=$NODE/state FAIRLEAD_TIMEOUT=20
export CNI_CONF_DIR=$NODE/net.d CNI_PLUGIN_DIR=$NODE/bin

passed=0 failed=0
check() { # NAME COMMAND…
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)) && echo "ok      $name"; else failed=$((failed + 1)) && echo "not ok  $name"; fi
}

DAEMON=
start() { # PROGRAM
    "$1" run --run-dir "$NODE/run" --state-dir "$NODE/state" --config "$NODE/config.yaml" 2>>"$NODE/log" &
    DAEMON=$!
    for _ in $(seq 400); do
        [ "$(curl -s -o /dev/null -w '%{http_code}' --unix-socket "$FAIRLEAD_SOCKET" http://x/readyz)" != 200 ] || return 0
        sleep 0.05
    done
    echo "the daemon $1 never got ready" >&2 && tail -20 "$NODE/log" >&2 && exit 1
}
killed() { kill -9 "$DAEMON" && wait "$DAEMON" 2>/dev/null || true; }
attachments() { "$OLDER" attachments -o json --run-dir "$NODE/run"; }

conf() { # NETWORK
    case $1 in
    leased) echo '{"cniVersion":"1.0.0","name":"leased","type":"macvlan","master":"eth0","mode":"bridge",
        "ipam":{"type":"host-local","dataDir":"'"$NODE"'/data","ranges":[[{"subnet":"10.81.0.0/20"}]]}}' ;;
    wire) echo '{"cniVersion":"1.0.0","name":"wire","type":"macvlan","master":"eth0","mode":"bridge","ipam":{}}' ;;
    esac
}
call() { # COMMAND CONTAINER NETWORK
    conf "$3" | CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=eth0 CNI_PATH=$CNI_PLUGIN_DIR "$EXECUTABLE"
}
# As a runtime does: an ADD once more after a failure, a DEL until it succeeds.
added() { # CONTAINER NETWORK
    until call ADD "$1" "$2" >"$NODE/told/$1"; do call DEL "$1" "$2" >/dev/null || true; sleep 0.05; done
}
removed() { # CONTAINER NETWORK
    until call DEL "$1" "$2" >"$NODE/told/$1.del"; do sleep 0.1; done
}
worker() { # NUMBER
    local n=0 network container
    while [ ! -e "$NODE/enough" ]; do
        n=$((n + 1)) network=leased
        [ $((n % 2)) = 0 ] || network=wire
        container=$network-$1-$n
        ip netns add "$container"
        added "$container" "$network"
        # Every ninth stays; the place of the daemon that answered is not known to it, nor does it matter.
        if [ $((n % 9)) = 0 ]; then echo "$container $network" >>"$NODE/stay.$1"; continue; fi
        removed "$container" "$network"
        ip netns del "$container"
    done
}

# One frame of the journal on a line, as JSON.
frames() {
    python3 - "$NODE/run/attachments.journal" <<'PY'
import re, struct, sys
data, at = open(sys.argv[1], "rb").read(), 0
while data[at:at + 4] == b"FLJ1":
    length = struct.unpack("<I", data[at + 4:at + 8])[0]
    print(data[at + 12:at + 12 + length].decode())
    at += 12 + length
PY
}
holds_as_answered() { # CONTAINER
    local mac address
    mac=$(jq -r '.interfaces[0].mac' "$NODE/told/$1")
    address=$(jq -r '.ips // [] | .[].address' "$NODE/told/$1")
    ip -n "$1" -j address show dev eth0 | jq -e --arg mac "$mac" --arg address "$address" '
        .[0] | .address == $mac and ([.addr_info[] | select(.scope == "global") | "\(.local)/\(.prefixlen)"] | join("\n")) == $address' >/dev/null
}
all_hold_as_answered() {
    local container rest
    while read -r container rest; do holds_as_answered "$container" || { echo "$container has lost its interface"; return 1; }; done < <(cat "$NODE"/stay.*)
}
all_are_on_record() { # PHASES
    local container rest rows stay
    # First who stays: the workers go on, and who comes meanwhile is on record earlier than in the list.
    stay=$(cat "$NODE"/stay.*)
    rows=$(attachments)
    while read -r container rest; do
        jq -e --arg c "$container" --arg p "$1" 'any(.[]; .container == $c and (.phase | IN($p | split(" ")[])))' <<<"$rows" >/dev/null ||
            { echo "$container is not on record as one of: $1"; return 1; }
    done <<<"$stay"
}
newer_is_left_alone() { # CONTAINER
    local answer
    answer=$(call DEL "$1" wire) && { echo "its DEL succeeded"; return 1; }
    jq -e '.code == 11 and (.msg | test("newer version")) and (.msg | test("not found") | not)' <<<"$answer" >/dev/null || { echo "$answer"; return 1; }
    "$OLDER" status --run-dir "$NODE/run" | grep -q "left alone: eth0 of $1 "
}
orphans_are_refused() {
    local said
    said=$("$OLDER" gc --orphans --yes --run-dir "$NODE/run" 2>&1) && { echo "$said"; return 1; }
    grep -q 'orphaned addresses are not freed' <<<"$said" && ! grep -q '^addresses' <<<"$said" || { echo "$said"; return 1; }
}
words_of_newer() { frames | jq -r 'select(.e == "put" and has("future")) | .key.container' | sort -u; }
all_words_are_kept() {
    # What has been removed meanwhile is no loss.
    local container
    for container in $1; do
        ! grep -qh "^$container " "$NODE"/stay.* || grep -qx "$container" <<<"$(words_of_newer)" || { echo "the words of $container are lost"; return 1; }
    done
}
nothing_is_left() {
    [ "$(attachments)" = "[]" ] && ! find "$NODE/data" -name '10.81.*' | grep . && ! find "$NODE/state/attachments" -name '*.json' | grep .
}
eventually() { for _ in $(seq 300); do "$@" >/dev/null && return; sleep 0.1; done; "$@"; }

echo "rollback.sh: $("$OLDER" --version), a newer one, $WORKERS callers"
start "$OLDER"
workers=()
for n in $(seq "$WORKERS"); do worker "$n" & workers+=($!); done
sleep "$SECONDS_OF_LOAD"
killed
start "$NEWER" # the upgrade
sleep "$SECONDS_OF_LOAD"
killed
words=$(words_of_newer)
start "$OLDER" # the way back
newer=$(attachments | jq -r '[.[] | select(.phase == "newer")][0].container')
check "the newer version left attachments that the older one cannot read" [ "$newer" != null ]
check "the DEL of such a one gets code 11 with the reason, and status tells it" newer_is_left_alone "$newer"
check "orphaned addresses are not freed meanwhile" orphans_are_refused
sleep "$SECONDS_OF_LOAD"
check "every pod that stays has its interface as it was answered" all_hold_as_answered
check "every pod that stays is on record" all_are_on_record "attached newer"
killed
check "of what stays no word of the newer version is lost" all_words_are_kept "$words"
start "$NEWER" # the upgrade once more
sleep 1
touch "$NODE/enough"
wait "${workers[@]}"
check "every DEL that was sent in the end succeeded, and every pod that stays is attached" all_are_on_record attached
check "and has its interface as it was answered" all_hold_as_answered
while read -r container network; do removed "$container" "$network"; done < <(cat "$NODE"/stay.*)
check "after the DELs of all nothing is left" eventually nothing_is_left
killed
echo "load: $(find "$NODE/told" -type f ! -name '*.del' | wc -l) attachments, of which $(cat "$NODE"/stay.* | wc -l) stayed"
[ $failed = 0 ] || tail -40 "$NODE/log"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
