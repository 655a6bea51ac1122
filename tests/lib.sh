# A private node for tests and the demo, and a small frame for test cases. Sourced by the scripts beside it.
#
# enter_node puts the whole script into namespaces of its own: network, mounts and processes. /run and /var/lib are
# empty there, "eth0" is one end of a veth pair whose other end, the wire, is in a namespace of its own. Every
# process and mount ends with the script, however it ends, so nothing of this machine's own is touched or left.
#
# A script can be run by hand. KEEP=1 leaves its node up after the last case and says how to enter it.

ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
BIN=$ROOT/.cache/bin
DIST=$ROOT/dist
PLUGINS=${PLUGINS:-fairlead} # or "reference": the same cases with the reference plugins
REPLACED=macvlan,ipvlan,vlan,host-device,sriov,loopback

die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
ours() { [ "$PLUGINS" = fairlead ]; }

# ---- the node ----
enter_node() {
    if [ -n "${FAIRLEAD_NODE:-}" ]; then
        node_inside
        return
    fi
    [ "$(id -u)" = 0 ] || die "network namespaces need root: run it as root (sudo -E make …)"
    "$ROOT/tests/setup.sh" build runtimes "${NODE_PARTS[@]}"
    case $PLUGINS in
    fairlead) [ -x "$DIST/fairleadd" ] || die "dist/fairleadd is missing: run \`make build\` first" ;;
    reference) ;;
    *) die "PLUGINS is 'fairlead' or 'reference', not '$PLUGINS'" ;;
    esac
    FAIRLEAD_NODE=$(mktemp -d /tmp/fairlead-node.XXXXXX)
    export FAIRLEAD_NODE NODE_CGROUP=/fairlead-${FAIRLEAD_NODE##*.} PLUGINS
    local rc=0
    unshare --mount --net --pid --fork --kill-child --mount-proc -- bash -- "$0" "$@" || rc=$?
    eventually 3 cgroups_removed || true
    rm -rf --one-file-system "$FAIRLEAD_NODE"
    exit $rc
}

# One to be in, two levels deep: the daemon makes one beside its own, which must not be taken for a real daemon's.
own_cgroup() {
    local root=/sys/fs/cgroup
    [ ! -d $root/memory ] || root=$root/memory
    mkdir -p "$root$NODE_CGROUP-node/self"
    echo 0 >"$root$NODE_CGROUP-node/self/cgroup.procs"
}

cgroups_removed() {
    find /sys/fs/cgroup -depth -type d -path "*$NODE_CGROUP*" -exec rmdir {} + 2>/dev/null || true
    [ -z "$(find /sys/fs/cgroup -type d -path "*$NODE_CGROUP*" -print -quit)" ]
}

node_inside() {
    trap 'exit 130' INT TERM # the first process of a namespace ignores what it does not handle
    node_places "$FAIRLEAD_NODE"
    own_cgroup
    mkdir -p "$NODE/lib"
    mount -t tmpfs -o mode=755 tmpfs /run # as on a real node; it dies with this one
    mkdir -p /run/netns /run/lock
    mount --bind "$NODE/lib" /var/lib # a real disk
    mkdir -p /var/lib/cni
    ip link set lo up
    ip netns add wire
    ip link add eth0 type veth peer name wire netns wire
    ip -n wire link set lo up
    ip -n wire link set wire up
    ip -n wire address add 10.250.0.1/16 dev wire
    ip -n wire address add 10.60.0.1/16 dev wire # the gateway of the pods' network
    ip link set eth0 up
    ip address add 10.250.0.2/16 dev eth0
    ip route add default via 10.250.0.1
}

node_places() { # DIRECTORY
    NODE=$1 NETD=$1/net.d CNIBIN=$1/cni-bin LOG=$1/log
    mkdir -p "$NETD" "$LOG"
    plugins_in "$CNIBIN"
    export CNI_CONF_DIR=$NETD CNI_PLUGIN_DIR=$CNIBIN
}

# Fills a plugin directory: Fairlead under the names that it replaces and the reference plugins for the rest, or
# the reference plugins alone. With LINKED_PLUGINS these are links.
plugins_in() {
    mkdir -p "$1"
    [ ! -d "$BIN/plugins" ] || cp ${LINKED_PLUGINS:+-s} "$BIN/plugins"/* "$1"
    ! ours || "$DIST/fairleadd" install --as "$REPLACED" --bin-dir "$1" --from "$DIST/fairlead" >/dev/null
}

# A conflist as macvlan's own documentation has it: network_config NAME SUBNET [CNI_VERSION]
network_config() {
    cat <<J
{
  "cniVersion": "${3:-1.0.0}",
  "name": "$1",
  "plugins": [
    {
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "$2" }]],
        "routes": [{ "dst": "0.0.0.0/0" }]
      }
    }
  ]
}
J
}

# ---- processes and waiting ----
# eventually SECONDS COMMAND…: until the command succeeds. The limit is for what hangs, and measures nothing: PATIENCE stretches it, for
# machines that are busy with others, and more where the processor is an emulated one.
eventually() {
    local end=$((${EPOCHREALTIME/./} + $1 * ${PATIENCE:-3} * 1000000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "${EPOCHREALTIME/./}" -lt $end ] || { echo "not so within the time limit: $*"; return 1; }
        sleep 0.05
    done
}

# PID: alive, and not only waiting to be reaped. A process whose first thread is dead holds its files until the last is.
running() {
    local state
    state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) || return 1
    [ "$state" != Z ] || [ "$(find "/proc/$1/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)" -gt 1 ]
}

gone() { ! running "$1"; }

# ---- the daemon ----
daemon_start() { # [BINARY]: returns when it is ready
    "${1:-$DIST/fairleadd}" run ${DAEMON_FLAGS:-} >>"$LOG/fairleadd" 2>&1 &
    echo $! >"$NODE/fairleadd.pid"
    disown $! # bash would tell of its end
    eventually 10 daemon_ready || { tail -20 "$LOG/fairleadd"; return 1; }
}

daemon_pid() { cat "$NODE/fairleadd.pid"; }
daemon_ready() { api /readyz; }

daemon_end() { # SIGNAL
    local pid
    pid=$(daemon_pid)
    kill -s "$1" "$pid"
    eventually 15 gone "$pid"
}

daemon_kill() { daemon_end KILL; }
daemon_stop() { daemon_end TERM; }

# api PATH: what the daemon answers on its socket; fails on anything but success
api() { curl -sS --fail --max-time $((5 * ${PATIENCE:-3})) --unix-socket /run/fairlead/fairlead.sock "http://fairlead$1"; }

spooled() { find /var/lib/fairlead/spool -type f -name '*.json' 2>/dev/null | wc -l; }
addresses_held() { find /var/lib/cni/networks -type f ! -name 'last_reserved*' ! -name lock 2>/dev/null | wc -l; }
no_address_held() { [ "$(addresses_held)" = 0 ]; }
# containerd has one of "lo" made for every pod too
attachments() { api /v1/attachments | jq 'map(select(.type != "loopback")) | length'; }

# ---- cases ----
passed=0 failed=0

# it SENTENCE COMMAND…: one test case. Its output is shown when it fails.
it() {
    local sentence=$1 rc begun=${EPOCHREALTIME/./}
    shift
    set +e
    (set -euo pipefail; "$@") 3>&1 >"$LOG/case" 2>&1 # not in a condition: set -e would not hold inside
    rc=$?
    set -e
    local took=$(((${EPOCHREALTIME/./} - begun) / 1000))
    if [ $rc = 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %s (%d ms)\n' "$sentence" $took
        return
    fi
    failed=$((failed + 1))
    printf 'not ok  %s (%d ms)\n' "$sentence" $took
    sed 's/^/        /' "$LOG/case" | tail -40
}

# figure TEXT: shown whether or not the case passes
figure() { echo "        $*" >&3; }

# equal WHAT GOT WANTED
equal() { [ "$2" = "$3" ] || { printf '%s is %s, not %s\n' "$1" "$2" "$3"; return 1; }; }

# ignored_tests PROGRAM [OPTION…] [-- NAME…]: runs the ignored tests of a compiled suite of Rust tests, or those of them whose names
# contain one of the words. libtest calls an empty selection a success, so each word must find a test before any is run.
ignored_tests() {
    local program=$1 name listed options=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
    [ $# = 0 ] || shift
    for name in "${@:-}"; do
        listed=$("$program" --ignored --list ${name:+"$name"}) || return 1
        grep -q ': test$' <<<"$listed" && continue
        echo "not ok  ${program##*/} has no ignored test${name:+ whose name contains \"$name\"}"
        echo "0 passed, 1 failed"
        return 1
    done
    "$program" --ignored "${options[@]}" "$@"
}

finish() {
    if [ $((passed + failed)) = 0 ]; then
        echo "not ok  no case was run"
        failed=1
    fi
    if [ $failed != 0 ]; then
        local log
        for log in "$LOG"/*; do
            [ "${log##*/}" = case ] || { echo "--- the end of ${log##*/}'s log"; tail -15 "$log"; }
        done
    fi
    if [ -n "${KEEP:-}" ]; then
        echo "The node stays up until you press Enter. To enter it: nsenter -a -t \$(pgrep -ofx 'bash -- $0')"
        read -r _ || true
    fi
    printf '%s: %d passed, %d failed\n' "${0##*/}" $passed $failed
    [ $failed = 0 ]
}
