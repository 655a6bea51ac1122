//! Pseudo-random numbers that can be repeated: SplitMix64 from a printed seed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    /// Takes the seed from `FAIRLEAD_SEED`, or else from the clock, and prints it.
    pub(crate) fn new(test: &str) -> SeededRandom {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.subsec_nanos().into());
        let given = std::env::var("FAIRLEAD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(clock);
        eprintln!("{test}: FAIRLEAD_SEED={seed}");
        SeededRandom(seed)
    }

    /// Makes another generator, for a thread.
    pub(crate) fn fork(&mut self) -> SeededRandom {
        SeededRandom(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn micros(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit))
    }
}
