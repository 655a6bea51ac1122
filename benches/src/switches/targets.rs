//! The targets of the switch, and what was measured against each: medians of rounds that took turns.

use super::cases::{FORWARDED, IDLE, ONE_WAY};
use super::neighbours::{self, Behaviour};
use super::one_frame::{self, P50, P99};
use crate::results::Results;
use crate::targets::{Limit, Verdict, ratio, verdict};

/// Rounds of one kind differ by as much: a neighbour that costs no more costs nothing that can be measured.
const NOTHING_MEASURABLE: f64 = 1.1;

/// Compares all results with all targets.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |case: &str, who: &str, what: &str| {
        results.reading(case, who, what).and_then(|reading| reading.median())
    };
    let against = |case, ours, other| ratio(median(case, ours, FORWARDED), median(case, other, FORWARDED));
    let time = |who| median("switch-latency", who, ONE_WAY);
    let idle = results.reading("switch-idle", "ours-adaptive", IDLE).and_then(|reading| reading.max());
    let long = against("switch-1518", "ours", "ovs-normal");
    let all = against("switch-features", "ours-all", "ovs-normal");
    let latency = |who| ratio(time(who), time("ovs-normal"));
    let single = |figure, who, what| {
        let time = |who| median(one_frame::CASE, who, what);
        verdict(figure, ratio(time(who), time("ovs-normal")), Limit::AtMost(1.0), " ×")
    };
    let beside = |figure: &str, behaviour: Behaviour| {
        let p99 = |of: Behaviour| {
            let [_, what] = of.percentiles(neighbours::OTHER_NETWORK);
            median(neighbours::CASE, "ours", &what)
        };
        let against = Behaviour::Behaves;
        let figure = format!("{figure}, another network, against one that {}", against.name());
        verdict(&figure, ratio(p99(behaviour), p99(against)), Limit::AtMost(NOTHING_MEASURABLE), " ×")
    };
    let longest = |of: Behaviour| median(neighbours::CASE, "ours", &of.longest(neighbours::OTHER_NETWORK));
    let breach = ratio(longest(Behaviour::Breaks), longest(Behaviour::Silent));
    vec![
        verdict(
            "64 B, against OVS-DPDK NORMAL",
            against("switch-64", "ours", "ovs-normal"),
            Limit::AtLeast(2.0),
            " ×",
        ),
        verdict(
            "64 B, against OVS-DPDK with port flows",
            against("switch-64", "ours", "ovs-flows"),
            Limit::AtLeast(1.3),
            " ×",
        ),
        verdict("1518 B, against OVS-DPDK NORMAL", long, Limit::AtLeast(1.3), " ×"),
        verdict("64 B with all features, against OVS-DPDK NORMAL", all, Limit::AtLeast(1.5), " ×"),
        verdict("one frame, polling, against OVS-DPDK NORMAL", latency("ours"), Limit::AtMost(1.0), " ×"),
        verdict(
            "one frame, adaptive, against OVS-DPDK NORMAL",
            latency("ours-adaptive"),
            Limit::AtMost(1.0),
            " ×",
        ),
        single("one frame's p50, polling, against OVS-DPDK NORMAL", "ours", P50),
        single("one frame's p99, polling, against OVS-DPDK NORMAL", "ours", P99),
        single("one frame's p50, adaptive, against OVS-DPDK NORMAL", "ours-adaptive", P50),
        single("one frame's p99, adaptive, against OVS-DPDK NORMAL", "ours-adaptive", P99),
        beside("one frame's p99 beside one that stalls", Behaviour::Stalls),
        beside("one frame's p99 beside one that floods", Behaviour::Floods),
        beside("one frame's p99 beside one that sends in pieces", Behaviour::Pieces),
        verdict(
            "the longest time of the frames after a breach of the rules, another network, against as many beside one that is silent",
            breach,
            Limit::AtMost(NOTHING_MEASURABLE),
            " ×",
        ),
        verdict("64 ports, idle, adaptive", idle, Limit::AtMost(1.0), " % of a core"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::State;

    #[test]
    fn medians_are_held_against_each_other_and_what_is_not_there_is_not_met() {
        let mut results = Results::default();
        for (who, values) in [("ours", [13.0, 12.0, 90.0]), ("ovs-normal", [6.0, 1.0, 7.0])] {
            for value in values {
                results.read("switch-64", who, FORWARDED, "Mpps", value);
            }
        }
        let all = verdicts(&results);
        assert_eq!((all[0].state, all[0].measured.as_str()), (State::Met, "2.17 ×"));
        assert!(all[1..].iter().all(|verdict| verdict.state == State::NotMeasured));
    }
}
