//! Drivers that reset a VF after each change of its settings, and answer EBUSY or EAGAIN to whatever is asked of it
//! meanwhile, by its PF or by its own interface (i40e, ice, iavf). That passes: it is waited out.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::NetError;
use nix::errno::Errno;

/// A VF that has not settled after this never will by itself.
pub const SETTLES: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Tries until the answer is another one than that the VF is still resetting, or `until` has come.
pub fn patiently<T>(until: Instant, mut attempt: impl FnMut() -> Result<T, NetError>) -> Result<T, NetError> {
    let mut pauses = Pauses::until(until);
    loop {
        match attempt() {
            Err(e) if is_resetting(&e) && pauses.pause() => {}
            outcome => return outcome,
        }
    }
}

/// Whether it is refused because the VF is still resetting.
pub fn is_resetting(error: &NetError) -> bool {
    matches!(error.errno(), Some(Errno::EBUSY | Errno::EAGAIN | Errno::ENETDOWN))
}

/// Pauses that become longer, and end.
pub(crate) struct Pauses {
    next: Duration,
    until: Instant,
}

impl Pauses {
    pub(crate) fn until(until: Instant) -> Pauses {
        Pauses { next: FIRST_PAUSE, until }
    }

    /// Waits; false where the end has come.
    pub(crate) fn pause(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        sleep(self.next);
        self.next = (self.next * 2).min(LONGEST_PAUSE);
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
