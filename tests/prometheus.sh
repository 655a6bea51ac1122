#!/usr/bin/env bash
# Debian's Prometheus scrapes a real daemon over its TCP port: the rules hold, and every query of the dashboard has data.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/lib.sh"
NODE_PARTS=(reference monitoring)
enter_node "$@"

MONITORING=$ROOT/deploy/monitoring
METRICS=https://127.0.0.1:9808
PATH=$BIN:$PATH

call() { CNI_PATH=$CNIBIN NETCONFPATH=$NETD "$BIN/cnitool" "$1" "$2" /run/netns/pod; }
scraped() { curl -sS --fail --max-time 10 --cacert "$NODE/tls.crt" "$METRICS$1"; }
# query EXPRESSION: the results that Prometheus has for it
query() { curl -sS --fail --max-time 10 -G --data-urlencode "query=$1" http://127.0.0.1:9090/api/v1/query | jq -e '.data.result'; }
some() { query "$1" | jq -e 'length > 0'; }

certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=node -addext subjectAltName=IP:127.0.0.1 \
        -keyout "$NODE/tls.key" -out "$NODE/tls.crt"
}

# One pool that selects nothing here, and the API server of a cluster without any object.
configuration() {
    cat <<Y
metrics: { listen: "127.0.0.1:9808", tls: { certFile: $NODE/tls.crt, keyFile: $NODE/tls.key } }
kubeconfig: $NODE/kubeconfig
nodeName: node
pools: [{ name: radio, selectors: { vendors: ["8086"] } }]
Y
}

cluster_without_objects() {
    python3 "$ROOT/tests/empty_api_server.py" 8001 >"$LOG/api" 2>&1 &
    disown $!
    cat >"$NODE/kubeconfig" <<'Y'
apiVersion: v1
kind: Config
clusters: [{ name: c, cluster: { server: "http://127.0.0.1:8001" } }]
contexts: [{ name: x, context: { cluster: c, user: u } }]
users: [{ name: u, user: { token: t } }]
current-context: x
Y
}

networks() {
    network_config pods 10.60.0.0/16 >"$NETD/pods.conflist"
    network_config none 10.60.0.0/16 | sed 's/"eth0"/"nowhere"/' >"$NETD/none.conflist"
    cat >"$NETD/paths.conflist" <<'J'
{ "cniVersion": "1.0.0", "name": "paths", "plugins": [
  { "type": "fairlead", "paths": [
    { "type": "macvlan", "master": "nowhere" }, { "type": "macvlan", "master": "eth0", "mode": "bridge" } ] } ] }
J
    cp "$DIST/fairlead" "$CNIBIN/fairlead"
    ip netns add pod
    # A port of the switch, which stays; nobody connects to it.
    mkdir "$NODE/sockets"
    printf '{"cniVersion":"1.0.0","name":"user","plugins":[{"type":"vhost-user","directory":"%s","ipam":{"type":"host-local","subnet":"10.61.0.0/24"}}]}' \
        "$NODE/sockets" >"$NETD/user.conflist"
    cp "$DIST/fairlead" "$CNIBIN/vhost-user"
}

tells_of_port() {
    scraped /metrics >"$NODE/metrics"
    grep -x 'fairlead_vswitch_up 1' "$NODE/metrics" && grep 'fairlead_vswitch_port_frames_total{.*network="user"' "$NODE/metrics"
}

switch_with_port() {
    "$DIST/fairlead-vswitch" run --socket /run/fairlead/vswitch.sock --user 65534:65534 >"$LOG/fairlead-vswitch" 2>&1 &
    disown $!
    eventually 10 test -S /run/fairlead/vswitch.sock
    ip netns add user
    CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAMESPACE=radio;K8S_POD_NAME=cell-0' CNI_PATH=$CNIBIN NETCONFPATH=$NETD \
        "$BIN/cnitool" add user /run/netns/user
    eventually 10 tells_of_port
}

# Until the node ends: what succeeds, what is refused, and what passes over its first path.
calls_without_end() {
    set +e # the network "none" is refused
    while :; do
        call add pods; call check pods; call del pods
        call add paths; call del paths
        call add none; call del none
        sleep 0.2
    done >"$LOG/calls" 2>&1
}

daemon_with_port() {
    certificate
    cluster_without_objects
    configuration >"$NODE/config.yaml"
    networks
    DAEMON_FLAGS="--config $NODE/config.yaml" daemon_start
    eventually 10 scraped /metrics
    scraped /metrics | grep -x 'fairlead_ready 1'
}

nothing_else() {
    local path
    for path in /v1/status /v1/attachments /healthz /; do
        equal "the answer to $path" "$(curl -sS --cacert "$NODE/tls.crt" -o /dev/null -w '%{http_code}' "$METRICS$path")" 404
    done
    ! curl -sS --max-time 10 http://127.0.0.1:9808/metrics || { echo "it answers in plain text"; return 1; }
}

rules_hold() {
    promtool check rules "$MONITORING/fairlead.rules.yaml"
    promtool test rules "$MONITORING/fairlead.rules.test.yaml"
    # Debian builds Prometheus without the discovery of Kubernetes' pods: the rest of the job is checked.
    sed '/kubernetes_sd_configs:/,/selectors:/d' "$MONITORING/scrape.yaml" >"$NODE/scrape.yaml"
    promtool check config --syntax-only "$NODE/scrape.yaml"
    # Each alert has a case, and so can be shown not to work.
    diff <(sed -n 's/ *- alert: //p' "$MONITORING/fairlead.rules.yaml" | sort -u) \
        <(sed -n 's/ *alertname: //p' "$MONITORING/fairlead.rules.test.yaml" | sort -u)
}

# panel TITLE REFID: the dashboard's query, for all nodes
panel() {
    jq -er --arg title "$1" --arg id "$2" '.panels[] | select(.title == $title) | .targets[] | select(.refId == $id) | .expr' \
        "$MONITORING/dashboard.json" | sed 's/\$instance/.*/g'
}

# After an upgrade the series of the old pod are there for a while beside those of the new one, where they have its name as a label.
nodes_are_counted_once() {
    local ready of faulty
    ready=$(panel Ready A) of=$(panel Ready B) faulty=$(panel 'Not ready or not healthy' A)
    cat >"$NODE/dashboard.test.yaml" <<Y
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - { series: 'fairlead_ready{instance="n1", pod="old"}', values: '1x10' }
      - { series: 'fairlead_healthy{instance="n1", pod="old"}', values: '1x10' }
      - { series: 'fairlead_ready{instance="n1", pod="new"}', values: '_x3 1x7' }
      - { series: 'fairlead_healthy{instance="n1", pod="new"}', values: '_x3 1x7' }
      - { series: 'fairlead_ready{instance="n2", pod="b"}', values: '1x5 0x4' }
      - { series: 'fairlead_healthy{instance="n2", pod="b"}', values: '1x6 0x3' }
      - { series: 'fairlead_ready{instance="n3", pod="c"}', values: '1x10' }
      - { series: 'fairlead_healthy{instance="n3", pod="c"}', values: '1x7 0x2' }
    promql_expr_test:
      - { expr: '$ready', eval_time: 5m, exp_samples: [{ labels: '{}', value: 3 }] }
      - { expr: '$of', eval_time: 5m, exp_samples: [{ labels: '{}', value: 3 }] }
      - { expr: '$faulty', eval_time: 5m, exp_samples: [{ labels: '{}', value: 0 }] }
      - { expr: '$ready', eval_time: 9m, exp_samples: [{ labels: '{}', value: 2 }] }
      - { expr: '$faulty', eval_time: 9m, exp_samples: [{ labels: '{}', value: 2 }] }
Y
    promtool test rules "$NODE/dashboard.test.yaml"
}

# With their real times, which promtool's cases hold them to, no test would live to see most alerts fire.
rules_at_once() { sed 's/^\( *for:\) .*/\1 3s/' "$MONITORING/fairlead.rules.yaml"; }

# As the operator makes it of the PodMonitor: targets have the labels of the daemon's pod. Two pods of one node, as after an upgrade.
prometheus_up() {
    rules_at_once >"$NODE/rules.yaml"
    cat >"$NODE/prometheus.yaml" <<Y
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: ["$NODE/rules.yaml"]
scrape_configs:
  - job_name: fairlead
    scheme: https
    tls_config: { ca_file: $NODE/tls.crt }
    honor_labels: $(sed -n 's/^ *honorLabels: //p' "$MONITORING/podmonitor.yaml")
    static_configs:
      - { targets: ["127.0.0.1:9808"], labels: { instance: node, namespace: fairlead, pod: fairlead-old } }
      - { targets: ["127.0.0.1:9808"], labels: { instance: node, namespace: fairlead, pod: fairlead-new } }
Y
    prometheus --config.file="$NODE/prometheus.yaml" --storage.tsdb.path="$NODE/prometheus" \
        --web.listen-address=127.0.0.1:9090 >"$LOG/prometheus" 2>&1 &
    disown $!
    calls_without_end &
    disown $!
    eventually 30 some 'up{job="fairlead"} == 1'
}

series_of_ports() {
    eventually 20 some 'fairlead_vswitch_port_connected{namespace="radio", pod="cell-0"}'
    eventually 20 some 'fairlead_ready{namespace="fairlead", pod="fairlead-new"}'
    query '{__name__=~"fairlead_.*", exported_pod!=""}' | jq -e 'length == 0'
}

# Every metric that a rule names, whether its alert fires or not.
metrics_of_rules() {
    local name
    for name in $(grep -o '\bfairlead_[a-z_]*' "$MONITORING/fairlead.rules.yaml" | sort -u); do
        eventually 20 some "$name" || { echo "the daemon does not tell $name"; return 1; }
    done
}

firing() { query 'ALERTS{alertstate="firing"}' | jq -c 'map(.metric.alertname) | unique'; }
# A network is refused without end, and the pool selects nothing: both on purpose.
healthy_node_alerts_nobody() {
    eventually 20 some 'ALERTS{alertname="FairleadAddsFail",alertstate="firing"}'
    sleep 5 # longer than a condition has to hold
    equal "alerts" "$(firing)" '["FairleadAddsFail","FairleadPoolNotices"]'
}

refused_configuration() {
    echo 'colour: red' >>"$NODE/config.yaml"
    eventually 20 some 'ALERTS{alertname="FairleadSettingsRefused",alertstate="firing"}'
    configuration >"$NODE/config.yaml"
}

it "promtool takes the rules, and each alert's cases hold" rules_hold
it "the dashboard counts a node once while the series of two of its pods are there" nodes_are_counted_once
it "the daemon serves metrics over TLS on its TCP port" daemon_with_port
it "and nothing else of the socket's API, and nothing in plain text" nothing_else
it "it tells of the switch and its port" switch_with_port
it "Prometheus scrapes it" prometheus_up
it "the series of a port name the pod that has it, and not the daemon's" series_of_ports
it "every metric that a rule names is told" metrics_of_rules
it "every query of the dashboard has data" python3 "$ROOT/tests/dashboard_queries.py" "$MONITORING/dashboard.json" http://127.0.0.1:9090
it "no alert is raised about what is well: only for the calls that are refused and the pool without a VF" healthy_node_alerts_nobody
it "an alert is raised about a configuration that is refused" refused_configuration
finish
