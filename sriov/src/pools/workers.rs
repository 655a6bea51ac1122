//! The threads that work on VFs: each PF has its own, and they end when nothing is left to do. A driver that hangs keeps
//! nobody waiting but the VFs of its own PF.
//!
//! Work that panics has failed, as by any other fault: a VF at work or a worker that is counted for ever would keep others waiting.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Pools;
use super::membership::Notice;
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
        let mut worker = Worker { pools: self, physical, has_ended: false };
        while let Some(work) = worker.next_work() {
            self.do_work(work);
        }
    }

    fn do_work(&self, work: Work) {
        match work {
            Work::Member(task) => self.carry_out(task),
            Work::Create(creation) => {
                let physical = creation.physical;
                if let Err(fault) = catching_panics(|| self.create(creation)) {
                    self.creation_panicked(physical, fault);
                }
            }
        }
    }

    /// As after any other failure: the next look tries again.
    fn creation_panicked(&self, physical: PciAddr, fault: String) {
        let remedy = "please report this with the daemon's log".to_owned();
        self.update(|state| {
            state.creating.remove(&physical);
            state.failed_creations.insert(physical, Notice { wrong: true, seen: fault, remedy });
        });
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
        let desired = self.lock().member(address).map(|(entry, m)| entry.desired.for_work_on(m));
        let Some(desired) = desired else { return };
        let started = Instant::now();
        let idle = |other| self.take_idle(other);
        let done = catching_panics(|| {
            // Marked before the work begins: a daemon that is killed in it leaves nothing behind that passes for clean.
            let done = self.mark(address).map_err(ProvisionError::Record).and_then(|()| match task {
                Task::Prepare(_) => self.provisioner.prepare(address, &desired, &idle).map(Some),
                Task::GiveBack(_) => self.provisioner.give_back(address, &desired, &idle).map(|()| None),
            });
            done.map_err(|why| self.provisioner.blamed(address, why))
        });
        let done = done.unwrap_or_else(|fault| Err(ProvisionError::Unfit(fault)));
        self.metrics.took(task, started.elapsed(), done.is_ok());
        if let Err(ProvisionError::Gone(_)) = &done {
            self.log_unwritten(address, self.provisioner.records.change(address, Record::vanished));
        }
        self.update(|state| state.ended(address, done));
    }
}

/// A worker of a PF, which is counted until it ends, however it ends.
struct Worker<'p> {
    pools: &'p Pools,
    physical: PciAddr,
    has_ended: bool,
}

impl Worker<'_> {
    /// The next work of its PF. Where there is none it ends under the same lock, so that whoever queues more starts one.
    fn next_work(&mut self) -> Option<Work> {
        let mut state = self.pools.lock();
        let next = if state.stopped { None } else { state.work_queue.next(self.physical) };
        if next.is_none() {
            state.work_queue.end(self.physical);
            self.has_ended = true;
        }
        next
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.pools.lock().work_queue.end(self.physical);
            // The reconciler starts another one, where there is more to do.
            self.pools.changed.notify_all();
        }
    }
}

/// Does `work`. A panic in it is answered in words, as the fault of ours that it is.
fn catching_panics<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| format!("the work on it has met a fault in Fairlead: {}", text_of(&*panic)))
}

/// The text that a panic carries.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

#[cfg(test)]
mod tests;
