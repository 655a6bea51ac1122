//! What is to be done to VFs, in one line for each PF: a driver that hangs keeps nobody waiting but the VFs of its own PF.

use std::collections::{BTreeMap, VecDeque};

use super::state::Task;
use crate::PciAddr;

/// So many VFs of one PF are worked on at a time.
const WORKERS: usize = 4;

/// What a worker thread does. It may take as long as a driver does.
pub(super) enum Work {
    Member(Task),
    Create(VfCreation),
}

/// VFs that are to be created.
pub(super) struct VfCreation {
    pub(super) pool: String,
    pub(super) physical: PciAddr,
    pub(super) count: u32,
}

/// All that is to be done, by PF.
#[derive(Default)]
pub(super) struct WorkQueue(BTreeMap<PciAddr, PfQueue>);

#[derive(Default)]
struct PfQueue {
    waiting: VecDeque<Work>,
    workers: usize,
}

impl WorkQueue {
    pub(super) fn push(&mut self, physical: PciAddr, work: Work) {
        self.0.entry(physical).or_default().waiting.push_back(work);
    }

    /// A PF that has something to do for one worker more.
    fn short_handed(&self) -> Option<PciAddr> {
        let is_short = |line: &PfQueue| !line.waiting.is_empty() && line.workers < WORKERS;
        self.0.iter().find(|(_, line)| is_short(line)).map(|(physical, _)| *physical)
    }

    pub(super) fn want_a_worker(&self) -> bool {
        self.short_handed().is_some()
    }

    /// A worker begins; answers the PF that it works for.
    pub(super) fn begin(&mut self) -> Option<PciAddr> {
        let physical = self.short_handed()?;
        self.0.entry(physical).or_default().workers += 1;
        Some(physical)
    }

    pub(super) fn next(&mut self, physical: PciAddr) -> Option<Work> {
        self.0.get_mut(&physical)?.waiting.pop_front()
    }

    /// A worker of a PF has ended.
    pub(super) fn end(&mut self, physical: PciAddr) {
        if let Some(line) = self.0.get_mut(&physical) {
            line.workers -= 1;
        }
        self.0.retain(|_, line| line.workers > 0 || !line.waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(address: &str) -> PciAddr {
        address.parse().unwrap()
    }

    #[test]
    fn x17_however_many_vfs_of_a_card_hang_those_of_another_are_worked_on_at_once() {
        let (hangs, well) = (pci("0000:21:00.0"), pci("0000:41:00.0"));
        let mut work_queue = WorkQueue::default();
        let task = |bus: &str, n: u32| Work::Member(Task::Prepare(pci(&format!("0000:{bus}:10.{}", n % 8))));
        (0..64).for_each(|n| work_queue.push(hangs, task("21", n)));
        for _ in 0..WORKERS {
            assert_eq!(work_queue.begin(), Some(hangs));
            assert!(work_queue.next(hangs).is_some()); // and is not heard of again
        }
        assert!(!work_queue.want_a_worker(), "no thread waits behind them");
        work_queue.push(well, task("41", 0));
        assert_eq!(work_queue.begin(), Some(well));
        assert!(work_queue.next(well).is_some() && work_queue.next(well).is_none());
        work_queue.end(well);
        work_queue.end(hangs);
        assert_eq!(work_queue.begin(), Some(hangs), "what is left goes on when one has ended");
    }
}
