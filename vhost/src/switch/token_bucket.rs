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
    capacity: i64,
    /// Below zero: so many are owed.
    units: Cell<i64>,
    filled: Cell<Coarse>,
}

impl TokenBucket {
    /// A full bucket. `rate` is in tokens per second, `burst` in tokens.
    pub(super) fn new(rate: u64, burst: u64) -> TokenBucket {
        let capacity = signed(burst.saturating_mul(UNITS));
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
        let wanted = signed(tokens.saturating_mul(UNITS));
        self.take_if(wanted, wanted)
    }

    /// The same, and what a full bucket does not hold is owed: nothing more is taken before that has come in. So a frame that comes at once
    /// and is longer than a burst is not kept out for ever, and counts as it would in pieces.
    fn take_owing(&self, tokens: u64, now: Coarse) -> bool {
        self.fill(now);
        let wanted = signed(tokens.saturating_mul(UNITS));
        self.take_if(wanted.min(self.capacity), wanted)
    }

    #[inline]
    fn take_if(&self, needed: i64, wanted: i64) -> bool {
        let units = self.units.get();
        if units < needed {
            return false;
        }
        self.units.set(units.saturating_sub(wanted));
        true
    }

    /// Takes the bits of a frame of so many bytes, in all its segments.
    #[inline]
    pub(super) fn take_bits(&self, bytes: usize, segments: u16, now: Coarse) -> bool {
        if segments == 1 { self.take(bits(bytes), now) } else { self.take_owing(bits(bytes), now) }
    }

    #[inline]
    fn fill(&self, now: Coarse) {
        let passed = now.0.saturating_sub(self.filled.get().0);
        if passed > 0 {
            let more = signed(passed.saturating_mul(self.rate));
            self.units.set(self.units.get().saturating_add(more).min(self.capacity));
            self.filled.set(now);
        }
    }
}

/// A number of units; more than fit are as many as fit.
#[inline]
fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

/// Bytes as bits.
fn bits(bytes: usize) -> u64 {
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

    #[test]
    fn a_long_frame_passes_a_full_bucket_and_holds_up_what_follows_until_its_bits_have_come_in() {
        let bucket = TokenBucket::of_bits(8_000, 1_500);
        assert!(bucket.take_bits(60_000, 40, Coarse(0)));
        let owed = "1,000 bytes come in each second, and 58,500 are owed";
        assert!(!bucket.take_bits(1_000, 1, Coarse(59_499)), "{owed}");
        assert!(bucket.take_bits(1_000, 1, Coarse(59_500)));
        assert!(!bucket.take_bits(60_000, 40, Coarse(60_999)), "the bucket is not full");
        assert!(bucket.take_bits(60_000, 40, Coarse(61_000)));
    }
}
