//! Spooled requests that the first pass has left, tried again until all are done or given up. Results are taken as they come: one that
//! hangs holds back nobody but what follows it of the same subject.
//!
//! Each entry has pauses of its own. A bounded number is handed in at once, so that a spool of thousands leaves room for everyone's calls.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use fairlead_cni::wire::Request;
use fairlead_host::backoff::{Attempts, Backoff};

use super::{Entry, PATIENCE, Subject, done, give_up, warn_failed};
use crate::admission::{Admission, Outcome, SubmittedCall};
use crate::call::catching_panics;
use crate::metrics::Node;

/// So many are handed in at once. Each that hangs takes one of these places until it ends.
pub(super) const AT_ONCE: usize = 16;
/// The pauses between attempts at what has failed.
const PAUSES: Backoff = Backoff::new(FIRST_PAUSE, Duration::from_secs(60));
const FIRST_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });
/// A GC that has failed so often, over four minutes, is given up.
pub(super) const GC_ATTEMPTS: u32 = 10;
/// Nothing is due: something has to end first.
const NOTHING_DUE: Duration = Duration::from_secs(3600);

/// What the thread of the replay is told.
#[derive(Debug)]
pub(super) enum News {
    /// The attempt at this entry has ended.
    Ended(usize, Box<Outcome>),
    /// The daemon is stopping.
    Stop,
}

/// All entries that are still to be done.
pub(super) struct Retry {
    /// In their order; `None`: done, or given up.
    entries: Vec<Option<Pending>>,
    at_work: usize,
    admission: Admission,
    node: Node,
    news: Sender<News>,
}

struct Pending {
    entry: Entry,
    attempts: Attempts,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is tried as soon as this has come.
    Due(Instant),
    AtWork,
}

impl Retry {
    pub(super) fn of(entries: Vec<Entry>, admission: Admission, node: Node, news: Sender<News>) -> Retry {
        let stage = Stage::Due(Instant::now());
        let pending = |entry| Some(Pending { entry, attempts: PAUSES.start(), stage });
        Retry { entries: entries.into_iter().map(pending).collect(), at_work: 0, admission, node, news }
    }

    /// Works until all are done, or the daemon stops.
    pub(super) fn work(mut self, news: &Receiver<News>) {
        while let Some(next_due) = self.hand_in_what_is_due(Instant::now()) {
            match news.recv_timeout(next_due) {
                // The daemon is stopping; the entries stay on the disk for the next start.
                Ok(News::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(News::Ended(_, outcome)) if matches!(*outcome, Outcome::NotBegun) => return,
                Ok(News::Ended(at, outcome)) => self.ended(at, *outcome),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Hands in what is due, as far as there is room; answers when the next one is due, `None` when all are done.
    fn hand_in_what_is_due(&mut self, now: Instant) -> Option<Duration> {
        let room = AT_ONCE.saturating_sub(self.at_work);
        let due: Vec<usize> =
            self.first_of_each().filter(|(_, due)| *due <= now).map(|(at, _)| at).take(room).collect();
        due.into_iter().for_each(|at| self.hand_in(at));
        // Without room what is due already waits for an end.
        let next = self.first_of_each().map(|(_, due)| due).filter(|due| *due > now).min();
        let is_left = self.entries.iter().any(Option::is_some);
        is_left.then(|| next.map_or(NOTHING_DUE, |due| due - now))
    }

    /// Of each subject the first entry, unless that is at work, and when it is due. What follows it waits for it.
    fn first_of_each(&self) -> impl Iterator<Item = (usize, Instant)> {
        let mut seen = HashSet::new();
        let left = self.entries.iter().enumerate().filter_map(|(at, pending)| Some((at, pending.as_ref()?)));
        let first = left.filter(move |(_, pending)| seen.insert(&pending.entry.subject));
        first.filter_map(|(at, pending)| match pending.stage {
            Stage::Due(due) => Some((at, due)),
            Stage::AtWork => None,
        })
    }

    fn hand_in(&mut self, at: usize) {
        let Some(Some(pending)) = self.entries.get_mut(at) else { return };
        let request = again(&pending.entry.request);
        let call = match catching_panics(request.command, || Ok(self.admission.prepare(request))) {
            Ok(call) => call,
            Err(error) => return self.failed(at, &error.to_string()),
        };
        let submitted = self.admission.submit(call, Instant::now());
        match self.wait_for(at, submitted) {
            Ok(()) => self.at_work += 1,
            Err(error) => self.failed(at, &error.to_string()),
        }
    }

    /// On a thread of its own, which ends with the call.
    fn wait_for(&mut self, at: usize, submitted: SubmittedCall) -> std::io::Result<()> {
        let news = self.news.clone();
        let wait = move || {
            // Nobody reads it where the daemon is stopping.
            let _ = news.send(News::Ended(at, Box::new(submitted.wait())));
        };
        std::thread::Builder::new().name("spool-result".into()).spawn(wait)?;
        if let Some(Some(pending)) = self.entries.get_mut(at) {
            pending.stage = Stage::AtWork;
        }
        Ok(())
    }

    fn ended(&mut self, at: usize, outcome: Outcome) {
        self.at_work -= 1;
        match outcome {
            Outcome::Reply(reply, _) => match reply.outcome {
                Ok(_) => {
                    if let Some(pending) = self.entries.get_mut(at).and_then(Option::take) {
                        done(&pending.entry, &self.admission, &self.node);
                    }
                }
                Err(error) => self.failed(at, &error.to_string()),
            },
            Outcome::TooLate | Outcome::Full | Outcome::NotBegun => self.failed(at, "it had no turn"),
        }
    }

    fn failed(&mut self, at: usize, reason: &str) {
        let Some(left) = self.entries.get_mut(at) else { return };
        let Some(pending) = left else { return };
        let pause = pending.attempts.failed();
        let is_often = pending.attempts.failures() >= GC_ATTEMPTS;
        if let Subject::Network(network) = &pending.entry.subject
            && is_often
        {
            give_up(&pending.entry, network, reason, &self.node);
            *left = None;
            return;
        }
        warn_failed(&pending.entry, reason);
        pending.stage = Stage::Due(Instant::now() + pause);
    }
}

fn again(request: &Request) -> Request {
    let deadline_ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
    Request { deadline_ms, ..request.clone() }
}
