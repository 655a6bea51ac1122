//! The record of an attachment: enough to take it down when no configuration, no pod and no path is left.
//!
//! The JSON of these types is written to journals and read by other releases; field and variant names are the
//! format.

use fairlead_host::{Kind, Link, Mac, NetnsId, Nsid, VfChange};
use fairlead_sriov::PciAddr;
use fairlead_sriov::interface::Appearance;
use fairlead_sriov::numa::Locality;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The names by which the caller knows an attachment (CNI SPEC.md: container id and interface name), for each
/// network and plugin: several plugins of one chain share the first three.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The value of `CNI_CONTAINERID`.
    pub container: String,
    /// The name of the network.
    pub network: String,
    /// The value of `CNI_IFNAME`.
    pub ifname: String,
    /// The `type` of the plugin, as its configuration says.
    pub plugin: String,
}

/// How far an attachment has come. A phase is written before the step that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The host is about to be changed; a restart undoes it.
    Adding,
    /// The ADD was committed: a restart never undoes it.
    Attached,
    /// The attachment is about to be taken down; a restart finishes that.
    Removing,
    /// The interface is silent and off its name, and DEL was answered; link and addresses are still to be given
    /// back.
    Silenced,
}

/// The pod's network namespace, as ADD found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// The value of `CNI_NETNS` at ADD.
    pub path: String,
    /// The identity of the namespace, which its path is not.
    pub id: NetnsId,
    /// The number by which the host's namespace knows this one.
    pub nsid: Option<Nsid>,
}

/// What was done about the link of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "link")]
pub enum LinkRecord {
    /// The link was made for this attachment, and is deleted with it.
    Made {
        /// The interface index in the pod, chosen before the link is made.
        index: u32,
        /// The kind of the link.
        kind: Kind,
        /// The MAC address, chosen at ADD or inherited from the parent.
        mac: Option<Mac>,
    },
    /// The link is one of the host's that was moved to the pod, and is given back as it was.
    Moved(Lent),
    /// The attachment is a VF that vfio-pci has: the pod's process drives it, and nothing of it is in a
    /// namespace. Its settings are given back.
    Given(LentVf),
    /// The attachment is the namespace's own `lo`.
    Loopback,
    /// The configuration is a whole list of plugins (`clusterNetwork`).
    List {
        /// The text of the conflist as it stood at ADD.
        conflist: String,
    },
    /// The plugin touches no link.
    None,
}

/// A link of the host as it was before a pod got it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// The name, MTU, MAC address and other properties that are given back.
    #[serde(flatten)]
    pub was: Appearance,
    /// The interface index, which the link keeps in the pod.
    pub index: u32,
    /// The VF behind the interface, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<LentVf>,
}

/// A VF as it was before a pod got it, apart from its interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentVf {
    /// The PCI address of the VF.
    pub address: PciAddr,
    /// The PCI address of its PF.
    pub physical: PciAddr,
    /// The number of the VF on its PF.
    pub index: u32,
    /// The driver that the VF was bound to.
    pub driver: String,
    /// The IOMMU group. Two pods never share one that vfio-pci has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// The settings that ADD changes, as they were before.
    pub before: VfChange,
}

impl Lent {
    /// Records a link as it is now.
    pub fn of(link: &Link) -> Lent {
        Lent { was: Appearance::of(link), index: link.index, function: None }
    }
}

/// Where the addresses of an attachment came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "ipam")]
pub enum IpamRecord {
    /// The built-in host-local holds the addresses in files below `dataDir`.
    HostLocal {
        /// The `dataDir` of the configuration, without the host's root.
        data_dir: String,
    },
    /// The addresses are the configuration's own, so nothing is given back.
    Static,
    /// Another program was executed for the addresses, and must be executed again to free them.
    Delegate {
        /// The `type` of the IPAM plugin.
        plugin: String,
    },
    /// The configuration has no IPAM.
    None,
}

/// What an executed plugin needs at DEL, when the caller that made the attachment is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Caller {
    /// The value of `CNI_ARGS` at ADD.
    pub args: String,
    /// The value of `CNI_PATH` at ADD.
    pub path: String,
    /// The environment of the ADD, kept only where a program was executed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
}

/// The record of one interface of one pod in one network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The number of the attachment in this store, which is never used again.
    pub id: u64,
    /// The names by which the caller knows the attachment.
    pub key: Key,
    /// How far the attachment has come.
    pub phase: Phase,
    /// The pod's network namespace.
    pub netns: Namespace,
    /// What was done about the link, so that it can be undone.
    pub link: LinkRecord,
    /// Where the addresses came from, so that they can be freed.
    pub ipam: IpamRecord,
    /// The text of the configuration at ADD.
    pub config: String,
    /// What executed plugins need at DEL.
    #[serde(default)]
    pub caller: Caller,
    /// The addresses that were assigned, known from the commit on.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// The answer in the configuration's version, known from the commit on.
    #[serde(default)]
    pub answer: Option<String>,
    /// Whether the answer is known to have reached its caller.
    #[serde(default)]
    pub answered: bool,
    /// How near the VF is to the pod's NUMA node, where the network asked for that.
    #[serde(default, deserialize_with = "as_of_now", skip_serializing_if = "Option::is_none")]
    pub near: Option<Locality>,
    /// The paths of a network of type `fairlead` that were tried before the one that was taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<PassedOver>,
    /// The device information file for the pod's other parts, below the host's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_info: Option<String>,
}

/// Reads a field, or nothing where another release wrote it differently: the attachment is worth more than this
/// field.
fn as_of_now<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(
    written: D,
) -> Result<Option<T>, D::Error> {
    let written = serde_json::Value::deserialize(written)?;
    Ok(serde_json::from_value(written).ok())
}

/// A path of a network of type `fairlead` that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// The `type` of the path.
    #[serde(rename = "type")]
    pub kind: String,
    /// The reason: what the host or the pod lacked.
    pub why: String,
}

impl Attachment {
    /// An attachment that is about to be made: only its owner, its namespace, its link and its configuration are
    /// known.
    pub fn new(id: u64, key: Key, netns: Namespace, link: LinkRecord, config: String) -> Attachment {
        Attachment {
            id,
            key,
            phase: Phase::Adding,
            netns,
            link,
            ipam: IpamRecord::None,
            config,
            caller: Caller::default(),
            addresses: Vec::new(),
            answer: None,
            answered: false,
            passed_over: Vec::new(),
            device_info: None,
            near: None,
        }
    }

    /// The name of the link after the pod was silenced: at most 15 bytes, and nobody else's.
    pub fn parked_name(&self) -> String {
        format!("fl{:x}", self.id & 0xfff_ffff_ffff)
    }

    /// The VF of the attachment, moved as an interface or left to vfio-pci.
    pub fn function(&self) -> Option<&LentVf> {
        match &self.link {
            LinkRecord::Moved(lent) => lent.function.as_ref(),
            LinkRecord::Given(function) => Some(function),
            _ => None,
        }
    }

    /// Whether the attachment has this VF.
    pub fn has(&self, function: PciAddr) -> bool {
        self.function().is_some_and(|own| own.address == function)
    }

    /// Whether programs were executed for it, so that its record must outlive a reboot.
    pub fn has_delegates(&self) -> bool {
        matches!(self.ipam, IpamRecord::Delegate { .. }) || matches!(self.link, LinkRecord::List { .. })
    }
}

/// One entry of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "e")]
pub enum Entry {
    /// The whole attachment: its intent, or in a compacted journal its present state.
    Put(Box<Attachment>),
    /// The ADD was committed: from here on a restart never undoes it.
    Commit {
        /// The number of the attachment.
        id: u64,
        /// The addresses that were assigned.
        addresses: Vec<IpNet>,
        /// The answer of the ADD, in the configuration's version.
        answer: String,
    },
    /// The answer reached the caller.
    Answered {
        /// The number of the attachment.
        id: u64,
    },
    /// The attachment entered a phase.
    Phase {
        /// The number of the attachment.
        id: u64,
        /// The phase that it entered.
        phase: Phase,
    },
    /// Nothing is left of the attachment.
    Removed {
        /// The number of the attachment.
        id: u64,
    },
}
