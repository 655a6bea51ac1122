//! Drivers are asked by threads of their own, and waited for no longer than a limit. What they were asked to do and have not
//! ended, though nobody waits any more, is known here: it keeps its thread, and nothing can end it. So it can
//! at least be told, and nothing more is asked of its device: that would hang too, and keep another thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// All that is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Hung(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    next: u64,
    work: BTreeMap<u64, Work>,
}

#[derive(Debug)]
struct Work {
    device: String,
    what: String,
    begun: Instant,
    limit: Duration,
}

/// Is held by the thread that does the work, for as long as that lasts.
#[derive(Debug)]
pub(super) struct Turn {
    hung: Hung,
    number: u64,
}

impl Hung {
    /// Has a thread do `work` at a device, and waits for it no longer than the limit. The thread begins in the network namespace
    /// of the calling one.
    pub(super) fn within<T: Send + 'static>(
        &self,
        device: &str,
        what: String,
        limit: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (told, outcome) = channel();
        let turn = self.begin(device, what, limit)?;
        thread::Builder::new().name("device".to_owned()).spawn(move || {
            let done = work();
            drop(turn);
            drop(told.send(done)); // nobody waits any more where the limit has passed
        })?;
        match outcome.recv_timeout(limit) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the driver did not end within {} s", limit.as_secs_f32()),
            )),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that did it ended")),
        }
    }

    /// `what` begins, and should end within `limit`. Refused while something that was asked of the device before hangs.
    pub(super) fn begin(&self, device: &str, what: String, limit: Duration) -> io::Result<Turn> {
        let mut under_way = self.lock();
        if let Some(hangs) = under_way.work.values().find(|work| work.device == device && work.is_late()) {
            let seconds = hangs.begun.elapsed().as_secs();
            let why = format!("still hanging since {seconds} s: {}; only a reboot may end it", hangs.what);
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let number = under_way.next;
        under_way.next += 1;
        let work = Work { device: device.to_owned(), what, begun: Instant::now(), limit };
        under_way.work.insert(number, work);
        Ok(Turn { hung: self.clone(), number })
    }

    /// What has not ended within its limit, and since when.
    pub(super) fn told(&self) -> Vec<String> {
        let told = |work: &Work| format!("{}: since {} s", work.what, work.begun.elapsed().as_secs());
        self.lock().work.values().filter(|work| work.is_late()).map(told).collect()
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn is_late(&self) -> bool {
        self.begun.elapsed() > self.limit
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.hung.lock().work.remove(&self.number);
    }
}
