//! `ipvlan`: an interface that shares its parent's MAC address.

use fairlead_cni::CniError;
use fairlead_cni::config::{self, NetConf};
use fairlead_host::{IpvlanMode, Kind, Link, Mac, NewLink};

use super::link_inputs::{Facts, ParentRef, on_parent};

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ipvlan {
    masters: Vec<String>,
    in_container: bool,
    mode: IpvlanMode,
    mtu: Option<u32>,
}

impl Ipvlan {
    /// Reads the configuration; without `master` a chained one stands on the interface of `prevResult`.
    pub(super) fn validate(conf: &NetConf) -> Result<Ipvlan, CniError> {
        let read = config::ipvlan::Ipvlan::parse(conf)?;
        let masters = read.masters(conf)?;
        Ok(Ipvlan { masters, in_container: read.link_in_container, mode: mode(read.mode), mtu: read.mtu })
    }

    /// The link that it stands on.
    pub(super) fn parent(&self) -> ParentRef {
        ParentRef { names: self.masters.clone(), in_container: self.in_container }
    }

    /// One `RTM_NEWLINK`, and the MAC address that the link has in the end.
    pub(super) fn link(&self, facts: &Facts<'_>) -> Result<(NewLink, Option<Mac>), CniError> {
        let kind = Kind::Ipvlan { mode: self.mode, flag: None };
        let (new, parent) = on_parent(facts, self.in_container, self.mtu, kind)?;
        // The kernel gives an ipvlan link the MAC address of its parent.
        Ok((new, parent.mac))
    }

    /// Whether the link has the kind and mode that were asked for.
    pub(super) fn check(&self, link: &Link) -> Result<(), String> {
        match link.kind {
            Kind::Ipvlan { mode, .. } if mode == self.mode => Ok(()),
            Kind::Ipvlan { mode, .. } => {
                Err(format!("{:?} is in mode {mode:?} instead of {:?}", link.name, self.mode))
            }
            _ => Err(format!("{:?} is no ipvlan but {:?}", link.name, link.kind.name())),
        }
    }
}

fn mode(mode: config::ipvlan::Mode) -> IpvlanMode {
    match mode {
        config::ipvlan::Mode::L2 => IpvlanMode::L2,
        config::ipvlan::Mode::L3 => IpvlanMode::L3,
        config::ipvlan::Mode::L3s => IpvlanMode::L3s,
    }
}
