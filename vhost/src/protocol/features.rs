//! What a port offers to its guest.

use vhost::vhost_user::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};

use crate::ring::RingFeatures;

/// VIRTIO_NET_F_MTU: the guest is told the MTU.
const NET_MTU: u64 = 1 << 3;
/// VIRTIO_NET_F_MRG_RXBUF: a frame may fill several buffers.
pub(super) const NET_MRG_RXBUF: u64 = 1 << 15;
/// VIRTIO_NET_F_MQ: several pairs of queues.
const NET_MQ: u64 = 1 << 22;
/// VIRTIO_F_INDIRECT_DESC.
const RING_INDIRECT: u64 = 1 << 28;
/// VIRTIO_F_EVENT_IDX.
const RING_EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_IN_ORDER.
const IN_ORDER: u64 = 1 << 35;

/// What is offered on one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Pairs of queues, 1 to 8.
    pub(crate) queues: u16,
}

impl Offer {
    /// The virtio features (GET_FEATURES).
    pub(crate) fn features(&self) -> u64 {
        let always = NET_MTU | NET_MRG_RXBUF | RING_INDIRECT | RING_EVENT_IDX | VERSION_1 | IN_ORDER;
        let several = if self.queues > 1 { NET_MQ } else { 0 };
        always | several | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// The features of the protocol (GET_PROTOCOL_FEATURES).
    pub(crate) fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MTU
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    /// How many rings the port has: two for each pair.
    pub(crate) fn rings(&self) -> usize {
        2 * usize::from(self.queues)
    }
}

/// What `features`, as agreed on, mean for a ring.
pub(super) fn ring_features(features: u64) -> RingFeatures {
    let mergeable = features & NET_MRG_RXBUF != 0;
    RingFeatures {
        event_idx: features & RING_EVENT_IDX != 0,
        indirect: features & RING_INDIRECT != 0,
        mergeable,
        // 5.1.6.1: a legacy device without mergeable buffers has no `num_buffers`.
        header: if mergeable || features & VERSION_1 != 0 { 12 } else { 10 },
    }
}

/// True if rings begin disabled, and SET_VRING_ENABLE enables them.
pub(super) fn enables_rings(features: u64) -> bool {
    features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0
}
