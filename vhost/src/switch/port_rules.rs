//! What a port may do, and how much a switch holds.

use fairlead_host::Mac;

use super::vlan_membership::VlanMembership;
use crate::port::{PortConfig, UplinkConfig};

/// What the switch has to know of a port. Nothing of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRules {
    /// Ports of one network reach each other.
    pub network: String,
    /// It leads to the wire, and its network has no other such: it has no address of its own, gets every frame to an address that is not
    /// known, and its frames are of the VLAN whose tag they carry.
    pub is_uplink: bool,
    /// The port's own address: it is never learnt behind another port of the network and VLAN.
    pub mac: Mac,
    /// The VLAN of frames without a tag. Absent: such frames have no VLAN, or, for a trunk port, are dropped.
    pub vlan: Option<u16>,
    /// The VLANs whose tagged frames the port sends and gets. Empty: no trunk.
    pub trunk: Vec<u16>,
    /// Frames with another source than `mac` are dropped, in Ethernet, ARP and neighbour discovery.
    pub spoof_check: bool,
    /// Isolated ports do not reach each other.
    pub isolated: bool,
    /// The largest payload of a frame in bytes that the port sends or gets.
    pub mtu: u16,
    /// The most bits of frames in a second that the guest sends; absent: as many as it can.
    pub from_guest_bits: Option<u64>,
    /// The most bits of frames in a second that the guest gets; absent: as many as it can.
    pub to_guest_bits: Option<u64>,
}

impl PortRules {
    /// Whether both have one address in one VLAN of one network: frames for it go to the port that was there first, and to no other.
    pub fn clashes_with(&self, other: &PortRules) -> bool {
        let is_one_address = self.network == other.network && self.mac == other.mac;
        is_one_address && VlanMembership::new(self).meets(&VlanMembership::new(other))
    }
}

impl From<&PortConfig> for PortRules {
    fn from(config: &PortConfig) -> PortRules {
        PortRules {
            network: config.network.clone(),
            is_uplink: false,
            mac: config.mac,
            vlan: config.vlan,
            trunk: config.trunk.clone(),
            spoof_check: config.spoof_check,
            isolated: config.isolated,
            mtu: config.mtu,
            from_guest_bits: config.from_guest_bits,
            to_guest_bits: config.to_guest_bits,
        }
    }
}

impl From<&UplinkConfig> for PortRules {
    fn from(config: &UplinkConfig) -> PortRules {
        PortRules {
            network: config.network.clone(),
            is_uplink: true,
            mac: Mac([0; 6]),
            vlan: None,
            trunk: Vec::new(),
            spoof_check: false,
            isolated: false,
            mtu: config.mtu,
            from_guest_bits: None,
            to_guest_bits: None,
        }
    }
}

/// The switch has no place for one more port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the switch has {0} ports and takes no more; remove ports that nobody uses")]
pub struct TooManyPorts(pub u16);

/// The most segments that one flooded frame may have at all its receivers together: each is made and copied anew for each of them. A long
/// frame of 46 segments, as on a link of 1,500 bytes, goes to five other ports.
pub(super) const MOST_SEGMENT_COPIES: usize = 256;

/// The bounds of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Ports in all networks together.
    pub ports: u16,
    /// Addresses that are learnt behind one port. A port that has as many learns no more.
    pub addresses_per_port: usize,
    /// Addresses that are learnt behind an uplink. A frame to one that it has no place for goes to the uplink all the same.
    pub addresses_per_uplink: usize,
    /// Addresses that are learnt behind all ports together.
    pub addresses: usize,
    /// Addresses that a network learns also where all networks together have [`Limits::addresses`], so that none has others learn nothing.
    pub addresses_per_network: usize,
    /// Seconds without a frame after which an address is forgotten, up to [`Limits::SWEEP_MS`] later.
    pub ageing_s: u32,
    /// Frames to groups or unknown addresses that a port may send in a second. One that goes to more than 64 ports counts once for
    /// each 64, and one that is to be cut once for each segment.
    pub storm_frames: u64,
    /// How many of those it may send at once.
    pub storm_burst: u64,
}

impl Limits {
    /// The time in milliseconds in which every network's table is searched for addresses that are too old.
    pub const SWEEP_MS: u64 = 10_000;
    /// [`Limits::storm_frames`] by default.
    pub const STORM_FRAMES: u32 = 10_000;

    /// The default bounds with so many [`Limits::storm_frames`]. A fifth of them may come at once, but always as many as one frame may
    /// count for.
    pub fn of_storm_frames(frames: u32) -> Limits {
        let storm_frames = u64::from(frames);
        Limits {
            ports: 1_024,
            addresses_per_port: 1_024,
            addresses_per_uplink: 4_096,
            addresses: 16_384,
            addresses_per_network: 64,
            ageing_s: 300,
            storm_frames,
            storm_burst: (storm_frames / 5).max(MOST_SEGMENT_COPIES as u64),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::of_storm_frames(Limits::STORM_FRAMES)
    }
}
