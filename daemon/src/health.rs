//! Whether the daemon is ready (once, at start) and whether it is well (asked again and again).
//!
//! Readiness is a list of named conditions that are met one after the other; it never goes back. Health is asked
//! of probes that look, and of the calls' own outcomes: so many internal failures in a row are an illness, one
//! success heals.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use fairlead_cni::Code;
use serde::Serialize;

/// Internal failures in a row that make the daemon unwell.
pub const FAILURES: u32 = 5;

/// One condition and why it is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// Whether it is met.
    pub met: bool,
    /// Why it is not met; empty when it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The conditions that must all be met before calls are begun.
#[derive(Debug)]
pub struct Readiness(Mutex<Vec<Condition>>);

impl Readiness {
    /// The conditions, none of them met.
    pub fn new(names: &[&'static str]) -> Readiness {
        let open = |name: &&'static str| Condition { name, met: false, reason: "not yet done".into() };
        Readiness(Mutex::new(names.iter().map(open).collect()))
    }

    /// A condition is met.
    pub fn met(&self, name: &'static str) {
        self.set(Condition { name, met: true, reason: String::new() });
    }

    /// A condition is not met yet, and why.
    pub fn unmet(&self, name: &'static str, reason: impl Into<String>) {
        self.set(Condition { name, met: false, reason: reason.into() });
    }

    /// True when all are met.
    pub fn ready(&self) -> bool {
        self.lock().iter().all(|c| c.met)
    }

    /// All conditions as they stand.
    pub fn conditions(&self) -> Vec<Condition> {
        self.lock().clone()
    }

    /// What is still missing, in one line for a person.
    pub fn missing(&self) -> String {
        let all = self.lock();
        let open = all.iter().filter(|c| !c.met).map(|c| format!("{} ({})", c.name, c.reason));
        open.collect::<Vec<String>>().join(", ")
    }

    fn set(&self, new: Condition) {
        let mut all = self.lock();
        match all.iter_mut().find(|c| c.name == new.name) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Condition>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at one thing that must work: `Err` says what does not, and why. Called on a thread of its own, never on the
/// calls' path.
pub type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Whether the daemon is well.
#[derive(Default)]
pub struct Health {
    probes: Mutex<Vec<(&'static str, Probe)>>,
    failures: AtomicU32,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("failures", &self.failures).finish_non_exhaustive()
    }
}

impl Health {
    /// Adds a probe (`netlink`, `store`, …).
    pub fn probe(&self, name: &'static str, probe: Probe) {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner).push((name, probe));
    }

    /// A call ended so. Only failures of our own (999, I/O) count; the caller's mistakes are no illness.
    pub fn note(&self, failure: Option<Code>) {
        match failure {
            Some(Code::Internal | Code::Io) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            // The load spares the busy path a write to a shared cache line.
            None if self.failures.load(Ordering::Relaxed) != 0 => self.failures.store(0, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Looks at everything.
    pub fn conditions(&self) -> Vec<Condition> {
        let row = self.failures.load(Ordering::Relaxed);
        let calls =
            if row < FAILURES { Ok(()) } else { Err(format!("{row} calls in a row failed internally")) };
        let probes = self.probes.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = probes.iter().map(|(name, probe)| (*name, probe()));
        std::iter::once(("calls", calls))
            .chain(looked)
            .map(|(name, outcome)| Condition {
                name,
                met: outcome.is_ok(),
                reason: outcome.err().unwrap_or_default(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
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
    fn k19_five_internal_failures_in_a_row_are_an_illness_and_one_success_heals() {
        let health = Health::default();
        let well = || health.conditions().iter().all(|c| c.met);
        for _ in 0..FAILURES - 1 {
            health.note(Some(Code::Internal));
        }
        health.note(Some(Code::InvalidConfig));
        assert!(well());
        health.note(Some(Code::Io));
        assert!(!well());
        health.note(None);
        assert!(well());
    }

    #[test]
    fn k19_a_probe_that_fails_is_named_with_its_reason() {
        let health = Health::default();
        health.probe("store", Box::new(|| Err("no space left on /run".into())));
        let bad: Vec<Condition> = health.conditions().into_iter().filter(|c| !c.met).collect();
        assert_eq!(bad, [Condition { name: "store", met: false, reason: "no space left on /run".into() }]);
    }
}
