//! The threads that work on VFs: each PF has its own, and they end when nothing is left to do. A driver that hangs keeps
//! nobody waiting but the VFs of its own PF.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Pools;
use super::provision_error::ProvisionError;
use super::records::Record;
use super::state::Task;
use super::work_queue::Work;
use crate::PciAddr;

impl Pools {
    /// Starts threads for what is queued, where there are too few.
    pub(super) fn work(self: &Arc<Pools>) {
        loop {
            let begun = {
                let mut state = self.lock();
                if state.stopped { None } else { state.work_queue.begin() }
            };
            let Some(physical) = begun else { return };
            let pools = Arc::clone(self);
            let thread = thread::Builder::new().name("pool-worker".to_owned());
            if let Err(error) = thread.spawn(move || pools.work_for(physical)) {
                tracing::error!(%error, "no thread for a pool's VF; it waits for one");
                // `begin` has counted a worker that never ran. Without the pause the reconciler would try again at once,
                // for ever.
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

    /// The next work of a PF. Where there is none the worker ends under the same lock, so that whoever queues more starts one.
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
        // Marked before the work begins: a daemon that is killed in it leaves nothing behind that passes for clean.
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
