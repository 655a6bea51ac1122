//! What is on record of an attachment's link: what was made, lent or given for it, and how that was before, so that it can be undone
//! with nothing else left.

use std::sync::Arc;

use fairlead_host::{
    AttachedProgram, Kind, Link, LinkSettings, Mac, NetdevIdentity, NetdevSettings, VfChange,
};
use fairlead_sriov::PciAddr;
use fairlead_sriov::vf_netdev::{Appearance, Look};
use fairlead_vhost::ovs_dpdk::PortSpec;
use fairlead_vhost::port::PortConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// The inode number of its directory in sysfs: a VF that is made again at its address has another. Absent where a release before
    /// wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// Under vfio-pci: the MTU of its PF in bytes, which bounds the frames of the process that has it. Absent where the PF has no
    /// interface here, or a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Under vfio-pci: the MAC address that the PF has for it, where ADD changes none. Its process may have the PF take another one. Absent
    /// where its pool restores that, the PF told none, or a release before wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf_mac: Option<Mac>,
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
    /// The links below it that merged frames, the upper ones first. Absent in records of 0.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<LinkBelowRecord>,
}

/// A link by which an uplink gets its frames, as the device of a VLAN or a port of a bond, and which merged some of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBelowRecord {
    /// Its name.
    pub interface: String,
    /// The features by which it did, by ethtool's names: they are off while it is below an uplink.
    pub features: Vec<String>,
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
