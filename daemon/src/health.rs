//! Whether the daemon is ready for calls, whether it is healthy, and whether it is alive (K19).
//!
//! They are lists of named conditions. Some are set at the start, one after the other; the others are probed
//! whenever somebody asks. The outcomes of calls count too: [`FAILURES`] faults of the daemon's own in a row make the
//! daemon unhealthy, one success makes it healthy again. Nothing in here is on the path of calls, except one
//! counter.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_cni::Code;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

use crate::metrics::Exposition;

/// The number of the daemon's own faults in a row that make it unhealthy.
pub const FAILURES: u32 = 5;

/// One condition, and whether it is met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The name of the condition, as `/healthz`, `/livez` and `/readyz` show it.
    pub name: &'static str,
    /// Whether the condition is met.
    pub met: bool,
    /// The reason why it is not met; where it is met, what was seen, if there is anything to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Condition {
    fn new(name: &'static str, seen: Result<String, String>) -> Condition {
        Condition { name, met: seen.is_ok(), reason: seen.unwrap_or_else(|reason| reason) }
    }
}

/// Those of these conditions that are not met, in one line for a person; empty where all are.
pub(crate) fn unmet(conditions: &[Condition]) -> String {
    let unmet = conditions.iter().filter(|c| !c.met).map(|c| format!("{} ({})", c.name, c.reason));
    unmet.collect::<Vec<String>>().join(", ")
}

/// Looks at one thing that must work: `Ok` holds what was seen, or nothing; `Err` says what does not work, why,
/// and the remedy. Called on a thread of its own, never on the path of calls.
pub type Probe = Box<dyn Fn() -> Result<String, String> + Send + Sync>;

/// How the state of a condition is known.
enum Source {
    /// Somebody has set it.
    Fixed(Result<(), String>),
    /// It is probed whenever somebody asks.
    Probed(Probe),
}

/// The conditions that must all be met before the node counts on this daemon.
pub struct Readiness(Mutex<Vec<(&'static str, Source)>>);

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.lock().iter().map(|(name, _)| *name).collect();
        f.debug_tuple("Readiness").field(&names).finish()
    }
}

impl Readiness {
    /// Makes the conditions of these names, none of them met.
    pub fn new(names: &[&'static str]) -> Readiness {
        let open = |name: &&'static str| (*name, Source::Fixed(Err("not yet done".into())));
        Readiness(Mutex::new(names.iter().map(open).collect()))
    }

    /// Marks a condition as met.
    pub fn met(&self, name: &'static str) {
        self.set(name, Source::Fixed(Ok(())));
    }

    /// Marks a condition as not met, with the reason.
    pub fn unmet(&self, name: &'static str, reason: impl Into<String>) {
        self.set(name, Source::Fixed(Err(reason.into())));
    }

    /// Has a condition probed from now on, whenever somebody asks.
    pub fn probe(&self, name: &'static str, probe: Probe) {
        self.set(name, Source::Probed(probe));
    }

    /// Whether all conditions are met.
    pub fn ready(&self) -> bool {
        self.conditions().iter().all(|c| c.met)
    }

    /// All conditions, with probes asked now.
    pub fn conditions(&self) -> Vec<Condition> {
        let seen = |source: &Source| match source {
            Source::Fixed(state) => state.clone().map(|()| String::new()),
            Source::Probed(probe) => probe(),
        };
        self.lock().iter().map(|(name, source)| Condition::new(name, seen(source))).collect()
    }

    /// The conditions that are not met, in one line for a person.
    pub fn missing(&self) -> String {
        unmet(&self.conditions())
    }

    fn set(&self, name: &'static str, source: Source) {
        let mut all = self.lock();
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = source,
            None => all.push((name, source)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(&'static str, Source)>> {
        self.0.lock()
    }
}

/// One probe of health.
struct HealthProbe {
    name: &'static str,
    /// Whether a restart of the daemon may end what it finds wrong.
    of_life: bool,
    probe: Probe,
}

/// The health of the daemon: its probes, and how its calls fare. The daemon is *alive* while all is well that its restart could end; of the
/// rest somebody must be told, and a restart would only take away the daemon whose DELs may make room.
#[derive(Default)]
pub struct Health {
    probes: Mutex<Vec<HealthProbe>>,
    failures: AtomicU32,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("failures", &self.failures).finish_non_exhaustive()
    }
}

impl Health {
    /// Adds a probe under a name (`store`, `files`, …) of what no restart of the daemon ends.
    pub fn probe(&self, name: &'static str, probe: Probe) {
        self.probes.lock().push(HealthProbe { name, of_life: false, probe });
    }

    /// Adds a probe under a name (`netlink`, `memory`, …) of what a restart of the daemon may end.
    pub fn probe_of_life(&self, name: &'static str, probe: Probe) {
        self.probes.lock().push(HealthProbe { name, of_life: true, probe });
    }

    /// Notes the outcome of a call. Only our own faults (999) count, which a restart may end. What an executed plugin does or answers
    /// does not, nor mistakes of the caller, nor a file or directory that the host or a configuration has wrong (5).
    pub fn note(&self, failure: Option<Code>) {
        match failure {
            Some(Code::Internal) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            // The load comes first because nearly every call finds 0: it spares them a write to a shared cache
            // line.
            None if self.failures.load(Ordering::Relaxed) != 0 => self.failures.store(0, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Asks every probe now; answers all conditions.
    pub fn conditions(&self) -> Vec<Condition> {
        self.asked(|_| true)
    }

    /// Asks the probes of what a restart of the daemon may end, and no other; answers their conditions and that of the calls.
    pub fn conditions_of_life(&self) -> Vec<Condition> {
        self.asked(|probe| probe.of_life)
    }

    /// Whether the daemon is alive, by [all conditions](Health::conditions) as they were seen just now.
    pub fn is_alive(&self, conditions: &[Condition]) -> bool {
        let probes = self.probes.lock();
        let is_of_life = |name: &str| probes.iter().all(|probe| probe.name != name || probe.of_life);
        conditions.iter().all(|condition| condition.met || !is_of_life(condition.name))
    }

    fn asked(&self, wanted: impl Fn(&HealthProbe) -> bool) -> Vec<Condition> {
        let row = self.failures.load(Ordering::Relaxed);
        let calls = match row {
            0..FAILURES => Ok(String::new()),
            _ => Err(format!("{row} calls in a row failed internally; the daemon's log says how")),
        };
        let probes = self.probes.lock();
        let looked = probes.iter().filter(|probe| wanted(probe)).map(|one| (one.name, (one.probe)()));
        std::iter::once(("calls", calls))
            .chain(looked)
            .map(|(name, seen)| Condition::new(name, seen))
            .collect()
    }
}

/// Both lists as gauges. The probes are asked when the metrics are read.
#[derive(Debug)]
struct Gauges {
    readiness: Arc<Readiness>,
    health: Arc<Health>,
}

/// Registers whether the daemon is ready and healthy, and each condition of that.
pub fn register_metrics(exposition: &Exposition, readiness: &Arc<Readiness>, health: &Arc<Health>) {
    let gauges = Gauges { readiness: Arc::clone(readiness), health: Arc::clone(health) };
    exposition.register_collector(gauges);
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let lists = [
            ("ready", "1 while the daemon is ready for calls", self.readiness.conditions()),
            ("healthy", "1 while the daemon is healthy", self.health.conditions()),
        ];
        for (name, help, conditions) in &lists {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::from(conditions.iter().all(|c| c.met))).encode(metric)?;
        }
        let help = "1 while a condition of readiness or health is met";
        let mut each = encoder.encode_descriptor("condition_met", help, None, MetricType::Gauge)?;
        for (of, _, conditions) in &lists {
            for condition in conditions {
                let labels = [("of", *of), ("condition", condition.name)];
                ConstGauge::new(i64::from(condition.met)).encode(each.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn k19_ready_only_when_every_condition_is_met_and_the_missing_are_named() {
        let readiness = Readiness::new(&["engine", "replay"]);
        readiness.met("engine");
        readiness.unmet("replay", "3 requests to go");
        assert!(!readiness.ready());
        assert_eq!(readiness.missing(), "replay (3 requests to go)");
        readiness.met("replay");
        assert!(readiness.ready());
    }

    #[test]
    fn k19_readiness_goes_by_what_is_seen_when_it_is_asked_for() {
        let readiness = Readiness::new(&["store"]);
        let full = Arc::new(AtomicBool::new(true));
        let seen = full.clone();
        readiness.probe(
            "store",
            Box::new(move || match seen.load(Ordering::Relaxed) {
                true => Err("full".into()),
                false => Ok("open".into()),
            }),
        );
        assert_eq!((readiness.ready(), readiness.missing().as_str()), (false, "store (full)"));
        full.store(false, Ordering::Relaxed);
        assert_eq!(readiness.conditions(), [Condition { name: "store", met: true, reason: "open".into() }]);
    }

    #[test]
    fn k19_five_faults_of_its_own_in_a_row_are_an_illness_and_one_success_heals() {
        let health = Health::default();
        let well = || health.conditions().iter().all(|c| c.met);
        for _ in 0..FAILURES - 1 {
            health.note(Some(Code::Internal));
        }
        for code in [Code::InvalidConfig, Code::Io, Code::PluginFailed, Code::Other(107)] {
            health.note(Some(code));
            assert!(well(), "{code:?} is a fault of a plugin, a caller or a configuration");
        }
        health.note(Some(Code::Internal));
        assert!(!well());
        health.note(None);
        assert!(well());
    }

    #[test]
    fn k19_readiness_and_health_are_gauges_and_so_is_each_condition() {
        let exposition = Exposition::default();
        let (readiness, health) = (Arc::new(Readiness::new(&["engine"])), Arc::new(Health::default()));
        health.probe("store", Box::new(|| Ok(String::new())));
        register_metrics(&exposition, &readiness, &health);
        let line = |wanted: &str| exposition.text().lines().any(|line| line == wanted);
        assert!(line("fairlead_ready 0") && line("fairlead_healthy 1"), "{}", exposition.text());
        assert!(line(r#"fairlead_condition_met{of="ready",condition="engine"} 0"#), "{}", exposition.text());
        assert!(line(r#"fairlead_condition_met{of="healthy",condition="store"} 1"#), "{}", exposition.text());
        readiness.met("engine");
        assert!(line("fairlead_ready 1"), "{}", exposition.text());
    }

    #[test]
    fn k19_what_no_restart_ends_is_an_illness_of_a_daemon_that_is_alive() {
        let health = Health::default();
        health.probe("store", Box::new(|| Err("full".into())));
        let lives = Arc::new(AtomicBool::new(true));
        let seen = lives.clone();
        health.probe_of_life(
            "netlink",
            Box::new(move || match seen.load(Ordering::Relaxed) {
                true => Ok(String::new()),
                false => Err("no answer".into()),
            }),
        );
        let names = |all: Vec<Condition>| all.into_iter().map(|c| c.name).collect::<Vec<_>>();
        let unmet = || names(health.conditions().into_iter().filter(|c| !c.met).collect());
        let is_alive = || {
            let by_all = health.is_alive(&health.conditions());
            assert_eq!(by_all, health.conditions_of_life().iter().all(|c| c.met));
            by_all
        };
        assert_eq!((unmet(), is_alive()), (vec!["store"], true));
        assert_eq!(names(health.conditions_of_life()), ["calls", "netlink"], "the store is not asked");
        lives.store(false, Ordering::Relaxed);
        assert_eq!((unmet(), is_alive()), (vec!["store", "netlink"], false));
        lives.store(true, Ordering::Relaxed);
        for _ in 0..FAILURES {
            health.note(Some(Code::Internal));
        }
        assert_eq!((unmet(), is_alive()), (vec!["calls", "store"], false));
    }

    #[test]
    fn k19_a_probe_that_fails_is_named_with_its_reason() {
        let health = Health::default();
        health.probe("store", Box::new(|| Err("no space left on /run".into())));
        let bad: Vec<Condition> = health.conditions().into_iter().filter(|c| !c.met).collect();
        assert_eq!(bad, [Condition { name: "store", met: false, reason: "no space left on /run".into() }]);
    }
}
