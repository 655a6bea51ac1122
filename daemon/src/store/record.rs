//! What is on record of an attachment: enough to take it down with nothing else left — no configuration, no pod,
//! no path.

use fairlead_host::{Kind, Link, Mac, NetnsId, Nsid, VfChange};
use fairlead_sriov::PciAddr;
use fairlead_sriov::numa::Locality;
use fairlead_sriov::vf_netdev::Appearance;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

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

/// What was done about a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "link")]
pub enum LinkRecord {
    /// Made for this attachment: deleted with it.
    Made {
        /// Chosen index.
        index: u32,
        /// Kind.
        kind: Kind,
        /// MAC address, chosen or the parent's.
        mac: Option<Mac>,
    },
    /// A netdev of the host that was moved into the pod: moved back and restored.
    Moved(MovedNetdev),
    /// A VF that vfio-pci has: the pod's process drives it, and nothing of it is in a namespace. Its settings are restored.
    #[serde(rename = "given")]
    Vfio(VfRecord),
    /// The namespace's own `lo`.
    Loopback,
    /// A configuration that is a whole list of plugins (`clusterNetwork`): its text.
    #[serde(rename = "list")]
    Conflist {
        /// The conflist as it stood at ADD.
        conflist: String,
    },
    /// No link is touched by this plugin.
    None,
}

/// A netdev of the host as it was before it was moved into a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedNetdev {
    /// What it looked like.
    #[serde(flatten)]
    pub was: Appearance,
    /// The index that it had in the host's namespace.
    pub index: u32,
    /// The VF that it is the netdev of, if it is one's.
    #[serde(rename = "function", default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<VfRecord>,
}

/// A VF as it was before a pod got it, beside its netdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfRecord {
    /// Its PCI address.
    pub address: PciAddr,
    /// The PCI address of its PF.
    #[serde(rename = "physical")]
    pub pf: PciAddr,
    /// Its number among the VFs of its PF, counted from 0.
    pub index: u32,
    /// The name of its driver.
    pub driver: String,
    /// Its IOMMU group, which two pods never share where vfio-pci has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// The settings that ADD changes, as they were.
    pub before: VfChange,
}

impl MovedNetdev {
    /// A link as it is now.
    pub fn of(link: &Link) -> MovedNetdev {
        MovedNetdev { was: Appearance::of(link), index: link.index, vf: None }
    }
}

/// Where the addresses came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "ipam")]
pub enum IpamRecord {
    /// Built-in host-local: `dataDir` (without the host's root) holds the files.
    HostLocal {
        /// The configuration's `dataDir`.
        data_dir: String,
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
    pub config: String,
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
}

/// An attachment is worth more than what is told of it: what another release wrote otherwise is not known.
fn as_of_now<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(
    written: D,
) -> Result<Option<T>, D::Error> {
    let written = serde_json::Value::deserialize(written)?;
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
            locality: None,
        }
    }

    /// The name that the link has after the pod was silenced: free for nobody else, 15 bytes at most.
    pub fn parked_name(&self) -> String {
        format!("fl{:x}", self.id & 0xfff_ffff_ffff)
    }

    /// The VF that its pod has, as a netdev or under vfio-pci.
    pub fn vf(&self) -> Option<&VfRecord> {
        match &self.link {
            LinkRecord::Moved(moved) => moved.vf.as_ref(),
            LinkRecord::Vfio(vf) => Some(vf),
            _ => None,
        }
    }

    /// Whether its pod has the VF at this address.
    pub fn has_vf(&self, address: PciAddr) -> bool {
        self.vf().is_some_and(|own| own.address == address)
    }

    /// True where programs were executed for it, so that its record must outlive a reboot.
    pub fn has_delegates(&self) -> bool {
        matches!(self.ipam, IpamRecord::Delegate { .. }) || matches!(self.link, LinkRecord::Conflist { .. })
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
    },
    /// Nothing is left of it.
    Removed {
        /// Which.
        id: u64,
    },
}
