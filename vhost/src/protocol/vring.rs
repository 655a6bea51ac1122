//! What a frontend has said of one ring.

use std::sync::Arc;

use crate::memory::GuestMemory;
use crate::ring::{GuestEvent, RingFeatures, RingPlace, SplitRing};

/// One ring, as far as it is set up.
#[derive(Debug, Default)]
pub(super) struct Vring {
    /// SET_VRING_NUM.
    pub(super) size: Option<u16>,
    /// SET_VRING_ADDR: descriptors, available, used.
    pub(super) addresses: Option<(u64, u64, u64)>,
    /// SET_VRING_BASE; and where the ring stood when it was stopped.
    pub(super) position: u16,
    /// SET_VRING_KICK: the ring is to run.
    pub(super) kick: Option<Arc<GuestEvent>>,
    /// SET_VRING_CALL.
    pub(super) call: Option<Arc<GuestEvent>>,
    /// SET_VRING_ENABLE.
    pub(super) enabled: bool,
    /// It is at work on the poll thread.
    pub(super) running: bool,
}

impl Vring {
    /// True if the frontend has said all that is needed to run it.
    pub(super) fn is_complete(&self) -> bool {
        self.size.is_some() && self.addresses.is_some() && self.kick.is_some()
    }

    /// The ring, if it is complete and lies in `memory`.
    pub(super) fn ring(&self, memory: &Arc<GuestMemory>, features: RingFeatures) -> Option<SplitRing> {
        let (descriptors, available, used) = self.addresses?;
        let place = RingPlace { size: self.size?, descriptors, available, used };
        SplitRing::new(memory, place, features, self.call.clone())
    }
}
