//! VFs whose changes are refused because they are still resetting: whose fault it is where that does not end. Their
//! own, unless others are refused too and none is taken: then it is their physical one's. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A refusal says nothing of the others after this. What is the fault of a PF is tried again more often.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// What is known of the VFs of one physical one.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// When each was refused first and last, with nothing taken between.
    refused: BTreeMap<u32, (Instant, Instant)>,
    /// When a change of any of them was taken last.
    taken: Option<Instant>,
}

impl Busy {
    /// A message has ended: whose changes were taken, and whose are refused because they are resetting.
    pub(super) fn heard(&mut self, taken: &[u32], refused: &[u32], now: Instant) {
        self.refused.retain(|vf, (_, last)| !taken.contains(vf) && now.duration_since(*last) < FORGOTTEN);
        if !taken.is_empty() {
            self.taken = Some(now);
        }
        for vf in refused {
            self.refused.entry(*vf).or_insert((now, now)).1 = now;
        }
    }

    /// Whether that a VF is refused is its own fault.
    pub(super) fn is_its_own(&self, vf: u32) -> bool {
        let nothing_taken = |(since, _): &(Instant, Instant)| self.taken.is_none_or(|at| at < *since);
        let others_are = || self.refused.iter().any(|(other, when)| *other != vf && nothing_taken(when));
        !self.refused.get(&vf).is_some_and(|when| nothing_taken(when) && others_are())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x08_one_that_is_refused_while_others_are_taken_or_not_asked_is_to_blame_alone() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut busy = Busy::default();
        busy.heard(&[0], &[1, 2], begun);
        assert!(busy.is_its_own(1) && busy.is_its_own(2), "before them one was taken");
        busy.heard(&[], &[1], begun + second);
        busy.heard(&[], &[3], begun + second);
        assert!(
            busy.is_its_own(1) && busy.is_its_own(3),
            "nobody else is refused without being to blame for it"
        );
        busy.heard(&[], &[4], begun + second);
        assert!(!busy.is_its_own(4), "it may be what ails the third");
        busy.heard(&[], &[4], begun + second + FORGOTTEN);
        assert!(busy.is_its_own(4), "which is of long ago");
    }

    #[test]
    fn x07_while_all_that_are_asked_for_are_refused_none_of_them_is_to_blame() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut busy = Busy::default();
        busy.heard(&[0, 1, 2], &[], begun);
        busy.heard(&[], &[1], begun + second);
        busy.heard(&[], &[2], begun + second * 2);
        busy.heard(&[], &[1], begun + second * 3);
        assert!(!busy.is_its_own(1) && !busy.is_its_own(2));
        busy.heard(&[3], &[], begun + second * 4);
        assert!(busy.is_its_own(1) && busy.is_its_own(2), "what is taken then clears the physical one");
        busy.heard(&[1, 2], &[], begun + second * 5);
        busy.heard(&[], &[1, 2], begun + second * 6);
        assert!(!busy.is_its_own(1), "that was before");
    }
}
