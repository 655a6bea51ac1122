//! What a configuration of a made link asks for. One file for each type; here is what they have in common.

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::NetConf;

use super::dummy::Dummy;
use super::ipvlan::Ipvlan;
use super::link_inputs::ParentRef;
use super::macvlan::Macvlan;
use super::vlan::Vlan;
use crate::engine::kinds::Addressing;

/// The types of configurations that are served here.
pub(crate) const TYPES: [&str; 4] = ["macvlan", "ipvlan", "vlan", "dummy"];

/// The kinds of links (`IFLA_INFO_KIND`) that the kernel must have for them, for `doctor`.
pub(crate) const KERNEL_KINDS: [&str; 4] = ["macvlan", "ipvlan", "vlan", "dummy"];

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Made {
    /// An interface with a MAC address of its own on an interface of the host.
    Macvlan(Macvlan),
    /// An interface that shares the MAC address of its parent.
    Ipvlan(Ipvlan),
    /// An 802.1Q interface on an interface of the host.
    Vlan(Vlan),
    /// An interface that leads nowhere.
    Dummy(Dummy),
}

impl Made {
    /// Reads and validates a configuration of one of [`TYPES`].
    pub(crate) fn validate(conf: &NetConf, args: &Args) -> Result<Made, CniError> {
        match conf.plugin_type.as_str() {
            "macvlan" => Macvlan::validate(conf, args).map(Made::Macvlan),
            "ipvlan" => Ipvlan::validate(conf).map(Made::Ipvlan),
            "vlan" => Vlan::validate(conf).map(Made::Vlan),
            "dummy" => Dummy::validate(conf).map(Made::Dummy),
            other => Err(crate::engine::kinds::not_built_in(other)),
        }
    }

    /// The link that it stands on, as configured, if its type stands on one.
    pub(crate) fn parent(&self) -> Option<ParentRef> {
        match self {
            Made::Macvlan(n) => Some(n.parent()),
            Made::Ipvlan(n) => Some(n.parent()),
            Made::Vlan(n) => Some(n.parent()),
            Made::Dummy(_) => None,
        }
    }

    /// The same at ADD, for which the plugin before it in a chain may name the link. Code 7 when that names none or several.
    pub(super) fn parent_at_add(&self, conf: &NetConf) -> Result<Option<ParentRef>, CniError> {
        match self {
            Made::Ipvlan(n) => n.parent_at_add(conf).map(Some),
            Made::Macvlan(_) | Made::Vlan(_) | Made::Dummy(_) => Ok(self.parent()),
        }
    }

    /// The host's link that the new one takes over, if it does.
    pub(super) fn parent_taken_over(&self) -> Option<ParentRef> {
        match self {
            Made::Macvlan(n) if n.takes_parent_over() => {
                Some(n.parent()).filter(|parent| !parent.in_container)
            }
            Made::Macvlan(_) | Made::Ipvlan(_) | Made::Vlan(_) | Made::Dummy(_) => None,
        }
    }

    /// Whether a link of the host is taken over.
    pub(crate) fn takes_parent_over(&self) -> bool {
        self.parent_taken_over().is_some()
    }

    /// Whether it depends on what kubelet has given to the pod.
    pub(crate) fn may_ask_kubelet(&self) -> bool {
        self.takes_parent_over() || self.parent().is_some_and(|parent| parent.names.len() > 1)
    }

    /// The kind of link that is made (`IFLA_INFO_KIND`).
    pub(crate) fn kernel_kind(&self) -> &'static str {
        match self {
            Made::Macvlan(_) => "macvlan",
            Made::Ipvlan(_) => "ipvlan",
            Made::Vlan(_) => "vlan",
            Made::Dummy(_) => "dummy",
        }
    }

    /// For a sentence: the interface that it stands on, as configured.
    pub(crate) fn of_device(&self) -> String {
        match self.parent() {
            Some(parent) if !parent.names.is_empty() => format!(" on {}", parent.named()),
            _ => String::new(),
        }
    }

    /// How much it wants an address, as the reference plugin of its type has it.
    pub(crate) fn addressing(&self) -> Addressing {
        match self {
            Made::Macvlan(_) => Addressing::Optional,
            Made::Ipvlan(_) => Addressing::RequiredUnlessChained,
            Made::Vlan(_) | Made::Dummy(_) => Addressing::Required,
        }
    }

    /// Whether `arp_notify` and `ndisc_notify` are set, as the reference plugin of its type does.
    pub(crate) fn notifies(&self, has_address: bool) -> bool {
        match self {
            Made::Macvlan(_) | Made::Ipvlan(_) => has_address,
            Made::Vlan(_) | Made::Dummy(_) => false,
        }
    }

    /// Whether the answer has the name resolution of the IPAM instead of the network's own, as the reference plugin of its type has it.
    pub(crate) fn answers_dns_of_ipam(&self) -> bool {
        match self {
            Made::Dummy(_) => true,
            Made::Macvlan(_) | Made::Ipvlan(_) | Made::Vlan(_) => false,
        }
    }

    /// Whether another one can stand on the same parent while this one, silenced, is still there.
    pub(crate) fn silent_is_gone(&self) -> bool {
        match self {
            // The kernel lets a parent have only one passthru link: the old one must be gone before the next ADD.
            Made::Macvlan(n) => !n.takes_parent_over(),
            Made::Ipvlan(_) | Made::Dummy(_) => true,
            // A parent can have only one link of a VLAN id.
            Made::Vlan(_) => false,
        }
    }
}
