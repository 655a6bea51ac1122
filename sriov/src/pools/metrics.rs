//! What is counted of pools. How their members stand is counted when the metrics are read, not at each change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::state::{Member, Task};
use super::{Pools, Shared};

const PREPARE: &str = "prepare";
const GIVE_BACK: &str = "give-back";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Work {
    task: &'static str,
}

/// Members by state, how long work on them takes, and how often it fails.
#[derive(Debug, Clone)]
pub struct PoolMetrics {
    census: Census,
    duration: Family<Work, Histogram, fn() -> Histogram>,
    failures: Family<Work, Counter>,
}

impl PoolMetrics {
    /// Registers the metrics. `buckets` makes a histogram whose bounds reach from microseconds to seconds.
    pub fn new(registry: &mut Registry, buckets: fn() -> Histogram) -> PoolMetrics {
        let metrics = PoolMetrics {
            census: Census::default(),
            duration: Family::new_with_constructor(buckets),
            failures: Family::default(),
        };
        // From the start, so that the first failure is an increase.
        for task in [PREPARE, GIVE_BACK] {
            let _ = metrics.duration.get_or_create(&Work { task });
            let _ = metrics.failures.get_or_create(&Work { task });
        }
        registry.register_collector(Box::new(metrics.census.clone()));
        registry.register(
            "pool_work_seconds",
            "Preparing a VF, or giving it back as it was",
            metrics.duration.clone(),
        );
        registry.register("pool_failures", "Times that such work failed", metrics.failures.clone());
        metrics
    }

    /// Has the members of these pools counted.
    pub(super) fn count(&self, pools: Weak<Pools>) {
        let _ = self.census.0.set(pools); // There is one of each.
    }

    /// A task has taken so long.
    pub(super) fn took(&self, task: Task, time: Duration, done: bool) {
        let task = match task {
            Task::Prepare(_) => PREPARE,
            Task::GiveBack(_) => GIVE_BACK,
        };
        self.duration.get_or_create(&Work { task }).observe(time.as_secs_f64());
        if !done {
            self.failures.get_or_create(&Work { task }).inc();
        }
    }
}

/// Counts members by state, and notices, whenever the metrics are read.
#[derive(Clone, Default)]
struct Census(Arc<OnceLock<Weak<Pools>>>);

impl fmt::Debug for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Census")
    }
}

impl Collector for Census {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(pools) = self.0.get().and_then(Weak::upgrade) else { return Ok(()) };
        let state = pools.lock();
        let help = "VFs of a pool by how they stand.";
        let mut vfs = encoder.encode_descriptor("pool_functions", help, None, MetricType::Gauge)?;
        for ((pool, word), count) in standings(&state) {
            let labels = [("pool", pool), ("state", word)];
            ConstGauge::new(count).encode(vfs.encode_family(&labels)?)?;
        }
        let help =
            "Faults of the pools' configuration: VFs that two pools select, resources that cannot be served.";
        let notices = encoder.encode_descriptor("pool_notices", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(state.all_notices().count()).unwrap_or(i64::MAX)).encode(notices)
    }
}

/// How many members of a pool stand in which way; zeroes are counted too, so that a series does not end when its last member
/// leaves. A pool is named by the configuration, and its states are a closed set.
fn standings(state: &Shared) -> BTreeMap<(&str, &'static str), i64> {
    let mut counted = BTreeMap::new();
    for entry in &state.pools {
        for word in Member::STATE_NAMES {
            counted.entry((entry.name.as_str(), word)).or_default();
        }
        for member in entry.pool.members() {
            *counted.entry((&entry.name, member.state_name())).or_default() += 1;
        }
    }
    counted
}
