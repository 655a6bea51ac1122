//! Changes of many VFs in one message. The kernel makes none behind the first that it refuses: which VFs were changed, which one
//! is to blame, and which go into the next message. Pure.

use fairlead_host::{Vf, VfChange};

use crate::VfProfile;

/// The changes, in the order of the message.
#[derive(Debug)]
pub(super) struct Batch(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    vf: u32,
    left: VfChange,
    /// It goes into no further message with others.
    alone: bool,
    /// Whether it was made is not known: its VF was being reset.
    is_uncertain: bool,
}

/// What of a change the messages with others have not done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Left {
    pub(super) change: VfChange,
    /// Some of it may be made: the PF did not report its VF, because that was being reset.
    pub(super) is_uncertain: bool,
}

impl Batch {
    pub(super) fn of(wanted: &[(u32, VfChange)]) -> Batch {
        let entry = |(vf, change): &(u32, VfChange)| Entry {
            vf: *vf,
            left: change.clone(),
            alone: false,
            is_uncertain: false,
        };
        Batch(wanted.iter().map(entry).collect())
    }

    /// What the next message says.
    pub(super) fn message(&self) -> Vec<(u32, VfChange)> {
        self.0.iter().filter(|one| one.is_in_message()).map(|one| (one.vf, one.left.clone())).collect()
    }

    /// The message was taken whole.
    pub(super) fn all_done(&mut self) {
        self.0.iter_mut().filter(|one| one.is_in_message()).for_each(|one| one.left = VfChange::default());
    }

    /// The message was refused; `now` are the settings after it. VFs that the PF does not report are being reset, and would stop
    /// the next message. If none of them stopped this one, the first VF that has not what it should has did. Answers whose
    /// changes were taken for certain, and who may have stopped it.
    pub(super) fn stopped(&mut self, now: &[Vf]) -> (Vec<u32>, Vec<u32>) {
        let (mut taken, mut by) = (Vec::new(), Vec::new());
        for one in self.0.iter_mut().filter(|one| one.is_in_message()) {
            match now.iter().find(|vf| vf.index == one.vf) {
                Some(vf) => {
                    // What the kernel took before the refusal stays made: only what still differs is sent again.
                    one.left = VfProfile::from(&one.left).plan(vf).change;
                    // The kernel does not say whose change it refused. It takes them in order: the first one that is
                    // missing is the refused one.
                    one.alone = !one.left.is_empty() && by.is_empty();
                }
                None => (one.alone, one.is_uncertain) = (true, true),
            }
            if one.alone {
                by.push(one.vf);
            } else if by.is_empty() {
                // Behind the refused change the kernel has tried none: a VF there may have had its settings before.
                taken.push(one.vf);
            }
        }
        (taken, by)
    }

    /// What is left of each change, in the order in which they came.
    pub(super) fn left(self) -> Vec<Left> {
        self.0.into_iter().map(|one| Left { change: one.left, is_uncertain: one.is_uncertain }).collect()
    }
}

impl Entry {
    fn is_in_message(&self) -> bool {
        !self.alone && !self.left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted() -> VfChange {
        VfChange { trust: Some(true), spoofchk: Some(false), ..VfChange::default() }
    }

    fn vf(index: u32) -> Vf {
        Vf { index, trust: Some(false), spoofchk: Some(true), ..Vf::default() }
    }

    /// A NIC: who refuses, and who is not told.
    struct Nic {
        vfs: Vec<Vf>,
        refuses: Vec<bool>,
        is_uncertain: Vec<bool>,
        set: Vec<usize>,
    }

    impl Nic {
        fn take(&mut self, message: &[(u32, VfChange)]) -> bool {
            message.iter().all(|(vf, change)| {
                let at = *vf as usize;
                let taken = !self.refuses[at];
                if taken {
                    self.vfs[at] = self.vfs[at].after(change);
                    self.set[at] += 1;
                }
                taken
            })
        }

        fn told(&self) -> Vec<Vf> {
            self.vfs.iter().filter(|vf| !self.is_uncertain[vf.index as usize]).cloned().collect()
        }
    }

    proptest! {
        #[test]
        fn what_is_not_done_is_left_and_nothing_is_set_twice_with_others(
            kinds in prop::collection::vec((any::<bool>(), any::<bool>()), 1..30), rounds in 1..4,
        ) {
            let count = u32::try_from(kinds.len()).unwrap();
            let mut nic = Nic {
                vfs: (0..count).map(vf).collect(),
                refuses: kinds.iter().map(|(refuses, _)| *refuses).collect(),
                is_uncertain: kinds.iter().map(|(_, is_uncertain)| *is_uncertain).collect(),
                set: vec![0; kinds.len()],
            };
            let mut batch = Batch::of(&(0..count).map(|n| (n, wanted())).collect::<Vec<_>>());
            let mut alone = 0;
            for _ in 0..rounds {
                let message = batch.message();
                if nic.take(&message) {
                    batch.all_done();
                    break;
                }
                batch.stopped(&nic.told());
                let now = batch.0.iter().filter(|one| one.alone).count();
                prop_assert!(now > alone, "each refusal takes at least one out");
                alone = now;
            }
            for ((left, now), refuses) in batch.left().into_iter().zip(&nic.vfs).zip(&nic.refuses) {
                // Nothing is lost: what is left brings each to what is wanted, if it takes it.
                prop_assert_eq!(now.after(&left.change), now.after(&wanted()));
                prop_assert!(!refuses || !left.change.is_empty());
            }
            prop_assert!(nic.set.iter().all(|times| *times <= 1));
        }
    }

    #[test]
    fn of_those_that_are_told_the_first_that_has_it_not_is_alone_and_the_rest_goes_on() {
        let mut batch = Batch::of(&[(3, wanted()), (1, wanted()), (2, wanted())]);
        assert_eq!(batch.stopped(&[vf(1), vf(2), vf(3).after(&wanted())]), (vec![3], vec![1]));
        assert_eq!(batch.message(), [(2, wanted())]);
        let left = |change| Left { change, is_uncertain: false };
        assert_eq!(batch.left(), [left(VfChange::default()), left(wanted()), left(wanted())]);
    }
}
