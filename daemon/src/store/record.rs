//! What is on record of an attachment: enough to take it down with nothing else left — no configuration, no pod,
//! no path.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use fairlead_cni::config::AttachmentRef;
use fairlead_host::{
    AttachedProgram, Kind, Link, LinkSettings, Mac, NetdevIdentity, NetdevSettings, NetnsId, Nsid, VfChange,
};
use fairlead_kube::PodRef;
use fairlead_sriov::PciAddr;
use fairlead_sriov::numa::Locality;
use fairlead_sriov::vf_netdev::{Appearance, Look};
use fairlead_vhost::ovs_dpdk::PortSpec;
use fairlead_vhost::port::PortConfig;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::seconds_since_epoch;
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
        /// The MTU that it is made with, in bytes. Absent where a release before wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mtu: Option<u32>,
        /// The index of the host's link that it stands on. Absent: it stands on none of the host's, or a release before wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<u32>,
    },
    /// A netdev of the host that was moved into the pod: moved back and restored.
    Moved(Box<MovedNetdev>),
    /// A VF that vfio-pci has: the pod's process drives it, and nothing of it is in a namespace. Its settings are restored.
    #[serde(rename = "given")]
    Vfio(VfRecord),
    /// A port of a switch in user space: taken out of the switch, and its socket removed.
    #[serde(rename = "vhost-user")]
    VhostUser(Box<VhostUserRecord>),
    /// The namespace's own `lo`.
    Loopback,
    /// A configuration that is a whole list of plugins (`clusterNetwork`): its text.
    #[serde(rename = "list")]
    Conflist {
        /// The conflist as it stood at ADD.
        conflist: Arc<str>,
        /// The namespace whose definition the list is; absent: it is the administrator's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<Arc<str>>,
        /// All of its plugins are part of the daemon: nothing is executed for it. False in records of 0.1.0.
        #[serde(default, rename = "builtIn", skip_serializing_if = "std::ops::Not::not")]
        built_in: bool,
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
    /// By what it is known in the pod. `None` for a VF's, which is known by its PCI address, and in records of 0.1.0.
    #[serde(rename = "lentAs", default, skip_serializing_if = "Option::is_none")]
    pub lent_as: Option<LentAs>,
    /// What ethtool and programs had made of it. `None` in records of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_state: Option<DriverState>,
    /// The VF that it is the netdev of, if it is one's.
    #[serde(rename = "function", default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<VfRecord>,
}

/// What goes with a netdev from one namespace to the next beside its appearance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DriverState {
    /// What ethtool had set of it.
    pub settings: NetdevSettings,
    /// The kernel's numbers of the programs that the host had attached to it: what releases without `attached` go by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<u32>,
    /// The same with where and by what each is attached. Empty in records of such releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<AttachedProgram>,
    /// What else was set of the link. `None` where a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSettings>,
}

impl DriverState {
    /// What a netdev has: these settings and these programs.
    pub fn of(settings: NetdevSettings, attached: Vec<AttachedProgram>) -> DriverState {
        let programs = attached.iter().map(|program| program.id).collect();
        DriverState { settings, programs, attached, link: None }
    }

    /// Whether a program was attached where it is now, as far as the record says.
    pub fn had(&self, now: &AttachedProgram) -> bool {
        match self.attached.is_empty() {
            true => self.programs.contains(&now.id),
            false => self.attached.contains(now),
        }
    }
}

/// By what a netdev of the host is known while a pod has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentAs {
    /// The index that it was moved to in the pod.
    pub index: u32,
    /// What it is, by what no pod can set.
    pub identity: NetdevIdentity,
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

/// A port of a switch in user space: all that it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhostUserRecord {
    /// The port, as our own switch has it.
    pub port: PortConfig,
    /// The port, as OVS has it: it is one of OVS-DPDK, and not of our own switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ovs: Option<Box<PortSpec>>,
    /// The directory of its socket, on the host.
    pub directory: String,
    /// The socket's name in it.
    pub socket: String,
    /// The directory is a volume of the pod, and nobody else's.
    #[serde(rename = "inVolume", default, skip_serializing_if = "std::ops::Not::not")]
    pub in_volume: bool,
    /// The pod's process makes the socket, and is connected to.
    #[serde(rename = "podListens", default, skip_serializing_if = "std::ops::Not::not")]
    pub pod_listens: bool,
    /// The port of a pool, which kubelet has allocated to the pod: the directory is its own.
    #[serde(rename = "poolPort", default, skip_serializing_if = "Option::is_none")]
    pub pool_port: Option<String>,
    /// The name that the socket has until whoever sees it can use it. On record first: a daemon that is killed meanwhile leaves it
    /// there. Absent in records of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Where the pod sees the directory, as far as the configuration says it.
    #[serde(rename = "mountPath", default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// The directory is one of the container's own, which is made and removed with the port, in this one (`sharedDir` of userspace-cni).
    #[serde(rename = "ownDirectoryIn", default, skip_serializing_if = "Option::is_none")]
    pub own_directory_in: Option<String>,
    /// What the pod is told of its side, as userspace-cni does.
    #[serde(rename = "configurationData", default, skip_serializing_if = "Option::is_none")]
    pub configuration_data: Option<ConfigurationDataRecord>,
    /// How the port's network reaches the wire, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkRecord>,
    /// The pod's NUMA node, whose thread of the switch is to serve the port; absent: it is not known.
    #[serde(rename = "numaNode", default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// What userspace-cni's configuration says of the pod's side, for the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationDataRecord {
    /// `config` of it, but for the socket's name.
    pub config: Value,
    /// It is in a file beside the socket; else in annotations of the pod.
    #[serde(rename = "inFile", default, skip_serializing_if = "std::ops::Not::not")]
    pub in_file: bool,
}

/// An interface of the host that is a network's uplink: what of it was otherwise before the network's first port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkRecord {
    /// Its name.
    pub interface: String,
    /// Somebody had it hear what is not for it.
    #[serde(rename = "wasPromiscuous", default, skip_serializing_if = "std::ops::Not::not")]
    pub was_promiscuous: bool,
    /// Its features, as [`fairlead_host::NetdevSettings::features`] has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
}

impl VhostUserRecord {
    /// The socket's path on the host.
    pub fn host_path(&self) -> String {
        format!("{}/{}", self.directory.trim_end_matches('/'), self.socket)
    }

    /// The socket's path as the pod sees it: its name alone where nobody says where the directory is mounted.
    pub fn path_for_pod(&self) -> String {
        match &self.mount_path {
            Some(mount) => format!("{}/{}", mount.trim_end_matches('/'), self.socket),
            None => self.socket.clone(),
        }
    }
}

impl MovedNetdev {
    /// A link as it is now.
    pub fn of(link: &Link) -> MovedNetdev {
        MovedNetdev {
            was: Appearance::of(link),
            index: link.index,
            lent_as: None,
            driver_state: None,
            vf: None,
        }
    }

    /// The look that it is to have again. Promiscuity is among the settings, where those are on record.
    pub fn look(&self) -> Look {
        let settings = self.driver_state.as_ref().and_then(|state| state.link);
        Look { deaf: settings.is_none(), ..self.was.look() }
    }

    /// The same of one that is to have this index in the pod, and is known by what no pod can set.
    pub fn lent(link: &Link, index: u32) -> MovedNetdev {
        let lent_as = Some(LentAs { index, identity: NetdevIdentity::of(link) });
        MovedNetdev { lent_as, ..MovedNetdev::of(link) }
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
