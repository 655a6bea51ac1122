//! What every type of made link is made from: its parent, its name, the index and the MAC address that it is to have. Pure.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kind, Mac, NewLink, Parent, ParentLink};

/// Which link a new one stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParentRef {
    /// Its name; none: the interface of the default route; of several the nearest to the pod is taken.
    pub(crate) names: Vec<String>,
    /// In the pod's namespace instead of the host's (`linkInContainer`).
    pub(crate) in_container: bool,
}

impl ParentRef {
    /// For a sentence: `"ens1f0"`, or `"ens1f0" or "ens2f0"`.
    pub(crate) fn named(&self) -> String {
        self.names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ")
    }
}

/// What a type needs to know beside its configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    /// `CNI_IFNAME`
    pub(super) ifname: &'a str,
    /// The link that it stands on.
    pub(super) parent: Option<&'a ParentLink>,
    /// The index that the new link is to have.
    pub(super) index: u32,
    /// A MAC address that nobody else has.
    pub(super) mac: Mac,
}

/// A link of this kind on the parent, which is returned too; the MTU is checked (K24), the MAC address left open.
pub(super) fn on_parent<'a>(
    facts: &Facts<'a>,
    in_container: bool,
    mtu: Option<u32>,
    kind: Kind,
) -> Result<(NewLink, &'a ParentLink), CniError> {
    let parent = facts
        .parent
        .ok_or_else(|| CniError::new(Code::InvalidConfig, "the network has no master interface"))?;
    mtu.map_or(Ok(()), |mtu| must_fit(mtu, &parent.name, parent.mtu))?;
    let place = if in_container { Parent::Same(parent.index) } else { Parent::Host(parent.index) };
    let (name, index) = (facts.ifname.to_owned(), Some(facts.index));
    Ok((NewLink { name, index, kind, parent: place, mac: None, mtu, up: true }, parent))
}

/// Refuses an MTU whose frames do not pass the link below, which is `most` of `master`.
pub(crate) fn must_fit(mtu: u32, master: &str, most: u32) -> Result<(), CniError> {
    if mtu <= most {
        return Ok(());
    }
    let msg = format!("mtu {mtu} is above {most} of its master {master:?}");
    Err(CniError::new(Code::InvalidConfig, msg)
        .with("lower `mtu` in the network's configuration or raise the master's"))
}
