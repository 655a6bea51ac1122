//! Messages from thread to thread, for a receiver that may sleep in epoll.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// How long one thread waits for another's answer. A round of the poll thread takes less than a millisecond.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The sender's side.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    sender: Sender<T>,
    bell: Arc<EventFd>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

/// The receiver's side. Its file descriptor is readable when something may have come.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    receiver: Receiver<T>,
    bell: Arc<EventFd>,
}

/// The other thread is gone, or did not answer within [`ANSWER_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the data plane does not answer")]
pub(super) struct NoAnswer;

/// A new pair.
///
/// # Errors
/// No eventfd is to be had.
pub(super) fn mailbox<T>() -> Result<(Mailbox<T>, Inbox<T>), nix::Error> {
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
    let (sender, receiver) = mpsc::channel();
    Ok((Mailbox { sender, bell: Arc::clone(&bell) }, Inbox { receiver, bell }))
}

impl<T> Mailbox<T> {
    /// What wakes the receiver.
    pub(super) fn bell(&self) -> &Arc<EventFd> {
        &self.bell
    }

    /// Sends `message` and wakes the receiver.
    ///
    /// # Errors
    /// [`NoAnswer`] if there is no receiver any more.
    pub(super) fn send(&self, message: T) -> Result<(), NoAnswer> {
        self.sender.send(message).map_err(|_| NoAnswer)?;
        // A full counter wakes as well.
        let _ = self.bell.write(1);
        Ok(())
    }

    /// Sends the message that `make` makes of a sender for the answer, and waits for that.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) fn ask<A>(&self, make: impl FnOnce(Sender<A>) -> T) -> Result<A, NoAnswer> {
        self.ask_while(make, ANSWER_LIMIT, || ())
    }

    /// The same, and does something as often as `pause` passes without an answer.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) fn ask_while<A>(
        &self,
        make: impl FnOnce(Sender<A>) -> T,
        pause: Duration,
        meanwhile: impl Fn(),
    ) -> Result<A, NoAnswer> {
        self.ask_for(make)?.wait_while(pause, meanwhile)
    }

    /// Sends the message that `make` makes of a sender for the answer, which is waited for later.
    ///
    /// # Errors
    /// [`NoAnswer`] if there is no receiver any more.
    pub(super) fn ask_for<A>(&self, make: impl FnOnce(Sender<A>) -> T) -> Result<Awaited<A>, NoAnswer> {
        let (sender, receiver) = mpsc::channel();
        self.send(make(sender))?;
        Ok(Awaited(receiver))
    }
}

/// An answer that was asked for.
#[derive(Debug)]
pub(super) struct Awaited<A>(Receiver<A>);

impl<A> Awaited<A> {
    /// The answer. Does something as often as `pause` passes without one.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) fn wait_while(self, pause: Duration, meanwhile: impl Fn()) -> Result<A, NoAnswer> {
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            match self.0.recv_timeout(pause) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => meanwhile(),
                Err(_) => return Err(NoAnswer),
            }
        }
    }
}

impl<T> Inbox<T> {
    /// The next message, if there is one. `Err` if no sender is left.
    pub(super) fn next(&self) -> Result<Option<T>, NoAnswer> {
        match self.receiver.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(NoAnswer),
        }
    }

    /// Makes the file descriptor unreadable until something comes. To be called before [`Inbox::next`].
    pub(super) fn hush(&self) {
        let _ = self.bell.read();
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
