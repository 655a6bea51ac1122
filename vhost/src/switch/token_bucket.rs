//! A token bucket without division: tokens are counted in thousandths, so that a rate per second is a rate per millisecond.
//!
//! Taking needs no exclusive access, so that the receivers of a flooded frame can be counted while they are named. One thread only.

use std::cell::Cell;

use super::Coarse;

/// A thousandth of a token is the unit that is counted.
const UNITS: u64 = 1_000;

/// So many things in a second, and so many at once.
#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    /// Tokens that are added in a second; at once, units that are added in a millisecond.
    rate: u64,
    /// The most units that it holds.
    capacity: u64,
    units: Cell<u64>,
    filled: Cell<Coarse>,
}

impl TokenBucket {
    /// A full bucket. `rate` is in tokens per second, `burst` in tokens.
    pub(super) fn new(rate: u64, burst: u64) -> TokenBucket {
        let capacity = burst.saturating_mul(UNITS);
        TokenBucket { rate, capacity, units: Cell::new(capacity), filled: Cell::new(Coarse(0)) }
    }

    /// A bucket of bits for a port's rate. It holds what is sent in 10 ms, and at least `largest` bytes, so that every frame fits.
    pub(super) fn of_bits(rate: u64, largest: usize) -> TokenBucket {
        TokenBucket::new(rate, (rate / 100).max(bits(largest)))
    }

    /// Takes `tokens` if they are there at `now`, else nothing.
    #[inline]
    pub(super) fn take(&self, tokens: u64, now: Coarse) -> bool {
        self.fill(now);
        let Some(left) = self.units.get().checked_sub(tokens.saturating_mul(UNITS)) else { return false };
        self.units.set(left);
        true
    }

    #[inline]
    fn fill(&self, now: Coarse) {
        let passed = now.0.saturating_sub(self.filled.get().0);
        if passed > 0 {
            let more = passed.saturating_mul(self.rate);
            self.units.set(self.units.get().saturating_add(more).min(self.capacity));
            self.filled.set(now);
        }
    }
}

/// Bytes as bits.
pub(super) fn bits(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate() {
        let bucket = TokenBucket::new(10_000, 2_000);
        let taken = |bucket: &TokenBucket, now| (0..50_000).filter(|_| bucket.take(1, Coarse(now))).count();
        assert_eq!(taken(&bucket, 0), 2_000);
        assert_eq!(taken(&bucket, 0), 0);
        assert_eq!(taken(&bucket, 1), 10);
        let in_a_second: usize = (2..1_002).map(|now| taken(&bucket, now)).sum();
        assert_eq!(in_a_second, 10_000);
        assert_eq!(taken(&bucket, 1_000_000), 2_000, "no more than the burst is ever saved");
    }

    #[test]
    fn nothing_is_taken_of_what_does_not_suffice_and_no_number_overflows() {
        let bucket = TokenBucket::new(u64::MAX, u64::MAX);
        assert!(bucket.take(1, Coarse(u64::MAX)));
        assert!(!TokenBucket::new(0, 5).take(6, Coarse(0)));
        let slow = TokenBucket::of_bits(8, 1_500);
        assert!(slow.take(bits(1_500), Coarse(0)), "a frame of the largest size passes at any rate");
        assert!(!slow.take(8, Coarse(999)));
        assert!(slow.take(8, Coarse(1_000)));
    }
}
