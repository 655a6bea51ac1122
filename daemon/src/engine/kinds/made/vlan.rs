//! `vlan`: an 802.1Q interface on an interface of the host.

use fairlead_cni::CniError;
use fairlead_cni::config::{self, NetConf};
use fairlead_host::{Kind, Link, Mac, NewLink};

use super::link_inputs::{Facts, ParentRef, on_parent};

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Vlan {
    master: String,
    in_container: bool,
    id: u16,
    mtu: Option<u32>,
}

impl Vlan {
    /// Reads and validates the configuration.
    pub(super) fn validate(conf: &NetConf) -> Result<Vlan, CniError> {
        let read = config::vlan::Vlan::parse(conf)?;
        Ok(Vlan {
            master: read.master,
            in_container: read.link_in_container,
            id: read.vlan_id,
            mtu: read.mtu,
        })
    }

    /// The link that it stands on.
    pub(super) fn parent(&self) -> ParentRef {
        ParentRef { names: vec![self.master.clone()], in_container: self.in_container }
    }

    /// One `RTM_NEWLINK`, and the MAC address that the link has in the end.
    pub(super) fn link(&self, facts: &Facts<'_>) -> Result<(NewLink, Option<Mac>), CniError> {
        let kind = Kind::Vlan { id: self.id };
        let (new, parent) = on_parent(facts, self.in_container, self.mtu, kind)?;
        // The kernel gives a new VLAN link the MAC address of its parent.
        Ok((new, parent.mac))
    }

    /// Whether the link has the kind and VLAN id that were asked for.
    pub(super) fn check(&self, link: &Link) -> Result<(), String> {
        match link.kind {
            Kind::Vlan { id } if id == self.id => Ok(()),
            Kind::Vlan { id } => Err(format!("{:?} has VLAN id {id} instead of {}", link.name, self.id)),
            _ => Err(format!("{:?} is no vlan but {:?}", link.name, link.kind.name())),
        }
    }
}
