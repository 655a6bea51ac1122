//! Work that may never end: a driver that hangs, a file system that does not answer.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Has a thread of this name do `work`, and waits for it no longer than the limit. `None`: it goes on without being waited for.
/// The thread begins in the network namespace of the calling one.
///
/// # Errors
/// Where there is no thread to be had, and where the thread ended by a panic.
pub fn within<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (sender, outcome) = channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        drop(sender.send(work())); // nobody waits any more where the limit has passed
    })?;
    // A thread inside the kernel cannot be ended from outside: it is left there.
    match outcome.recv_timeout(limit) {
        Ok(done) => Ok(Some(done)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that did it ended")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_time_is_answered_what_does_not_goes_on_and_a_panic_is_told() {
        let second = Duration::from_secs(1);
        assert_eq!(within("work", 20 * second, || 7).unwrap(), Some(7));
        let (begun, go) = channel();
        let (ended, end) = channel();
        let waits = move || {
            begun.send(()).unwrap();
            end.recv().unwrap_or(())
        };
        assert!(within("work", second / 50, waits).unwrap().is_none());
        go.recv().unwrap();
        ended.send(()).unwrap();
        within("work", 20 * second, || panic!("as a test of it")).unwrap_err();
    }
}
