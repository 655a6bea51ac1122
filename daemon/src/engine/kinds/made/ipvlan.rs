//! `ipvlan`: an interface that shares its parent's MAC address.

use fairlead_cni::CniError;
use fairlead_cni::config::{self, NetConf};
use fairlead_host::{IpvlanMode, Kind, Link, Mac, NewLink};

use super::link_inputs::{Facts, ParentRef, on_parent};

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ipvlan {
    config: config::ipvlan::Ipvlan,
    mode: IpvlanMode,
}

impl Ipvlan {
    /// Reads the configuration.
    pub(super) fn validate(conf: &NetConf) -> Result<Ipvlan, CniError> {
        let config = config::ipvlan::Ipvlan::parse(conf)?;
        let mode = mode(config.mode);
        Ok(Ipvlan { config, mode })
    }

    /// The link that it stands on, as configured.
    pub(super) fn parent(&self) -> ParentRef {
        self.on(self.config.masters.clone())
    }

    /// The same at ADD: without `master` a chained one stands on the interface of `prevResult`.
    pub(super) fn parent_at_add(&self, conf: &NetConf) -> Result<ParentRef, CniError> {
        Ok(self.on(self.config.masters(conf)?))
    }

    fn on(&self, names: Vec<String>) -> ParentRef {
        ParentRef { names, in_container: self.config.link_in_container }
    }

    /// One `RTM_NEWLINK`, and the MAC address that the link has in the end.
    pub(super) fn link(&self, facts: &Facts<'_>) -> Result<(NewLink, Option<Mac>), CniError> {
        let kind = Kind::Ipvlan { mode: self.mode, flag: None };
        let (new, parent) = on_parent(facts, self.config.link_in_container, self.config.mtu, kind)?;
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
