//! Calls whose answers have left, and what is done for them when nobody waits for the processor.
//!
//! An answer wakes the executable, which wakes the runtime with it and ends. What a daemon does meanwhile takes a processor from
//! these: waiting for the confirmation, the receipt, the log and the metrics are put off until no call has come for a while.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::wire::RECEIVED;
use parking_lot::Mutex;
use rustix::net::RecvFlags;

use super::LAST_ANSWERS;
use crate::admission::{Admission, FinishedCall, Receipt};

/// The pause without a call after which the rest is done: the executable has ended by then, as a rule.
const A_WHILE: Duration = Duration::from_millis(1);

/// How many are kept. Where callers don't confirm, their connections are open meanwhile.
const ROOM: usize = 64;

/// A call whose answer has left.
#[derive(Debug)]
pub(super) struct AnsweredCall {
    connection: Arc<OwnedFd>,
    /// Until the caller has confirmed, or it is clear that it will not.
    receipt: Option<Receipt>,
    done: FinishedCall,
    until: Instant,
}

impl AnsweredCall {
    /// A call whose answer has left just now, if it `left`.
    pub(super) fn new(
        connection: Arc<OwnedFd>,
        receipt: Receipt,
        done: FinishedCall,
        left: bool,
    ) -> AnsweredCall {
        // A receipt that is dropped reports that the answer was lost.
        let receipt = left.then_some(receipt);
        AnsweredCall { connection, receipt, done, until: Instant::now() + LAST_ANSWERS }
    }

    /// The receipt, and whether the caller has confirmed: if it has, or has hung up, or its time is over.
    fn confirmation(&mut self) -> Option<(Receipt, bool)> {
        self.receipt.as_ref()?;
        let mut word = [0; RECEIVED.len()];
        let confirmed = match rustix::net::recv(&self.connection, &mut word, RecvFlags::DONTWAIT) {
            Ok((n, _)) => word.get(..n) == Some(RECEIVED),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if Instant::now() < self.until => {
                return None;
            }
            Err(_) => false,
        };
        Some((self.receipt.take()?, confirmed))
    }
}

/// All answered calls of the acceptors that something is left to do for.
#[derive(Debug, Default)]
pub(super) struct AnsweredCalls(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    calls: Vec<AnsweredCall>,
    /// Whether an acceptor waits for the time at which they are due.
    watched: bool,
    /// How many acceptors wait for a connection alone.
    asleep: usize,
}

impl Kept {
    /// How long to wait for a call before [`AnsweredCalls::finish`] is due; `None`: there is nothing to finish.
    fn due_after(&self) -> Option<Duration> {
        let until = self.calls.last()?.until;
        // By the youngest, and twice as long each time where callers don't confirm.
        let age = LAST_ANSWERS.saturating_sub(until.saturating_duration_since(Instant::now()));
        Some(age.max(A_WHILE))
    }
}

/// An acceptor waits, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    answered: &'a AnsweredCalls,
    due: Option<Duration>,
}

impl Watch<'_> {
    /// How long it may wait; `None`: another one looks after the calls, or there are none.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut kept = self.answered.0.lock();
        match self.due {
            Some(_) => kept.watched = false,
            None => kept.asleep -= 1,
        }
    }
}

impl AnsweredCalls {
    /// Whether one more can be kept.
    pub(super) fn has_room(&self) -> bool {
        self.0.lock().calls.len() < ROOM
    }

    /// Keeps a call.
    pub(super) fn push(&self, call: AnsweredCall) {
        self.0.lock().calls.push(call);
    }

    /// How long to wait for a call before [`AnsweredCalls::finish`] is due; `None`: there is nothing to finish.
    pub(super) fn due_after(&self) -> Option<Duration> {
        self.0.lock().due_after()
    }

    /// The calling acceptor is about to wait. One of them looks after the calls.
    pub(super) fn watch(&self) -> Watch<'_> {
        let mut kept = self.0.lock();
        let due = if kept.watched { None } else { kept.due_after() };
        match due {
            Some(_) => kept.watched = true,
            None => kept.asleep += 1,
        }
        Watch { answered: self, due }
    }

    /// Whether an acceptor could look after the calls and does not know of them.
    pub(super) fn is_watched_by_nobody(&self) -> bool {
        let kept = self.0.lock();
        !kept.calls.is_empty() && !kept.watched && kept.asleep > 0
    }

    /// Takes the confirmations that have come for a container's calls. Done before another call is begun, which could be the same ADD again.
    pub(super) fn confirm_of(&self, container: &str) {
        self.confirm(|call| call.done.container() == container);
    }

    fn confirm(&self, of: impl Fn(&AnsweredCall) -> bool) {
        let mut kept = self.0.lock();
        let calls = kept.calls.iter_mut().filter(|call| of(call));
        let confirmed: Vec<_> = calls.filter_map(AnsweredCall::confirmation).collect();
        drop(kept);
        // Without the lock: a receipt waits for the store, and that for the disk.
        for (receipt, delivered) in confirmed {
            receipt.give_back(delivered);
        }
    }

    /// Logs and counts the calls whose callers have confirmed, or will not.
    pub(super) fn finish(&self, admission: &Admission) {
        self.confirm(|_| true);
        let finished: Vec<AnsweredCall> =
            self.0.lock().calls.extract_if(.., |call| call.receipt.is_none()).collect();
        for call in finished {
            drop(call.connection);
            admission.counted(&call.done);
        }
    }
}
