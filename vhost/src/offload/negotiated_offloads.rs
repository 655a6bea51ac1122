//! Which work a guest and its port have agreed on, in one direction.

use super::TcpFrame;
use super::tcp_segmentation::IpVersion;

/// What a sender may leave to the device, or what may be left to a receiver. All of it needs `checksum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offloads {
    /// VIRTIO_NET_F_CSUM, or VIRTIO_NET_F_GUEST_CSUM.
    pub(crate) checksum: bool,
    /// VIRTIO_NET_F_HOST_TSO4, or VIRTIO_NET_F_GUEST_TSO4.
    pub(crate) tcp_v4: bool,
    /// VIRTIO_NET_F_HOST_TSO6, or VIRTIO_NET_F_GUEST_TSO6.
    pub(crate) tcp_v6: bool,
    /// VIRTIO_NET_F_HOST_ECN, or VIRTIO_NET_F_GUEST_ECN.
    pub(crate) ecn: bool,
}

impl Offloads {
    /// Nothing was agreed on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) const NONE: Offloads = Offloads { checksum: false, tcp_v4: false, tcp_v6: false, ecn: false };
    /// All that there is was agreed on.
    pub(crate) const ALL: Offloads = Offloads { checksum: true, tcp_v4: true, tcp_v6: true, ecn: true };

    /// Whether frames like this one may be left to be cut.
    pub(super) fn has(self, tcp: &TcpFrame) -> bool {
        let version = match tcp.version() {
            IpVersion::V4 => self.tcp_v4,
            IpVersion::V6 => self.tcp_v6,
        };
        self.checksum && version && (self.ecn || !tcp.has_ecn())
    }
}
