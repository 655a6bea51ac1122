//! What is counted of the switch's ports, asked of the switch when the metrics are read.
//!
//! Pods and networks are label values here, which callers choose. There are as many series as ports at a time, which the switch bounds
//! (1,024), and a series ends with its port.

use std::fmt;
use std::sync::{Arc, Weak};

use fairlead_kube::PodRef;
use fairlead_vhost::port::{DropReason, PortCounters, PortView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Engine;
use crate::metrics::Exposition;

#[derive(Debug)]
struct PortMetrics(Weak<Engine>);

/// Registers whether the switch answers, and what went through each of its ports.
pub(super) fn register(engine: &Arc<Engine>, exposition: &Exposition) {
    exposition.register_collector(PortMetrics(Arc::downgrade(engine)));
}

impl Collector for PortMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.0.upgrade() else { return Ok(()) };
        let services = &engine.core.kinds.vhost_user;
        let known = services.ports();
        // A node that has no use for the switch has none.
        if known.is_err() && !services.has_ports_on_record() {
            return Ok(());
        }
        let answers = ConstGauge::new(i64::from(known.is_ok()));
        let help = "1 while the switch of vhost-user ports answers";
        answers.encode(encoder.encode_descriptor("vswitch_up", help, None, MetricType::Gauge)?)?;
        let ports: Vec<PortLabels> = known.unwrap_or_default().into_iter().map(PortLabels::of).collect();
        let help = "1 while a guest is connected to the port and shares its memory";
        let mut connected =
            encoder.encode_descriptor("vswitch_port_connected", help, None, MetricType::Gauge)?;
        for port in &ports {
            let value = ConstGauge::new(i64::from(port.view.connected));
            value.encode(connected.encode_family(&port.labels())?)?;
        }
        encode_traffic(&mut encoder, &ports)?;
        encode_memory(&mut encoder, &ports)?;
        encode_drops(&mut encoder, &ports)
    }
}

/// A port and what its labels are made of.
struct PortLabels {
    view: PortView,
    namespace: String,
    pod: String,
}

impl PortLabels {
    fn of((view, pod): (PortView, Option<PodRef>)) -> PortLabels {
        let (namespace, pod) = pod.map(|pod| (pod.namespace, pod.name)).unwrap_or_default();
        PortLabels { view, namespace, pod }
    }

    fn labels(&self) -> Vec<(&'static str, &str)> {
        let config = &self.view.config;
        vec![
            ("port", config.name.as_str()),
            ("network", config.network.as_str()),
            ("namespace", self.namespace.as_str()),
            ("pod", self.pod.as_str()),
        ]
    }

    fn labels_with<'a>(&'a self, more: &[(&'static str, &'a str)]) -> Vec<(&'static str, &'a str)> {
        let mut labels = self.labels();
        labels.extend_from_slice(more);
        labels
    }
}

/// Frames and bytes, as the pod sent and received them.
fn encode_traffic(encoder: &mut DescriptorEncoder<'_>, ports: &[PortLabels]) -> fmt::Result {
    type Count = fn(&PortCounters) -> u64;
    type Directions = [(&'static str, Count); 2];
    let metrics: [(&str, &str, Directions); 2] = [
        (
            "vswitch_port_frames",
            "Frames that the pod sent and received",
            [("sent", |c| c.from_guest_frames), ("received", |c| c.to_guest_frames)],
        ),
        (
            "vswitch_port_bytes",
            "Bytes of those frames",
            [("sent", |c| c.from_guest_bytes), ("received", |c| c.to_guest_bytes)],
        ),
    ];
    for (name, help, directions) in metrics {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for port in ports {
            for (direction, count) in directions {
                let labels = port.labels_with(&[("direction", direction)]);
                ConstCounter::new(count(&port.view.counters)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

/// What the guests' memory costs the switch.
fn encode_memory(encoder: &mut DescriptorEncoder<'_>, ports: &[PortLabels]) -> fmt::Result {
    let help = "What the memory of the port's guest costs the switch, at most";
    let mut bytes = encoder.encode_descriptor("vswitch_port_memory_bytes", help, None, MetricType::Gauge)?;
    for port in ports {
        let gauge = ConstGauge::new(i64::try_from(port.view.counters.memory_bytes).unwrap_or(i64::MAX));
        gauge.encode(bytes.encode_family(&port.labels())?)?;
    }
    let help = "Guests that were disconnected because their memory cost the switch too much";
    let name = "vswitch_port_memory_refusals";
    let mut refusals = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for port in ports {
        let counter = ConstCounter::new(port.view.counters.memory_refusals);
        counter.encode(refusals.encode_family(&port.labels())?)?;
    }
    Ok(())
}

/// Drops; zeroes too, so that the first one is seen as an increase.
fn encode_drops(encoder: &mut DescriptorEncoder<'_>, ports: &[PortLabels]) -> fmt::Result {
    let help = "Frames of the pod, or for it, that were dropped";
    let mut drops = encoder.encode_descriptor("vswitch_port_drops", help, None, MetricType::Counter)?;
    for port in ports {
        let counters = &port.view.counters;
        let sent = DropReason::FROM_GUEST.iter().map(|r| ("sent", r, counters.from_guest_drops.get(r)));
        let received = DropReason::TO_GUEST.iter().map(|r| ("received", r, counters.to_guest_drops.get(r)));
        for (direction, reason, count) in sent.chain(received) {
            let labels = port.labels_with(&[("direction", direction), ("reason", reason.name())]);
            ConstCounter::new(count.copied().unwrap_or(0)).encode(drops.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
