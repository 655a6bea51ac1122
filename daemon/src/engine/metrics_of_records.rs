//! What is counted of the records, when the metrics are read: an age that is only written down grows no older.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Engine, failing_removals};
use crate::metrics::Exposition;

#[derive(Debug)]
struct Census(Weak<Engine>);

/// Registers how many attachments there are by type, how the ports of pools stand, how many removals fail and since when the oldest does, and how many records a
/// newer version has left.
pub(super) fn register(engine: &Arc<Engine>, exposition: &Exposition) {
    exposition.register_collector(Census(Arc::downgrade(engine)));
}

fn gauge(count: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}

impl Collector for Census {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.0.upgrade() else { return Ok(()) };
        let help = "Attachments on record, those that are being removed included";
        let mut attachments = encoder.encode_descriptor("attachments", help, None, MetricType::Gauge)?;
        for (kind, count) in by_type(&engine) {
            gauge(count).encode(attachments.encode_family(&[("type", kind)])?)?;
        }
        let help = "Ports of a pool by how they stand";
        let mut ports = encoder.encode_descriptor("port_pool_ports", help, None, MetricType::Gauge)?;
        for ((pool, state), count) in engine.core.kinds.vhost_user.pools.census() {
            let labels = [("pool", pool.as_str()), ("state", state)];
            gauge(count).encode(ports.encode_family(&labels)?)?;
        }
        let (failing, oldest) = failing_removals::count(&engine);
        let gauges = [
            ("removals_failing", "Removals that have failed and are tried again", failing),
            (
                "removals_failing_oldest_seconds",
                "Since when the oldest of them is under way",
                usize::try_from(oldest.as_secs()).unwrap_or(usize::MAX),
            ),
            (
                "records_of_newer_version",
                "Attachments left to the newer version that wrote them",
                engine.core.store.newer().len(),
            ),
        ];
        for (name, help, value) in gauges {
            gauge(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

/// How many attachments there are of each type; zeroes too, so that a series does not end with its last attachment. A type is one of
/// the closed set of labels.
fn by_type(engine: &Engine) -> BTreeMap<&'static str, usize> {
    let mut counted: BTreeMap<&'static str, usize> =
        engine.calls.type_labels().map(|kind| (kind, 0)).collect();
    for attachment in engine.core.store.all() {
        *counted.entry(engine.calls.type_label(&attachment.key.plugin)).or_default() += 1;
    }
    counted
}
