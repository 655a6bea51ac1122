//! The switch itself: ports, networks, and the way of a frame through the checks.

use std::collections::HashMap;
use std::sync::Arc;

use super::address_table::{AddressKey, AddressTable, Learning};
use super::decision::{Coarse, Decision, FloodedFrame, LearntAddress, PortIndex, TagChange};
use super::frame_head::{Address, ETHERNET_BYTES, FrameHead, is_group, mac};
use super::port_rules::{Limits, PortRules, TooManyPorts};
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
}

/// The ports of one network, and the addresses behind them.
struct Network {
    name: Arc<str>,
    members: Vec<PortIndex>,
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
        }
    }

    /// Adds a port. Where another port of the network and VLAN has the same address, that one keeps it while it is there.
    ///
    /// All memory that its frames will need is allocated here.
    ///
    /// # Errors
    /// When the switch has as many ports as [`Limits::ports`] allows.
    pub fn add_port(&mut self, rules: &PortRules) -> Result<PortIndex, TooManyPorts> {
        let slot = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if slot >= usize::from(self.limits.ports) {
            return Err(TooManyPorts(self.limits.ports));
        }
        let index = PortIndex(u16::try_from(slot).map_err(|_| TooManyPorts(self.limits.ports))?);
        let network = self.network(&rules.network);
        if slot == self.ports.len() {
            self.ports.push(None);
        }
        self.ports[slot] = Some(PortState::new(rules, network, &self.limits));
        self.fix_own_addresses(index);
        if let Some(network) = self.networks[network].as_mut() {
            network.members.push(index);
            let room = network.members.len().saturating_mul(self.limits.addresses_per_port);
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
        let left = network.members.clone();
        if left.is_empty() {
            self.by_name.remove(&network.name);
            self.networks[state.network] = None;
        }
        // One of them may have the same address, and had to wait for it.
        for member in left {
            if self.state(member).is_some_and(|other| other.own == state.own) {
                self.fix_own_addresses(member);
            }
        }
    }

    /// Says where a frame goes. `head` is its first bytes, up to [`HEAD_BYTES`](super::HEAD_BYTES) of them, and `length` how many bytes it
    /// has in all; of a frame that its receiver cuts into segments, the longest segment's.
    #[inline]
    pub fn decide(&mut self, from: PortIndex, head: &[u8], length: usize, now: Coarse) -> Decision {
        if now >= self.next_sweep {
            self.sweep(now);
        }
        self.judge(from, head, length, now).unwrap_or_else(Decision::Drop)
    }

    /// The ports that get a flooded frame of `from`, each with the change of its tag. A port that is named has the frame counted against
    /// what it may get in a second; one that has got as much is left out.
    pub fn flood_to(
        &self,
        from: PortIndex,
        frame: &FloodedFrame,
    ) -> impl Iterator<Item = (PortIndex, TagChange)> {
        let sender = self.state(from);
        let network = sender.and_then(|sender| self.networks[sender.network].as_ref());
        let members = network.map_or(&[][..], |network| &network.members);
        members.iter().filter(move |member| **member != from).filter_map(move |member| {
            let receiver = self.state(*member)?;
            let change = reach(sender?, receiver, frame).ok()?;
            receiver.may_get(frame.length, frame.now).then_some((*member, change))
        })
    }

    /// Every address that is known at `now`, in no order: those that are learnt, and each port's own.
    pub fn mac_table(&self, now: Coarse) -> Vec<LearntAddress> {
        let oldest = now.seconds().saturating_sub(self.limits.ageing_s);
        let networks = self.networks.iter().flatten();
        let known = networks.flat_map(|network| network.table.iter().map(move |entry| (network, entry)));
        let fresh = known.filter(|(_, (.., seen))| seen.is_none_or(|seen| seen >= oldest));
        fresh
            .map(|(network, (vlan, address, port, seen))| LearntAddress {
                network: Arc::clone(&network.name),
                vlan: (vlan != 0).then_some(vlan),
                mac: mac(address),
                port,
                age_s: seen.map_or(0, |seen| u64::from(now.seconds().saturating_sub(seen))),
            })
            .collect()
    }

    #[inline]
    fn judge(
        &mut self,
        from: PortIndex,
        head: &[u8],
        length: usize,
        now: Coarse,
    ) -> Result<Decision, DropReason> {
        let port = self.ports.get_mut(usize::from(from.0)).and_then(Option::as_mut);
        let port = port.ok_or(DropReason::Isolated)?;
        let frame = FrameHead::read(head).ok_or(DropReason::Length)?;
        let headers = ETHERNET_BYTES + frame.tags.bytes();
        let payload = length.checked_sub(headers).filter(|payload| *payload <= port.mtu);
        let payload = payload.ok_or(DropReason::Length)?;
        if frame.is_reserved() {
            return Err(DropReason::Reserved);
        }
        let vlan = port.vlans.of_sent(frame.tags).ok_or(DropReason::Vlan)?;
        let own = port.spoof_check.then_some(port.own);
        source_check::check(&frame, own).map_err(|_| DropReason::Spoofed)?;
        if !port.may_send(length, now) {
            return Err(DropReason::Rate);
        }
        if frame.source != port.own {
            self.learn(from, AddressKey::new(vlan, frame.source), now);
        }
        let flooded = FloodedFrame { vlan, tags: frame.tags, payload, length, now };
        match self.destination(from, vlan, frame.destination) {
            Some(to) => self.deliver(from, to, &flooded),
            None => self.flood(from, flooded),
        }
    }

    /// The port of a frame's destination; absent for a group and for an address that is not known.
    #[inline]
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

    #[inline]
    fn deliver(&self, from: PortIndex, to: PortIndex, frame: &FloodedFrame) -> Result<Decision, DropReason> {
        let (Some(sender), Some(receiver)) = (self.state(from), self.state(to)) else {
            return Err(DropReason::Isolated);
        };
        if from == to {
            return Err(DropReason::Isolated);
        }
        let change = reach(sender, receiver, frame)?;
        let in_rate = receiver.may_get(frame.length, frame.now);
        if in_rate { Ok(Decision::To(to, change)) } else { Err(DropReason::Rate) }
    }

    fn flood(&self, from: PortIndex, frame: FloodedFrame) -> Result<Decision, DropReason> {
        let port = self.state(from).ok_or(DropReason::Isolated)?;
        let members = self.networks[port.network].as_ref().map_or(0, |network| network.members.len());
        let tokens = members.div_ceil(COPIES_PER_TOKEN) as u64;
        let in_rate = port.storm.take(tokens, frame.now);
        if in_rate { Ok(Decision::Flood(frame)) } else { Err(DropReason::Storm) }
    }

    fn learn(&mut self, from: PortIndex, key: AddressKey, now: Coarse) {
        let Some(port) = self.ports.get_mut(usize::from(from.0)).and_then(Option::as_mut) else { return };
        let Some(network) = self.networks[port.network].as_mut() else { return };
        if port.is_source_noted(key, network.table.generation(), now) {
            return;
        }
        let may_grow = port.learnt < self.limits.addresses_per_port;
        let may_add = self.learnt < self.limits.addresses;
        let learning = network.table.learn(key, from, now.seconds(), may_grow, may_add);
        port.note_source(key, network.table.generation(), now);
        match learning {
            Learning::Known | Learning::Refused => {}
            Learning::New => {
                port.learnt += 1;
                self.learnt += 1;
            }
            Learning::Moved(before) => {
                port.learnt += 1;
                self.count_forgotten(before, false);
            }
        }
    }

    /// One address fewer is learnt behind a port, and, if it went for good, in all.
    fn count_forgotten(&mut self, port: PortIndex, for_good: bool) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)).and_then(Option::as_mut) {
            port.learnt = port.learnt.saturating_sub(1);
        }
        self.learnt = self.learnt.saturating_sub(usize::from(for_good));
    }

    fn fix_own_addresses(&mut self, index: PortIndex) {
        let Some(port) = self.ports[usize::from(index.0)].as_ref() else { return };
        let Some(network) = self.networks[port.network].as_mut() else { return };
        let keys = port.vlans.all().map(|vlan| AddressKey::new(vlan, port.own));
        let taken: Vec<PortIndex> = keys.filter_map(|key| network.table.fix(key, index)).collect();
        for before in taken {
            self.count_forgotten(before, true);
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
        self.networks[at] = Some(Network { name: Arc::clone(&name), members: Vec::new(), table });
        self.by_name.insert(name, at);
        at
    }

    #[inline]
    fn state(&self, port: PortIndex) -> Option<&PortState> {
        self.ports.get(usize::from(port.0))?.as_ref()
    }
}

/// Whether a frame gets from one port to another of the same network, and with which change of its tag.
#[inline]
fn reach(sender: &PortState, receiver: &PortState, frame: &FloodedFrame) -> Result<TagChange, DropReason> {
    if sender.network != receiver.network || (sender.isolated && receiver.isolated) {
        return Err(DropReason::Isolated);
    }
    if frame.payload > receiver.mtu {
        return Err(DropReason::Length);
    }
    receiver.vlans.change_for(frame.vlan, frame.tags).ok_or(DropReason::Vlan)
}

#[cfg(test)]
#[path = "learning_switch_tests.rs"]
mod tests;
