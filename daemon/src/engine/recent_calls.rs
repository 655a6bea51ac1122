//! What is remembered of calls for the operator, in memory only and bounded: the last calls that failed, and where the time of the
//! last ADDs went.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_cni::CniError;
use fairlead_cni::wire::Command;
use fairlead_kube::PodRef;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::call_phases::Phases;
use crate::store::Key;

/// So many failures are remembered, those that happened again counted once.
const MOST_FAILURES: usize = 256;
/// So many ADDs' timings are remembered: more than a node has interfaces of pods in a day without restarts.
const MOST_TIMINGS: usize = 2048;
/// The number of characters of an error that are remembered. A plugin's own text may be of any length.
const MOST_TEXT: usize = 1000;

/// The failures and the timings.
#[derive(Debug, Default)]
pub(crate) struct RecentCalls {
    failures: Mutex<VecDeque<FailedCall>>,
    /// By the number of the attachment, which is never used again.
    timings: Mutex<VecDeque<(u64, Phases)>>,
}

/// A call that failed, once or again and again.
#[derive(Debug, Clone)]
pub(crate) struct FailedCall {
    command: Command,
    pod: Option<PodRef>,
    key: Key,
    code: u32,
    text: String,
    /// The phases that it had behind it.
    phases: Phases,
    took: Duration,
    first: SystemTime,
    last: SystemTime,
    times: u64,
}

impl FailedCall {
    /// One that has failed just now.
    pub(crate) fn new(
        command: Command,
        pod: Option<PodRef>,
        key: Key,
        error: &CniError,
        (phases, took): (Phases, Duration),
    ) -> FailedCall {
        let now = SystemTime::now();
        let text = error.to_string().chars().take(MOST_TEXT).collect();
        FailedCall {
            command,
            pod,
            key,
            code: error.code.number(),
            text,
            phases,
            took,
            first: now,
            last: now,
            times: 1,
        }
    }

    /// Whether it is the same failure. A pod that has failed gets a new sandbox, whose id its error may name: that makes no other one.
    fn repeats(&self, before: &FailedCall) -> bool {
        let whose = |call: &FailedCall| call.pod.clone().ok_or_else(|| call.key.container.clone());
        let of = |call: &FailedCall| {
            (call.key.network.clone(), call.key.ifname.clone(), call.key.plugin.clone(), call.code)
        };
        let text = |call: &FailedCall| call.text.replace(&call.key.container, "");
        self.command == before.command
            && whose(self) == whose(before)
            && of(self) == of(before)
            && text(self) == text(before)
    }

    fn row(&self) -> Value {
        let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        json!({
            "command": self.command.name(),
            "pod": self.pod.as_ref().map(ToString::to_string),
            "podUid": self.pod.as_ref().and_then(|pod| pod.uid.as_deref()),
            "container": self.key.container,
            "network": self.key.network,
            "ifname": self.key.ifname,
            "type": self.key.plugin,
            "code": self.code,
            "error": self.text,
            "after": self.phases.last().map(|(phase, _)| phase),
            "phases": phase_rows(&self.phases),
            "tookUs": micros(self.took),
            "times": self.times,
            "first": seconds(self.first),
            "last": seconds(self.last),
        })
    }
}

impl RecentCalls {
    /// Remembers a failure, and forgets the oldest where there are too many.
    pub(crate) fn failed(&self, mut call: FailedCall) {
        let mut failures = self.failures.lock();
        if let Some(at) = failures.iter().position(|before| call.repeats(before))
            && let Some(before) = failures.remove(at)
        {
            (call.first, call.times) = (before.first, before.times + 1);
        } else if failures.len() >= MOST_FAILURES {
            failures.pop_front();
        }
        failures.push_back(call);
    }

    /// Remembers where the time of an ADD went.
    pub(crate) fn added(&self, attachment: u64, phases: Phases) {
        let mut timings = self.timings.lock();
        if timings.len() >= MOST_TIMINGS {
            timings.pop_front();
        }
        timings.push_back((attachment, phases));
    }

    /// Where the time of an ADD went; `null` where that is not remembered.
    pub(crate) fn timing(&self, attachment: u64) -> Value {
        let timings = self.timings.lock();
        let of = timings.iter().rev().find(|(id, _)| *id == attachment);
        of.map_or(Value::Null, |(_, phases)| phase_rows(phases))
    }

    /// The failures of those calls that are meant, the last one first.
    pub(crate) fn failures(&self, meant: impl Fn(Option<&PodRef>, &str) -> bool) -> Vec<Value> {
        let failures = self.failures.lock();
        let of = failures.iter().rev().filter(|call| meant(call.pod.as_ref(), &call.key.container));
        of.map(FailedCall::row).collect()
    }
}

fn phase_rows(phases: &Phases) -> Value {
    phases.iter().map(|(phase, took)| json!({ "phase": phase, "us": micros(*took) })).collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fairlead_cni::Code;

    use super::*;

    fn failed(container: &str, pod: Option<&str>, text: &str) -> FailedCall {
        let pod = pod.map(|name| PodRef { namespace: "shop".into(), name: name.into(), uid: None });
        let key = Key {
            container: container.into(),
            network: "n".into(),
            ifname: "eth0".into(),
            plugin: "macvlan".into(),
        };
        let phases = vec![("queue", Duration::from_micros(3)), ("plan", Duration::from_micros(20))];
        FailedCall::new(
            Command::Add,
            pod,
            key,
            &CniError::new(Code::TryAgain, text),
            (phases, Duration::from_millis(2)),
        )
    }

    #[test]
    fn a_failure_that_comes_again_with_a_new_sandbox_is_counted_and_another_is_its_own() {
        let calls = RecentCalls::default();
        for container in ["c1", "c2", "c3"] {
            calls.failed(failed(container, Some("web-0"), &format!("no address for {container}")));
        }
        calls.failed(failed("c3", Some("web-0"), "no master"));
        let rows = calls.failures(|pod, _| pod.is_some_and(|pod| pod.name == "web-0"));
        let told: Vec<_> = rows
            .iter()
            .map(|r| (r["times"].as_u64(), r["container"].as_str(), r["after"].as_str()))
            .collect();
        assert_eq!(
            told,
            [(Some(1), Some("c3"), Some("plan")), (Some(3), Some("c3"), Some("plan"))],
            "{rows:?}"
        );
    }

    #[test]
    fn failures_and_timings_are_bounded_in_number_and_length() {
        let calls = RecentCalls::default();
        for n in 0..2 * MOST_FAILURES {
            calls.failed(failed(&format!("c{n}"), None, &"é".repeat(100_000)));
        }
        for n in 0..2 * MOST_TIMINGS as u64 {
            calls.added(n, vec![("queue", Duration::ZERO)]);
        }
        let rows = calls.failures(|_, _| true);
        assert_eq!((rows.len(), rows[0]["container"].as_str()), (MOST_FAILURES, Some("c511")));
        assert!(rows.iter().all(|row| row["error"].as_str().unwrap().chars().count() <= MOST_TEXT));
        assert_eq!((calls.timing(0), calls.timings.lock().len()), (Value::Null, MOST_TIMINGS));
        assert_eq!(calls.timing(MOST_TIMINGS as u64)[0]["phase"], "queue");
    }
}
