//! What the switch keeps of one port: its rules in the form that a frame is checked against, its buckets, its notes.

use super::address_table::AddressKey;
use super::decision::{Coarse, FloodedFrame, FrameSize, PortIndex};
use super::frame_head::{Address, FlowStart, number};
use super::port_rules::{Limits, PortRules};
use super::token_bucket::TokenBucket;
use super::vlan_membership::VlanMembership;
use crate::port::DropReason;

/// Ethernet header and two tags.
const LONGEST_HEADER: usize = 22;

/// Of how many addresses behind one port other threads are told in a second, and at once: all that it may have, and some that move.
const TOLD: u64 = 1_000;
const TOLD_AT_ONCE: u64 = 2_048;

/// How long a note that a source is learnt spares the look-up, in milliseconds. Far less than the ageing time.
const SOURCE_NOTE_MS: u64 = 1_000;

/// One port of the switch.
#[derive(Debug)]
pub(super) struct PortState {
    /// Where its network is among the switch's networks.
    pub(super) network: usize,
    pub(super) own: Address,
    pub(super) is_uplink: bool,
    /// Another thread serves it.
    pub(super) is_elsewhere: bool,
    pub(super) vlans: VlanMembership,
    pub(super) spoof_check: bool,
    pub(super) isolated: bool,
    pub(super) mtu: usize,
    /// How many addresses may be learnt behind it.
    pub(super) most_learnt: usize,
    /// How many addresses are learnt behind it.
    pub(super) learnt: usize,
    pub(super) storm: TokenBucket,
    pub(super) told: TokenBucket,
    from_guest: Option<TokenBucket>,
    to_guest: Option<TokenBucket>,
    last_destination: DestinationNote,
    last_source: SourceNote,
    last_flow: FlowNote,
}

/// Where frames go that begin like the port's last one and are no longer than this: nothing but their first bytes decides on them, and
/// nobody counts them. While the table's generation is this, and until then, so that addresses are seen again before they are too old.
#[derive(Debug)]
pub(super) struct FlowNote {
    start: FlowStart,
    pub(super) generation: u32,
    until: Coarse,
    longest: usize,
    pub(super) to: PortIndex,
}

/// Where the last known destination of a port's frames was, while the table's generation is this.
#[derive(Debug)]
struct DestinationNote {
    key: AddressKey,
    generation: u32,
    port: PortIndex,
}

/// Which source of a port's frames needs no learning until then, while the table's generation is this.
#[derive(Debug)]
struct SourceNote {
    key: AddressKey,
    generation: u32,
    until: Coarse,
}

impl PortState {
    /// A port with these rules in the network of this number.
    pub(super) fn new(rules: &PortRules, network: usize, limits: &Limits) -> PortState {
        let mtu = usize::from(rules.mtu);
        let bucket = |rate: u64| TokenBucket::of_bits(rate, mtu + LONGEST_HEADER);
        PortState {
            network,
            own: number(rules.mac.0),
            is_uplink: rules.is_uplink,
            is_elsewhere: false,
            vlans: VlanMembership::new(rules),
            spoof_check: rules.spoof_check,
            isolated: rules.isolated,
            mtu,
            most_learnt: if rules.is_uplink {
                limits.addresses_per_uplink
            } else {
                limits.addresses_per_port
            },
            learnt: 0,
            storm: TokenBucket::new(limits.storm_frames, limits.storm_burst),
            told: TokenBucket::new(TOLD, TOLD_AT_ONCE),
            from_guest: rules.from_guest_bits.map(bucket),
            to_guest: rules.to_guest_bits.map(bucket),
            last_destination: DestinationNote { key: AddressKey::NONE, generation: 0, port: PortIndex(0) },
            last_source: SourceNote { key: AddressKey::NONE, generation: 0, until: Coarse(0) },
            last_flow: FlowNote {
                start: FlowStart::NONE,
                generation: 0,
                until: Coarse(0),
                longest: 0,
                to: PortIndex(0),
            },
        }
    }

    /// Counts a frame that the guest sent. `false`: it is over the rate.
    #[inline]
    pub(super) fn may_send(&self, size: FrameSize, now: Coarse) -> bool {
        self.from_guest.as_ref().is_none_or(|bucket| bucket.take_bits(size.bytes, size.segments, now))
    }

    /// Counts a frame for the guest, unless it is too long or over the rate.
    #[inline]
    pub(super) fn may_get(&self, frame: &FloodedFrame) -> Result<(), DropReason> {
        if frame.payload > self.mtu {
            return Err(DropReason::Length);
        }
        let in_rate = |bucket: &TokenBucket| bucket.take_bits(frame.bytes, frame.segments, frame.now);
        if self.to_guest.as_ref().is_none_or(in_rate) { Ok(()) } else { Err(DropReason::Rate) }
    }

    /// The same port as another thread has it: what it may get in a second is counted where it is served, and only there.
    pub(super) fn elsewhere(self) -> PortState {
        PortState { is_elsewhere: true, to_guest: None, ..self }
    }

    /// Neither what it sends nor what it gets is counted against a rate.
    pub(super) fn has_no_rate(&self) -> bool {
        self.from_guest.is_none() && self.to_guest.is_none()
    }

    /// Where a frame goes, if it begins like the port's last one.
    #[inline(always)]
    pub(super) fn noted_flow(&self, start: FlowStart, length: usize, now: Coarse) -> Option<&FlowNote> {
        let note = &self.last_flow;
        (note.start == start && length <= note.longest && now < note.until).then_some(note)
    }

    /// Notes where frames go that begin with `start` and are no longer than `longest`, while the table's generation is this.
    pub(super) fn note_flow(
        &mut self,
        start: FlowStart,
        longest: usize,
        to: PortIndex,
        generation: u32,
        now: Coarse,
    ) {
        let until = Coarse(now.0.saturating_add(SOURCE_NOTE_MS));
        self.last_flow = FlowNote { start, generation, until, longest, to };
    }

    /// Where the destination is, if it is the port's last one.
    #[inline]
    pub(super) fn noted_destination(&self, key: AddressKey, generation: u32) -> Option<PortIndex> {
        let note = &self.last_destination;
        (note.key == key && note.generation == generation).then_some(note.port)
    }

    #[inline]
    pub(super) fn note_destination(&mut self, key: AddressKey, generation: u32, port: PortIndex) {
        self.last_destination = DestinationNote { key, generation, port };
    }

    /// Whether the source is the port's last one and was learnt a moment ago.
    #[inline]
    pub(super) fn is_source_noted(&self, key: AddressKey, generation: u32, now: Coarse) -> bool {
        let note = &self.last_source;
        note.key == key && note.generation == generation && now < note.until
    }

    #[inline]
    pub(super) fn note_source(&mut self, key: AddressKey, generation: u32, now: Coarse) {
        let until = Coarse(now.0.saturating_add(SOURCE_NOTE_MS));
        self.last_source = SourceNote { key, generation, until };
    }
}
