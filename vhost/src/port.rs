//! What a port is, and what is told of it: the words that control socket, data plane and switch share.

use fairlead_host::Mac;
use serde::{Deserialize, Serialize};

/// What a port is to be. Nothing of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Unique among the ports of a data plane, 1 to 64 bytes.
    pub name: String,
    /// Ports of one network reach each other; no frame ever crosses from one network to another.
    pub network: String,
    /// The address that the guest is told to use.
    pub mac: Mac,
    /// An access port's VLAN (1 to 4094): the guest's frames carry no tag. Absent: frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The VLANs of a trunk port (1 to 4094): the guest's frames carry their tags. Empty: no trunk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trunk: Vec<u16>,
    /// Frames with another source than `mac` are dropped, in Ethernet, ARP and neighbour discovery.
    #[serde(default)]
    pub spoof_check: bool,
    /// Isolated ports do not reach each other.
    #[serde(default)]
    pub isolated: bool,
    /// Pairs of queues that the guest may use, 1 to 8.
    pub queues: u16,
    /// The largest payload of a frame in bytes, 68 to 9,216.
    pub mtu: u16,
    /// The most bits of frames in a second that the guest sends, at least 1,000; absent: as many as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_guest_bits: Option<u64>,
    /// The most bits of frames in a second that the guest gets, at least 1,000; absent: as many as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_guest_bits: Option<u64>,
}

/// Why a frame was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// Shorter than an Ethernet header, or longer than the port's MTU allows.
    Length,
    /// A source address that is not the port's, or a group address.
    Spoofed,
    /// A VLAN that the port has not.
    Vlan,
    /// More frames to unknown addresses or groups than a port may send in a second.
    Storm,
    /// The port that it is for has no free buffer, or is not connected.
    NoRoom,
    /// Sender and receiver are isolated, or are one port.
    Isolated,
    /// For a group address that no bridge forwards: 01:80:c2:00:00:00 to :0f (802.1Q, 8.6.3).
    Reserved,
    /// More bits than the port may send, or get, in a second.
    Rate,
}

impl DropReason {
    /// Every reason, in the order of their numbers (`reason as usize`).
    pub const ALL: [DropReason; 8] = [
        DropReason::Length,
        DropReason::Spoofed,
        DropReason::Vlan,
        DropReason::Storm,
        DropReason::NoRoom,
        DropReason::Isolated,
        DropReason::Reserved,
        DropReason::Rate,
    ];
}

/// How much went through a port since it was added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Frames that the guest sent and the switch took.
    pub from_guest_frames: u64,
    /// Bytes of those.
    pub from_guest_bytes: u64,
    /// Frames that were put into the guest's buffers.
    pub to_guest_frames: u64,
    /// Bytes of those.
    pub to_guest_bytes: u64,
    /// Frames of this guest (or, for `no-room`, to this guest) that were dropped.
    pub drops: std::collections::BTreeMap<DropReason, u64>,
}

/// A port as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// What it is to be.
    pub config: PortConfig,
    /// A guest has a connection, whether or not it has come to sharing its memory.
    pub has_connection: bool,
    /// A guest is connected and has shared its memory.
    pub connected: bool,
    /// The virtio features that were agreed on, as bits; 0 while none are.
    pub features: u64,
    /// Pairs of queues that are at work.
    pub active_queues: u16,
    /// What went through it.
    pub counters: PortCounters,
}

/// An address that a network's switch has learnt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacEntry {
    /// The network that it was learnt in.
    pub network: String,
    /// The VLAN; absent for frames without a tag.
    pub vlan: Option<u16>,
    /// The address.
    pub mac: Mac,
    /// The port behind which it is.
    pub port: String,
    /// Seconds since a frame came from it.
    pub age_s: u64,
}
