//! Whether this node is one of a cluster, and the watch of its API if it is.
//!
//! With `kubeconfig`, or as a pod of the cluster, the API is watched. Otherwise Fairlead is a CNI plugin without a cluster.

use std::sync::{Arc, Weak};
use std::{env, fmt};

use fairlead_host::blocking_threads::runtime_with_a_kept_thread;
use fairlead_kube::{ApiServer, Cluster, Settings as WatchSettings, StartError, Watched};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::daemon::Surroundings;
use crate::settings::Settings;

/// Every pod of a cluster has it.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// The node's name by the downward API.
const NODE_NAME: &str = "NODE_NAME";

/// Starts to watch the API, where there is one, and makes it a condition of readiness (K19) and a part of the metrics. No answer of the
/// API server is waited for.
///
/// # Errors
/// The node has no name that it could have in the cluster, or there is no thread.
pub fn start(
    settings: &Settings,
    surroundings: &Surroundings,
) -> Result<Option<Arc<dyn Cluster>>, StartError> {
    let Some(api) = api_of(settings) else { return Ok(None) };
    let watched = Arc::new(Watched::start(WatchSettings {
        api,
        node: name_of_node(settings),
        state_dir: surroundings.paths.state_dir.clone(),
        namespace_labels: settings.policy.goes_by_labels(),
        runtime: runtime_with_a_kept_thread,
    })?);
    let asked = Arc::clone(&watched);
    surroundings.readiness.probe("cluster", Box::new(move || reached(&asked)));
    surroundings.exposition.register_collector(Census(Arc::downgrade(&watched)));
    Ok(Some(watched))
}

/// The API server of the node's cluster; none where it is in no cluster.
pub(crate) fn api_of(settings: &Settings) -> Option<ApiServer> {
    api_server(settings, env::var_os(SERVICE_HOST).is_some())
}

fn api_server(settings: &Settings, in_cluster: bool) -> Option<ApiServer> {
    match &settings.kubeconfig {
        Some(path) => Some(ApiServer::Kubeconfig(path.clone())),
        None => in_cluster.then_some(ApiServer::InCluster),
    }
}

/// The name of this node, in a cluster or not.
pub(crate) fn name_of_node(settings: &Settings) -> String {
    node_name(settings, env::var(NODE_NAME).ok())
}

/// As kubelet names a node that nobody else has named: the host's name in lower case.
fn node_name(settings: &Settings, of_environment: Option<String>) -> String {
    let of_host = || nix::unistd::gethostname().ok()?.into_string().ok();
    let named = settings.node_name.clone().or(of_environment.filter(|name| !name.is_empty()));
    named.unwrap_or_else(|| of_host().unwrap_or_default().to_lowercase())
}

fn reached(watched: &Watched) -> Result<String, String> {
    match watched.last_error() {
        Some(error) => Err(format!("the API server cannot be watched: {error}")),
        None if watched.is_synced() => Ok(String::new()),
        None => Err("the API server has not told all yet".to_owned()),
    }
}

/// Counts what was asked of the API server, and how the watches stand, when the metrics are read.
#[derive(Debug)]
struct Census(Weak<Watched>);

impl Collector for Census {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(watched) = self.0.upgrade() else { return Ok(()) };
        let (health, requests) = (watched.health(), watched.requests());
        let help = "Requests to the API server: lists and watches, network-status, Events";
        let mut each = encoder.encode_descriptor("api_requests", help, None, MetricType::Counter)?;
        for (kind, count) in
            [("read", requests.reads), ("patch", requests.patches), ("create", requests.creates)]
        {
            ConstCounter::new(count).encode(each.encode_family(&[("kind", kind)])?)?;
        }
        let counters = [
            ("api_connections", "Connections to the API server", requests.connections),
            (
                "events_dropped",
                "Events that were not written: too many, or for too long",
                health.dropped_events,
            ),
        ];
        for (name, help, count) in counters {
            ConstCounter::new(count).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Counter,
            )?)?;
        }
        let help = "1 while a watch of the API works";
        let mut each = encoder.encode_descriptor("watch_working", help, None, MetricType::Gauge)?;
        for watch in &health.watches {
            ConstGauge::new(i64::from(watch.is_working))
                .encode(each.encode_family(&[("kind", watch.kind)])?)?;
        }
        let help = "Pods whose network-status is still to be written";
        let waiting = encoder.encode_descriptor("network_status_waiting", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(health.waiting_reports).unwrap_or(i64::MAX)).encode(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_counts_before_the_pods_own_account_and_without_both_there_is_no_cluster() {
        let plain = Settings::default();
        assert_eq!(api_server(&plain, false), None);
        assert_eq!(api_server(&plain, true), Some(ApiServer::InCluster));
        let named = Settings { kubeconfig: Some("/etc/kubeconfig".into()), ..plain };
        assert_eq!(api_server(&named, true), Some(ApiServer::Kubeconfig("/etc/kubeconfig".into())));
    }

    #[test]
    fn the_nodes_name_is_the_configured_one_else_that_of_the_environment_else_the_hosts() {
        let plain = Settings::default();
        assert_eq!(node_name(&plain, Some("of-environment".into())), "of-environment");
        assert_eq!(node_name(&plain, Some(String::new())), node_name(&plain, None));
        assert!(!node_name(&plain, None).is_empty());
        let named = Settings { node_name: Some("named".into()), ..plain };
        assert_eq!(node_name(&named, Some("of-environment".into())), "named");
    }
}
