//! The switch against a model of it that is slow and obvious, in random histories of ports and frames; and the same of several switches
//! that are one, each with some of the ports.

use std::collections::HashMap;

use fairlead_host::Mac;
use proptest::prelude::*;

use super::test_frames::{address, at, frame, receivers, rules, table_of};
use super::{Decision, FrameSize, HEAD_BYTES, Limits, PortIndex, PortRules, Switch, TagChange, TooManyPorts};

const LIMITS: Limits = Limits {
    ports: 12,
    addresses_per_port: 3,
    addresses_per_uplink: 6,
    addresses: 8,
    addresses_per_network: 2,
    ageing_s: 300,
    storm_frames: 1_000,
    storm_burst: 1_000,
};

#[derive(Debug, Clone)]
enum Step {
    Add(PortRules),
    Remove(usize),
    Send { port: usize, to: u8, from: u8, tags: Vec<u16> },
    Bytes { port: usize, bytes: Vec<u8> },
    Wait { ms: u64 },
}

fn vlan() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0_u16), 1_u16..4, Just(4095)]
}

fn port_rules() -> impl Strategy<Value = PortRules> {
    let networks = prop::sample::select(vec!["red", "blue"]);
    let trunk = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(1_u16..4, 1..3)];
    (networks, 0_u8..6, prop::option::of(1_u16..4), trunk, any::<bool>(), any::<bool>()).prop_map(
        |(network, last, vlan, trunk, spoof_check, isolated)| PortRules {
            network: network.into(),
            vlan,
            trunk,
            spoof_check,
            isolated,
            ..rules(last)
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let tags = prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(vlan(), 1..4)];
    prop_oneof![
        2 => port_rules().prop_map(Step::Add),
        1 => (0_usize..12).prop_map(Step::Remove),
        12 => (0_usize..12, 0_u8..10, 0_u8..10, tags)
            .prop_map(|(port, to, from, tags)| Step::Send { port, to, from, tags }),
        2 => (0_usize..12, prop::collection::vec(any::<u8>(), 0..HEAD_BYTES))
            .prop_map(|(port, bytes)| Step::Bytes { port, bytes }),
        1 => (0_u64..400_000).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// What is true of the ports, kept as plainly as possible.
#[derive(Default)]
struct Model {
    ports: HashMap<PortIndex, PortRules>,
    /// In the order in which they came.
    order: Vec<PortIndex>,
}

impl Model {
    /// The VLAN of a frame that a port sends: 0 for none; `None` where it may not.
    fn vlan_of(rules: &PortRules, tags: &[u16]) -> Option<u16> {
        match tags {
            [] if rules.trunk.is_empty() => Some(rules.vlan.unwrap_or(0)),
            [] => rules.vlan,
            [vlan, rest @ ..] => (rest.len() < 2 && rules.trunk.contains(vlan)).then_some(*vlan),
        }
    }

    /// What a receiver of a frame in `vlan` may get, by the definition of its kind of port.
    fn change_for(rules: &PortRules, vlan: u16, tags: &[u16]) -> Option<TagChange> {
        let without_tag = Model::vlan_of(rules, &[]) == Some(vlan);
        let with_tag = rules.trunk.contains(&vlan);
        match tags.len() {
            0 if without_tag => Some(TagChange::None),
            0 if with_tag => Some(TagChange::Push(vlan)),
            1 if without_tag => Some(TagChange::Pop),
            _ if without_tag => None,
            _ if with_tag => Some(TagChange::None),
            _ => None,
        }
    }

    /// Whether a frame may get from one port to another.
    fn may_reach(&self, from: PortIndex, to: PortIndex, tags: &[u16], change: TagChange) -> bool {
        let (sender, receiver) = (&self.ports[&from], &self.ports[&to]);
        let vlan = Model::vlan_of(sender, tags);
        from != to
            && sender.network == receiver.network
            && !(sender.isolated && receiver.isolated)
            && vlan.is_some_and(|vlan| Model::change_for(receiver, vlan, tags) == Some(change))
    }

    /// The port whose own address this is in the sender's network and VLAN: the first that came.
    fn owner(&self, from: PortIndex, vlan: u16, mac: Mac) -> Option<PortIndex> {
        let sender = &self.ports[&from];
        self.order.iter().copied().find(|port| {
            let rules = &self.ports[port];
            let is_member = Model::vlan_of(rules, &[]) == Some(vlan) || rules.trunk.contains(&vlan);
            rules.network == sender.network && rules.mac == mac && is_member
        })
    }
}

/// The switches of several threads, of which each serves some ports. With one it is that switch and nothing more.
struct Threads {
    switches: Vec<Switch>,
    homes: HashMap<PortIndex, usize>,
}

impl Threads {
    fn new(count: usize) -> Threads {
        let new = if count == 1 { Switch::new } else { Switch::one_of_several };
        Threads { switches: (0..count).map(|_| new(LIMITS)).collect(), homes: HashMap::new() }
    }

    fn add_port(&mut self, rules: &PortRules) -> Result<PortIndex, TooManyPorts> {
        let home = usize::from(rules.mac.0[5]) % self.switches.len();
        let added = self.switches.iter_mut().enumerate().map(|(thread, switch)| match thread == home {
            true => switch.add_port(rules),
            false => switch.add_port_elsewhere(rules),
        });
        let added: Vec<_> = added.collect();
        assert!(added.iter().all(|one| *one == added[0]), "the same index everywhere: {added:?}");
        let port = added[0]?;
        self.homes.insert(port, home);
        Ok(port)
    }

    fn remove_port(&mut self, port: PortIndex) {
        self.switches.iter_mut().for_each(|switch| switch.remove_port(port));
        self.homes.remove(&port);
    }

    /// What is decided of a frame where it comes in, and all that it reaches, wherever that is.
    fn send(&mut self, from: PortIndex, bytes: &[u8], now: u64) -> (Decision, Vec<(PortIndex, TagChange)>) {
        let (home, length) = (self.homes[&from], bytes.len().max(64));
        let decision = self.switches[home].decide(from, bytes, length, at(now));
        while let Some(sighting) = self.switches[home].next_sighting() {
            let others = self.switches.iter_mut().enumerate().filter(|(thread, _)| *thread != home);
            others.for_each(|(_, switch)| switch.hear(sighting, at(now)));
        }
        let named = receivers(&self.switches[home], from, decision);
        let is_flooded = matches!(decision, Decision::Flood(_));
        let mut reached = Vec::new();
        for thread in 0..self.switches.len() {
            let mut here =
                named.iter().copied().filter(|(to, _)| self.homes[to] == thread).collect::<Vec<_>>();
            if thread != home && !here.is_empty() {
                let to = (!is_flooded).then_some(here[0].0);
                let relayed = self.switches[thread].relay(from, to, bytes, FrameSize::whole(length), at(now));
                let there = receivers(&self.switches[thread], from, relayed);
                here = there.into_iter().filter(|(to, _)| self.homes[to] == thread).collect();
            }
            reached.extend(here);
        }
        assert!(self.switches.iter_mut().all(|switch| switch.next_sighting().is_none()), "told once");
        (decision, reached)
    }
}

/// The things that a history is played to.
struct Pair {
    threads: Threads,
    /// The same ports in one switch.
    alone: Switch,
    model: Model,
    now: u64,
}

impl Pair {
    fn play(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Add(rules) => {
                let added = self.threads.add_port(rules);
                prop_assert_eq!(self.alone.add_port(rules), added);
                prop_assert_eq!(added.is_ok(), self.model.order.len() < 12);
                if let Ok(port) = added {
                    prop_assert!(self.model.ports.insert(port, rules.clone()).is_none());
                    self.model.order.push(port);
                }
            }
            Step::Remove(nth) => {
                if let Some(port) = self.nth(*nth) {
                    self.threads.remove_port(port);
                    self.alone.remove_port(port);
                    self.model.ports.remove(&port);
                    self.model.order.retain(|other| *other != port);
                }
            }
            Step::Send { port, to, from, tags } => {
                let bytes = frame(destination(*to), address(*from), tags);
                self.send(*port, &bytes, tags)?;
            }
            Step::Bytes { port, bytes } => self.send(*port, bytes, &tags_of(bytes))?,
            Step::Wait { ms } => self.now += ms,
        }
        self.bounds_hold()
    }

    fn nth(&self, nth: usize) -> Option<PortIndex> {
        let count = self.model.order.len();
        (count > 0).then(|| self.model.order[nth % count])
    }

    fn send(&mut self, nth: usize, bytes: &[u8], tags: &[u16]) -> Result<(), TestCaseError> {
        let Some(from) = self.nth(nth) else { return Ok(()) };
        let (decision, mut reached) = self.threads.send(from, bytes, self.now);
        reached.sort_by_key(|(to, _)| *to);
        // When addresses are forgotten depends on what each switch sees.
        if self.now < 1_000 * u64::from(LIMITS.ageing_s) {
            let of_one = self.alone.decide(from, bytes, bytes.len().max(64), at(self.now));
            let mut reached_by_one = receivers(&self.alone, from, of_one);
            reached_by_one.sort_by_key(|(to, _)| *to);
            prop_assert_eq!(&reached, &reached_by_one, "several switches are one");
        }
        for (to, change) in &reached {
            prop_assert!(self.model.may_reach(from, *to, tags, *change), "{from:?} reached {to:?}");
        }
        if let Decision::To(to, _) = decision {
            let mac = Mac(*bytes.first_chunk::<6>().ok_or(TestCaseError::fail("a frame without address"))?);
            let vlan = Model::vlan_of(&self.model.ports[&from], tags);
            let owner = vlan.and_then(|vlan| self.model.owner(from, vlan, mac));
            prop_assert!(owner.is_none_or(|owner| owner == to), "the address of {owner:?} went to {to:?}");
        }
        if let Decision::Flood(_) = decision {
            let expected = self.model.order.iter().filter(|to| {
                let vlan = Model::vlan_of(&self.model.ports[&from], tags);
                let change = vlan.and_then(|vlan| Model::change_for(&self.model.ports[to], vlan, tags));
                change.is_some_and(|change| self.model.may_reach(from, **to, tags, change))
            });
            prop_assert_eq!(reached.len(), expected.count(), "a flooded frame reaches all that it may");
        }
        Ok(())
    }

    fn bounds_hold(&self) -> Result<(), TestCaseError> {
        self.threads.switches.iter().try_for_each(|switch| self.bounds_hold_of(switch))
    }

    fn bounds_hold_of(&self, switch: &Switch) -> Result<(), TestCaseError> {
        let mut learnt: HashMap<PortIndex, usize> = HashMap::new();
        for entry in table_of(switch, at(self.now)) {
            let rules = self.model.ports.get(&entry.port);
            let rules = rules.ok_or(TestCaseError::fail("an address behind no port"))?;
            prop_assert_eq!(entry.network.as_ref(), rules.network.as_str());
            if entry.mac != rules.mac {
                *learnt.entry(entry.port).or_default() += 1;
            }
        }
        prop_assert!(learnt.values().all(|count| *count <= LIMITS.addresses_per_port), "{learnt:?}");
        // One network has learnt its part when the other has all the rest.
        let most = LIMITS.addresses + LIMITS.addresses_per_network;
        prop_assert!(learnt.values().sum::<usize>() <= most, "{learnt:?}");
        Ok(())
    }
}

/// 8 and 9 are groups.
fn destination(number: u8) -> Mac {
    match number {
        8 => Mac([0xff; 6]),
        9 => Mac([0x33, 0x33, 0, 0, 0, 1]),
        last => address(last),
    }
}

/// The VLANs of the 802.1Q tags that any bytes begin with; three where there is a service tag, since such a frame is for nobody.
fn tags_of(bytes: &[u8]) -> Vec<u16> {
    let behind = bytes.get(12..).unwrap_or_default();
    let mut tags = Vec::new();
    for tag in behind.chunks_exact(4) {
        match [tag[0], tag[1]] {
            [0x81, 0] => tags.push(u16::from_be_bytes([tag[2], tag[3]]) & 0xfff),
            [0x88, 0xa8] => return vec![0; 3],
            _ => break,
        }
    }
    tags
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_history_makes_a_frame_reach_a_port_that_it_must_not_reach(
        steps in prop::collection::vec(step(), 1..120),
        threads in 1_usize..4,
    ) {
        let mut pair = Pair {
            threads: Threads::new(threads),
            alone: Switch::new(LIMITS),
            model: Model::default(),
            now: 0,
        };
        for step in &steps {
            pair.play(step)?;
        }
    }

    #[test]
    fn with_a_spoof_check_only_the_own_address_is_ever_a_source(
        bytes in prop::collection::vec(any::<u8>(), 14..HEAD_BYTES),
        own in any::<bool>(),
    ) {
        let mut switch = Switch::new(LIMITS);
        let mut bytes = bytes;
        if own {
            bytes[6..12].copy_from_slice(&address(1).0);
        }
        let checked = PortRules { spoof_check: true, ..rules(1) };
        let port = switch.add_port(&checked).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let decision = switch.decide(port, &bytes, bytes.len(), at(0));
        prop_assert!(own || matches!(decision, Decision::Drop(_)));
    }
}
