#!/usr/bin/env bash
# The demo: a real containerd makes pods on a macvlan conflist, first with the reference plugins, then on the unchanged conflist with
# Fairlead in their place; then the daemon is killed in the middle of a burst. Everything happens in a private node that ends with
# the script.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
. "$ROOT/tests/runtime.sh"
PLUGINS=reference # what the node begins with
NODE_PARTS=(reference)
enter_node "$@"

BURST=40
begun=${EPOCHREALTIME/./}
bold='' plain=''
[ ! -t 1 ] || bold=$'\e[1m' plain=$'\e[0m'

chapter() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
tell() { printf '   %s\n' "$*"; }
indented() { sed 's/^/   /'; }
since() { echo $(((${EPOCHREALTIME/./} - $1) / 1000)); } # milliseconds

wrong() {
    printf '\nThis is not as it should be: %s\nThe end of the daemon'\''s log:\n' "$*" >&2
    tail -15 "$LOG/fairleadd" >&2
    exit 1
}

start_daemon() {
    local start=${EPOCHREALTIME/./}
    daemon_start || wrong "the daemon did not become ready"
    tell "fairleadd is ready after $(since "$start") ms."
}

up_now() { grep -c '"ip"' "$NODE/burst" || true; }
half_are_up() { [ "$(up_now)" -ge $((BURST / 2)) ]; }

# What the node holds, against the pods that live.
balance() { # PODS
    local pods=$1
    settled "$pods" || eventually 10 settled "$pods" || true
    printf '   %-28s %5s\n' "pods that live" "$pods" "addresses held" "$(addresses_held)" \
        "attachments of the daemon" "$(attachments)" "network namespaces" "$(namespaces)" "calls left in the spool" "$(spooled)"
    settled "$pods" || wrong "something leaked, or is missing"
}

namespaces() { find /run/netns -name 'cni-*' | wc -l; }
settled() { [ "$(addresses_held) $(attachments) $(namespaces) $(spooled)" = "$1 $1 $1 0" ]; }

# The phases of an ADD out of the daemon's own histograms: mean time and share.
time_table() {
    api /metrics | awk '
        BEGIN { n = split("parse queue namespace plan ipam intent link configure commit", order); for (i in order) seen[order[i]] }
        /^fairlead_call_(phase|duration)_seconds_(sum|count)[{]/ && /command="ADD"/ && /type="macvlan"/ {
            what = $0 ~ /_sum[{]/ ? "sum" : "count"
            name = $0 ~ /_duration_/ ? "total" : $0
            if (name != "total") { sub(/.*phase="/, "", name); sub(/".*/, "", name); if (!(name in seen)) { seen[name]; order[++n] = name } }
            value[name, what] = $NF
        }
        END {
            calls = value["total", "count"]; if (!calls) exit 1
            total = value["total", "sum"] / calls * 1e6
            printf "%-16s %8s  %s\n", "phase of an ADD", "µs", "share"
            for (i = 1; i <= n; i++) {
                mean = value[order[i], "sum"] / calls * 1e6; share = mean / total
                bar = ""; for (j = 0; j < share * 30; j++) bar = bar "█"
                printf "%-16s %8.0f  %3.0f %% %s\n", order[i], mean, share * 100, bar
            }
            printf "%-16s %8.0f  mean of %d calls, inside the daemon\n", "in all", total, calls
        }'
}

# burst_of WHO: so many pods at once, what each took in $NODE/WHO; then they are removed again.
burst_of() {
    local start=${EPOCHREALTIME/./}
    cri run -n $BURST -c 20 -prefix "$1" >"$NODE/$1" || wrong "$(grep error "$NODE/$1" | head -1)"
    since "$start" >"$NODE/$1.all"
    jq -r .id "$NODE/$1" | xargs "$BIN/cri" stop -c 20 >"$NODE/$1.gone" || wrong "$(grep error "$NODE/$1.gone" | head -1)"
}
pod_ms() { jq -s "map(.ms) | sort | .[(length - 1) * $2 | floor] | round" "$NODE/$1"; } # WHO QUANTILE
compared() {
    printf '%-44s %12s %12s\n' "$BURST pods, 20 at a time, whole pods" "reference" "Fairlead"
    printf '%-44s %9s ms %9s ms\n' "all are up after" "$(<"$NODE/reference.all")" "$(<"$NODE/fairlead.all")" \
        "a pod, p50" "$(pod_ms reference 0.5)" "$(pod_ms fairlead 0.5)" "a pod, p99" "$(pod_ms reference 0.99)" "$(pod_ms fairlead 0.99)"
}

chapter "1. containerd starts on a macvlan network, with the reference plugins, and makes $BURST pods at once"
network_config pods 10.60.0.0/16 | tee "$NETD/10-pods.conflist" | indented
containerd_up >/dev/null || wrong "containerd did not start"
burst_of reference
tell "$(containerd --version | cut -d' ' -f3): $BURST pods were up after $(<"$NODE/reference.all") ms; they are removed."

chapter "2. The daemon starts, and takes the plugins' place on the unchanged network"
start_daemon
"$DIST/fairleadd" install --as "$REPLACED" --bin-dir "$CNIBIN" --from "$DIST/fairlead" >/dev/null || wrong "it could not be installed"
tell "The plugin \"macvlan\" is Fairlead."

chapter "3. Pods"
cri run -n 3 -prefix pod >"$NODE/pods" || wrong "$(cat "$NODE/pods")"
jq -r '"\(.name)  \(.ip)  \(.netns)  \(.ms | round) ms with its processes"' "$NODE/pods" | indented
mapfile -t netns < <(jq -r .netns "$NODE/pods")
mapfile -t ip < <(jq -r .ip "$NODE/pods")
ping_from "${netns[0]}" "${ip[1]}" >/dev/null || wrong "pod-0 does not reach pod-1"
ping_from "${netns[1]}" "${ip[2]}" >/dev/null || wrong "pod-1 does not reach pod-2"
ping_from "${netns[2]}" 10.60.0.1 >/dev/null || wrong "pod-2 does not reach its gateway"
tell "They reach each other and their gateway."
tell "What the runtime was told (pod-0):"
jq .result "/var/lib/cni/results/pods-$(jq -rs '.[0].id' "$NODE/pods")-eth0" | indented

chapter "4. Where the time went"
time_table | indented || wrong "the daemon's metrics tell no ADD"

chapter "5. The same burst, side by side"
burst_of fairlead
compared | indented
tell "Most of a pod's time is the runtime's own. The network's part alone, 100 calls at once (fairlead-bench):"
"$DIST/fairlead-bench" --only burst-100 --ours "$DIST" --empty "$DIST/fairlead-empty" --without floor 2>"$LOG/bench" >"$NODE/bench" ||
    wrong "$(tail -3 "$LOG/bench" "$NODE/bench")"
# The latencies of its table, without the columns of CPU and memory, and its verdict.
awk '/^ +calls /{to = index($0, "CPU") - 1} to && /^ +(calls|ours|debian) /{print substr($0, 1, to)} /^(Against|every) ?/' "$NODE/bench" | indented

chapter "6. $BURST pods at once, and in the middle of it the daemon is killed with -9"
cri run -n $BURST -c 20 -prefix burst >"$NODE/burst" &
burst=$!
eventually 20 half_are_up >/dev/null || wrong "the burst does not get on"
at_the_kill=$(up_now)
daemon_kill
tell "Killed when $at_the_kill of $BURST pods were up. Calls that come now wait."
sleep 0.5
start_daemon
wait $burst || true
refused=$(grep -c '"error"' "$NODE/burst" || true)
if [ "$refused" = 0 ]; then
    tell "All $BURST pods are up."
else
    tell "$((BURST - refused)) of $BURST pods are up; $refused were in the middle of their ADD and were told to try again:"
    cri run -n "$refused" -c 20 -prefix retry >"$NODE/retry" || wrong "$(grep error "$NODE/retry" | head -1)"
    tell "they did, and are up."
fi
balance $((BURST + 3))

chapter "7. Ten pods go while the daemon is down"
daemon_kill
jq -r 'select(.ip).id' "$NODE/burst" | head -10 | xargs "$BIN/cri" stop -c 10 >"$NODE/stopped" || wrong "$(cat "$NODE/stopped")"
tell "Killed again; the runtime deleted ten pods and was told success; $(spooled) calls lie in the spool."
start_daemon
balance $((BURST - 7))

chapter "8. The end"
containerd_down || wrong "containerd did not end"
balance 0
daemon_stop || wrong "the daemon did not stop"
printf '\nDone in %d s. Nothing of it is left on this machine.\n' $(($(since "$begun") / 1000))
