//! VFs whose changes are refused because they are still resetting. Where that does not end, this decides who is to blame. Pure.
//!
//! A VF is to blame itself. Its PF is to blame where other VFs are refused too and no change of any of them is taken.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A refusal says nothing about other VFs after this. What is the fault of a PF is tried again more often.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// What is known of the VFs of one PF.
#[derive(Debug, Default)]
pub(super) struct ResettingVfs {
    /// When each VF was refused first and last, with no change of it taken between.
    refused: BTreeMap<u32, (Instant, Instant)>,
    /// When a change of any of them was taken last.
    taken: Option<Instant>,
}

impl ResettingVfs {
    /// Notes how a message has ended: whose changes were taken, and whose were refused because they are resetting.
    pub(super) fn note(&mut self, taken: &[u32], refused: &[u32], now: Instant) {
        self.refused.retain(|vf, (_, last)| !taken.contains(vf) && now.duration_since(*last) < FORGOTTEN);
        if !taken.is_empty() {
            self.taken = Some(now);
        }
        for vf in refused {
            self.refused.entry(*vf).or_insert((now, now)).1 = now;
        }
    }

    /// Whether it is a VF's own fault that it is refused.
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
        let mut resetting = ResettingVfs::default();
        resetting.note(&[0], &[1, 2], begun);
        assert!(resetting.is_its_own(1) && resetting.is_its_own(2), "before them one was taken");
        resetting.note(&[], &[1], begun + second);
        resetting.note(&[], &[3], begun + second);
        assert!(
            resetting.is_its_own(1) && resetting.is_its_own(3),
            "nobody else is refused without being to blame for it"
        );
        resetting.note(&[], &[4], begun + second);
        assert!(!resetting.is_its_own(4), "it may be what ails the third");
        resetting.note(&[], &[4], begun + second + FORGOTTEN);
        assert!(resetting.is_its_own(4), "which is of long ago");
    }

    #[test]
    fn x07_while_all_that_are_asked_for_are_refused_none_of_them_is_to_blame() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut resetting = ResettingVfs::default();
        resetting.note(&[0, 1, 2], &[], begun);
        resetting.note(&[], &[1], begun + second);
        resetting.note(&[], &[2], begun + second * 2);
        resetting.note(&[], &[1], begun + second * 3);
        assert!(!resetting.is_its_own(1) && !resetting.is_its_own(2));
        resetting.note(&[3], &[], begun + second * 4);
        assert!(
            resetting.is_its_own(1) && resetting.is_its_own(2),
            "what is taken then clears the physical one"
        );
        resetting.note(&[1, 2], &[], begun + second * 5);
        resetting.note(&[], &[1, 2], begun + second * 6);
        assert!(!resetting.is_its_own(1), "that was before");
    }
}
