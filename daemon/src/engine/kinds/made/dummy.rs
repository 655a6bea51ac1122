//! `dummy`: an interface that leads nowhere, for addresses that a pod is to have without a wire.

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use fairlead_host::{Kind, Link, Mac, NewLink, Parent};

use super::link_inputs::Facts;

/// A validated configuration: nothing but an IPAM belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dummy;

impl Dummy {
    /// Takes any configuration, as the reference plugin does.
    ///
    /// # Errors
    /// None; the shape is that of the other types.
    pub(super) fn validate(_conf: &NetConf) -> Result<Dummy, CniError> {
        Ok(Dummy)
    }

    /// One `RTM_NEWLINK`, and the MAC address that the link has in the end.
    pub(super) fn link(facts: &Facts<'_>) -> (NewLink, Option<Mac>) {
        // The kernel would draw a MAC address itself; one that is chosen is on record before the link is made.
        let mac = Some(facts.mac);
        let (name, index) = (facts.ifname.to_owned(), Some(facts.index));
        let link = NewLink { name, index, kind: Kind::Dummy, parent: Parent::None, mac, mtu: None, up: true };
        (link, mac)
    }

    /// Whether the link is a dummy.
    pub(super) fn check(link: &Link) -> Result<(), String> {
        match link.kind {
            Kind::Dummy => Ok(()),
            _ => Err(format!("{:?} is no dummy but {:?}", link.name, link.kind.name())),
        }
    }
}
