//! What a port is, and what is told of it: the words that control socket, data plane and switch share.

use std::collections::BTreeMap;

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
    /// From an uplink, to an address that no port of the network has.
    Unknown,
    /// A virtio header that does not agree with its frame, or asks for what was not agreed on.
    Offload,
    /// The link from the sender's thread to the receiver's thread has no room.
    LinkFull,
    /// Sent by a queue that the guest's frontend has disabled.
    Disabled,
}

/// The reason, beside those of [`DropReason`], of frames from the wire that came when the kernel had no room for them
/// ([`UplinkView::lost_frames`]).
pub const LOST: &str = "lost";

impl DropReason {
    /// Every reason, in the order of their numbers (`reason as usize`).
    pub const ALL: [DropReason; 12] = [
        DropReason::Length,
        DropReason::Spoofed,
        DropReason::Vlan,
        DropReason::Storm,
        DropReason::NoRoom,
        DropReason::Isolated,
        DropReason::Reserved,
        DropReason::Rate,
        DropReason::Unknown,
        DropReason::Offload,
        DropReason::LinkFull,
        DropReason::Disabled,
    ];

    /// Those for which a frame that a guest sent can be dropped.
    pub const FROM_GUEST: [DropReason; 9] = [
        DropReason::Length,
        DropReason::Spoofed,
        DropReason::Vlan,
        DropReason::Storm,
        DropReason::Isolated,
        DropReason::Reserved,
        DropReason::Rate,
        DropReason::Offload,
        DropReason::Disabled,
    ];

    /// Those for which a guest does not get a frame that is for it.
    pub const TO_GUEST: [DropReason; 4] =
        [DropReason::Length, DropReason::NoRoom, DropReason::Rate, DropReason::LinkFull];

    /// The reason as it is written, in JSON too.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::Length => "length",
            DropReason::Spoofed => "spoofed",
            DropReason::Vlan => "vlan",
            DropReason::Storm => "storm",
            DropReason::NoRoom => "no-room",
            DropReason::Isolated => "isolated",
            DropReason::Reserved => "reserved",
            DropReason::Rate => "rate",
            DropReason::Unknown => "unknown",
            DropReason::Offload => "offload",
            DropReason::LinkFull => "link-full",
            DropReason::Disabled => "disabled",
        }
    }
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
    /// Frames that the guest sent and nobody got, by reason.
    pub from_guest_drops: BTreeMap<DropReason, u64>,
    /// Frames for the guest that it did not get, by reason: what it lacks or is not to get is its own, and not the sender's.
    pub to_guest_drops: BTreeMap<DropReason, u64>,
    /// What the guest's memory costs the switch now, in bytes, at most: its page tables, and pages that nobody had used before.
    #[serde(default)]
    pub memory_bytes: u64,
    /// How often a guest was disconnected because its memory cost too much.
    #[serde(default)]
    pub memory_refusals: u64,
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
    /// The thread that serves it.
    #[serde(default)]
    pub thread: ThreadView,
}

/// A poll thread, as a port's view names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ThreadView {
    /// Its number, counted from 0.
    pub number: u16,
    /// The NUMA node whose processors it runs on; absent: it is bound to none.
    pub numa_node: Option<u32>,
}

/// What an uplink is to be: a kernel interface by which a network reaches the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkConfig {
    /// The network. It has one uplink at most.
    pub network: String,
    /// The interface's name, for people.
    pub interface: String,
    /// The interface's index.
    pub index: u32,
    /// The largest payload of a frame in bytes, 68 to 3,818.
    pub mtu: u16,
    /// Frames are handed over by the interface's driver, not by the kernel's own path.
    pub native: bool,
}

/// An uplink as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkView {
    /// What it is to be.
    pub config: UplinkConfig,
    /// Receive queues of the interface that are served.
    pub queues: u16,
    /// All of its sockets are bound to an interface that is there, so that frames come and go. An older switch does not tell it, and
    /// counts as one whose sockets are.
    #[serde(default = "is_bound_unless_told")]
    pub bound: bool,
    /// The driver hands frames over without copying them.
    pub zero_copy: bool,
    /// Frames that came when the kernel had no room for them, since the uplink was added.
    pub lost_frames: u64,
    /// What went through it; what came from the wire is "from the guest".
    pub counters: PortCounters,
    /// The thread that serves it.
    #[serde(default)]
    pub thread: ThreadView,
}

fn is_bound_unless_told() -> bool {
    true
}

/// An address that a network's switch knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacEntry {
    /// The network that it is in.
    pub network: String,
    /// The VLAN; absent for frames without a tag. A port's own address is told once: with its `vlan`, if it has one, but not with those of
    /// its `trunk`, in which it has the address too.
    pub vlan: Option<u16>,
    /// The address.
    pub mac: Mac,
    /// The port behind which it is.
    pub port: String,
    /// Seconds since a frame came from it; 0 for a port's own.
    pub age_s: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_by_one_name_and_every_reason_of_a_guests_port_has_a_direction() {
        for reason in DropReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
            let of_guests =
                [DropReason::FROM_GUEST.as_slice(), &DropReason::TO_GUEST].concat().contains(&reason);
            assert_eq!(of_guests, reason != DropReason::Unknown, "of uplinks alone");
        }
    }
}
