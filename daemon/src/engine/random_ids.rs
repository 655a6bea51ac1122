//! Random numbers for indexes, MAC addresses and names: unlikely to meet, and not to be guessed from others of them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers.
#[derive(Debug, Default)]
pub(crate) struct RandomIds {
    state: RandomState,
    count: AtomicU64,
}

impl RandomIds {
    /// 64 bits: a keyed hash of a counter.
    pub(crate) fn next(&self) -> u64 {
        let mut hasher = self.state.build_hasher();
        // That no count comes twice is all that matters; nothing is ordered by it.
        hasher.write_u64(self.count.fetch_add(1, Ordering::Relaxed));
        hasher.finish()
    }

    /// A name for a link that is on its way out of a pod: of 15 bytes at most, as any, and with 52 random bits.
    pub(crate) fn parked_name(&self) -> String {
        format!("fl{:x}", self.next() & 0xf_ffff_ffff_ffff)
    }

    /// An index for a new link, far above those that the kernel gives by itself.
    pub(crate) fn index(&self) -> u32 {
        const BASE: u32 = 1 << 20;
        // An index is a signed 32-bit number in the kernel.
        const SPAN: u32 = (1 << 30) - BASE;
        BASE + u32::try_from(self.next() % u64::from(SPAN)).unwrap_or(0)
    }
}
