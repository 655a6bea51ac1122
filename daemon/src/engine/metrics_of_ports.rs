//! What is counted of the switch's ports and uplinks, asked of the switch when the metrics are read.
//!
//! Pods and networks are label values here, which callers choose. There are as many series as ports at a time, which the switch bounds
//! (1,024), and a series ends with its port.

use std::fmt;
use std::sync::{Arc, Weak};

use fairlead_vhost::port::{DropReason, LOST, PortCounters, UplinkView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Engine;
use super::kinds::vhost_user::KnownPort;
use crate::metrics::Exposition;

#[derive(Debug)]
struct PortMetrics(Weak<Engine>);

/// Registers whether the switch answers, and what went through each of its ports and uplinks.
pub(super) fn register(engine: &Arc<Engine>, exposition: &Exposition) {
    exposition.register_collector(PortMetrics(Arc::downgrade(engine)));
}

impl Collector for PortMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.0.upgrade() else { return Ok(()) };
        let services = &engine.core.kinds.vhost_user;
        let known = services.ports();
        // A node that has no use for the switch has none.
        if known.is_err() && services.ports_on_record() == 0 {
            return Ok(());
        }
        let answers = ConstGauge::new(i64::from(known.is_ok()));
        let help = "1 while the switch of vhost-user ports answers";
        answers.encode(encoder.encode_descriptor("vswitch_up", help, None, MetricType::Gauge)?)?;
        let uplinks: Vec<Counted> = match known.is_ok() {
            true => services.uplinks().into_iter().map(Counted::of_uplink).collect(),
            false => Vec::new(),
        };
        let ports = known.unwrap_or_default();
        let help = "1 while a guest is connected to the port and shares its memory";
        let mut connected =
            encoder.encode_descriptor("vswitch_port_connected", help, None, MetricType::Gauge)?;
        let connections: Vec<bool> = ports.iter().map(|port| port.view.connected).collect();
        let ports: Vec<Counted> = ports.into_iter().map(Counted::of_port).collect();
        for (port, is_connected) in ports.iter().zip(connections) {
            ConstGauge::new(i64::from(is_connected)).encode(connected.encode_family(&port.labels(&[]))?)?;
        }
        encode_traffic(&mut encoder, &PORT, &ports)?;
        encode_memory(&mut encoder, &ports)?;
        encode_drops(&mut encoder, &PORT, &ports)?;
        encode_traffic(&mut encoder, &UPLINK, &uplinks)?;
        encode_drops(&mut encoder, &UPLINK, &uplinks)
    }
}

/// The words of the metrics about what has traffic.
struct Words {
    frames: (&'static str, &'static str),
    bytes: (&'static str, &'static str),
    drops: (&'static str, &'static str),
}

const PORT: Words = Words {
    frames: ("vswitch_port_frames", "Frames that the pod sent and received"),
    bytes: ("vswitch_port_bytes", "Bytes of those frames"),
    drops: ("vswitch_port_drops", "Frames of the pod, or for it, that were dropped"),
};
const UPLINK: Words = Words {
    frames: ("vswitch_uplink_frames", "Frames that came from the wire (sent) and went to it (received)"),
    bytes: ("vswitch_uplink_bytes", "Bytes of those frames"),
    drops: ("vswitch_uplink_drops", "Frames of the wire, or for it, that were dropped"),
};

/// What has traffic, with its labels.
struct Counted {
    labels: Vec<(&'static str, String)>,
    counters: PortCounters,
    /// Frames that the kernel had no room for; absent of a port, which can have none.
    lost: Option<u64>,
}

impl Counted {
    fn of_port(KnownPort { view, pod, .. }: KnownPort) -> Counted {
        let (namespace, pod) = pod.map(|pod| (pod.namespace, pod.name)).unwrap_or_default();
        let (port, network) = (view.config.name, view.config.network);
        let labels = vec![("port", port), ("network", network), ("namespace", namespace), ("pod", pod)];
        Counted { labels, counters: view.counters, lost: None }
    }

    fn of_uplink(view: UplinkView) -> Counted {
        let labels = vec![("interface", view.config.interface), ("network", view.config.network)];
        Counted { labels, counters: view.counters, lost: Some(view.lost_frames) }
    }

    fn labels<'a>(&'a self, more: &[(&'static str, &'a str)]) -> Vec<(&'static str, &'a str)> {
        let own = self.labels.iter().map(|(name, value)| (*name, value.as_str()));
        own.chain(more.iter().copied()).collect()
    }

    /// Every drop by direction and reason; zeroes too, so that the first one is seen as an increase.
    fn drops(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let of_wire = self.lost.map(|_| DropReason::Unknown);
        let (from, to) = (&self.counters.from_guest_drops, &self.counters.to_guest_drops);
        let sent = DropReason::FROM_GUEST.into_iter().chain(of_wire).map(|r| ("sent", r, from.get(&r)));
        let received = DropReason::TO_GUEST.into_iter().map(|r| ("received", r, to.get(&r)));
        let counted =
            sent.chain(received).map(|(way, r, count)| (way, r.name(), count.copied().unwrap_or(0)));
        counted.chain(self.lost.map(|lost| ("sent", LOST, lost)))
    }
}

/// Frames and bytes, as the pod sent and received them.
fn encode_traffic(encoder: &mut DescriptorEncoder<'_>, words: &Words, all: &[Counted]) -> fmt::Result {
    type Count = fn(&PortCounters) -> u64;
    type Directions = [(&'static str, Count); 2];
    let frames: Directions = [("sent", |c| c.from_guest_frames), ("received", |c| c.to_guest_frames)];
    let bytes: Directions = [("sent", |c| c.from_guest_bytes), ("received", |c| c.to_guest_bytes)];
    for ((name, help), directions) in [(words.frames, frames), (words.bytes, bytes)] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for counted in all {
            for (direction, count) in directions {
                let labels = counted.labels(&[("direction", direction)]);
                ConstCounter::new(count(&counted.counters)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

/// What the guests' memory costs the switch.
fn encode_memory(encoder: &mut DescriptorEncoder<'_>, ports: &[Counted]) -> fmt::Result {
    let help = "What the memory of the port's guest costs the switch, at most";
    let mut bytes = encoder.encode_descriptor("vswitch_port_memory_bytes", help, None, MetricType::Gauge)?;
    for port in ports {
        let gauge = ConstGauge::new(i64::try_from(port.counters.memory_bytes).unwrap_or(i64::MAX));
        gauge.encode(bytes.encode_family(&port.labels(&[]))?)?;
    }
    let help = "Guests that were disconnected because their memory cost the switch too much";
    let name = "vswitch_port_memory_refusals";
    let mut refusals = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for port in ports {
        let counter = ConstCounter::new(port.counters.memory_refusals);
        counter.encode(refusals.encode_family(&port.labels(&[]))?)?;
    }
    Ok(())
}

fn encode_drops(encoder: &mut DescriptorEncoder<'_>, words: &Words, all: &[Counted]) -> fmt::Result {
    let (name, help) = words.drops;
    let mut drops = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for counted in all {
        for (direction, reason, count) in counted.drops() {
            let labels = counted.labels(&[("direction", direction), ("reason", reason)]);
            ConstCounter::new(count).encode(drops.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
