//! The threads that accept connections, and that serve a connection themselves when nothing else is to be done.
//!
//! Waking another thread costs a call some 20 µs. So the thread that accepted a connection serves it and carries
//! its call out, if no call is at work. Meanwhile the other acceptor hands everything that comes to the server's
//! thread, so that a long call holds up nobody. There are just these two threads, and never two calls at once on
//! them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use axum::Router;
use fairlead_host::scheduling::prefer_this_thread;
use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use super::accepted::{HandedOver, Protocol};
use super::{HEAD_LIMIT, connection};
use crate::admission::{Admission, ArrivedCall, FinishedCall, Outcome};
use crate::call::CallerGone;

/// One acceptor may be busy with a call while the other goes on accepting.
const ACCEPTORS: usize = 2;

/// The pause after accept(2) fails, mostly for want of descriptors; connections stay in the backlog meanwhile.
const AFTER_A_FAILURE: Duration = Duration::from_millis(20);

/// The handle that ends the acceptors.
#[derive(Debug)]
pub(super) struct Acceptors(Arc<UnixListener>);

impl Acceptors {
    /// Begins to accept. What they don't serve themselves is handed to `others`.
    ///
    /// # Errors
    /// When a thread, or the runtime on it, can't be had.
    pub(super) fn begin(
        listener: UnixListener,
        admission: &Admission,
        router: &Router,
        others: &UnboundedSender<HandedOver>,
    ) -> io::Result<Acceptors> {
        let listener = Arc::new(listener);
        let busy = Arc::new(AtomicBool::new(false));
        for n in 0..ACCEPTORS {
            let acceptor = Acceptor {
                listener: Arc::clone(&listener),
                admission: admission.clone(),
                router: router.clone(),
                busy: Arc::clone(&busy),
                others: others.clone(),
                runtime: super::runtime()?,
            };
            Builder::new().name(format!("accept-{n}")).spawn(move || acceptor.run())?;
        }
        Ok(Acceptors(listener))
    }

    /// Shuts the listening socket; each acceptor ends when it has served the backlog.
    pub(super) fn close(&self) {
        if let Err(errno) = shutdown(self.0.as_raw_fd(), Shutdown::Read) {
            warn!(error = %errno, "the socket can't be shut; who connects now is cut off at the end");
        }
    }
}

struct Acceptor {
    listener: Arc<UnixListener>,
    admission: Admission,
    router: Router,
    /// True while one of the acceptors serves a connection.
    busy: Arc<AtomicBool>,
    others: UnboundedSender<HandedOver>,
    runtime: Runtime,
}

impl Acceptor {
    fn run(&self) {
        prefer_this_thread();
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.take(stream) {
                        warn!(%error, "a connection could not be served");
                    }
                }
                // The socket was shut, and its backlog is empty.
                Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => return,
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    std::thread::sleep(AFTER_A_FAILURE);
                }
            }
        }
    }

    fn take(&self, stream: UnixStream) -> io::Result<()> {
        // tokio takes the socket as it is: a blocking one would block its whole runtime.
        stream.set_nonblocking(true)?;
        // A connection whose request has not come yet is no call at work, hence `busy` too.
        if self.admission.is_quiet() && !self.busy.swap(true, Ordering::AcqRel) {
            let served = self.serve(stream);
            self.busy.store(false, Ordering::Release);
            return served;
        }
        // Sending fails only when the server has ended, and then nobody is served.
        let _ = self.others.send(HandedOver::fresh(stream));
        Ok(())
    }

    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        // A second descriptor, by which the engine sees a caller hang up while this thread is in the call.
        let inline = Inline::new(stream.try_clone()?.into(), self.admission.clone());
        self.runtime.block_on(async {
            let mut accepted = HandedOver::fresh(stream).here()?;
            let spoken = tokio::time::timeout(HEAD_LIMIT, accepted.protocol()).await;
            match spoken.map_err(|_| io::ErrorKind::TimedOut)?? {
                Protocol::Http1 => connection(accepted, self.router.clone(), Some(inline)).await,
                // Such a connection lives on after its call: this thread is not for that.
                Protocol::Http2 => drop(self.others.send(accepted.handed_over()?)),
            }
            Ok(())
        })
    }
}

/// Goes along with a request whose call may be carried out on the thread that serves its connection.
#[derive(Debug, Clone)]
pub(super) struct Inline {
    connection: Arc<OwnedFd>,
    admission: Admission,
    done: Arc<Mutex<Option<FinishedCall>>>,
}

impl Inline {
    fn new(connection: OwnedFd, admission: Admission) -> Inline {
        Inline { connection: Arc::new(connection), admission, done: Arc::default() }
    }

    /// Carries the call out; returns it where it would have to wait or keep this thread for long.
    pub(super) fn carry_out(&self, call: ArrivedCall, arrived: Instant) -> Result<Outcome, ArrivedCall> {
        let gone = CallerGone::Connection(Arc::clone(&self.connection));
        let (outcome, done) = self.admission.serve_here(call, arrived, gone)?;
        *self.done.lock() = Some(done);
        Ok(outcome)
    }

    /// Ends the call that was carried out on this thread, once its answer has left.
    pub(super) fn conclude(&self) {
        if let Some(done) = self.done.lock().take() {
            self.admission.conclude(&done);
        }
    }
}
