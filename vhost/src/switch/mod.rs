//! Which port a frame goes to: a switch that learns addresses.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_host::Mac;

use crate::port::{DropReason, PortConfig};

/// How much of a frame the switch reads.
pub const HEAD_BYTES: usize = 128;

/// A port of one switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortIndex(pub u16);

/// A time in milliseconds since the data plane was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Coarse(pub u64);

/// What is to be done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It goes to one port.
    To(PortIndex, TagChange),
    /// It goes to every port that `flood_to` answers.
    Flood(FloodedFrame),
    /// It goes nowhere.
    Drop(DropReason),
}

/// What happens to a frame's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagChange {
    /// Nothing.
    None,
    /// A tag is put in.
    Push(u16),
    /// The tag is taken out.
    Pop,
}

/// What the switch needs to know of a frame in order to name its receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloodedFrame {}

/// An address that the switch knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearntAddress {
    /// The network.
    pub network: Arc<str>,
    /// The VLAN.
    pub vlan: Option<u16>,
    /// The address.
    pub mac: Mac,
    /// The port.
    pub port: PortIndex,
    /// Seconds since a frame came from it.
    pub age_s: u64,
}

/// The bounds of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {}

/// What the switch has to know of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRules {
    network: String,
}

impl From<&PortConfig> for PortRules {
    fn from(config: &PortConfig) -> PortRules {
        PortRules { network: config.network.clone() }
    }
}

/// The ports of all networks of one poll thread.
#[derive(Default)]
pub struct Switch {
    ports: Vec<Option<String>>,
    table: HashMap<(String, [u8; 6]), (PortIndex, Coarse)>,
}

impl Switch {
    /// A switch without ports.
    pub fn new(_limits: Limits) -> Switch {
        Switch::default()
    }

    /// A port more.
    pub fn add_port(&mut self, rules: PortRules) -> PortIndex {
        let free = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if free == self.ports.len() {
            self.ports.push(None);
        }
        self.ports[free] = Some(rules.network);
        PortIndex(u16::try_from(free).unwrap_or(u16::MAX))
    }

    /// A port fewer.
    pub fn remove_port(&mut self, port: PortIndex) {
        self.ports[usize::from(port.0)] = None;
        self.table.retain(|_, (at, _)| *at != port);
    }

    /// Where a frame goes.
    pub fn decide(&mut self, from: PortIndex, head: &[u8], _length: usize, now: Coarse) -> Decision {
        let Some(network) = &self.ports[usize::from(from.0)] else {
            return Decision::Drop(DropReason::Isolated);
        };
        let (Some(to), Some(source)) = (head.get(0..6), head.get(6..12)) else {
            return Decision::Drop(DropReason::Length);
        };
        let key = |mac: &[u8]| (network.clone(), <[u8; 6]>::try_from(mac).unwrap_or_default());
        self.table.insert(key(source), (from, now));
        match self.table.get(&key(to)) {
            Some((port, _)) if *port == from => Decision::Drop(DropReason::Isolated),
            Some((port, _)) => Decision::To(*port, TagChange::None),
            None => Decision::Flood(FloodedFrame {}),
        }
    }

    /// Who gets a flooded frame.
    pub fn flood_to(
        &self,
        from: PortIndex,
        _: &FloodedFrame,
    ) -> impl Iterator<Item = (PortIndex, TagChange)> {
        let network = self.ports[usize::from(from.0)].as_ref();
        let same = move |(n, other): (usize, &Option<String>)| {
            let index = PortIndex(u16::try_from(n).ok()?);
            (other.is_some() && other.as_ref() == network && index != from)
                .then_some((index, TagChange::None))
        };
        self.ports.iter().enumerate().filter_map(same)
    }

    /// The addresses that were learnt.
    pub fn mac_table(&self, now: Coarse) -> Vec<LearntAddress> {
        let entry =
            |((network, mac), (port, seen)): (&(String, [u8; 6]), &(PortIndex, Coarse))| LearntAddress {
                network: Arc::from(network.as_str()),
                vlan: None,
                mac: Mac(*mac),
                port: *port,
                age_s: (now.0 - seen.0) / 1000,
            };
        self.table.iter().map(entry).collect()
    }
}
