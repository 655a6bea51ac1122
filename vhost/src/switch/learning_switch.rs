//! The switch itself: ports, networks, and the way of a frame through the checks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::address_table::{AddressKey, AddressTable, Learning, TableSlice};
use super::decision::{
    Coarse, Decision, FloodedFrame, FrameSize, LearntAddress, PortIndex, Sighting, TagChange,
};
use super::frame_head::{Address, ETHERNET_BYTES, FlowStart, FrameHead, Tags, is_group, mac};
use super::port_rules::{Limits, MOST_SEGMENT_COPIES, PortRules, TooManyPorts};
use super::port_state::PortState;
use super::source_check;
use super::vlan_membership::Vlan;
use crate::port::DropReason;

/// To how many ports a flooded frame goes for each token of the storm limit.
const COPIES_PER_TOKEN: usize = 64;

/// The ports of all networks that one thread serves, and where each address is.
pub struct Switch {
    limits: Limits,
    ports: Vec<Option<PortState>>,
    networks: Vec<Option<Network>>,
    by_name: HashMap<Arc<str>, usize>,
    /// How many addresses are learnt in all networks.
    learnt: usize,
    next_sweep: Coarse,
    /// The network whose table is searched next for addresses that are too old.
    sweep_at: usize,
    /// Other threads have switches of the same ports.
    is_one_of_several: bool,
    /// What those are to be told.
    sightings: VecDeque<Sighting>,
}

/// The ports of one network, and the addresses behind them.
struct Network {
    name: Arc<str>,
    members: Vec<PortIndex>,
    /// The one of them that leads to the wire.
    uplink: Option<PortIndex>,
    table: AddressTable,
}

impl Switch {
    /// A switch without ports.
    pub fn new(limits: Limits) -> Switch {
        Switch {
            limits,
            ports: Vec::new(),
            networks: Vec::new(),
            by_name: HashMap::new(),
            learnt: 0,
            next_sweep: Coarse(0),
            sweep_at: 0,
            is_one_of_several: false,
            sightings: VecDeque::new(),
        }
    }

    /// A switch without ports, one of several that have the same ports, each for another thread.
    pub fn one_of_several(limits: Limits) -> Switch {
        Switch { is_one_of_several: true, ..Switch::new(limits) }
    }

    /// Adds a port. Where another port of the network and VLAN has the same address, that one keeps it while it is there.
    ///
    /// All memory that its frames will need is allocated here.
    ///
    /// # Errors
    /// When the switch has as many ports as [`Limits::ports`] allows.
    pub fn add_port(&mut self, rules: &PortRules) -> Result<PortIndex, TooManyPorts> {
        self.add(rules, |port| port)
    }

    /// Adds a port that another thread serves. Switches to which the same ports are added and removed in the same order have them under
    /// the same indices.
    ///
    /// # Errors
    /// As [`Switch::add_port`].
    pub fn add_port_elsewhere(&mut self, rules: &PortRules) -> Result<PortIndex, TooManyPorts> {
        self.add(rules, PortState::elsewhere)
    }

    fn add(
        &mut self,
        rules: &PortRules,
        place: impl FnOnce(PortState) -> PortState,
    ) -> Result<PortIndex, TooManyPorts> {
        let slot = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if slot >= usize::from(self.limits.ports) {
            return Err(TooManyPorts(self.limits.ports));
        }
        let index = PortIndex(u16::try_from(slot).map_err(|_| TooManyPorts(self.limits.ports))?);
        let network = self.network(&rules.network);
        if slot == self.ports.len() {
            self.ports.push(None);
        }
        self.ports[slot] = Some(place(PortState::new(rules, network, &self.limits)));
        self.add_own_address(index);
        if let Some(network) = self.networks[network].as_mut() {
            network.members.push(index);
            let mut room = network.members.len().saturating_mul(self.limits.addresses_per_port);
            if rules.is_uplink {
                network.uplink = Some(index);
            }
            if network.uplink.is_some() {
                room = room.saturating_add(self.limits.addresses_per_uplink);
            }
            network.table.reserve(room.min(self.limits.addresses));
        }
        Ok(index)
    }

    /// Removes a port and forgets every address behind it. Does nothing for a port that is not there.
    pub fn remove_port(&mut self, port: PortIndex) {
        let Some(state) = self.ports.get_mut(usize::from(port.0)).and_then(Option::take) else { return };
        self.learnt = self.learnt.saturating_sub(state.learnt);
        let Some(network) = self.networks[state.network].as_mut() else { return };
        network.table.forget_port(port);
        network.members.retain(|member| *member != port);
        network.uplink = network.uplink.filter(|uplink| *uplink != port);
        if network.members.is_empty() {
            self.by_name.remove(&network.name);
            self.networks[state.network] = None;
        }
    }

    /// Says where a frame goes. `head` is its first bytes, up to [`HEAD_BYTES`](super::HEAD_BYTES) of them, and `length` how many bytes it
    /// has in all.
    #[inline(always)]
    pub fn decide(&mut self, from: PortIndex, head: &[u8], length: usize, now: Coarse) -> Decision {
        self.sweep_if_due(now);
        match self.by_note(from, head, length, now) {
            Some(to) => Decision::To(to, TagChange::None),
            None => self.judge(from, head, FrameSize::whole(length), now).unwrap_or_else(Decision::Drop),
        }
    }

    /// The same of a frame that is to be cut into segments: all of them go where it goes, and they are what limits and MTU are about.
    #[inline(never)]
    pub fn decide_segmented(
        &mut self,
        from: PortIndex,
        head: &[u8],
        size: FrameSize,
        now: Coarse,
    ) -> Decision {
        self.sweep_if_due(now);
        self.judge(from, head, size, now).unwrap_or_else(Decision::Drop)
    }

    /// Says where a frame of a port elsewhere goes, which that thread's switch let pass to port `to`, or, where that is absent, to all that
    /// a flooded frame is for. Nothing that the sender may do is counted once more, but whether the two ports reach each other is
    /// looked at again.
    pub fn relay(
        &mut self,
        from: PortIndex,
        to: Option<PortIndex>,
        head: &[u8],
        size: FrameSize,
        now: Coarse,
    ) -> Decision {
        self.sweep_if_due(now);
        self.judge_relayed(from, to, head, size, now).unwrap_or_else(Decision::Drop)
    }

    /// What the other switches are to be told, one after the other.
    pub fn next_sighting(&mut self) -> Option<Sighting> {
        self.sightings.pop_front()
    }

    /// Another switch tells where an address is.
    pub fn hear(&mut self, sighting: Sighting, now: Coarse) {
        self.sweep_if_due(now);
        self.learn(sighting.port, AddressKey::of_number(sighting.address), now);
    }

    /// The ports that a flooded frame of `from` is for, each with the change of its tag, or with the reason why it does not get the frame:
    /// too long for it, or over its rate. A port that gets it has it counted against what it may get in a second.
    pub fn flood_to(
        &self,
        from: PortIndex,
        frame: &FloodedFrame,
    ) -> impl Iterator<Item = (PortIndex, Result<TagChange, DropReason>)> {
        let sender = self.state(from);
        let network = sender.and_then(|sender| self.networks[sender.network].as_ref());
        let members = network.map_or(&[][..], |network| &network.members);
        members.iter().filter(move |member| **member != from).filter_map(move |member| {
            let receiver = self.state(*member)?;
            let change = reach(sender?, receiver, frame).ok()?;
            Some((*member, receiver.may_get(frame).map(|()| change)))
        })
    }

    /// About how many addresses are known: those that are learnt, and each port's own.
    pub fn known_addresses(&self) -> usize {
        self.learnt + self.ports.len()
    }

    /// Every address of a slice that is known at `now`, in no order: those that are learnt, and each port's own, once.
    pub fn mac_table(&self, slice: TableSlice, now: Coarse) -> impl Iterator<Item = LearntAddress> + '_ {
        let oldest = now.seconds().saturating_sub(self.limits.ageing_s);
        self.networks.iter().flatten().flat_map(move |network| {
            let entry = |vlan: Option<Vlan>, address, port, age_s| LearntAddress {
                network: Arc::clone(&network.name),
                vlan,
                mac: mac(address),
                port,
                age_s,
            };
            let fresh = network.table.learnt_of(slice).filter(move |(.., seen)| *seen >= oldest);
            let learnt = fresh.map(move |(vlan, address, port, seen)| {
                let age_s = u64::from(now.seconds().saturating_sub(seen));
                entry((vlan != 0).then_some(vlan), address, port, age_s)
            });
            let own = network.table.own_of(slice);
            learnt.chain(own.map(move |(vlan, address, port)| entry(vlan, address, port, 0)))
        })
    }

    /// Where a frame goes that begins as the port's last one did, by what was found of that.
    #[inline(always)]
    fn by_note(&self, from: PortIndex, head: &[u8], length: usize, now: Coarse) -> Option<PortIndex> {
        let port = self.state(from)?;
        let note = port.noted_flow(FlowStart::of(head)?, length, now)?;
        let table = &self.networks.get(port.network)?.as_ref()?.table;
        (note.generation == table.generation()).then_some(note.to)
    }

    /// Notes where a frame goes, if all that begin like it go there too until the table changes.
    fn note_flow(&mut self, from: PortIndex, to: PortIndex, frame: &FrameHead<'_>, head: &[u8], now: Coarse) {
        let (Some(sender), Some(receiver), Some(start)) =
            (self.state(from), self.state(to), FlowStart::of(head))
        else {
            return;
        };
        let is_decided = frame.tags == Tags::None
            && !(sender.spoof_check && source_check::looks_into(frame.ethertype))
            && sender.has_no_rate()
            && receiver.has_no_rate()
            // An uplink's source may become a port's own without a change of what is known.
            && !sender.is_uplink;
        let Some(Some(network)) = self.networks.get(sender.network).filter(|_| is_decided) else { return };
        let longest = ETHERNET_BYTES + sender.mtu.min(receiver.mtu);
        let generation = network.table.generation();
        if let Some(Some(sender)) = self.ports.get_mut(usize::from(from.0)) {
            sender.note_flow(start, longest, to, generation, now);
        }
    }

    #[inline(never)]
    fn judge(
        &mut self,
        from: PortIndex,
        head: &[u8],
        size: FrameSize,
        now: Coarse,
    ) -> Result<Decision, DropReason> {
        let port = self.ports.get_mut(usize::from(from.0)).and_then(Option::as_mut);
        let port = port.ok_or(DropReason::Isolated)?;
        let frame = FrameHead::read(head).ok_or(DropReason::Length)?;
        let headers = ETHERNET_BYTES + frame.tags.bytes();
        let payload = size.longest.checked_sub(headers).filter(|payload| *payload <= port.mtu);
        let payload = payload.ok_or(DropReason::Length)?;
        if frame.is_reserved() {
            return Err(DropReason::Reserved);
        }
        let vlan = port.vlans.of_sent(frame.tags).ok_or(DropReason::Vlan)?;
        let own = port.spoof_check.then_some(port.own);
        source_check::check(&frame, own).map_err(|_| DropReason::Spoofed)?;
        if !port.may_send(size, now) {
            return Err(DropReason::Rate);
        }
        let is_uplink = port.is_uplink;
        if frame.source != port.own {
            let key = AddressKey::new(vlan, frame.source);
            if is_uplink && self.is_own_of_another(from, key) {
                return Err(DropReason::Spoofed);
            }
            self.learn(from, key, now);
        }
        let FrameSize { bytes, segments, .. } = size;
        let flooded = FloodedFrame { vlan, tags: frame.tags, segments, payload, bytes, now };
        match self.destination(from, vlan, frame.destination) {
            Some(to) => {
                let decided = self.deliver(from, to, &flooded);
                if decided == Ok(Decision::To(to, TagChange::None)) && segments == 1 {
                    self.note_flow(from, to, &frame, head, now);
                }
                decided
            }
            None if is_group(frame.destination) => self.flood(from, flooded),
            None => self.to_unknown(from, flooded, is_uplink),
        }
    }

    fn judge_relayed(
        &mut self,
        from: PortIndex,
        to: Option<PortIndex>,
        head: &[u8],
        size: FrameSize,
        now: Coarse,
    ) -> Result<Decision, DropReason> {
        let port = self.state(from).ok_or(DropReason::Isolated)?;
        let frame = FrameHead::read(head).ok_or(DropReason::Length)?;
        let FrameSize { longest, bytes, segments } = size;
        let payload = longest.checked_sub(ETHERNET_BYTES + frame.tags.bytes()).ok_or(DropReason::Length)?;
        let vlan = port.vlans.of_sent(frame.tags).ok_or(DropReason::Vlan)?;
        if frame.source != port.own {
            self.learn(from, AddressKey::new(vlan, frame.source), now);
        }
        let relayed = FloodedFrame { vlan, tags: frame.tags, segments, payload, bytes, now };
        match to {
            Some(to) => self.deliver(from, to, &relayed),
            None => Ok(Decision::Flood(relayed)),
        }
    }

    /// The port of a frame's destination; absent for a group and for an address that is not known.
    #[inline(always)]
    fn destination(&mut self, from: PortIndex, vlan: Vlan, address: Address) -> Option<PortIndex> {
        if is_group(address) {
            return None;
        }
        let port = self.ports.get_mut(usize::from(from.0))?.as_mut()?;
        let table = &self.networks.get(port.network)?.as_ref()?.table;
        let key = AddressKey::new(vlan, address);
        if let Some(noted) = port.noted_destination(key, table.generation()) {
            return Some(noted);
        }
        let found = table.port_of(key)?;
        port.note_destination(key, table.generation(), found);
        Some(found)
    }

    #[inline(always)]
    fn deliver(&self, from: PortIndex, to: PortIndex, frame: &FloodedFrame) -> Result<Decision, DropReason> {
        let (Some(sender), Some(receiver)) = (self.state(from), self.state(to)) else {
            return Err(DropReason::Isolated);
        };
        if from == to {
            return Err(DropReason::Isolated);
        }
        let change = reach(sender, receiver, frame)?;
        Ok(match receiver.may_get(frame) {
            Ok(()) => Decision::To(to, change),
            Err(reason) => Decision::Withheld(to, reason),
        })
    }

    /// A frame to an address that is not known. Where the network has an uplink, that is the wire's: ports' own addresses are known, and an
    /// address behind a port is with its first frame.
    #[inline(never)]
    fn to_unknown(
        &self,
        from: PortIndex,
        frame: FloodedFrame,
        is_uplink: bool,
    ) -> Result<Decision, DropReason> {
        if is_uplink {
            return Err(DropReason::Unknown);
        }
        let network = self.state(from).and_then(|port| self.networks.get(port.network)?.as_ref());
        match network.and_then(|network| network.uplink) {
            Some(uplink) => self.deliver(from, uplink, &frame),
            None => self.flood(from, frame),
        }
    }

    /// Whether an address is the own one of another port of `port`'s network.
    fn is_own_of_another(&self, port: PortIndex, key: AddressKey) -> bool {
        let network = self.state(port).and_then(|port| self.networks.get(port.network)?.as_ref());
        network.is_some_and(|network| network.table.owner_of(key).is_some())
    }

    #[cold]
    fn flood(&self, from: PortIndex, frame: FloodedFrame) -> Result<Decision, DropReason> {
        let port = self.state(from).ok_or(DropReason::Isolated)?;
        let members = self.networks[port.network].as_ref().map_or(0, |network| network.members.len());
        let segments = usize::from(frame.segments);
        let tokens = (members.div_ceil(COPIES_PER_TOKEN) * segments) as u64;
        // TCP sends the first segment of one that is lost again, alone, and that passes; the answer has the address known.
        let may_pass = segments == 1 || members.saturating_sub(1) * segments <= MOST_SEGMENT_COPIES;
        let in_rate = may_pass && port.storm.take(tokens, frame.now);
        if in_rate { Ok(Decision::Flood(frame)) } else { Err(DropReason::Storm) }
    }

    fn learn(&mut self, from: PortIndex, key: AddressKey, now: Coarse) {
        let Some(port) = self.ports.get_mut(usize::from(from.0)).and_then(Option::as_mut) else { return };
        let Some(network) = self.networks[port.network].as_mut() else { return };
        if port.is_source_noted(key, network.table.generation(), now) {
            return;
        }
        let may_grow = port.learnt < port.most_learnt;
        let may_add =
            self.learnt < self.limits.addresses || network.table.learnt() < self.limits.addresses_per_network;
        let learning = network.table.learn(key, from, now.seconds(), may_grow, may_add);
        port.note_source(key, network.table.generation(), now);
        match learning {
            Learning::Known | Learning::Refused => return,
            Learning::SeenAgain => {}
            Learning::New => {
                port.learnt += 1;
                self.learnt += 1;
            }
            Learning::Moved(before) => {
                port.learnt += 1;
                self.count_forgotten(before, false);
            }
        }
        if self.is_one_of_several {
            self.tell(from, key, now);
        }
    }

    /// Has the other switches know where an address is. A guest that changes addresses all the time has them told of some; what they are
    /// not told they are when the address is seen again.
    #[cold]
    fn tell(&mut self, port: PortIndex, key: AddressKey, now: Coarse) {
        let is_told = |port: &PortState| !port.is_elsewhere && port.told.take(1, now);
        if self.state(port).is_some_and(is_told) {
            self.sightings.push_back(Sighting { port, address: key.number() });
        }
    }

    /// One address fewer is learnt behind a port, and, if it went for good, in all.
    fn count_forgotten(&mut self, port: PortIndex, for_good: bool) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)).and_then(Option::as_mut) {
            port.learnt = port.learnt.saturating_sub(1);
        }
        self.learnt = self.learnt.saturating_sub(usize::from(for_good));
    }

    fn add_own_address(&mut self, index: PortIndex) {
        let Some(port) = self.ports[usize::from(index.0)].as_ref().filter(|port| !port.is_uplink) else {
            return;
        };
        let Some(network) = self.networks[port.network].as_mut() else { return };
        let mut taken = Vec::new();
        network.table.add_owner(port.own, index, &port.vlans, |before| taken.push(before));
        for before in taken {
            self.count_forgotten(before, true);
        }
    }

    #[inline(always)]
    fn sweep_if_due(&mut self, now: Coarse) {
        if now >= self.next_sweep {
            self.sweep(now);
        }
    }

    /// Searches the next network's table for addresses that are too old. All networks have their turn within [`Limits::SWEEP_MS`].
    #[cold]
    fn sweep(&mut self, now: Coarse) {
        let pause = Limits::SWEEP_MS / self.networks.len().max(1) as u64;
        self.next_sweep = Coarse(now.0.saturating_add(pause.max(1)));
        self.sweep_at = (self.sweep_at + 1) % self.networks.len().max(1);
        let Some(Some(network)) = self.networks.get_mut(self.sweep_at) else { return };
        let oldest = now.seconds().saturating_sub(self.limits.ageing_s);
        let (ports, learnt) = (&mut self.ports, &mut self.learnt);
        network.table.forget_older(oldest, |port| {
            *learnt = learnt.saturating_sub(1);
            if let Some(port) = ports.get_mut(usize::from(port.0)).and_then(Option::as_mut) {
                port.learnt = port.learnt.saturating_sub(1);
            }
        });
    }

    fn network(&mut self, name: &str) -> usize {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let at = self.networks.iter().position(Option::is_none).unwrap_or(self.networks.len());
        if at == self.networks.len() {
            self.networks.push(None);
        }
        let name: Arc<str> = name.into();
        let table = AddressTable::new();
        self.networks[at] =
            Some(Network { name: Arc::clone(&name), members: Vec::new(), uplink: None, table });
        self.by_name.insert(name, at);
        at
    }

    #[inline]
    fn state(&self, port: PortIndex) -> Option<&PortState> {
        self.ports.get(usize::from(port.0))?.as_ref()
    }
}

/// Whether a frame gets from one port to another of the same network, and with which change of its tag.
#[inline(always)]
fn reach(sender: &PortState, receiver: &PortState, frame: &FloodedFrame) -> Result<TagChange, DropReason> {
    if sender.network != receiver.network || (sender.isolated && receiver.isolated) {
        return Err(DropReason::Isolated);
    }
    receiver.vlans.change_for(frame.vlan, frame.tags).ok_or(DropReason::Vlan)
}

#[cfg(test)]
#[path = "learning_switch_tests.rs"]
mod tests;
