//! Who has how much of the slow lane: which calls are at work in it, by their pods' namespaces. The pods of one namespace, whose programs
//! or devices let them wait, leave room for those of others.

use std::collections::BTreeMap;

use super::Limits;
use super::queued_call::QueuedCall;

/// How many calls are at work in the slow lane. DELs are not counted.
#[derive(Debug, Default)]
pub(super) struct SlowShares {
    at_work: usize,
    /// Those of pods, by the namespace that the runtime has named.
    of_namespace: BTreeMap<Box<str>, usize>,
}

impl SlowShares {
    /// Notes that a call is at work.
    pub(super) fn begin(&mut self, namespace: Option<&str>) {
        self.at_work += 1;
        if let Some(namespace) = namespace {
            *self.of_namespace.entry(namespace.into()).or_default() += 1;
        }
    }

    /// Notes that it has ended.
    pub(super) fn end(&mut self, namespace: Option<&str>) {
        self.at_work -= 1;
        if let Some(namespace) = namespace
            && let Some(count) = self.of_namespace.get_mut(namespace)
        {
            *count -= 1;
            if *count == 0 {
                self.of_namespace.remove(namespace);
            }
        }
    }

    /// The place of a call among those that wait, the first of which is begun: the fewer its namespace has at work, the earlier. `None`: it
    /// has to wait until another one, or one of its namespace, has ended.
    pub(super) fn place(&self, call: &QueuedCall, limits: &Limits) -> Option<usize> {
        if call.goes_first() {
            return Some(0);
        }
        if self.at_work >= limits.most_slow_without_dels() {
            return None;
        }
        let Some(namespace) = &call.namespace else { return Some(0) };
        let at_work = self.of_namespace.get(namespace).copied().unwrap_or_default();
        (at_work < limits.most_slow_of_namespace()).then_some(at_work)
    }
}
