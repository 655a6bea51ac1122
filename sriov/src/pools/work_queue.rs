//! What is to be done to VFs, and who does it: threads of each PF's own, which end when nothing is left. A driver that hangs
//! keeps nobody waiting but the VFs of its own PF.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::state::Task;
use crate::PciAddr;

use super::Pools;
use super::create_vfs::VfCreation;
use super::provision_error::ProvisionError;
use super::records::Record;

/// So many VFs of one PF are worked on at a time.
const WORKERS: usize = 4;

/// What a worker thread does. It may take as long as a driver does.
pub(super) enum Work {
    Member(Task),
    Create(VfCreation),
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
    fn begin(&mut self) -> Option<PciAddr> {
        let physical = self.short_handed()?;
        self.0.entry(physical).or_default().workers += 1;
        Some(physical)
    }

    fn next(&mut self, physical: PciAddr) -> Option<Work> {
        self.0.get_mut(&physical)?.waiting.pop_front()
    }

    /// A worker of a PF has ended.
    fn end(&mut self, physical: PciAddr) {
        if let Some(line) = self.0.get_mut(&physical) {
            line.workers -= 1;
        }
        self.0.retain(|_, line| line.workers > 0 || !line.waiting.is_empty());
    }
}

impl Pools {
    /// Starts threads for what is queued, where there are too few.
    pub(super) fn work(self: &Arc<Pools>) {
        loop {
            let started = {
                let mut state = self.lock();
                if state.stopped { None } else { state.work_queue.begin() }
            };
            let Some(physical) = started else { return };
            let pools = Arc::clone(self);
            let started = thread::Builder::new().name("pool-worker".to_owned());
            if let Err(error) = started.spawn(move || pools.work_for(physical)) {
                tracing::error!(%error, "no thread for a pool's VF; it waits for one");
                self.lock().work_queue.end(physical);
                thread::sleep(Duration::from_secs(1));
                return;
            }
        }
    }

    fn work_for(&self, physical: PciAddr) {
        while let Some(work) = self.next_of(physical) {
            self.do_work(work);
        }
    }

    fn next_of(&self, physical: PciAddr) -> Option<Work> {
        let mut state = self.lock();
        let next = if state.stopped { None } else { state.work_queue.next(physical) };
        if next.is_none() {
            state.work_queue.end(physical);
        }
        next
    }

    fn do_work(&self, work: Work) {
        match work {
            Work::Member(task) => self.carry_out(task),
            Work::Create(creation) => self.create(creation),
        }
    }

    /// Does all that is queued, on the calling thread: for whoever wants no threads of the work queue's own, as tests do.
    pub fn work_here(&self) {
        loop {
            let started = self.lock().work_queue.begin();
            let Some(physical) = started else { return };
            self.work_for(physical);
        }
    }

    fn carry_out(&self, task: Task) {
        let address = task.address();
        let desired =
            self.lock().member(address).map(|(entry, m)| entry.desired.after_a_pod(m.is_left_behind()));
        let Some(desired) = desired else { return };
        let started = Instant::now();
        let idle = |other| self.take_idle(other);
        let done = self.mark(address).map_err(ProvisionError::Record).and_then(|()| match task {
            Task::Prepare(_) => self.provisioner.prepare(address, &desired, &idle).map(Some),
            Task::GiveBack(_) => self.provisioner.give_back(address, &desired, &idle).map(|()| None),
        });
        let done = done.map_err(|why| self.provisioner.blamed(address, why));
        self.metrics.took(task, started.elapsed(), done.is_ok());
        if let Err(ProvisionError::Gone(_)) = &done {
            self.log_unwritten(address, self.provisioner.records.change(address, Record::vanished));
        }
        self.update(|state| state.ended(address, done));
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
