//! Removals that fail again and again, as the operator sees them: in a table, in the metrics, in the daemon's status.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_host::spoken_duration::spoken;
use serde_json::{Value, json};

use super::Engine;
use super::core::Failures;
use crate::store::Attachment;

/// A removal that has failed and is not done.
struct FailingRemoval {
    attachment: Arc<Attachment>,
    failures: Failures,
    /// When it was begun: by the record, which outlives the daemon, or when it failed first.
    begun: SystemTime,
}

impl FailingRemoval {
    fn age(&self) -> Duration {
        SystemTime::now().duration_since(self.begun).unwrap_or_default()
    }

    fn row(&self) -> Value {
        let key = &self.attachment.key;
        let since = self.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        let pod = self.attachment.pod.as_ref();
        json!({
            "pod": pod.map(ToString::to_string),
            "podUid": pod.and_then(|pod| pod.uid.as_deref()),
            "container": key.container,
            "network": key.network,
            "ifname": key.ifname,
            "type": key.plugin,
            "phase": self.attachment.phase,
            "failures": self.failures.times,
            "since": since.as_secs(),
            "for": spoken(self.age().as_secs()),
            "reason": self.failures.why.to_string(),
        })
    }
}

fn failing(engine: &Engine) -> Vec<FailingRemoval> {
    let core = &engine.core;
    let one = |attachment: Arc<Attachment>| {
        let failures = core.failing(&attachment)?;
        let recorded = attachment.removing_since.map(|at| UNIX_EPOCH + Duration::from_secs(at));
        let begun = recorded.map_or(failures.first, |recorded| recorded.min(failures.first));
        Some(FailingRemoval { attachment, failures, begun })
    };
    core.store.all().into_iter().filter_map(one).collect()
}

/// The table `removals`.
pub(super) fn table(engine: &Engine) -> Value {
    failing(engine).iter().map(FailingRemoval::row).collect()
}

/// How many removals fail, and the age of the oldest.
pub(super) fn count(engine: &Engine) -> (usize, Duration) {
    let failing = failing(engine);
    (failing.len(), failing.iter().map(FailingRemoval::age).max().unwrap_or_default())
}
