//! The seam between Fairlead and the kernel: what can be asked of a network namespace, as data.
//!
//! A [`Net`] is a view of one namespace that lives for one call and stays on the thread that opened it; dropping
//! it gives back every file descriptor and socket of that namespace, which would otherwise keep the namespace and
//! its links alive. Nothing in here waits for anything but the kernel.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::Mac;
use crate::devlink::DevlinkDevice;
use crate::vf::{Vf, VfChange};

/// The number by which the daemon's namespace knows another one (`RTM_GETNSID`); the kernel frees it when that
/// namespace dies and may then give it to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nsid(pub i32);

/// What a namespace is known by. Two namespaces are the same when their cookies are; where the kernel has none
/// (before 5.14), inode numbers say only that two may be the same, because the kernel reuses them at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsId {
    /// Device of the nsfs inode.
    pub dev: u64,
    /// Number of the nsfs inode.
    pub ino: u64,
    /// `SO_NETNS_COOKIE`: never reused in a boot. `None` before kernel 5.14.
    pub cookie: Option<u64>,
}

impl NetnsId {
    /// True when both are provably the same namespace: by cookie, or, without cookies, by inode alone.
    pub fn same(&self, other: &NetnsId) -> bool {
        match (self.cookie, other.cookie) {
            (Some(a), Some(b)) => a == b,
            _ => self.dev == other.dev && self.ino == other.ino,
        }
    }
}

/// The kinds of links that Fairlead makes or moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MacvlanMode {
    /// Ports talk to each other directly.
    Bridge,
    /// Ports never talk to each other.
    Private,
    /// Ports talk through the switch outside.
    Vepa,
    /// One port that takes the parent over.
    Passthru,
}

/// `IFLA_IPVLAN_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpvlanMode {
    /// Switching on the parent's segment.
    L2,
    /// Routing in the parent's namespace, no broadcast.
    L3,
    /// L3 with connection tracking of the parent's namespace.
    L3s,
}

/// `IFLA_IPVLAN_FLAGS`: who of the parent's ports may talk to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpvlanFlag {
    /// Ports talk to each other directly.
    Bridge,
    /// Ports never talk to each other.
    Private,
    /// Ports talk through the switch outside.
    Vepa,
}

/// What a link is, as `IFLA_INFO_KIND` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Kind {
    /// `macvlan`
    Macvlan {
        /// Its mode.
        mode: MacvlanMode,
        /// `IFLA_MACVLAN_BC_QUEUE_LEN`; `None` leaves the kernel's default.
        bc_queue_len: Option<u32>,
    },
    /// `ipvlan`
    Ipvlan {
        /// Its mode.
        mode: IpvlanMode,
        /// Its flag; `None` leaves the kernel's default (bridge).
        flag: Option<IpvlanFlag>,
    },
    /// `vlan` (802.1Q)
    Vlan {
        /// VLAN id, 0–4094.
        id: u16,
    },
    /// `dummy`, for tests.
    Dummy,
    /// Anything else: the kernel's name for it, empty for a physical device.
    Other {
        /// `IFLA_INFO_KIND`.
        name: String,
    },
}

impl Kind {
    /// The kernel's name (`IFLA_INFO_KIND`).
    pub fn name(&self) -> &str {
        match self {
            Kind::Macvlan { .. } => "macvlan",
            Kind::Ipvlan { .. } => "ipvlan",
            Kind::Vlan { .. } => "vlan",
            Kind::Dummy => "dummy",
            Kind::Other { name } => name,
        }
    }
}

/// Where the parent (lower device) of a new link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// In the daemon's namespace: the link is made from there straight into the pod's (`IFLA_NET_NS_FD`).
    Host(u32),
    /// In the namespace that the link itself is in (`linkInContainer`).
    Same(u32),
    /// The kind has none.
    None,
}

/// A link to be made, up or down, in one `RTM_NEWLINK`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLink {
    /// Name, 1–15 bytes; the kernel answers EEXIST when it is taken.
    pub name: String,
    /// Chosen index (> 0), so that what follows can be sent without reading it back; `None`: the kernel chooses.
    pub index: Option<u32>,
    /// Kind and its settings.
    pub kind: Kind,
    /// Lower device.
    pub parent: Parent,
    /// MAC address; `None`: the kernel chooses.
    pub mac: Option<Mac>,
    /// MTU in bytes; `None`: the parent's.
    pub mtu: Option<u32>,
    /// Set it up in the same message.
    pub up: bool,
}

/// A link as the kernel tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// `IFLA_PROP_LIST` alternative names.
    pub alt_names: Vec<String>,
    /// `IFLA_IFALIAS`.
    pub alias: Option<String>,
    /// Kind.
    pub kind: Kind,
    /// MAC address, where it has one of 6 bytes.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Somebody has it hear what is not for it (`IFF_PROMISC`, `IFF_ALLMULTI`).
    pub promiscuous: bool,
    /// `IFF_LOOPBACK`.
    pub loopback: bool,
    /// Up, and what is sent leaves it (`IFF_RUNNING`, `IFF_LOWER_UP`).
    pub carrier: bool,
    /// Index of the lower device (`IFLA_LINK`), in `parent_nsid`'s namespace if that is set.
    pub parent: Option<u32>,
    /// `IFLA_LINK_NETNSID`.
    pub parent_nsid: Option<Nsid>,
    /// `IFLA_MASTER`.
    pub master: Option<u32>,
    /// The device on a bus that it belongs to, by its address there (`IFLA_PARENT_DEV_NAME`, kernel ≥ 5.14).
    pub device: Option<String>,
}

/// Changes to a link that exists; `None` leaves a property as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetLink {
    /// Which.
    pub index: u32,
    /// New name. A link that is up can be renamed from kernel 6.2 (EBUSY before).
    pub name: Option<String>,
    /// Set up or down. Down holds the kernel's RTNL lock for 11–20 ms.
    pub up: Option<bool>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// MAC address.
    pub mac: Option<Mac>,
    /// Alias; an empty string removes it.
    pub alias: Option<String>,
    /// It hears what is not for it (`IFF_PROMISC`), or not (that and `IFF_ALLMULTI` taken away).
    pub promiscuous: Option<bool>,
}

/// `IFA_FLAGS` that Fairlead sets or reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressFlags {
    /// `IFA_F_NODAD`: usable at once, no duplicate address detection by the kernel.
    pub nodad: bool,
    /// `IFA_F_TENTATIVE`, read only: duplicate address detection is running.
    pub tentative: bool,
    /// `IFA_F_DADFAILED`, read only.
    pub dad_failed: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The interface.
    pub index: u32,
    /// Address and prefix length (host bits kept).
    pub net: IpNet,
    /// IPv4 broadcast address, where one is set.
    pub broadcast: Option<IpAddr>,
    /// Flags.
    pub flags: AddressFlags,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination; `0.0.0.0/0` and `::/0` are the default routes.
    pub dst: IpNet,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface.
    pub index: u32,
    /// Preferred source address (`RTA_PREFSRC`).
    pub source: Option<IpAddr>,
    /// Table; 0 and `None` are main (254).
    pub table: Option<u32>,
    /// Scope (`RT_SCOPE_*`); `None`: universe with a gateway, link without (IPv4).
    pub scope: Option<u8>,
    /// Metric (`RTA_PRIORITY`).
    pub priority: Option<u32>,
    /// MTU of the route (`RTAX_MTU`).
    pub mtu: Option<u32>,
    /// Advertised MSS (`RTAX_ADVMSS`).
    pub advmss: Option<u32>,
    /// `RTPROT_*`, read only; new routes are `RTPROT_BOOT`.
    pub protocol: Option<u8>,
}

/// A policy routing rule (read only: what a chain has left).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Priority.
    pub priority: u32,
    /// Source prefix.
    pub from: Option<IpNet>,
    /// Table.
    pub table: u32,
}

/// One request to the kernel about one namespace: one netlink message, in a `send` of its own, because the kernel
/// goes on with a datagram after a message that it refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// `RTM_NEWLINK`, NLM_F_CREATE | NLM_F_EXCL
    CreateLink(NewLink),
    /// `RTM_SETLINK`/`RTM_NEWLINK` on an existing index
    SetLink(SetLink),
    /// `RTM_DELLINK`: 16–30 ms of waiting
    DeleteLink(u32),
    /// Moves a link from this namespace to the daemon's own, under a new name in the same message.
    MoveToHost {
        /// Which.
        index: u32,
        /// Its name there.
        name: String,
    },
    /// Takes a link of the daemon's own namespace into this one, under a new name in the same message. Refused at the last
    /// step, it is here under that name and down.
    TakeFromHost {
        /// Its index in the daemon's namespace.
        index: u32,
        /// Its name here.
        name: String,
        /// Also set it up.
        up: bool,
    },
    /// `RTM_NEWLINKPROP`: one more alternative name.
    AddAltName {
        /// Of which link.
        index: u32,
        /// 1–127 bytes.
        name: String,
    },
    /// `RTM_DELLINKPROP`
    DeleteAltName {
        /// Of which link.
        index: u32,
        /// Which.
        name: String,
    },
    /// `RTM_SETLINK` with `IFLA_VFINFO_LIST`. The kernel stops at the first setting that is refused and keeps what came
    /// before it (function by function, and in the order of [`VfChange::singly`]).
    SetVfs {
        /// Index of the physical function's link.
        pf: u32,
        /// Numbers of virtual functions, each with its settings: 64 KiB in all, which is more than 400.
        changes: Vec<(u32, VfChange)>,
    },
    /// `RTM_NEWADDR`, NLM_F_CREATE | NLM_F_EXCL
    AddAddress(Address),
    /// `RTM_DELADDR`
    DeleteAddress(Address),
    /// `RTM_NEWROUTE`, NLM_F_CREATE: a second route to the same destination by another interface stands beside the first (EEXIST for the very same)
    AddRoute(Route),
    /// `RTM_DELROUTE`
    DeleteRoute(Route),
}

/// Why an operation on a namespace failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused one operation; those before it in the batch were done, those after it were not.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The netlink socket itself failed.
    #[error("netlink socket: {0}")]
    Socket(#[source] io::Error),
    /// An answer of the kernel could not be read.
    #[error("the kernel's netlink answer cannot be read: {0}")]
    Answer(String),
    /// A PCI device or its driver did not do what it was to do.
    #[error("device {device}: {doing}: {source}")]
    Driver {
        /// Its PCI address.
        device: String,
        /// What was to be done, for a person.
        doing: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A sysctl could not be read or written.
    #[error("sysctl {key}: {source}")]
    Sysctl {
        /// Its name with dots or slashes as asked for.
        key: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl NetError {
    /// The errno behind it, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetError::Op(op) => Some(op.errno),
            NetError::Socket(e) | NetError::Sysctl { source: e, .. } | NetError::Driver { source: e, .. } => {
                e.raw_os_error().map(Errno::from_raw)
            }
            NetError::Answer(_) => None,
        }
    }

    /// A device or its driver did not end what it was asked to do.
    pub fn timed_out(&self) -> bool {
        matches!(self, NetError::Driver { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }
}

/// The kernel's refusal of one operation.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}{}", errno.desc(), extack.as_deref().map(|e| format!(" ({e})")).unwrap_or_default())]
pub struct OpError {
    /// Position in the batch.
    pub at: usize,
    /// What was asked, for a person (`create macvlan "net1"`).
    pub what: String,
    /// The kernel's answer.
    pub errno: Errno,
    /// The kernel's own words (`NLMSGERR_ATTR_MSG`).
    pub extack: Option<String>,
}

/// Why a namespace could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is nothing at the path. (Its words must not contain "not found": containerd takes that for success.)
    #[error("network namespace {path}: there is nothing at this path")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Something is there, but no network namespace.
    #[error("{path} is not a network namespace")]
    NotANetns {
        /// The path.
        path: PathBuf,
    },
    /// It is the daemon's own namespace.
    #[error("{path} is the network namespace of the host itself")]
    Host {
        /// The path.
        path: PathBuf,
    },
    /// It could not be opened or entered.
    #[error("network namespace {path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It was entered, and the kernel refused a question about it.
    #[error("network namespace {path}: {source}")]
    Net {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: NetError,
    },
}

/// A view of one network namespace. Not `Send`: it may have put its thread into that namespace.
pub trait Net {
    /// Who it is. For the daemon's own namespace: its own.
    fn id(&self) -> &NetnsId;

    /// The number by which the daemon's namespace knows this one; it is assigned if there is none yet.
    /// `None` for the daemon's own.
    fn nsid(&mut self) -> Result<Option<Nsid>, NetError>;

    /// Carries out `ops` in order, in as few `send` calls as can be, and stops at the first that is refused:
    /// those before it stay done, those after it are not done.
    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError>;

    /// A link by name or alternative name; `None` when there is none.
    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError>;

    /// A link by index; `None` when there is none.
    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError>;

    /// All links.
    fn links(&mut self) -> Result<Vec<Link>, NetError>;

    /// The settings of all virtual functions of the link `pf`; none when it has none or is gone. Dear: 64 of them cost
    /// 157–866 ms.
    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError>;

    /// Addresses of one interface, both families, link-local ones included.
    fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetError>;

    /// All routes of all tables but the local one, both families.
    fn routes(&mut self) -> Result<Vec<Route>, NetError>;

    /// Reads a sysctl of this namespace: `net/ipv4/conf/eth0/arp_notify`, without `/proc/sys/`.
    fn sysctl(&mut self, key: &str) -> Result<String, NetError>;

    /// Writes a sysctl of this namespace.
    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError>;
}

/// What becomes of the driver that the administrator has fixed for a PCI device (`driver_override`), and which no other may
/// take it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Override {
    /// It stays as it is.
    Keep,
    /// It is the one that takes the device now: vfio-pci has no devices of its own.
    Set,
    /// There is none any more.
    Clear,
}

/// What opening an IOMMU group tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IommuGroup {
    /// A process could open it.
    Free,
    /// A process has it open (EBUSY).
    InUse,
    /// It has no node: no device of it is bound to a driver of vfio.
    Absent,
    /// Its devices are behind no IOMMU and reach all of the memory (`noiommu-<group>`).
    NoIommu,
}

/// What many devices answered, by address and by number; what is missing was not asked.
#[derive(Debug, Default)]
pub struct Answers {
    /// Whether their configuration spaces answer.
    pub devices: BTreeMap<String, Result<bool, NetError>>,
    /// What opening their IOMMU groups tells.
    pub groups: BTreeMap<u32, Result<IommuGroup, NetError>>,
}

/// The kernel, as far as Fairlead asks it anything.
pub trait Kernel: Send + Sync {
    /// The daemon's own namespace.
    fn host(&self) -> Result<Box<dyn Net + '_>, NetError>;

    /// The namespace at `path`, opened for one call; the thread is in it until the view is dropped, and if it
    /// cannot come back the process ends (a thread in a stranger's namespace must not serve the next call).
    /// Refuses the daemon's own namespace and anything that is no network namespace.
    fn pod(&self, path: &Path) -> Result<Box<dyn Net + '_>, NetnsError>;

    /// A link of a namespace that is known by number alone, without holding anything of it (`IFLA_TARGET_NETNSID`);
    /// `None` when the namespace or the link is gone.
    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError>;

    /// Deletes a link of a namespace that is known by number alone. A link or namespace that is gone is success.
    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError>;

    /// The numbers of all namespaces that the daemon's own one knows.
    fn nsids(&self) -> Result<Vec<Nsid>, NetError>;

    /// Takes the PCI device `address` from its driver, if it has one. Refused (EBUSY) under vfio-pci while a process has its
    /// IOMMU group open: the kernel would wait for that process. Ends with an error after a time, whatever the driver does.
    fn unbind(&self, address: &str) -> Result<(), NetError>;

    /// The same, and has `driver` take it (anew): its interface comes back as a new one, in the namespace of the machine.
    fn bind(&self, address: &str, driver: &str, fixed: Override) -> Result<(), NetError>;

    /// The only driver that may take the PCI device `address`, where the administrator has fixed one. Whoever reads it waits for
    /// what a driver is doing with the device, and ends with an error after a time.
    fn fixed_driver(&self, address: &str) -> Result<Option<String>, NetError>;

    /// Resets the PCI device `address`. Refused unless it is under vfio-pci with its IOMMU group closed (EBUSY; the group is
    /// held meanwhile) or has no driver: a reset under igbvf with its link down never ends and holds the device's lock.
    fn reset(&self, address: &str) -> Result<(), NetError>;

    /// Has the physical function `address` make `count` virtual ones. It must have none (EBUSY). Ends with an error after a
    /// time, whatever its driver does.
    fn make_functions(&self, address: &str, count: u32) -> Result<(), NetError>;

    /// Whether a process could open an IOMMU group now. Found out by opening it, for no longer than that takes.
    fn iommu_group(&self, number: u32) -> Result<IommuGroup, NetError>;

    /// Whether the configuration space of the PCI device `address` answers. One that has died reads as nothing but ones.
    fn answers(&self, address: &str) -> Result<bool, NetError>;

    /// The network cards that devlink knows; none where the kernel has no devlink. Fails after a time when a driver keeps
    /// devlink waiting, as one does that loads new firmware.
    fn devlink(&self) -> Result<Vec<DevlinkDevice>, NetError>;

    /// Both of many: all of them in the time that one may take. What hangs ends it, and those behind are not asked.
    fn answers_of(&self, addresses: &[String], groups: &[u32]) -> Answers;

    /// True when the kernel has links of this kind (`IFLA_INFO_KIND`), built in or by a module that it has loaded
    /// for the question. Nothing can be seen of it in any namespace.
    fn knows(&self, kind: &str) -> Result<bool, NetError>;

    /// What a driver was asked to do with a device and has not ended, though its caller waits no more: for a person. Nothing
    /// but the driver can end it.
    fn hung(&self) -> Vec<String>;

    /// True when a link that is up can be renamed (kernel ≥ 6.2).
    fn renames_while_up(&self) -> bool;
}
