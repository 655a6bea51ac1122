//! The targets of the project and what was measured against each.
//!
//! A target is met, missed by so much, or not measured (its case or its subject was left out): never silently met. A figure that has
//! none stands beside the one that it puts into perspective.
//! Where there are several references the fastest counts.

use serde::Serialize;

use crate::node_cases::{idle, one_at_a_time, standing, vhost_user};
use crate::results::{Figure, Reading, Results};
use crate::statistics::Summary;
use crate::subject::Role;
use crate::subject_descriptions::MeasuredSubjects;
use crate::vf::burst::{AT_ONCE, ONE_AFTER_THE_OTHER};

/// Whether a target was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// The measurement meets the target.
    Met,
    /// The measurement misses the target.
    Missed,
    /// There is no measurement to compare.
    NotMeasured,
    /// There is a measurement, and no target.
    NoTarget,
}

/// A target and what was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    /// The name of the figure.
    pub(crate) figure: String,
    /// The target in words.
    pub(crate) target: String,
    /// The measurement in words.
    pub(crate) measured: String,
    /// Whether the target was met.
    pub(crate) state: State,
    /// By how many per cent of the target the measurement misses it.
    pub(crate) missed_by_percent: Option<f64>,
}

/// The bound of a target.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// The measurement may be this at most.
    AtMost(f64),
    /// The measurement must be this at least.
    AtLeast(f64),
    /// The measurement is told, whatever it is.
    NoTarget,
}

/// Holds a measurement against its bound.
pub(crate) fn verdict(figure: &str, measured: Option<f64>, limit: Limit, unit: &str) -> Verdict {
    let target = match limit {
        Limit::AtMost(bound) => format!("≤ {}{unit}", number(bound)),
        Limit::AtLeast(bound) => format!("≥ {}{unit}", number(bound)),
        Limit::NoTarget => "–".to_owned(),
    };
    let missed = measured.and_then(|value| match limit {
        Limit::AtMost(bound) => (value > bound).then(|| (value / bound.max(1e-9) - 1.0) * 100.0),
        // Not `value < bound`: a number that is none is a miss too.
        Limit::AtLeast(bound) => (!value.ge(&bound)).then(|| (1.0 - value / bound) * 100.0),
        Limit::NoTarget => None,
    });
    Verdict {
        figure: figure.to_owned(),
        target,
        measured: measured
            .map_or_else(|| "not measured".to_owned(), |value| format!("{}{unit}", number(value))),
        state: match (measured, limit, missed) {
            (None, ..) => State::NotMeasured,
            (Some(_), Limit::NoTarget, _) => State::NoTarget,
            (Some(_), _, None) => State::Met,
            (Some(_), _, Some(_)) => State::Missed,
        },
        missed_by_percent: missed,
    }
}

/// Formats a number with three significant digits, or whole if it is large.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        0.0 => 0,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Compares all results with all targets.
pub(crate) fn verdicts(results: &Results, subjects: &MeasuredSubjects) -> Vec<Verdict> {
    let view = View { results, subjects };
    [
        view.add(),
        view.del(),
        view.daemon_cpu(),
        view.at_once(),
        view.under_del(),
        view.beside_standing_pods(),
        view.vhost_user(),
        view.silence(),
        view.storm_and_idle(),
    ]
    .concat()
}

/// Compares what was measured with VFs with the targets for that.
pub(crate) fn of_vfs(results: &Results, subjects: &MeasuredSubjects) -> Vec<Verdict> {
    let view = View { results, subjects };
    [view.vf_add(), view.vf_del(), view.vf_vfio()].concat()
}

struct View<'a> {
    results: &'a Results,
    subjects: &'a MeasuredSubjects,
}

impl View<'_> {
    fn figure(&self, case: &str, role: Role, what: &str) -> Option<&Figure> {
        self.results.figure(case, self.subjects.name_of(role)?, what)
    }

    fn summary(&self, case: &str, role: Role, what: &str) -> Option<Summary> {
        Some(self.figure(case, role, what)?.series.summary())
    }

    /// The least of a number among the reference plugins.
    fn reference(&self, case: &str, what: &str, value: impl Fn(&Summary) -> f64) -> Option<f64> {
        self.subjects
            .names_of(Role::Reference)
            .filter_map(|name| Some(value(&self.results.figure(case, name, what)?.series.summary())))
            .reduce(f64::min)
    }

    fn add(&self) -> Vec<Verdict> {
        let ours = self.summary("add-one", Role::Ours, "ADD");
        let floor = self.summary("add-one", Role::Floor, "ADD");
        let reference = self.reference("add-one", "ADD", |s| s.p50_ms);
        let p50 = ours.map(|s| s.p50_ms);
        let bare = self.p50("add-one", Role::Bare, "ADD");
        let tail = |s: Summary| s.p99_ms / s.p50_ms;
        let allowed = floor.map_or(2.0, |s| tail(s).max(2.0));
        vec![
            verdict("ADD p50, one at a time", p50, Limit::AtMost(0.8), " ms"),
            verdict(
                "the same against the floor (an empty Rust program and the calls)",
                ratio(p50, floor.map(|s| s.p50_ms)),
                Limit::AtMost(1.5),
                " ×",
            ),
            verdict(
                "the same against a program of three instructions and the calls",
                ratio(p50, bare),
                Limit::NoTarget,
                " ×",
            ),
            verdict("the same, faster than the reference", ratio(reference, p50), Limit::AtLeast(14.0), " ×"),
            verdict(
                "ADD p99 against its p50 (2, or the floor's own)",
                ours.map(tail),
                Limit::AtMost(allowed),
                " ×",
            ),
        ]
    }

    fn del(&self) -> Vec<Verdict> {
        let reference = self.reference("del-one", "DEL", |s| s.p50_ms);
        let ours = self.p50("del-one", Role::Ours, "DEL");
        let waiting = self.p50("del-one", Role::OursWaiting, "DEL");
        let against_spawn = |role| ratio(ours, self.p50("del-one", role, "of it: spawn"));
        vec![
            verdict(
                "DEL p50, answered when silent, faster than the reference",
                ratio(reference, ours),
                Limit::AtLeast(25.0),
                " ×",
            ),
            verdict(
                "DEL p50 with `del: wait`, faster than the reference",
                ratio(reference, waiting),
                Limit::AtLeast(1.0),
                " ×",
            ),
            verdict(
                "DEL p50 against a spawn alone (an empty Rust program)",
                against_spawn(Role::Floor),
                Limit::AtMost(2.6),
                " ×",
            ),
            verdict(
                "DEL p50 against a spawn alone (three instructions)",
                against_spawn(Role::Bare),
                Limit::NoTarget,
                " ×",
            ),
        ]
    }

    fn daemon_cpu(&self) -> Vec<Verdict> {
        let ours = self.subjects.name_of(Role::Ours).unwrap_or_default();
        let whole = self.results.reading("del-one", ours, one_at_a_time::WHOLE_CPU).and_then(Reading::median);
        let of = |case, what| Some(self.figure(case, Role::Ours, what)?.cpu.per_call_ms()?.1);
        let soon = of("add-one", "ADD").zip(of("del-one", "DEL")).map(|(add, del)| add + del);
        vec![
            verdict(one_at_a_time::WHOLE_CPU, whole, Limit::AtMost(1.1), " ms"),
            verdict("the same until 2 ms after the two answers", soon, Limit::NoTarget, " ms"),
        ]
    }

    fn beside_standing_pods(&self) -> Vec<Verdict> {
        let p50 = |what| self.p50("add-standing", Role::Ours, what);
        vec![verdict(
            "ADD p50 beside 250 standing pods against beside none",
            ratio(p50(standing::MANY), p50(standing::NONE)),
            Limit::AtMost(1.1),
            " ×",
        )]
    }

    fn vhost_user(&self) -> Vec<Verdict> {
        let p50 = |what| self.p50("add-vhost-user", Role::Ours, what);
        vec![verdict(
            "ADD p50 of a vhost-user port against that of a macvlan by the same daemon",
            ratio(p50(vhost_user::PORT), p50(vhost_user::MACVLAN)),
            Limit::AtMost(1.0),
            " ×",
        )]
    }

    fn at_once(&self) -> Vec<Verdict> {
        let add = self.figure("burst-100", Role::Ours, "ADD");
        let raw = self.figure("burst-100", Role::RawAtOnce, "ADD");
        let p99 = add.map(|f| f.series.summary().p99_ms);
        let reference = self.reference("burst-100", "ADD", |s| s.p99_ms);
        let del = |role| self.figure("burst-100", role, "DEL").and_then(Figure::rate);
        let del_reference = self
            .subjects
            .names_of(Role::Reference)
            .filter_map(|name| self.results.figure("burst-100", name, "DEL")?.rate())
            .reduce(f64::max);
        vec![
            verdict("100 ADDs at once, rate", add.and_then(Figure::rate), Limit::AtLeast(1700.0), "/s"),
            verdict(
                "the same against the rate of a program of three instructions and the calls",
                ratio(add.and_then(Figure::rate), raw.and_then(Figure::rate)),
                Limit::AtLeast(0.92),
                " ×",
            ),
            verdict(
                "the same, p99 better than the reference",
                ratio(reference, p99),
                Limit::AtLeast(10.0),
                " ×",
            ),
            verdict(
                "100 DELs at once, answered when silent, rate over the reference",
                ratio(del(Role::Ours), del_reference),
                Limit::AtLeast(11.0),
                " ×",
            ),
            verdict(
                "100 DELs at once with `del: wait`, rate over the reference",
                ratio(del(Role::OursWaiting), del_reference),
                Limit::AtLeast(1.0),
                " ×",
            ),
        ]
    }

    fn under_del(&self) -> Vec<Verdict> {
        let quiet = self.summary("add-under-del", Role::Ours, "ADD quiet");
        let busy = self.summary("add-under-del", Role::Ours, "ADD under DEL");
        let p50 = ratio(busy.map(|s| s.p50_ms), quiet.map(|s| s.p50_ms));
        let p99 = ratio(busy.map(|s| s.p99_ms), quiet.map(|s| s.p99_ms));
        vec![
            verdict("ADD p50 under 50 DEL/s against the quiet one", p50, Limit::AtMost(1.5), " ×"),
            verdict("ADD p99 under 50 DEL/s against the quiet one", p99, Limit::AtMost(4.0), " ×"),
        ]
    }

    /// The median of one call.
    fn p50(&self, case: &str, role: Role, what: &str) -> Option<f64> {
        self.summary(case, role, what).map(|s| s.p50_ms)
    }

    /// By which factor the fastest peer is slower than ours.
    fn over_peers(&self, case: &str, what: &str) -> Option<f64> {
        let peers = self.subjects.names_of(Role::Peer);
        let fastest = peers
            .filter_map(|name| Some(self.results.figure(case, name, what)?.series.summary().p50_ms))
            .reduce(f64::min);
        ratio(fastest, self.p50(case, Role::Ours, what))
    }

    fn vf_add(&self) -> Vec<Verdict> {
        let case = "function-add";
        let ours = |what| self.p50(case, Role::Ours, what);
        let floor = self.p50(case, Role::Floor, "ADD");
        let burst = |role, what| {
            let name = self.subjects.name_of(role)?;
            self.results.reading("function-burst", name, what)?.median()
        };
        let at_once = ratio(burst(Role::Ours, AT_ONCE), burst(Role::Floor, ONE_AFTER_THE_OTHER));
        let other = ratio(ours("ADD, other settings"), ours("ADD"));
        vec![
            verdict(
                "ADD p50, against spawn + move + link up + address",
                ratio(ours("ADD"), floor),
                Limit::AtMost(1.25),
                " ×",
            ),
            verdict(
                "the same, faster than the peer",
                self.over_peers(case, "ADD"),
                Limit::AtLeast(3.0),
                " ×",
            ),
            verdict("ADD with another VLAN and rate, against ADD", other, Limit::AtMost(1.3), " ×"),
            verdict(
                "all of one NIC at once, against the kernel calls one after the other",
                at_once,
                Limit::AtMost(1.25),
                " ×",
            ),
        ]
    }

    fn vf_del(&self) -> Vec<Verdict> {
        let case = "function-del";
        let against_floor = |what| ratio(self.p50(case, Role::Ours, what), self.p50(case, Role::Floor, what));
        vec![
            verdict(
                "DEL p50, against spawn + address deletion + rename",
                against_floor("DEL"),
                Limit::AtMost(2.0),
                " ×",
            ),
            verdict(
                "DEL with another VLAN and rate, faster than the peer",
                self.over_peers(case, "DEL, other settings"),
                Limit::AtLeast(8.0),
                " ×",
            ),
            verdict(
                "ready again after DEL, against move back + unbind + reset + bind",
                against_floor("ready again"),
                Limit::AtMost(2.0),
                " ×",
            ),
        ]
    }

    fn vf_vfio(&self) -> Vec<Verdict> {
        let ours = |what| self.p50("function-vfio", Role::Ours, what);
        let reset = self.p50("function-vfio", Role::Floor, "reset");
        vec![
            verdict(
                "ADD under vfio-pci, against ADD of a macvlan",
                ratio(ours("ADD"), ours("ADD of a macvlan")),
                Limit::AtMost(1.3),
                " ×",
            ),
            verdict(
                "ready again after its DEL, against a reset",
                ratio(ours("ready again"), reset),
                Limit::AtMost(2.0),
                " ×",
            ),
        ]
    }

    fn silence(&self) -> Vec<Verdict> {
        let whole = |name: &str| {
            self.results.reading("silence", name, "kept: first DEL → last link gone").and_then(|r| r.median())
        };
        let reference = self.subjects.names_of(Role::Reference).filter_map(whole).reduce(f64::min);
        let waiting = self.subjects.name_of(Role::OursWaiting).and_then(whole);
        vec![verdict(
            "`del: wait`, first DEL → last link gone, against the reference",
            ratio(waiting, reference),
            Limit::AtMost(1.0),
            " ×",
        )]
    }

    fn storm_and_idle(&self) -> Vec<Verdict> {
        let storm = self.figure("storm-500", Role::Ours, "ADD");
        let ours = self.subjects.name_of(Role::Ours).unwrap_or_default();
        let failed = storm.map(|_| self.results.failures_of("storm-500", ours) as f64);
        let peak = storm.and_then(|f| f.daemon).map(|m| m.peak_kib as f64 / 1024.0);
        let at_rest = |what| self.results.reading(idle::CASE, ours, what).and_then(Reading::max);
        vec![
            verdict("500 ADDs at once, failures", failed, Limit::AtMost(0.0), ""),
            verdict("the same, peak RSS of the daemon", peak, Limit::AtMost(16.0), " MiB"),
            verdict("idle, CPU ticks", at_rest("CPU ticks"), Limit::AtMost(0.0), ""),
            verdict("idle, RSS", at_rest(idle::RSS), Limit::AtMost(12.5), " MiB"),
        ]
    }
}

/// How many times one is the other; `None` unless both were measured.
pub(crate) fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cpu;
    use std::time::Duration;

    #[test]
    fn a_missed_target_says_by_how_much() {
        let v = verdict("x", Some(1.0), Limit::AtMost(0.8), " ms");
        assert_eq!(
            (v.state, v.target.as_str(), v.measured.as_str()),
            (State::Missed, "≤ 0.800 ms", "1.00 ms")
        );
        assert!((v.missed_by_percent.unwrap() - 25.0).abs() < 1e-9);
        let v = verdict("x", Some(9.0), Limit::AtLeast(12.0), " ×");
        assert!((v.missed_by_percent.unwrap() - 25.0).abs() < 1e-9);
        assert_eq!(verdict("x", Some(12.0), Limit::AtLeast(12.0), "").state, State::Met);
        assert_eq!(verdict("x", Some(f64::NAN), Limit::AtLeast(12.0), "").state, State::Missed);
    }

    #[test]
    fn a_target_without_a_number_is_not_measured_and_not_met() {
        let all = verdicts(&Results::default(), &MeasuredSubjects::default());
        assert_eq!(all.len(), 25);
        assert!(all.iter().all(|v| v.state == State::NotMeasured && v.missed_by_percent.is_none()));
    }

    #[test]
    fn a_figure_without_a_target_is_told_and_neither_met_nor_missed() {
        let v = verdict("x", Some(9.0), Limit::NoTarget, " ×");
        assert_eq!((v.state, v.target.as_str(), v.measured.as_str()), (State::NoTarget, "–", "9.00 ×"));
        assert_eq!(v.missed_by_percent, None);
    }

    fn told<'a>(all: &'a [Verdict], figure: &str) -> (State, &'a str) {
        let of = |verdict: &&Verdict| verdict.figure == figure;
        all.iter().find(of).map(|verdict| (verdict.state, verdict.measured.as_str())).unwrap()
    }

    #[test]
    fn the_daemons_processor_time_is_judged_with_what_follows_the_answers() {
        let mut results = Results::default();
        for (case, what, ms) in [("add-one", "ADD", 6), ("del-one", "DEL", 3)] {
            let figure = results.figure_mut(case, "ours", what).unwrap();
            figure.series.record(Duration::from_millis(1));
            let (plugins, daemon) = (Duration::from_millis(50), Duration::from_millis(ms));
            figure.cpu.add(Cpu { calls: 10, plugins, daemon });
        }
        results.read("del-one", "ours", one_at_a_time::WHOLE_CPU, "ms", 1.2);
        let all = verdicts(&results, &MeasuredSubjects::of(&[("ours", Role::Ours)]));
        assert_eq!(told(&all, one_at_a_time::WHOLE_CPU), (State::Missed, "1.20 ms"));
        assert_eq!(told(&all, "the same until 2 ms after the two answers"), (State::NoTarget, "0.900 ms"));
    }

    #[test]
    fn a_del_is_held_against_the_reference_also_when_it_waits_as_that_one_does() {
        let mut results = Results::default();
        for (subject, ms) in [("ours", 1), ("ours-wait", 20), ("debian", 30)] {
            results.figure_mut("del-one", subject, "DEL").unwrap().series.record(Duration::from_millis(ms));
            let burst = results.figure_mut("burst-100", subject, "DEL").unwrap();
            burst.series.record(Duration::from_millis(ms));
            burst.rates.push(600.0 / f64::from(u32::try_from(ms).unwrap()));
        }
        let all = verdicts(
            &results,
            &MeasuredSubjects::of(&[
                ("ours", Role::Ours),
                ("ours-wait", Role::OursWaiting),
                ("debian", Role::Reference),
            ]),
        );
        for (figure, wanted) in [
            ("DEL p50, answered when silent, faster than the reference", "30.0 ×"),
            ("DEL p50 with `del: wait`, faster than the reference", "1.50 ×"),
            ("100 DELs at once, answered when silent, rate over the reference", "30.0 ×"),
            ("100 DELs at once with `del: wait`, rate over the reference", "1.50 ×"),
        ] {
            assert_eq!(told(&all, figure), (State::Met, wanted), "{figure}");
        }
    }

    #[test]
    fn the_targets_are_the_rust_programs_and_the_smallest_program_is_told_beside() {
        let mut results = Results::default();
        for (subject, add, spawn) in [("ours", 12, None), ("floor", 10, Some(4)), ("bare", 6, Some(3))] {
            let mut record = |case, what, ms| {
                let figure = results.figure_mut(case, subject, what).unwrap();
                figure.series.record(Duration::from_millis(ms));
            };
            record("add-one", "ADD", add);
            record("del-one", "DEL", add);
            if let Some(spawn) = spawn {
                record("del-one", "of it: spawn", spawn);
            }
        }
        let subjects =
            MeasuredSubjects::of(&[("ours", Role::Ours), ("floor", Role::Floor), ("bare", Role::Bare)]);
        let all = verdicts(&results, &subjects);
        for (figure, wanted) in [
            ("the same against the floor (an empty Rust program and the calls)", (State::Met, "1.20 ×")),
            ("the same against a program of three instructions and the calls", (State::NoTarget, "2.00 ×")),
            ("DEL p50 against a spawn alone (an empty Rust program)", (State::Missed, "3.00 ×")),
            ("DEL p50 against a spawn alone (three instructions)", (State::NoTarget, "4.00 ×")),
        ] {
            assert_eq!(told(&all, figure), wanted, "{figure}");
        }
    }

    #[test]
    fn the_fastest_reference_is_the_one_that_counts() {
        let mut results = Results::default();
        for (subject, ms) in [("ours", 1), ("slow", 40), ("fast", 20)] {
            results.figure_mut("add-one", subject, "ADD").unwrap().series.record(Duration::from_millis(ms));
        }
        let subjects = MeasuredSubjects::of(&[
            ("ours", Role::Ours),
            ("slow", Role::Reference),
            ("fast", Role::Reference),
        ]);
        let faster =
            verdicts(&results, &subjects).into_iter().find(|v| v.figure.contains("faster than")).unwrap();
        assert_eq!((faster.state, faster.measured.as_str()), (State::Met, "20.0 ×"));
    }
}
