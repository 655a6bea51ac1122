//! Times that the executable and every daemon of one boot can compare, wherever they were noted.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A time of `CLOCK_MONOTONIC`, in nanoseconds: no setting of the machine's clock moves it. It means nothing in another boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Now; `None` where the kernel does not tell it.
    pub fn now() -> Option<BootTime> {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
        u64::try_from(now.as_nanos()).ok().map(BootTime)
    }

    /// An instant, or shortly before it.
    pub fn of(instant: Instant) -> Option<BootTime> {
        let BootTime(now) = BootTime::now()?;
        let age = u64::try_from(instant.elapsed().as_nanos()).ok()?;
        now.checked_sub(age).map(BootTime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_has_its_place_among_the_times_of_the_boot() {
        let before = BootTime::now().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let instant = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        let of = BootTime::of(instant).unwrap();
        assert!(before < of && of < BootTime::now().unwrap(), "{before:?} {of:?}");
    }
}
