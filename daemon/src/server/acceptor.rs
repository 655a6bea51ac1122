//! The threads that accept connections, and that carry the usual calls out themselves.
//!
//! Waking another thread costs a call some 20 µs, and the general way of a request some 80. So the thread that accepted a connection
//! carries its call out and answers it (`direct_call`); what follows the answer waits for a pause (`answered_calls`). There are as many
//! acceptors as the fast lane has threads. What comes while all of them are in calls waits in the socket's backlog, in order; where
//! that takes long, another thread hands it to the server's (`stuck_acceptors`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use fairlead_host::scheduling::prefer_this_thread;
use fairlead_host::vital_thread;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use super::answered_calls::AnsweredCalls;
use super::direct_call::{self, Direct};
use super::protocol_detection::HandedOver;
use super::stuck_acceptors::{BusyAcceptors, StandIn};
use crate::admission::Admission;

/// The pause after accept(2) fails, mostly for want of descriptors; connections stay in the backlog meanwhile.
pub(super) const AFTER_A_FAILURE: Duration = Duration::from_millis(20);

/// What an acceptor is woken by.
const A_CONNECTION: u64 = 0;
const ANSWERED_CALLS: u64 = 1;

/// The handle that ends the acceptors.
#[derive(Debug)]
pub(super) struct Acceptors {
    listener: Arc<UnixListener>,
    busy: Arc<BusyAcceptors>,
}

impl Acceptors {
    /// Begins to accept. What they don't serve themselves is handed to `others`.
    ///
    /// # Errors
    /// When a thread can't be had.
    pub(super) fn begin(
        listener: UnixListener,
        admission: &Admission,
        others: &UnboundedSender<HandedOver>,
    ) -> io::Result<Acceptors> {
        // Of several acceptors that are woken, all but one come too late.
        listener.set_nonblocking(true)?;
        let listener = Arc::new(listener);
        let left = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let answered = Arc::<AnsweredCalls>::default();
        let busy = Arc::new(BusyAcceptors::new(admission.threads_here()));
        for n in 0..admission.threads_here() {
            let acceptor = Acceptor {
                events: events(&listener, &left)?,
                listener: Arc::clone(&listener),
                answered: Arc::clone(&answered),
                left: Arc::clone(&left),
                admission: admission.clone(),
                busy: Arc::clone(&busy),
                others: others.clone(),
            };
            vital_thread::begin(format!("accept-{n}"), move || acceptor.run())?;
        }
        let stand_in = StandIn::new(Arc::clone(&listener), Arc::clone(&busy), others.clone());
        vital_thread::begin("accept-stuck", move || stand_in.run())?;
        Ok(Acceptors { listener, busy })
    }

    /// Shuts the listening socket; each acceptor ends when it has served the backlog.
    pub(super) fn close(&self) {
        if let Err(errno) = shutdown(self.listener.as_raw_fd(), Shutdown::Read) {
            warn!(error = %errno, "the socket can't be shut; who connects now is cut off at the end");
        }
        // Only now: an acceptor that sees this and an empty backlog ends, and nobody can connect any more.
        self.busy.close();
    }
}

/// Tells one acceptor of each connection that comes, and of answered calls that are left: the first that waits.
fn events(listener: &UnixListener, left: &EventFd) -> io::Result<Epoll> {
    let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let to_one = |of| EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE, of);
    events.add(listener, to_one(A_CONNECTION))?;
    events.add(left, to_one(ANSWERED_CALLS))?;
    Ok(events)
}

struct Acceptor {
    events: Epoll,
    listener: Arc<UnixListener>,
    answered: Arc<AnsweredCalls>,
    /// Wakes another acceptor, which sees to `answered` while this one is in a call.
    left: Arc<EventFd>,
    admission: Admission,
    busy: Arc<BusyAcceptors>,
    others: UnboundedSender<HandedOver>,
}

impl Acceptor {
    fn run(&self) {
        prefer_this_thread();
        let mut room = Vec::new();
        loop {
            if !self.wait() {
                self.finish();
                continue;
            }
            self.work_off_line();
            // Asked before: nobody connects any more where the backlog is empty after that.
            let is_closing = self.busy.is_closing();
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.take(stream, &mut room) {
                        warn!(%error, "a connection could not be served");
                    }
                }
                // Another acceptor has it; or the socket was shut, and its backlog is empty.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if is_closing {
                        break;
                    }
                }
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    // It may be for want of descriptors, and some are kept.
                    self.finish();
                    std::thread::sleep(AFTER_A_FAILURE);
                }
            }
        }
        while let Some(due) = self.answered.due_after() {
            std::thread::sleep(due);
            self.answered.finish(&self.admission);
        }
    }

    /// Carries out what waits in a short line, which has come before what is in the backlog. A call that is accepted while others wait
    /// must go in line behind them, and so would all of a burst after it, each with a connection of the server's. A long line is left to
    /// its own threads: there may be questions in the backlog, which are answered at once.
    fn work_off_line(&self) {
        while self.admission.has_short_line() {
            let _busy = self.busy.begin();
            self.have_answered_watched();
            self.admission.serve_first_in_line();
        }
    }

    /// The call that comes now may take long: another acceptor sees to what was answered. It fails only where that one has been woken
    /// often enough.
    fn have_answered_watched(&self) {
        if self.answered.is_watched_by_nobody() {
            let _ = self.left.write(1);
        }
    }

    /// Waits for a connection. False: none has come for a while, and answered calls are to be finished.
    fn wait(&self) -> bool {
        let watch = self.answered.watch();
        // Rounded up to milliseconds, or it would not be due yet.
        let due = watch.due().map(|due| due + Duration::from_micros(999));
        let due = due.and_then(|due| EpollTimeout::try_from(due).ok()).unwrap_or(EpollTimeout::NONE);
        let mut found = [EpollEvent::empty()];
        // An error is a signal's: accept(2) tells whether there is a connection.
        let woken = self.events.wait(&mut found, due).map_or(true, |found| found > 0);
        if woken && found[0].data() == ANSWERED_CALLS {
            // Nothing is to be read where another acceptor was as quick.
            let _ = self.left.read();
        }
        woken
    }

    /// Does what is left of answered calls. It can take long, as a call can: a log that nobody reads.
    fn finish(&self) {
        let _busy = self.busy.begin();
        self.answered.finish(&self.admission);
    }

    fn take(&self, stream: UnixStream, room: &mut Vec<u8>) -> io::Result<()> {
        let _busy = self.busy.begin();
        if !self.answered.has_room() {
            self.answered.finish(&self.admission);
        }
        self.have_answered_watched();
        // By this descriptor the engine sees a caller hang up while this thread is in the call.
        let connection = Arc::new(OwnedFd::from(stream));
        match direct_call::serve(&connection, &self.admission, &self.answered, room) {
            Direct::Answered(call) => self.answered.push(call),
            Direct::Other(other) => {
                // What the daemon tells of itself has what was answered before.
                self.answered.finish(&self.admission);
                // Nobody else has it: the call that it was for, if there was one, was given back.
                let connection = Arc::into_inner(connection).ok_or(io::ErrorKind::ResourceBusy)?;
                let stream = UnixStream::from(connection);
                // Sending fails only when the server has ended, and then nobody is served.
                let _ = self.others.send(HandedOver::begun(stream, other.read, other.call)?);
            }
        }
        Ok(())
    }
}
