//! Calls into drivers, each on a thread of its own and waited for no longer than a limit.
//!
//! A broken driver never returns from a write to sysfs or an open of a node. Such a call keeps its thread, and nothing can end it. So
//! it is remembered here as stuck: a person can read of it, and nothing more is done with its device meanwhile, since that would
//! hang too and keep another thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::time_limit::within;

/// All calls that have not returned.
#[derive(Debug, Clone, Default)]
pub(super) struct DriverCalls(Arc<Mutex<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    running: BTreeMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    device: String,
    what: String,
    begun: Instant,
    limit: Duration,
}

/// A call that has not returned; held by the thread that makes it.
#[derive(Debug)]
pub(super) struct RunningCall {
    calls: DriverCalls,
    number: u64,
}

impl DriverCalls {
    /// Has a thread do `work` at a device, and waits for it no longer than the limit. The thread begins in the network namespace
    /// of the calling one.
    pub(super) fn run<T: Send + 'static>(
        &self,
        device: &str,
        what: String,
        limit: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let running = self.begin(device, what, limit)?;
        // Where the kernel gives no thread, the record goes with the closure that holds `running`. Where the limit passes, it stays.
        let done = within("device", limit, move || {
            let done = work();
            // Before the answer: the caller's next call to this device must not find this one still running.
            drop(running);
            done
        })?;
        done.unwrap_or_else(|| {
            let text = format!("the driver did not end within {} s", limit.as_secs_f32());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }

    /// Records that the call `what` begins and should return within `limit`. Refused while an earlier call to the device is stuck.
    pub(super) fn begin(&self, device: &str, what: String, limit: Duration) -> io::Result<RunningCall> {
        let mut calls = self.0.lock();
        // Only a late call refuses another: two that are in time may overlap at one device.
        if let Some(stuck) = calls.running.values().find(|call| call.device == device && call.is_late()) {
            let seconds = stuck.begun.elapsed().as_secs();
            let why = format!("still hanging since {seconds} s: {}; only a reboot may end it", stuck.what);
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let number = calls.next;
        calls.next += 1;
        let call = Call { device: device.to_owned(), what, begun: Instant::now(), limit };
        calls.running.insert(number, call);
        Ok(RunningCall { calls: self.clone(), number })
    }

    /// The calls that have not returned within their limit, and since when, in words for a person.
    pub(super) fn stuck(&self) -> Vec<String> {
        let describe = |call: &Call| format!("{}: since {} s", call.what, call.begun.elapsed().as_secs());
        self.0.lock().running.values().filter(|call| call.is_late()).map(describe).collect()
    }
}

impl Call {
    fn is_late(&self) -> bool {
        self.begun.elapsed() > self.limit
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.calls.0.lock().running.remove(&self.number);
    }
}
