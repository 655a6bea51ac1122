//! What happens while every acceptor is in calls that take long (another process holds a lock, the kernel waits): one more thread
//! hands all connections that come to the server's.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use super::acceptor::AFTER_A_FAILURE;
use super::protocol_detection::HandedOver;

/// Acceptors that are all in calls count as stuck when fewer calls than there are acceptors have ended for so long: STATUS must be answered
/// within 100 ms, whatever waits before it.
const TAKES_LONG: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Busy {
    /// How many acceptors serve a connection.
    serving: usize,
    /// How many connections they have served.
    served: usize,
    /// Whether the stand-in looks after them already.
    watched: bool,
    closing: bool,
}

/// How many acceptors are in calls.
#[derive(Debug)]
pub(super) struct BusyAcceptors {
    acceptors: usize,
    busy: Mutex<Busy>,
    all_serve: Condvar,
}

impl BusyAcceptors {
    /// None of `acceptors` is in a call.
    pub(super) fn new(acceptors: usize) -> BusyAcceptors {
        BusyAcceptors { acceptors, busy: Mutex::default(), all_serve: Condvar::new() }
    }

    /// An acceptor serves a connection, until the answer is dropped.
    pub(super) fn begin(&self) -> Serving<'_> {
        let mut busy = self.busy.lock();
        busy.serving += 1;
        // Woken once for a burst: it goes on looking for as long as all serve.
        if busy.serving == self.acceptors && !std::mem::replace(&mut busy.watched, true) {
            drop(busy);
            self.all_serve.notify_one();
        }
        Serving(self)
    }

    /// The listening socket is shut: acceptors and the stand-in end with the backlog.
    pub(super) fn close(&self) {
        self.busy.lock().closing = true;
        self.all_serve.notify_one();
    }

    /// Whether nobody can connect any more.
    pub(super) fn is_closing(&self) -> bool {
        self.busy.lock().closing
    }

    /// Whether all have been in their calls since that many connections were served.
    fn all_serve_since(&self, served: usize) -> bool {
        let busy = self.busy.lock();
        busy.serving == self.acceptors && busy.served == served
    }

    /// Waits until all acceptors are stuck, and answers how many connections they have served by then. `None`: the server ends.
    fn wait_until_stuck(&self) -> Option<usize> {
        let mut busy = self.busy.lock();
        while !busy.closing {
            if busy.serving < self.acceptors {
                busy.watched = false;
                self.all_serve.wait(&mut busy);
                continue;
            }
            let served = busy.served;
            self.all_serve.wait_for(&mut busy, TAKES_LONG);
            if busy.serving == self.acceptors && busy.served - served < self.acceptors.max(2) {
                return Some(busy.served);
            }
        }
        // Acceptors that are stuck leave the backlog to the stand-in.
        (busy.serving == self.acceptors).then_some(busy.served)
    }
}

/// An acceptor serves a connection.
pub(super) struct Serving<'a>(&'a BusyAcceptors);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut busy = self.0.busy.lock();
        busy.serving -= 1;
        busy.served += 1;
    }
}

/// The thread that accepts while no acceptor can.
pub(super) struct StandIn {
    listener: Arc<UnixListener>,
    busy: Arc<BusyAcceptors>,
    others: UnboundedSender<HandedOver>,
}

impl StandIn {
    /// Accepts from `listener`, for `others` to serve.
    pub(super) fn new(
        listener: Arc<UnixListener>,
        busy: Arc<BusyAcceptors>,
        others: UnboundedSender<HandedOver>,
    ) -> StandIn {
        StandIn { listener, busy, others }
    }

    /// Looks after the acceptors until the server ends.
    pub(super) fn run(&self) {
        while let Some(served) = self.busy.wait_until_stuck() {
            // Until an acceptor has ended its call. Where all had no processor for a while that is at once, and the backlog is theirs: a
            // connection takes some 25 KiB of the server's memory.
            while self.busy.is_closing() || self.busy.all_serve_since(served) {
                // Asked before: nobody connects any more where the backlog is empty after that.
                let is_closing = self.busy.is_closing();
                match self.listener.accept().and_then(|(stream, _)| HandedOver::fresh(stream)) {
                    // Sending fails only when the server has ended, and then nobody is served.
                    Ok(connection) => drop(self.others.send(connection)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if is_closing {
                            return;
                        }
                        self.wait_for_a_connection();
                    }
                    Err(error) => {
                        warn!(%error, "a connection could not be accepted");
                        std::thread::sleep(AFTER_A_FAILURE);
                    }
                }
            }
        }
    }

    /// Waits for a connection, or until it is to be looked again whether an acceptor is free.
    fn wait_for_a_connection(&self) {
        let mut look = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut look, PollTimeout::try_from(TAKES_LONG).unwrap_or(PollTimeout::ZERO));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptors_are_stuck_when_all_serve_and_no_connection_is_done() {
        let busy = Arc::new(BusyAcceptors::new(2));
        let stuck = {
            let busy = Arc::clone(&busy);
            std::thread::spawn(move || busy.wait_until_stuck())
        };
        let one = busy.begin();
        std::thread::sleep(2 * TAKES_LONG);
        assert!(!stuck.is_finished() && !busy.all_serve_since(0), "one is free");
        let _other = busy.begin();
        assert!(stuck.join().unwrap() == Some(0) && busy.all_serve_since(0));
        drop(one);
        let _next = busy.begin();
        assert!(!busy.all_serve_since(0), "one has ended its call");
        busy.close();
        assert_eq!(
            busy.wait_until_stuck(),
            Some(1),
            "the acceptors that are stuck leave the rest to the stand-in"
        );
        drop(_next);
        assert_eq!(busy.wait_until_stuck(), None, "the acceptors see to the rest themselves");
    }
}
