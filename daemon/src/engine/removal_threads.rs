//! The threads that work off removals. One stands by for those that hang, and one that executes programs gets a thread of its own.
//!
//! A removal that panics ends neither its thread nor itself: it is tried again.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use fairlead_cni::wire::Command;

use super::Engine;
use super::core::{Core, ExecutedRemoval, Rank, RemovalQueue, SWEEP, StartStep, Task};
use crate::call::catching_panics;

/// Threads that work off what is left after answers.
const REMOVAL_THREADS: usize = 4;

/// Begins them, with the one that stands by.
pub(super) fn start(engine: &Arc<Engine>) -> io::Result<()> {
    for n in 0..REMOVAL_THREADS {
        removal_thread(&Arc::downgrade(engine), &n.to_string(), Rank::Regular)?;
    }
    removal_thread(&Arc::downgrade(engine), "standby", Rank::Standby)
}

fn removal_thread(engine: &Weak<Engine>, name: &str, rank: Rank) -> io::Result<()> {
    let engine = Weak::clone(engine);
    thread::Builder::new().name(format!("removal-{name}")).spawn(move || work_off(&engine, rank)).map(drop)
}

fn work_off(engine: &Weak<Engine>, rank: Rank) {
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Some(task) = strong.core.removals.next(rank) else { return };
        if let Some(removal) = strong.core.executes(task) {
            execute_apart(engine, &strong, removal);
            continue;
        }
        let is_replaced = rank == Rank::Standby && stand_in(engine, &strong.core.removals);
        attend(&strong.core, task);
        if is_replaced {
            return strong.core.removals.stood_in();
        }
    }
}

/// Attends to a task. A panic in that is logged, and ends neither the thread nor the task, which comes again.
fn attend(core: &Core, task: Task) {
    let attended = catching_panics(Command::Del, || {
        core.attend(task);
        Ok(())
    });
    let Err(error) = attended else { return };
    tracing::error!(?task, %error, "a removal has met a fault in fairleadd; it is tried again");
    match task {
        Task::Attachment(id) => {
            core.removals.again(id, &error);
            // It was tried once: the start waits for no more than that.
            core.start.end(StartStep::Removal(id));
        }
        Task::Leftover(address) => core.removals.expect(address, Instant::now() + SWEEP),
    }
}

/// Has a thread of its own work on a removal that executes programs, and on those that wait for one.
fn execute_apart(engine: &Weak<Engine>, strong: &Engine, removal: ExecutedRemoval) {
    if !strong.core.executed_removals.begins(&removal) {
        return;
    }
    let (weak, first) = (Weak::clone(engine), removal.clone());
    let made = thread::Builder::new().name("removal-exec".to_owned()).spawn(move || {
        let mut next = Some(first);
        while let Some(removal) = next {
            let Some(strong) = weak.upgrade() else { return };
            attend(&strong.core, Task::Attachment(removal.id));
            next = strong.core.executed_removals.next(&removal);
        }
    });
    if let Err(error) = made {
        tracing::error!(%error, "there is no thread for a removal that executes programs; it is tried again");
        // What waits for a thread in this one's stead has its own time in the queue again.
        let mut ended = Some(removal);
        while let Some(removal) = ended {
            strong.core.removals.expect(removal.id, Instant::now() + SWEEP);
            ended = strong.core.executed_removals.next(&removal);
        }
    }
}

/// Has another thread stand by while this one works: tasks that hang may hold any number of threads, and never all.
fn stand_in(engine: &Weak<Engine>, removals: &RemovalQueue) -> bool {
    if !removals.stands_in() {
        return false;
    }
    removal_thread(engine, "standby", Rank::Standby)
        .inspect_err(|error| {
            removals.stood_in();
            tracing::error!(%error, "no thread stands by for removals that hang");
        })
        .is_ok()
}

#[cfg(test)]
mod tests;
