//! What is counted of pools.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fairlead_sriov::pool::{Member, Task};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::State;
use crate::metrics::{Exposition, fine};

/// A pool is named by the configuration, its states are a closed set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Standing {
    pool: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Work {
    task: &'static str,
}

/// Functions by state, what preparing takes, and what fails.
#[derive(Debug, Clone)]
pub struct PoolMetrics {
    functions: Family<Standing, Gauge>,
    /// The pools that are shown, in the order of the configuration.
    shown: Arc<Mutex<Vec<String>>>,
    duration: Family<Work, Histogram, fn() -> Histogram>,
    failures: Family<Work, Counter>,
    /// Sentences that `fairleadd pools` and `doctor` tell: overlaps, what cannot be used of the configuration.
    notices: Gauge,
}

impl PoolMetrics {
    /// Registers them.
    pub fn new(exposition: &Exposition) -> PoolMetrics {
        let metrics = PoolMetrics {
            functions: Family::default(),
            shown: Arc::default(),
            duration: Family::new_with_constructor(fine as fn() -> Histogram),
            failures: Family::default(),
            notices: Gauge::default(),
        };
        exposition.register(
            "pool_functions",
            "Functions of a pool by how they stand",
            metrics.functions.clone(),
        );
        exposition.register(
            "pool_work_seconds",
            "Preparing a function, or giving it back as it was",
            metrics.duration.clone(),
        );
        exposition.register("pool_failures", "Times that such work failed", metrics.failures.clone());
        exposition.register(
            "pool_notices",
            "Faults of the pools' configuration: functions that two pools select, resources that cannot be served",
            metrics.notices.clone(),
        );
        metrics
    }

    pub(super) fn took(&self, task: Task, time: Duration, done: bool) {
        let task = match task {
            Task::Prepare(_) => "prepare",
            Task::GiveBack(_) => "give-back",
        };
        self.duration.get_or_create(&Work { task }).observe(time.as_secs_f64());
        if !done {
            self.failures.get_or_create(&Work { task }).inc();
        }
    }

    pub(super) fn show(&self, state: &State) {
        let mut counted = BTreeMap::<(&str, &'static str), i64>::new();
        for live in &state.pools {
            for word in Member::STATES {
                counted.entry((&live.name, word)).or_default();
            }
            for member in live.pool.members() {
                *counted.entry((&live.name, member.state())).or_default() += 1;
            }
        }
        self.forget_pools(state);
        for ((pool, word), count) in counted {
            self.functions.get_or_create(&Standing { pool: pool.to_owned(), state: word }).set(count);
        }
        let notices = state.all_notices().count();
        self.notices.set(i64::try_from(notices).unwrap_or(i64::MAX));
    }

    /// Ends what is shown of pools that are gone. Nearly always none is, and nothing is copied.
    fn forget_pools(&self, state: &State) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = || state.pools.iter().map(|live| &live.name);
        if pools().eq(shown.iter()) {
            return;
        }
        for gone in shown.iter().filter(|name| !pools().any(|pool| pool == *name)) {
            for state in Member::STATES {
                self.functions.remove(&Standing { pool: gone.clone(), state });
            }
        }
        *shown = pools().cloned().collect();
    }
}
