//! Drivers that reset a VF after each change of its settings, and answer EBUSY or EAGAIN to whatever is asked of it meanwhile,
//! through its PF or through its own interface (i40e, ice, iavf). That passes, and is waited out.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::NetError;
use fairlead_host::backoff::{Attempts, Backoff};
use nix::errno::Errno;

/// A VF that has not settled after this never will by itself.
pub const SETTLES: Duration = Duration::from_secs(10);
/// The pauses between two tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

/// Tries until the answer is another one than that the VF is still resetting, or `until` has come.
///
/// # Errors
/// Those of the last attempt.
pub fn patiently<T>(until: Instant, mut attempt: impl FnMut() -> Result<T, NetError>) -> Result<T, NetError> {
    let mut pauses = Pauses::until(until);
    loop {
        match attempt() {
            Err(e) if is_resetting(&e) && pauses.pause() => {}
            outcome => return outcome,
        }
    }
}

/// Whether something is refused because the VF is still resetting.
pub fn is_resetting(error: &NetError) -> bool {
    matches!(error.errno(), Some(Errno::EBUSY | Errno::EAGAIN | Errno::ENETDOWN))
}

/// Pauses that become longer, and end.
pub(crate) struct Pauses {
    attempts: Attempts,
    until: Instant,
}

impl Pauses {
    pub(crate) fn until(until: Instant) -> Pauses {
        Pauses { attempts: PAUSES.start(), until }
    }

    /// Waits; false where the end has come.
    pub(crate) fn pause(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        sleep(self.attempts.failed());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(errno: Errno) -> impl FnMut() -> Result<(), NetError> {
        let mut times = 0;
        move || {
            times += 1;
            if times < 3 { Err(NetError::Socket(errno.into())) } else { Ok(()) }
        }
    }

    #[test]
    fn only_what_passes_is_waited_out_and_not_for_ever() {
        let soon = Instant::now() + SETTLES;
        for errno in [Errno::EBUSY, Errno::EAGAIN, Errno::ENETDOWN] {
            patiently(soon, refuses(errno)).unwrap();
        }
        patiently(soon, refuses(Errno::EINVAL)).unwrap_err();
        patiently(Instant::now(), refuses(Errno::EBUSY)).unwrap_err();
    }
}
