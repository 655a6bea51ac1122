//! The targets of the project and what was measured against each.
//!
//! A target is met, missed by so much, or not measured (its case or its subject was left out): never silently met.
//! Where there are several references the fastest counts.

use serde::Serialize;

use crate::node_cases::{standing, vhost_user};
use crate::results::{Figure, Results};
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
}

/// Holds a measurement against its bound.
pub(crate) fn verdict(figure: &str, measured: Option<f64>, limit: Limit, unit: &str) -> Verdict {
    let (sign, bound) = match limit {
        Limit::AtMost(bound) => ("≤", bound),
        Limit::AtLeast(bound) => ("≥", bound),
    };
    let missed = measured.and_then(|value| match limit {
        Limit::AtMost(bound) => (value > bound).then(|| (value / bound.max(1e-9) - 1.0) * 100.0),
        // Not `value < bound`: a number that is none is a miss too.
        Limit::AtLeast(bound) => (!value.ge(&bound)).then(|| (1.0 - value / bound) * 100.0),
    });
    Verdict {
        figure: figure.to_owned(),
        target: format!("{sign} {}{unit}", number(bound)),
        measured: measured
            .map_or_else(|| "not measured".to_owned(), |value| format!("{}{unit}", number(value))),
        state: match (measured, missed) {
            (None, _) => State::NotMeasured,
            (Some(_), None) => State::Met,
            (Some(_), Some(_)) => State::Missed,
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
        view.one_at_a_time(),
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

    fn one_at_a_time(&self) -> Vec<Verdict> {
        let ours = self.summary("add-one", Role::Ours, "ADD");
        let floor = self.summary("add-one", Role::Floor, "ADD");
        let reference = self.reference("add-one", "ADD", |s| s.p50_ms);
        let p50 = ours.map(|s| s.p50_ms);
        let tail = |s: Summary| s.p99_ms / s.p50_ms;
        let allowed = floor.map_or(2.0, |s| tail(s).max(2.0));
        let del = self.summary("del-one", Role::Ours, "DEL").map(|s| s.p50_ms);
        let spawn = self.summary("del-one", Role::Floor, "of it: spawn").map(|s| s.p50_ms);
        let del_reference = self.reference("del-one", "DEL", |s| s.p50_ms);
        vec![
            verdict("ADD p50, one at a time", p50, Limit::AtMost(0.8), " ms"),
            verdict(
                "the same against the floor",
                ratio(p50, floor.map(|s| s.p50_ms)),
                Limit::AtMost(1.5),
                " ×",
            ),
            verdict("the same, faster than the reference", ratio(reference, p50), Limit::AtLeast(14.0), " ×"),
            verdict(
                "ADD p99 against its p50 (2, or the floor's own)",
                ours.map(tail),
                Limit::AtMost(allowed),
                " ×",
            ),
            verdict(
                "DEL p50, faster than the reference",
                ratio(del_reference, del),
                Limit::AtLeast(25.0),
                " ×",
            ),
            verdict("DEL p50 against a spawn alone", ratio(del, spawn), Limit::AtMost(2.6), " ×"),
            verdict(
                "the daemon's CPU time of an ADD and a DEL",
                self.daemon_cpu(),
                Limit::AtMost(1.1),
                " ms",
            ),
        ]
    }

    /// The daemon's milliseconds for one ADD and its DEL, one at a time.
    fn daemon_cpu(&self) -> Option<f64> {
        let of =
            |case, what| self.figure(case, Role::Ours, what)?.cpu.per_call_ms().map(|(_, daemon)| daemon);
        Some(of("add-one", "ADD")? + of("del-one", "DEL")?)
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
        let del = self.figure("burst-100", Role::Ours, "DEL").and_then(Figure::rate);
        let del_reference = self
            .subjects
            .names_of(Role::Reference)
            .filter_map(|name| self.results.figure("burst-100", name, "DEL")?.rate())
            .reduce(f64::max);
        vec![
            verdict("100 ADDs at once, rate", add.and_then(Figure::rate), Limit::AtLeast(1700.0), "/s"),
            verdict(
                "the same against the rate of the floor's program and calls",
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
                "100 DELs at once, rate over the reference",
                ratio(del, del_reference),
                Limit::AtLeast(11.0),
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

    /// The median of one call of the VF cases.
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
        let idle = |what| self.results.reading("idle", ours, what).and_then(|r| r.max());
        vec![
            verdict("500 ADDs at once, failures", failed, Limit::AtMost(0.0), ""),
            verdict("the same, peak RSS of the daemon", peak, Limit::AtMost(16.0), " MiB"),
            verdict("idle, CPU ticks", idle("CPU ticks"), Limit::AtMost(0.0), ""),
            verdict("idle, RSS", idle("RSS"), Limit::AtMost(12.5), " MiB"),
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
        assert_eq!(all.len(), 20);
        assert!(all.iter().all(|v| v.state == State::NotMeasured && v.missed_by_percent.is_none()));
    }

    #[test]
    fn the_daemons_processor_time_is_that_of_an_add_and_its_del() {
        let mut results = Results::default();
        for (case, what, ms) in [("add-one", "ADD", 6), ("del-one", "DEL", 3)] {
            let figure = results.figure_mut(case, "ours", what).unwrap();
            figure.series.record(Duration::from_millis(1));
            let (plugins, daemon) = (Duration::from_millis(50), Duration::from_millis(ms));
            figure.cpu.add(Cpu { calls: 10, plugins, daemon });
        }
        let subjects = MeasuredSubjects::of(&[("ours", Role::Ours)]);
        let all = verdicts(&results, &subjects);
        let cpu = all.iter().find(|verdict| verdict.figure.contains("CPU time")).unwrap();
        assert_eq!((cpu.state, cpu.measured.as_str()), (State::Met, "0.900 ms"));
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
