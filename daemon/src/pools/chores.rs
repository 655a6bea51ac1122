//! What is to be done to functions, and who does it: threads of each physical function's own, which end when nothing is left. A
//! driver that hangs keeps nobody waiting but the functions of its own physical function.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::Task;

use super::Pools;
use super::making::Making;
use super::record::Record;
use super::trouble::Trouble;

/// Functions of one physical function that are worked on at a time.
const WORKERS: usize = 4;

/// What a worker does. It may take as long as a driver does.
pub(super) enum Chore {
    Member(Task),
    Make(Making),
}

/// All that is to be done, by physical function.
#[derive(Default)]
pub(super) struct Chores(BTreeMap<PciAddr, Line>);

#[derive(Default)]
struct Line {
    waiting: VecDeque<Chore>,
    workers: usize,
}

impl Chores {
    pub(super) fn push(&mut self, physical: PciAddr, chore: Chore) {
        self.0.entry(physical).or_default().waiting.push_back(chore);
    }

    /// A physical function that has something to do for one worker more.
    fn short_handed(&self) -> Option<PciAddr> {
        let is_short = |line: &Line| !line.waiting.is_empty() && line.workers < WORKERS;
        self.0.iter().find(|(_, line)| is_short(line)).map(|(physical, _)| *physical)
    }

    pub(super) fn want_a_worker(&self) -> bool {
        self.short_handed().is_some()
    }

    /// A worker begins: whose he is.
    fn begin(&mut self) -> Option<PciAddr> {
        let physical = self.short_handed()?;
        self.0.entry(physical).or_default().workers += 1;
        Some(physical)
    }

    fn next(&mut self, physical: PciAddr) -> Option<Chore> {
        self.0.get_mut(&physical)?.waiting.pop_front()
    }

    /// A worker has ended.
    fn end(&mut self, physical: PciAddr) {
        if let Some(line) = self.0.get_mut(&physical) {
            line.workers -= 1;
        }
        self.0.retain(|_, line| line.workers > 0 || !line.waiting.is_empty());
    }
}

impl Pools {
    /// Has done what is queued.
    pub(super) fn work(self: &Arc<Pools>) {
        loop {
            let begun = {
                let mut state = self.lock();
                if state.stopped { None } else { state.chores.begin() }
            };
            let Some(physical) = begun else { return };
            let pools = Arc::clone(self);
            let begun = thread::Builder::new().name("pool-worker".to_owned());
            if let Err(error) = begun.spawn(move || pools.work_off(physical)) {
                tracing::error!(%error, "no thread for a pool's function; it waits for one");
                self.lock().chores.end(physical);
                thread::sleep(Duration::from_secs(1));
                return;
            }
        }
    }

    fn work_off(&self, physical: PciAddr) {
        while let Some(chore) = self.next_chore(physical) {
            self.do_chore(chore);
        }
    }

    fn next_chore(&self, physical: PciAddr) -> Option<Chore> {
        let mut state = self.lock();
        let next = if state.stopped { None } else { state.chores.next(physical) };
        if next.is_none() {
            state.chores.end(physical);
        }
        next
    }

    fn do_chore(&self, chore: Chore) {
        match chore {
            Chore::Member(task) => self.carry_out(task),
            Chore::Make(making) => self.make(making),
        }
    }

    /// Does all that is queued, here and now.
    #[cfg(test)]
    pub(crate) fn work_here(&self) {
        loop {
            let begun = self.lock().chores.begin();
            let Some(physical) = begun else { return };
            self.work_off(physical);
        }
    }

    fn carry_out(&self, task: Task) {
        let address = task.address();
        let wish = self.lock().member(address).map(|(live, m)| live.wish.after_a_pod(m.left));
        let Some(wish) = wish else { return };
        let begun = Instant::now();
        let idle = |other| self.take_idle(other);
        let done = self.mark(address).map_err(Trouble::Record).and_then(|()| match task {
            Task::Prepare(_) => self.shop.prepare(address, &wish, &idle).map(Some),
            Task::GiveBack(_) => self.shop.give_back(address, &wish, &idle).map(|()| None),
        });
        let done = done.map_err(|why| self.shop.blamed(address, why));
        self.metrics.took(task, begun.elapsed(), done.is_ok());
        if let Err(Trouble::Gone(_)) = &done {
            self.keep(address, self.shop.records.change(address, Record::vanished));
        }
        self.act(|state| state.ended(address, done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(address: &str) -> PciAddr {
        address.parse().unwrap()
    }

    #[test]
    fn x17_however_many_functions_of_a_card_hang_those_of_another_are_worked_on_at_once() {
        let (hangs, well) = (pci("0000:21:00.0"), pci("0000:41:00.0"));
        let mut chores = Chores::default();
        let task = |bus: &str, n: u32| Chore::Member(Task::Prepare(pci(&format!("0000:{bus}:10.{}", n % 8))));
        (0..64).for_each(|n| chores.push(hangs, task("21", n)));
        for _ in 0..WORKERS {
            assert_eq!(chores.begin(), Some(hangs));
            assert!(chores.next(hangs).is_some()); // and is not heard of again
        }
        assert!(!chores.want_a_worker(), "no thread waits behind them");
        chores.push(well, task("41", 0));
        assert_eq!(chores.begin(), Some(well));
        assert!(chores.next(well).is_some() && chores.next(well).is_none());
        chores.end(well);
        chores.end(hangs);
        assert_eq!(chores.begin(), Some(hangs), "what is left goes on when one has ended");
    }
}
