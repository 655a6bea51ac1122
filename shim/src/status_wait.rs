//! How long STATUS waits for an answer. A daemon that is at work is waited for as long as the caller waits; one that does
//! nothing is given up after a short time.

use crate::call_error::CallError;
use crate::daemon_process::{Activity, DaemonProcess, HungDaemon};
use crate::deadline::Deadline;
use crate::environment::{STATUS_OBSERVE_EVERY, STATUS_PATIENCE, STATUS_UNOBSERVED};

/// How long STATUS waits: a short time, and longer only while the daemon is seen at work.
///
/// A daemon that works sleeps now and then. Therefore it is observed several times before it is given up.
#[derive(Debug)]
pub(crate) struct StatusWait {
    whole: Deadline,
    end: Deadline,
    hung: Option<HungDaemon>,
    /// The time until which to wait for an answer before [`StatusWait::keep_waiting`] is asked again.
    pub(crate) until: Deadline,
}

impl StatusWait {
    /// Begins to wait now, and at most until `whole`.
    pub(crate) fn new(whole: Deadline) -> StatusWait {
        let end = whole.at_most(STATUS_PATIENCE);
        StatusWait { whole, end, hung: None, until: end.at_most(STATUS_UNOBSERVED) }
    }

    /// Decides whether to wait on when no answer has come by `until`. The answer may have come just before the process was
    /// observed. Therefore a daemon that seems to hang gets one more wait before that is the error. `late` is the error when
    /// it is at work and no time is left.
    pub(crate) fn keep_waiting(&mut self, process: DaemonProcess, late: CallError) -> Result<(), CallError> {
        if let Some(hung) = self.hung {
            return Err(CallError::Hung(hung));
        }
        match process.activity() {
            Activity::Working if self.whole.passed() => return Err(late),
            Activity::Working => {
                self.end = self.whole.at_most(STATUS_PATIENCE);
                self.until = self.end.at_most(STATUS_UNOBSERVED);
            }
            activity if self.end.passed() => self.hung = Some(HungDaemon { process, activity }),
            _ => self.until = self.end.at_most(STATUS_OBSERVE_EVERY),
        }
        Ok(())
    }
}
