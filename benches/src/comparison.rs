//! How ours stands against the other plugins of the same run: the verdict with which a report opens.
//!
//! No targets: what is compared is what was measured, and where ours is worse that is what is said.

use serde::Serialize;

use crate::cases::Case;
use crate::node_cases::{idle, one_at_a_time};
use crate::pods;
use crate::results::{Figure, Reading, Results};
use crate::subject::{OURS_WAITING, Role};
use crate::subject_descriptions::MeasuredSubjects;
use crate::targets::number;

/// All that is compared.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Comparison {
    /// One line for each number that ours and another plugin have.
    pub(crate) lines: Vec<Line>,
}

/// One number of ours and the same of the others.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    /// What was measured, with the number of calls that was really made.
    pub(crate) what: String,
    /// What ours needs.
    pub(crate) ours: f64,
    /// The unit of both.
    pub(crate) unit: &'static str,
    /// What each of the others needs.
    pub(crate) others: Vec<Other>,
    /// What it is a number of.
    quantity: &'static Quantity,
}

/// What another plugin needs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Other {
    /// Its name in tables.
    pub(crate) subject: String,
    /// What it needs.
    pub(crate) value: f64,
    /// By which factor that is more than ours.
    pub(crate) factor: f64,
}

/// What a number is of, and the words for less of it and for more.
#[derive(Debug, Serialize)]
struct Quantity {
    name: &'static str,
    #[serde(skip)]
    unit: &'static str,
    #[serde(skip)]
    less: &'static str,
    #[serde(skip)]
    more: &'static str,
}

/// A number of which less is better.
struct Measure {
    case: &'static str,
    /// The subject that is held against the others, where several are ours; else the only one.
    ours: Option<&'static str>,
    /// The name of the figure or reading that it is read from.
    source: &'static str,
    what: &'static str,
    /// Reads it, for the subject of this name.
    read: fn(&Results, &Measure, &str) -> Option<f64>,
    quantity: &'static Quantity,
}

const MEDIAN: Quantity = Quantity { name: "p50", unit: "ms", less: "faster", more: "slower" };
const TAIL: Quantity = Quantity { name: "p99", unit: "ms", less: "faster", more: "slower" };
const CPU: Quantity = Quantity { name: "CPU time", unit: "ms", less: "less CPU", more: "more CPU" };
const MEMORY: Quantity =
    Quantity { name: "memory, with the daemon", unit: "MiB", less: "less memory", more: "more memory" };

const MEASURES: &[Measure] = &[
    Measure::of("add-one", "ADD", "ADD", p50, &MEDIAN),
    Measure::of("del-one", "DEL", "DEL (answered when silent, the link goes later)", p50, &MEDIAN),
    Measure::of("del-one", "DEL", "DEL with `del: wait` (answered when the link is gone)", p50, &MEDIAN)
        .by(OURS_WAITING),
    Measure::of("burst-100", "ADD", "{at_once} ADDs at once", p99, &TAIL),
    Measure::of("del-one", one_at_a_time::WHOLE_CPU, "ADD and DEL", whole_cpu, &CPU),
    Measure::of("burst-100", "ADD", "{at_once} ADDs at once", memory, &MEMORY),
    Measure::of(idle::CASE, idle::RSS, "at rest", at_rest, &MEMORY),
    Measure::of("function-add", "ADD", "ADD of a VF", p50, &MEDIAN),
    Measure::of("function-del", "DEL", "DEL of a VF", p50, &MEDIAN),
    // No CPU time of whole pods: what a peer's daemon starts is not in the account of its calls.
    Measure::of("pod-add", "ADD", "ADD of a pod, annotations in the call", p50, &MEDIAN).by(pods::BY_CALL),
    Measure::of("pod-add", "ADD", "ADD of a pod, from the watch", p50, &MEDIAN).by(pods::BY_WATCH),
    Measure::of("pod-del", "DEL", "DEL of a pod", p50, &MEDIAN).by(pods::BY_CALL),
    Measure::of("pod-burst-100", "ADD", "{at_once} pods at once, annotations in the call", p99, &TAIL)
        .by(pods::BY_CALL),
    Measure::of("pod-burst-100", "ADD", "{at_once} pods at once, from the watch", p99, &TAIL)
        .by(pods::BY_WATCH),
];

impl Measure {
    const fn of(
        case: &'static str,
        source: &'static str,
        what: &'static str,
        read: fn(&Results, &Measure, &str) -> Option<f64>,
        quantity: &'static Quantity,
    ) -> Measure {
        Measure { case, ours: None, source, what, read, quantity }
    }

    const fn by(self, ours: &'static str) -> Measure {
        Measure { ours: Some(ours), ..self }
    }

    fn figure<'a>(&self, results: &'a Results, name: &str) -> Option<&'a Figure> {
        results.figure(self.case, name, self.source)
    }

    fn reading<'a>(&self, results: &'a Results, name: &str) -> Option<&'a Reading> {
        results.reading(self.case, name, self.source)
    }
}

fn p50(results: &Results, measure: &Measure, name: &str) -> Option<f64> {
    Some(measure.figure(results, name)?.series.summary().p50_ms)
}

fn p99(results: &Results, measure: &Measure, name: &str) -> Option<f64> {
    Some(measure.figure(results, name)?.series.summary().p99_ms)
}

/// The plugin's processes of an ADD and a DEL, and the daemon's part of both and of all that follows them.
fn whole_cpu(results: &Results, measure: &Measure, name: &str) -> Option<f64> {
    let plugins = |case, call| Some(results.figure(case, name, call)?.cpu.per_call_ms()?.0);
    let daemon = measure.reading(results, name).and_then(Reading::median).unwrap_or(0.0);
    Some(plugins("add-one", "ADD")? + plugins("del-one", "DEL")? + daemon)
}

/// The plugins' processes at their most, and the daemon at its most.
fn memory(results: &Results, measure: &Measure, name: &str) -> Option<f64> {
    let figure = measure.figure(results, name)?;
    let kib = figure.plugins_peak_kib? + figure.daemon.map_or(0, |daemon| daemon.peak_kib);
    (kib > 0).then_some(kib as f64 / 1024.0)
}

/// What a daemon keeps when nobody calls. A plugin without one keeps nothing.
fn at_rest(results: &Results, measure: &Measure, name: &str) -> Option<f64> {
    measure.reading(results, name).map_or(Some(0.0), Reading::max)
}

impl Comparison {
    /// Compares what was measured.
    pub(crate) fn of(
        results: &Results,
        subjects: &MeasuredSubjects,
        cases: &[&'static Case],
        quick: bool,
    ) -> Comparison {
        let line = |measure: &Measure| {
            let case = cases.iter().find(|case| case.name == measure.case)?;
            let value = |name: &str| (measure.read)(results, measure, name);
            let ours = value(measure.ours.or_else(|| subjects.name_of(Role::Ours))?)?;
            // Where it was not measured there is nothing to compare.
            if ours <= 0.0 {
                return None;
            }
            let names = [Role::Reference, Role::Peer].into_iter().flat_map(|role| subjects.names_of(role));
            let other = |name: &str| {
                let value = value(name)?;
                Some(Other { subject: name.to_owned(), value, factor: value / ours })
            };
            let others: Vec<Other> = names.filter_map(other).collect();
            let what = case.size(quick).spelled(measure.what);
            let (unit, quantity) = (measure.quantity.unit, measure.quantity);
            (!others.is_empty()).then_some(Line { what, ours, unit, others, quantity })
        };
        Comparison { lines: MEASURES.iter().filter_map(line).collect() }
    }

    /// The verdict in one sentence for each of the others; none where nothing can be compared.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut names: Vec<&str> = Vec::new();
        for other in self.lines.iter().flat_map(|line| &line.others) {
            if !names.contains(&other.subject.as_str()) {
                names.push(&other.subject);
            }
        }
        let against = |name: &&str| {
            let parts: Vec<String> = self.lines.iter().filter_map(|line| line.told(name)).collect();
            format!("Against {name}: {}.", parts.join("; "))
        };
        names.iter().map(against).collect()
    }
}

impl Line {
    /// What it is a number of.
    pub(crate) fn of_what(&self) -> &'static str {
        self.quantity.name
    }

    fn told(&self, name: &str) -> Option<String> {
        let other = self.others.iter().find(|other| other.subject == name)?;
        let Quantity { less, more, .. } = self.quantity;
        if other.value <= 0.0 {
            return Some(format!("{} {} {} against none", self.what, number(self.ours), self.unit));
        }
        let (factor, word) =
            if other.factor >= 1.0 { (other.factor, less) } else { (1.0 / other.factor, more) };
        Some(format!("{} {} × {word}", self.what, number(factor)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cases;
    use crate::process_cost::Memory;
    use crate::results::Cpu;

    fn of_the_node(results: &Results) -> Comparison {
        let subjects = MeasuredSubjects::of(&[
            ("ours", Role::Ours),
            (OURS_WAITING, Role::OursWaiting),
            ("debian", Role::Reference),
            ("floor", Role::Floor),
        ]);
        Comparison::of(results, &subjects, &cases::chosen(&[], cases::Place::Node).unwrap(), true)
    }

    fn told(results: &Results) -> Vec<String> {
        of_the_node(results).sentences()
    }

    fn compared(ours_ms: u64, debian_ms: u64) -> Comparison {
        let mut results = Results::default();
        for (subject, ms) in [("ours", ours_ms), ("debian", debian_ms)] {
            results.figure_mut("add-one", subject, "ADD").unwrap().series.record(Duration::from_millis(ms));
            let burst = results.figure_mut("burst-100", subject, "ADD").unwrap();
            burst.series.record(Duration::from_millis(ms));
            burst.saw_plugins(ms * 1024);
        }
        let burst = results.figure_mut("burst-100", "ours", "ADD").unwrap();
        burst.saw_daemon(Some(Memory { rss_kib: 0, peak_kib: 3 * 1024 }));
        of_the_node(&results)
    }

    #[test]
    fn the_verdict_counts_the_daemon_and_tells_the_calls_that_were_made() {
        let sentences = compared(1, 20).sentences();
        assert_eq!(sentences.len(), 1, "{sentences:?}");
        let told = &sentences[0];
        assert!(told.starts_with("Against debian: ADD 20.0 × faster; 8 ADDs at once 20.0 ×"), "{told}");
        // 20 MiB against 1 MiB of processes and 3 of the daemon.
        assert!(told.ends_with("8 ADDs at once 5.00 × less memory."), "{told}");
    }

    #[test]
    fn the_verdict_says_when_a_del_is_answered_and_what_it_costs_to_wait_as_the_others_do() {
        let mut results = Results::default();
        for (subject, ms) in [("ours", 1), (OURS_WAITING, 20), ("debian", 30)] {
            results.figure_mut("del-one", subject, "DEL").unwrap().series.record(Duration::from_millis(ms));
        }
        let wanted = "Against debian: DEL (answered when silent, the link goes later) 30.0 × faster; \
                      DEL with `del: wait` (answered when the link is gone) 1.50 × faster.";
        assert_eq!(told(&results), [wanted]);
    }

    #[test]
    fn the_verdict_counts_what_a_daemon_does_after_its_answers_and_keeps_at_rest() {
        let mut results = Results::default();
        for (subject, ms) in [("ours", 1), ("debian", 20)] {
            for (case, call) in [("add-one", "ADD"), ("del-one", "DEL")] {
                let figure = results.figure_mut(case, subject, call).unwrap();
                figure.series.record(Duration::from_millis(1));
                // What the daemon has done so far is in the whole of it.
                let (plugins, daemon) = (Duration::from_millis(ms), Duration::from_millis(1));
                figure.cpu.add(Cpu { calls: 1, plugins, daemon });
            }
        }
        results.read("del-one", "ours", one_at_a_time::WHOLE_CPU, "ms", 6.0);
        results.read(idle::CASE, "ours", idle::RSS, "MiB", 11.7);
        let told = told(&results).concat();
        // 20 + 20 ms of processes against 1 + 1 and 6 of the daemon.
        assert!(told.contains("ADD and DEL 5.00 × less CPU; at rest 11.7 MiB against none."), "{told}");
    }

    #[test]
    fn whole_pods_are_compared_by_what_has_two_networks() {
        let mut results = Results::default();
        let pods = [(pods::ONE, 5), (pods::BY_CALL, 20), (pods::BY_WATCH, 40), (pods::THICK, 100)];
        for (subject, ms) in pods {
            results.figure_mut("pod-add", subject, "ADD").unwrap().series.record(Duration::from_millis(ms));
        }
        let role = |name| if name == pods::THICK { Role::Peer } else { Role::Ours };
        let subjects = MeasuredSubjects::of(&pods.map(|(name, _)| (name, role(name))));
        let cases = cases::chosen(&[], cases::Place::Cluster).unwrap();
        let told = Comparison::of(&results, &subjects, &cases, false).sentences();
        let wanted = "Against multus-thick: ADD of a pod, annotations in the call 5.00 × faster; \
                      ADD of a pod, from the watch 2.50 × faster.";
        assert_eq!(told, [wanted]);
    }

    #[test]
    fn where_ours_is_worse_the_verdict_says_so() {
        let told = compared(20, 10).sentences().concat();
        assert!(told.contains("ADD 2.00 × slower") && told.contains("2.30 × more memory"), "{told}");
    }

    #[test]
    fn without_another_plugin_there_is_no_verdict() {
        let subjects = MeasuredSubjects::of(&[("ours", Role::Ours), ("floor", Role::Floor)]);
        let cases = cases::chosen(&[], cases::Place::Node).unwrap();
        assert!(Comparison::of(&Results::default(), &subjects, &cases, false).sentences().is_empty());
    }
}
