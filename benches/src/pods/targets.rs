//! The targets of whole pods, and what was measured against each.

use super::burst::WITH_ALL_STARTED;
use super::{BY_CALL, BY_WATCH, ONE, THICK, idle, requests, start};
use crate::results::Results;
use crate::statistics::Summary;
use crate::targets::{Limit, Verdict, ratio, verdict};

const BURST: &str = "pod-burst-100";

/// Compares all results with all targets.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let of_ours = [(BY_CALL, "annotations in the call"), (BY_WATCH, "annotations from the watch")];
    let mut all: Vec<_> =
        of_ours.into_iter().flat_map(|(name, how)| against_others(results, name, how)).collect();
    let most = |case, name, what| results.reading(case, name, what).and_then(|reading| reading.max());
    let memory = most(BURST, BY_CALL, WITH_ALL_STARTED);
    let idle = most("pod-idle", BY_WATCH, idle::WATCHING);
    let before = most("pod-requests", BY_WATCH, requests::BEFORE_THE_ANSWER);
    let in_all = most("pod-requests", BY_WATCH, requests::IN_ALL);
    let ready = most("pod-start", BY_WATCH, start::READY);
    all.extend([
        verdict("memory at 100 pods at once", memory, Limit::AtMost(45.0), " MiB"),
        verdict("idle with 500 pods and 200 definitions", idle, Limit::AtMost(30.0), " MiB"),
        verdict("API requests for a pod until ADD's answer", before, Limit::AtMost(0.0), ""),
        verdict("API requests for a pod in all", in_all, Limit::AtMost(1.0), ""),
        verdict("start with 200 pods until ready", ready, Limit::AtMost(1000.0), " ms"),
    ]);
    all
}

fn against_others(results: &Results, ours: &'static str, how: &str) -> Vec<Verdict> {
    let summary = |case, name| results.figure(case, name, "ADD").map(|figure| figure.series.summary());
    let rate = |name| results.figure(BURST, name, "ADD").and_then(|figure| figure.rate());
    let faster = |case, value: fn(&Summary) -> f64| {
        ratio(summary(case, THICK).map(|s| value(&s)), summary(case, ours).map(|s| value(&s)))
    };
    let p50 = |name| summary("pod-add", name).map(|s| s.p50_ms);
    let named = |what: &str| format!("{what} ({how})");
    vec![
        verdict(
            &named("ADD of two networks, p50 against our single macvlan"),
            ratio(p50(ours), p50(ONE)),
            Limit::AtMost(1.5),
            " ×",
        ),
        verdict(
            &named("p50, faster than Multus thick"),
            faster("pod-add", |s| s.p50_ms),
            Limit::AtLeast(60.0),
            " ×",
        ),
        verdict(
            &named("p99, faster than Multus thick"),
            faster("pod-add", |s| s.p99_ms),
            Limit::AtLeast(60.0),
            " ×",
        ),
        verdict(
            &named("100 at once, p99, faster than Multus thick"),
            faster(BURST, |s| s.p99_ms),
            Limit::AtLeast(30.0),
            " ×",
        ),
        verdict(
            &named("100 at once, pods/s, against Multus thick"),
            ratio(rate(ours), rate(THICK)),
            Limit::AtLeast(30.0),
            " ×",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::State;
    use std::time::Duration;

    #[test]
    fn two_networks_are_held_against_our_own_single_one_and_against_multus() {
        let mut results = Results::default();
        for (subject, ms) in [(ONE, 10), (BY_CALL, 14), (BY_WATCH, 16), (THICK, 1000)] {
            results.figure_mut("pod-add", subject, "ADD").unwrap().series.record(Duration::from_millis(ms));
        }
        let all = verdicts(&results);
        let states = |what: &str| -> Vec<State> {
            all.iter().filter(|v| v.figure.contains(what)).map(|v| v.state).collect()
        };
        assert_eq!(states("single macvlan"), [State::Met, State::Missed]);
        assert_eq!(states("p50, faster than Multus"), [State::Met, State::Met]);
        assert_eq!(states("pods/s"), [State::NotMeasured, State::NotMeasured]);
    }
}
