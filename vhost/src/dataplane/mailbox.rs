//! Messages from thread to thread, for a receiver that may sleep in epoll.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::bell::Bell;
use crate::sync::mpsc::{self, Receiver, Sender};

/// How long one thread waits for another's answer. A round of the poll thread takes less than a millisecond.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The sender's side.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    sender: Sender<T>,
    bell: Arc<Bell>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    receiver: Receiver<T>,
    bell: Arc<Bell>,
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
    let bell = Arc::new(Bell::new()?);
    let (sender, receiver) = mpsc::channel();
    Ok((Mailbox { sender, bell: Arc::clone(&bell) }, Inbox { receiver, bell }))
}

impl<T> Mailbox<T> {
    /// Sends `message` and wakes the receiver.
    ///
    /// # Errors
    /// [`NoAnswer`] if there is no receiver any more.
    pub(super) fn send(&self, message: T) -> Result<(), NoAnswer> {
        self.sender.send(message).map_err(|_| NoAnswer)?;
        self.bell.ring();
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

    /// Rings when something may have come. To be hushed before [`Inbox::next`].
    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}
