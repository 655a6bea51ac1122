//! What is on record of an attachment: enough to take it down with nothing else left — no configuration, no pod,
//! no path. What it says of the link has a file of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use fairlead_cni::config::AttachmentRef;
use fairlead_host::{NetdevIdentity, NetnsId, Nsid};
use fairlead_kube::PodRef;
use fairlead_sriov::PciAddr;
use fairlead_sriov::numa::Locality;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::link_record::{LinkRecord, UplinkRecord, VfRecord, VhostUserRecord};
use super::seconds_since_epoch;
use crate::boot_time::BootTime;
use crate::policy::address_directory;

/// By what the caller knows an attachment (CNI SPEC.md: container id and interface name), per network and plugin:
/// several plugins of one chain share the first three.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// `CNI_CONTAINERID`
    pub container: String,
    /// The network's name.
    pub network: String,
    /// `CNI_IFNAME`
    pub ifname: String,
    /// The configuration's `type`.
    pub plugin: String,
}

impl Key {
    /// The interface, for a person: "net1 of container c1".
    pub fn interface_in_words(&self) -> String {
        interface_in_words(&self.ifname, &self.container)
    }
}

/// An interface by its name and its container, for a person: "net1 of container c1".
pub(super) fn interface_in_words(ifname: &str, container: &str) -> String {
    format!("{ifname} of container {container}")
}

/// How far an attachment has come. Written before the step that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The host is about to be changed; a restart undoes it.
    Adding,
    /// Committed: a restart never undoes it.
    Attached,
    /// About to be taken down; a restart finishes that.
    Removing,
    /// Silent and off its name, answered; its link and addresses are still to be given back.
    Silenced,
}

/// The pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// `CNI_NETNS`
    pub path: String,
    /// Its identity.
    pub id: NetnsId,
    /// By what number the host's namespace knows it.
    pub nsid: Option<Nsid>,
}

/// Where the addresses came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "ipam")]
pub enum IpamRecord {
    /// Built-in host-local: `dataDir` (without the host's root) holds the files.
    HostLocal {
        /// The configuration's `dataDir`.
        data_dir: String,
        /// The root of the policy below which a tenant's has to lie, whatever the policy says by now; absent: it is the
        /// administrator's, and goes wherever it leads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<String>,
    },
    /// Addresses of the configuration itself: nothing to give back.
    Static,
    /// Another program.
    Delegate {
        /// Its type.
        plugin: String,
    },
    /// None.
    None,
}

/// What a plugin that is executed needs at DEL, when the caller that made the attachment is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Caller {
    /// `CNI_ARGS`
    pub args: String,
    /// `CNI_PATH`
    pub path: String,
    /// The environment of the ADD; kept only where a program was executed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
}

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Number in this store, never reused in it.
    pub id: u64,
    /// By what the caller knows it.
    pub key: Key,
    /// How far it has come.
    pub phase: Phase,
    /// The pod's namespace.
    pub netns: Namespace,
    /// Its link.
    pub link: LinkRecord,
    /// Its IPAM.
    pub ipam: IpamRecord,
    /// The configuration as given at ADD.
    pub config: Arc<str>,
    /// The namespace whose definition that is; absent: it is the administrator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Arc<str>>,
    /// The pod, where the runtime names it. Absent in records of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// What the pod said of its networks at ADD, where the watch told it: those of a running pod can be changed. What the runtime tells
    /// is in the configuration. Absent for what is made with a default network, and where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// The attachment of the pod's default network, for one that was made with it: it is removed with that.
    #[serde(rename = "with", default, skip_serializing_if = "Option::is_none")]
    pub made_with: Option<u64>,
    /// The pod wants its default routes to lead over these gateways, on this interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_gateways: Vec<IpAddr>,
    /// Environment for executed plugins.
    #[serde(default)]
    pub caller: Caller,
    /// Addresses that were assigned (known from the commit on).
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// The answer, in the configuration's version (known from the commit on).
    #[serde(default)]
    pub answer: Option<String>,
    /// Whether that answer reached its caller as far as we know.
    #[serde(default)]
    pub answered: bool,
    /// How its VF lies to the pod's NUMA node, where that was asked for.
    #[serde(
        rename = "near",
        default,
        deserialize_with = "as_of_now",
        skip_serializing_if = "Option::is_none"
    )]
    pub locality: Option<Locality>,
    /// The paths of our own type that came before the one that was taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<PassedOver>,
    /// The file that tells the pod's other parts about its device, below the host's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_info: Option<String>,
    /// The PCI device of the host that it has taken over, where its link does not tell that: nobody else gets it.
    #[serde(rename = "pciDevice", default, skip_serializing_if = "Option::is_none")]
    pub taken_device: Option<PciAddr>,
    /// Its pod has left on its VF what could not be undone, in words: the VF is nobody's before it is clean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// When its removal was begun, in seconds since the epoch: not known where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removing_since: Option<u64>,
    /// The name under which what its pod was lent comes to the host. `None` for what was made, and where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<String>,
    /// When its ADD was begun, in seconds since the epoch. Absent where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_at: Option<u64>,
    /// The same in this boot: what a call that comes late is compared with. Absent where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<BootTime>,
    /// When it was committed. Absent where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<BootTime>,
}

/// An attachment is worth more than what is told of it: what another release wrote otherwise is not known.
fn as_of_now<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(
    written: D,
) -> Result<Option<T>, D::Error> {
    let written = Value::deserialize(written)?;
    Ok(serde_json::from_value(written).ok())
}

/// A path that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the host or the pod lacked.
    pub why: String,
}

impl Attachment {
    /// One that is about to be made: nothing of it is known yet but whose it is, where, and of what.
    pub fn new(id: u64, key: Key, netns: Namespace, link: LinkRecord, config: Arc<str>) -> Attachment {
        Attachment {
            id,
            key,
            phase: Phase::Adding,
            netns,
            link,
            ipam: IpamRecord::None,
            config,
            namespace: None,
            pod: None,
            annotations: None,
            made_with: None,
            default_gateways: Vec::new(),
            caller: Caller::default(),
            addresses: Vec::new(),
            answer: None,
            answered: false,
            passed_over: Vec::new(),
            device_info: None,
            locality: None,
            taken_device: None,
            quarantined: None,
            removing_since: None,
            parked: None,
            added_at: Some(seconds_since_epoch()),
            begun: BootTime::now(),
            committed: None,
        }
    }

    /// The name of the directory with the network's addresses.
    pub fn address_directory(&self) -> Cow<'_, str> {
        address_directory(&self.key.network, self.namespace.as_deref())
    }

    /// The name under which what its pod was lent comes to the host: 15 bytes at most. No pod ever sees it.
    pub fn parked_name(&self) -> Cow<'_, str> {
        match &self.parked {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("fl{:x}", self.id & 0xfff_ffff_ffff)),
        }
    }

    /// The VF that its pod has, as a netdev or under vfio-pci.
    pub fn vf(&self) -> Option<&VfRecord> {
        match &self.link {
            LinkRecord::Moved(moved) => moved.vf.as_ref(),
            LinkRecord::Vfio(vf) => Some(vf),
            _ => None,
        }
    }

    /// The port of a switch in user space that its pod has.
    pub fn vhost_user(&self) -> Option<&VhostUserRecord> {
        match &self.link {
            LinkRecord::VhostUser(record) => Some(record),
            _ => None,
        }
    }

    /// The same, if the switch is our own.
    pub fn port_of_own_switch(&self) -> Option<&VhostUserRecord> {
        self.vhost_user().filter(|record| record.ovs.is_none())
    }

    /// The port of a pool that its pod has.
    pub fn pool_port(&self) -> Option<&str> {
        self.vhost_user()?.pool_port.as_deref()
    }

    /// The uplink of its network, if that has one.
    pub fn uplink(&self) -> Option<&UplinkRecord> {
        self.vhost_user()?.uplink.as_ref()
    }

    /// The index of the host's link that its own, made for it, stands on.
    pub fn parent(&self) -> Option<u32> {
        match self.link {
            LinkRecord::Made { parent, .. } => parent,
            _ => None,
        }
    }

    /// Whether it is being removed, or will be: what it has is about to be given back.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Removing | Phase::Silenced)
    }

    /// As a GC refers to it.
    pub fn reference(&self) -> AttachmentRef {
        AttachmentRef { container_id: self.key.container.clone(), ifname: self.key.ifname.clone() }
    }

    /// By what a person knows it: its interface, and its pod, or its container where the runtime names no pod.
    pub fn holder(&self) -> String {
        let Key { container, ifname, .. } = &self.key;
        match &self.pod {
            Some(pod) => format!("interface {ifname:?} of pod {pod} (container {container})"),
            None => format!("interface {ifname:?} of container {container}"),
        }
    }

    /// The PCI device that its pod has: a VF, or any other device of the host that was taken over.
    pub fn pci_device(&self) -> Option<PciAddr> {
        let of_vf = self.vf().map(|vf| vf.address);
        of_vf.or(self.taken_device).or_else(|| self.lent_pci_device())
    }

    /// What the record of a release without `taken_device` says of that.
    fn lent_pci_device(&self) -> Option<PciAddr> {
        let LinkRecord::Moved(moved) = &self.link else { return None };
        match &moved.lent_as.as_ref()?.identity {
            NetdevIdentity::Device { device: Some(device), .. } => device.parse().ok(),
            _ => None,
        }
    }

    /// Whether its pod has the PCI device at this address.
    pub fn has_pci_device(&self, address: PciAddr) -> bool {
        self.pci_device() == Some(address)
    }

    /// Whether the other one is a plugin of the list that this one stands for.
    pub fn has_plugin(&self, other: &Attachment) -> bool {
        let is_list = |of: &Attachment| matches!(of.link, LinkRecord::Conflist { .. });
        let same_interface = self.key.container == other.key.container && self.key.ifname == other.key.ifname;
        is_list(self) && !is_list(other) && same_interface && self.id < other.id
    }

    /// Whether the other one is part of this one, and goes with it: a plugin of its list, or a network that was made with it.
    pub fn has_part(&self, other: &Attachment) -> bool {
        other.made_with == Some(self.id) || self.has_plugin(other)
    }

    /// True where programs were executed for it, so that its record must outlive a reboot.
    pub fn has_delegates(&self) -> bool {
        matches!(self.ipam, IpamRecord::Delegate { .. })
            || matches!(self.link, LinkRecord::Conflist { built_in: false, .. })
    }
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "e")]
pub enum Entry {
    /// An attachment with all that is known of it (the intent; in a compacted journal its present state).
    Put(Box<Attachment>),
    /// It is attached.
    Commit {
        /// Which.
        id: u64,
        /// What was assigned.
        addresses: Vec<IpNet>,
        /// The answer.
        answer: String,
        /// When that was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<BootTime>,
    },
    /// Its answer reached the caller.
    Answered {
        /// Which.
        id: u64,
    },
    /// It entered this phase.
    Phase {
        /// Which.
        id: u64,
        /// Into which phase.
        phase: Phase,
        /// When a removal was begun, in seconds since the epoch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<u64>,
    },
    /// Nothing is left of it.
    Removed {
        /// Which.
        id: u64,
    },
}
