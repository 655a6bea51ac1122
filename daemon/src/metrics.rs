//! The counters and histograms of the daemon, in Prometheus' text form.
//!
//! Observing costs well under a microsecond (a read lock and a few atomic additions) and happens after the answer
//! has left. Label values come from closed sets only: no name that a caller chose ever becomes a label, so the
//! number of series is bounded. The ports of the switch are the exception, since the switch bounds their number
//! (`engine/metrics_of_ports.rs`).

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use fairlead_cni::Code;
use fairlead_cni::wire::Command;
use fairlead_sriov::pools::PoolMetrics;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

/// The content type of [`Exposition::text`].
pub(crate) const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The bounds of the buckets of whole calls, in seconds: from the fastest ADD to the longest that a call may take.
const CALL_BUCKETS: [f64; 16] =
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// Those of one phase of a call. There are many phases for each command and type, so there are few of these.
const PHASE_BUCKETS: [f64; 9] = [0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.01, 0.1, 1.0];

/// Those of work on a VF in its pool.
const WORK_BUCKETS: [f64; 9] = [0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0];

/// The label values for network types of our own; those of the built-in types come from the engine, and every other
/// type becomes `other`.
const OWN_TYPES: [&str; 1] = ["fairlead"];

/// A CNI command as the value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Verb(Command);

impl EncodeLabelValue for Verb {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.name().encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    command: Verb,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    command: Verb,
    r#type: &'static str,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    command: Verb,
    r#type: &'static str,
    code: CodeValue,
}

/// A CNI error code as the value of a label, 0 for success. An executed plugin may make up any number: those that neither the
/// specification nor we have are one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum CodeValue {
    Known(u32),
    Other,
}

impl CodeValue {
    fn of(number: u32) -> CodeValue {
        match Code::from_number(number) {
            Code::Other(number) if number != 0 => CodeValue::Other,
            _ => CodeValue::Known(number),
        }
    }
}

impl EncodeLabelValue for CodeValue {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            CodeValue::Known(number) => number.encode(encoder),
            CodeValue::Other => "other".encode(encoder),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    r#type: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NearLabels {
    locality: &'static str,
}

/// A histogram of NUMA distances: to the node itself, to others of its socket, to other sockets, or of several
/// nodes together.
fn distance_histogram() -> Histogram {
    Histogram::new([
        10.0, 11.0, 12.0, 14.0, 16.0, 18.0, 20.0, 21.0, 24.0, 28.0, 32.0, 42.0, 64.0, 128.0, 254.0,
    ])
}

fn call_histogram() -> Histogram {
    Histogram::new(CALL_BUCKETS)
}

fn phase_histogram() -> Histogram {
    Histogram::new(PHASE_BUCKETS)
}

fn work_histogram() -> Histogram {
    Histogram::new(WORK_BUCKETS)
}

/// The registry where every module registers its metrics, and which `/metrics` shows. All names begin with
/// `fairlead_`.
#[derive(Debug)]
pub struct Exposition(Mutex<Registry>);

impl Default for Exposition {
    /// A registry with what is always known: which build this is, and since when it runs.
    fn default() -> Exposition {
        let exposition = Exposition(Mutex::new(Registry::with_prefix("fairlead")));
        let build = [("version", env!("CARGO_PKG_VERSION")), ("revision", env!("FAIRLEAD_REVISION"))];
        exposition.register("build", "The build of this daemon", Info::new(build.to_vec()));
        let started = Gauge::<f64, AtomicU64>::default();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        started.set(since.as_secs_f64());
        exposition.register("start_time_seconds", "When the daemon started, since the epoch", started);
        exposition
    }
}

impl Exposition {
    /// Adds a metric. `name` is `<subsystem>_<noun>[_<unit>]`, without the program's prefix; a counter's `_total`
    /// is added by the text format.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.lock().register(name, help, metric);
    }

    /// Adds metrics that are counted only when somebody asks. A collector must not wait for anybody who waits for
    /// this registry.
    pub fn register_collector(&self, collector: impl Collector) {
        self.lock().register_collector(Box::new(collector));
    }

    /// Registers the metrics of pools of VFs.
    pub fn pool_metrics(&self) -> PoolMetrics {
        PoolMetrics::new(&mut self.lock(), work_histogram)
    }

    /// The text form of all metrics (OpenMetrics 1.0).
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String can't fail.
        let _ = encode(&mut text, &self.lock());
        text
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock()
    }
}

/// The metrics of calls: how many, how long, and where the time went.
#[derive(Debug, Clone)]
pub struct Calls {
    built_in: &'static [&'static str],
    duration: Family<CallLabels, Histogram, fn() -> Histogram>,
    phase: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    total: Family<CodeLabels, Counter>,
    paths: Family<PathLabels, Counter>,
    near: Family<NearLabels, Counter>,
    distance: Family<NearLabels, Histogram, fn() -> Histogram>,
    /// Calls that wait for their turn.
    pub queued: Gauge,
    /// Calls that were begun and are not on record as answered.
    pub running: Gauge,
}

impl Calls {
    /// Makes the metrics of calls and registers them. `built_in`: the types that are label values.
    pub fn new(exposition: &Exposition, built_in: &'static [&'static str]) -> Calls {
        let calls = Calls {
            built_in,
            duration: Family::new_with_constructor(call_histogram as fn() -> Histogram),
            phase: Family::new_with_constructor(phase_histogram as fn() -> Histogram),
            total: Family::default(),
            paths: Family::default(),
            near: Family::default(),
            distance: Family::new_with_constructor(distance_histogram as fn() -> Histogram),
            queued: Gauge::default(),
            running: Gauge::default(),
        };
        exposition.register(
            "call_duration_seconds",
            "From the request's arrival to its answer",
            calls.duration.clone(),
        );
        exposition.register(
            "call_phase_seconds",
            "One phase of a call, of which the duration is made",
            calls.phase.clone(),
        );
        exposition.register("call", "Calls by CNI error code, 0 = success", calls.total.clone());
        exposition.register(
            "paths",
            "Paths of type fairlead that an ADD took or passed over",
            calls.paths.clone(),
        );
        exposition.register(
            "numa_choices",
            "VFs by how they lie to their pod's NUMA node, where numa was asked for",
            calls.near.clone(),
        );
        exposition.register(
            "numa_distance",
            "From all of a pod's NUMA nodes together to its VF (SLIT: 10 is a node's own), where the machine tells",
            calls.distance.clone(),
        );
        exposition.register("calls_queued", "Calls that wait for their turn", calls.queued.clone());
        exposition.register("calls_running", "Calls at work", calls.running.clone());
        calls
    }

    /// Counts a call that has been answered; `code` is the CNI error code, 0 for success. The server does this
    /// for every call.
    pub fn observe(&self, command: Command, kind: &'static str, code: u32, took: Duration) {
        let command = Verb(command);
        self.duration.get_or_create(&CallLabels { command, r#type: kind }).observe(took.as_secs_f64());
        self.total.get_or_create(&CodeLabels { command, r#type: kind, code: CodeValue::of(code) }).inc();
    }

    /// The label value for a network type, one of a closed set: a caller must not be able to make labels.
    pub fn type_label(&self, kind: &str) -> &'static str {
        self.built_in.iter().chain(&OWN_TYPES).find(|known| **known == kind).copied().unwrap_or("other")
    }

    /// Every value that [`Calls::type_label`] has.
    pub fn type_labels(&self) -> impl Iterator<Item = &'static str> {
        self.built_in.iter().chain(&OWN_TYPES).copied().chain(["other"])
    }

    /// Counts a path of this type that an ADD took or passed over. `kind` is from [`Calls::type_label`].
    pub fn path(&self, kind: &'static str, taken: bool) {
        let outcome = if taken { "taken" } else { "passed-over" };
        self.paths.get_or_create(&PathLabels { r#type: kind, outcome }).inc();
    }

    /// Counts a VF by how near it is to its pod; the label is from
    /// [`Locality::label`](fairlead_sriov::numa::Locality::label).
    pub fn near(&self, locality: &'static str, distance: Option<u32>) {
        self.near.get_or_create(&NearLabels { locality }).inc();
        if let Some(distance) = distance {
            self.distance.get_or_create(&NearLabels { locality }).observe(f64::from(distance));
        }
    }

    /// Records how long one phase of a call took. `kind` is from [`Calls::type_label`].
    pub fn phase(&self, command: Command, kind: &'static str, phase: &'static str, took: Duration) {
        self.phase
            .get_or_create(&PhaseLabels { command: Verb(command), r#type: kind, phase })
            .observe(took.as_secs_f64());
    }
}

/// The metrics of what is around the engine: the spool, the configuration, duplicate addresses on the wire.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Spooled requests that have not been carried out yet.
    pub spool_entries: Gauge,
    /// Spool files that can't be read and were set aside.
    pub spool_unreadable: Gauge,
    /// 1 while the configuration file, as it stands, is refused.
    pub settings_refused: Gauge,
    /// Files of the conf dir that are refused at the moment.
    pub networks_refused: Gauge,
    /// 1 while the runtime takes another configuration than ours, although ours is to be installed, and while it would find no executable
    /// for ours.
    pub network_displaced: Gauge,
    /// Duplicate addresses that were seen on the wire.
    pub conflicts: Counter,
}

impl Node {
    /// Makes the metrics of the node and registers them.
    pub fn new(exposition: &Exposition) -> Node {
        let node = Node::default();
        exposition.register("spool_entries", "Spooled requests still to be done", node.spool_entries.clone());
        exposition.register("spool_unreadable", "Spool files set aside", node.spool_unreadable.clone());
        exposition.register(
            "settings_refused",
            "1 while the configuration file is refused",
            node.settings_refused.clone(),
        );
        exposition.register(
            "networks_refused",
            "Files of the conf dir refused now",
            node.networks_refused.clone(),
        );
        exposition.register(
            "network_displaced",
            "1 while the runtime takes another configuration, or finds no executable for ours",
            node.network_displaced.clone(),
        );
        exposition.register("conflicts", "Duplicate addresses seen", node.conflicts.clone());
        node
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn k21_a_call_is_counted_by_command_type_code_and_phase() {
        let exposition = Exposition::default();
        let calls = Calls::new(&exposition, &["macvlan"]);
        calls.observe(Command::Add, calls.type_label("macvlan"), 0, Duration::from_micros(420));
        calls.observe(
            Command::Del,
            calls.type_label("a name that a caller chose"),
            11,
            Duration::from_millis(3),
        );
        calls.phase(Command::Add, "macvlan", "queue", Duration::from_micros(12));
        let text = exposition.text();
        for line in [
            r#"fairlead_call_total{command="ADD",type="macvlan",code="0"} 1"#,
            r#"fairlead_call_total{command="DEL",type="other",code="11"} 1"#,
            r#"fairlead_call_duration_seconds_bucket{le="0.0005",command="ADD",type="macvlan"} 1"#,
            r#"fairlead_call_phase_seconds_count{command="ADD",type="macvlan",phase="queue"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn codes_that_an_executed_plugin_makes_up_are_one_series() {
        let exposition = Exposition::default();
        let calls = Calls::new(&exposition, &["macvlan"]);
        for code in 200..1200 {
            calls.observe(Command::Add, "other", code, Duration::from_millis(1));
        }
        let text = exposition.text();
        let series = text.lines().filter(|line| line.starts_with("fairlead_call_total{"));
        // 999 is libcni's own.
        assert_eq!(series.count(), 2, "{text}");
        assert!(
            text.contains(r#"fairlead_call_total{command="ADD",type="other",code="other"} 999"#),
            "{text}"
        );
    }

    #[test]
    fn bounds_of_buckets_are_few_in_order_and_written_as_people_write_them() {
        for bounds in [&CALL_BUCKETS[..], &PHASE_BUCKETS, &WORK_BUCKETS] {
            assert!(bounds.windows(2).all(|w| w[0] < w[1]) && bounds.len() <= 16, "{bounds:?}");
            assert!(bounds.iter().all(|bound| bound.to_string().len() <= 7), "{bounds:?}");
        }
    }
}
