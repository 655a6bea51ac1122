//! What a port offers to its guest.

use vhost::vhost_user::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};

use crate::offload::Offloads;
use crate::ring::RingFeatures;

/// VIRTIO_NET_F_CSUM: the guest may leave sums out of frames that it sends.
const NET_CSUM: u64 = 1;
/// VIRTIO_NET_F_GUEST_CSUM: it may get frames without sums.
const NET_GUEST_CSUM: u64 = 1 << 1;
/// VIRTIO_NET_F_MTU: the guest is told the MTU.
const NET_MTU: u64 = 1 << 3;
/// VIRTIO_NET_F_GUEST_TSO4: it may get TCP over IPv4 that is not cut into segments.
const NET_GUEST_TSO4: u64 = 1 << 7;
/// VIRTIO_NET_F_GUEST_TSO6: the same over IPv6.
const NET_GUEST_TSO6: u64 = 1 << 8;
/// VIRTIO_NET_F_GUEST_ECN: the same with congestion notification.
const NET_GUEST_ECN: u64 = 1 << 9;
/// VIRTIO_NET_F_HOST_TSO4: it may send such frames over IPv4.
const NET_HOST_TSO4: u64 = 1 << 11;
/// VIRTIO_NET_F_HOST_TSO6: the same over IPv6.
const NET_HOST_TSO6: u64 = 1 << 12;
/// VIRTIO_NET_F_HOST_ECN: the same with congestion notification.
const NET_HOST_ECN: u64 = 1 << 13;
/// VIRTIO_NET_F_MRG_RXBUF: a frame may fill several buffers.
pub(super) const NET_MRG_RXBUF: u64 = 1 << 15;
/// VIRTIO_NET_F_CTRL_VQ: there is a queue for commands. It is the frontend's own, and no ring of ours.
const NET_CTRL_VQ: u64 = 1 << 17;
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

/// VHOST_USER_PROTOCOL_F_MQ: GET_QUEUE_NUM is answered.
const MQ: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ;

/// All that a guest may leave to us, and that may be left to it.
const OFFLOADS: u64 = NET_CSUM
    | NET_GUEST_CSUM
    | NET_GUEST_TSO4
    | NET_GUEST_TSO6
    | NET_GUEST_ECN
    | NET_HOST_TSO4
    | NET_HOST_TSO6
    | NET_HOST_ECN;

/// What is offered on one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Pairs of queues, 1 to 8.
    pub(crate) queues: u16,
    /// The largest payload of a frame in bytes.
    pub(crate) mtu: u16,
}

impl Offer {
    /// The virtio features (GET_FEATURES).
    pub(crate) fn features(&self) -> u64 {
        let always =
            NET_MTU | NET_MRG_RXBUF | RING_INDIRECT | RING_EVENT_IDX | VERSION_1 | IN_ORDER | OFFLOADS;
        // Cloud Hypervisor offers its guest what we offer, and Linux takes no interface that has the one without the other (5.1.3.1).
        let several = if self.queues > 1 { NET_MQ | NET_CTRL_VQ } else { 0 };
        always | several | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// The features of the protocol (GET_PROTOCOL_FEATURES).
    pub(crate) fn protocol_features(&self) -> VhostUserProtocolFeatures {
        // With MQ a frontend asks for the number of queues. Ours is one of pairs, as QEMU and DPDK have it; Cloud Hypervisor takes it for one
        // of rings, of which it has at least two. Without MQ each of them takes it that there is one pair.
        let several = if self.queues > 1 { MQ } else { VhostUserProtocolFeatures::empty() };
        several
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MTU
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    /// Those that a frontend may agree on. One that connects again may do so on what an earlier release offered, without asking anew: MQ
    /// for one pair as well.
    pub(super) fn known_protocol_features(&self) -> VhostUserProtocolFeatures {
        self.protocol_features() | MQ
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
        sends: offloads(features, NET_CSUM, NET_HOST_TSO4, NET_HOST_TSO6, NET_HOST_ECN),
        gets: offloads(features, NET_GUEST_CSUM, NET_GUEST_TSO4, NET_GUEST_TSO6, NET_GUEST_ECN),
    }
}

/// What was taken of these. What needs a feature that was not taken counts as not taken either (virtio 1.2, 5.1.3.1): Linux takes all that
/// it knows, also where QEMU was told to offer segments without checksums.
fn offloads(features: u64, checksum: u64, tcp_v4: u64, tcp_v6: u64, ecn: u64) -> Offloads {
    let has = |feature| features & feature != 0 && features & checksum != 0;
    Offloads { checksum: has(checksum), tcp_v4: has(tcp_v4), tcp_v6: has(tcp_v6), ecn: has(ecn) }
}

/// True if rings begin disabled, and SET_VRING_ENABLE enables them.
pub(super) fn enables_rings(features: u64) -> bool {
    features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_agreed_on_is_told_for_each_direction() {
        let none = ring_features(VERSION_1);
        assert_eq!((none.sends, none.gets), (Offloads::NONE, Offloads::NONE));
        let sends = NET_CSUM | NET_HOST_TSO4 | NET_HOST_TSO6 | NET_HOST_ECN;
        let gets = NET_GUEST_CSUM | NET_GUEST_TSO4 | NET_GUEST_TSO6 | NET_GUEST_ECN;
        assert_eq!(sends | gets, OFFLOADS);
        let features = ring_features(VERSION_1 | sends);
        assert_eq!((features.sends, features.gets), (Offloads::ALL, Offloads::NONE));
        let features = ring_features(VERSION_1 | gets);
        assert_eq!((features.sends, features.gets), (Offloads::NONE, Offloads::ALL));
        let some = ring_features(NET_CSUM | NET_HOST_TSO6 | NET_GUEST_CSUM | NET_GUEST_TSO4);
        let sums = Offloads { checksum: true, ..Offloads::NONE };
        assert_eq!(some.sends, Offloads { tcp_v6: true, ..sums });
        assert_eq!(some.gets, Offloads { tcp_v4: true, ..sums });
    }

    #[test]
    fn one_pair_is_offered_without_mq_and_several_with_the_queue_for_commands_that_mq_needs() {
        for queues in 1..=8 {
            let offer = Offer { queues, mtu: 1500 };
            let several = if queues > 1 { NET_MQ | NET_CTRL_VQ } else { 0 };
            assert_eq!(offer.features() & (NET_MQ | NET_CTRL_VQ), several, "{queues}");
            let has_mq = offer.protocol_features().contains(MQ);
            assert_eq!(has_mq, queues > 1, "{queues}");
        }
    }

    #[test]
    fn segments_without_checksums_count_as_not_agreed_on() {
        let features = ring_features(OFFLOADS & !(NET_CSUM | NET_GUEST_CSUM));
        assert_eq!((features.sends, features.gets), (Offloads::NONE, Offloads::NONE));
    }
}
