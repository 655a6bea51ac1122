//! The connection thread's way to the poll threads.
//!
//! Invariants: whoever waits for a poll thread looks after all of them meanwhile. A guest can block the write by which it is called, and with
//! it its poll thread; the answer that is waited for would never come. Ports are added and removed on all threads in one order.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::command::Command;
use super::mailbox::{Mailbox, NoAnswer};
use crate::port::ThreadView;
use crate::ring::Caller;

/// How often a write of a poll thread that hangs is looked for. One that is seen twice is ended, so that is the longest that a guest
/// holds up the others by it: twice this, once for each of its connections.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Commands to a poll thread, and its writes that may hang.
pub(super) struct PollLink {
    commands: Mailbox<Command>,
    caller: Arc<Caller>,
    writes_seen: Cell<u32>,
    /// The NUMA node on which the thread runs; absent: on any.
    numa_node: Option<u32>,
}

impl PollLink {
    pub(super) fn new(commands: Mailbox<Command>, caller: Arc<Caller>, numa_node: Option<u32>) -> PollLink {
        PollLink { commands, caller, writes_seen: Cell::new(0), numa_node }
    }

    /// Ends a write of the poll thread that was under way at the last look and still is.
    fn look(&self) {
        self.writes_seen.set(self.caller.interrupt_stuck_write(self.writes_seen.get()));
    }
}

/// All poll threads, by their numbers.
pub(super) struct PollThreads(Vec<PollLink>);

impl PollThreads {
    pub(super) fn new(links: Vec<PollLink>) -> PollThreads {
        PollThreads(links)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The thread for a port that is to be on this NUMA node: of those that run there, else of all, the one that serves the fewest.
    pub(super) fn choose(&self, numa_node: Option<u32>, served: impl Fn(usize) -> usize) -> usize {
        let is_near = |thread: &usize| numa_node.is_some() && self.0[*thread].numa_node == numa_node;
        let all = 0..self.count();
        let nearest = all.clone().filter(is_near).min_by_key(|thread| served(*thread));
        nearest.or_else(|| all.min_by_key(|thread| served(*thread))).unwrap_or(0)
    }

    /// A thread as it is told to others.
    pub(super) fn view(&self, thread: usize) -> ThreadView {
        let numa_node = self.0.get(thread).and_then(|link| link.numa_node);
        ThreadView { number: u16::try_from(thread).unwrap_or(u16::MAX), numa_node }
    }

    /// Ends writes of poll threads that were under way at the last look and still are.
    pub(super) fn look(&self) {
        self.0.iter().for_each(PollLink::look);
    }

    /// Sends a thread the command that `make` makes of a sender for the answer, and waits for that.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) fn ask<A>(
        &self,
        thread: usize,
        make: impl FnOnce(Sender<A>) -> Command,
    ) -> Result<A, NoAnswer> {
        self.0.get(thread).ok_or(NoAnswer)?.commands.ask_while(make, LOOK, || self.look())
    }

    /// Sends every thread the command that `make` makes of a sender for an answer that nobody waits for.
    pub(super) fn tell_each<A>(&self, make: impl Fn(Sender<A>) -> Command) {
        for link in &self.0 {
            // One that is gone has nothing to forget.
            let _ = link.commands.send(make(std::sync::mpsc::channel().0));
        }
    }

    /// Sends every thread the command that `make` makes of its number and of a sender for the answer, and waits for all answers.
    ///
    /// # Errors
    /// [`NoAnswer`] if one does not answer; the others have got theirs.
    pub(super) fn ask_each<A>(
        &self,
        mut make: impl FnMut(usize, Sender<A>) -> Command,
    ) -> Result<Vec<A>, NoAnswer> {
        let asked =
            self.0.iter().enumerate().map(|(thread, link)| link.commands.ask_for(|done| make(thread, done)));
        // All are asked before the first is waited for.
        let asked: Vec<_> = asked.collect();
        asked.into_iter().map(|asked| asked?.wait_while(LOOK, || self.look())).collect()
    }
}
