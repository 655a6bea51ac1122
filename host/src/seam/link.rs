//! Links as data: what a link is, how one is made, and how one that exists is changed.

use serde::{Deserialize, Serialize};

use super::link_name::LinkName;
use super::link_settings::LinkSettings;
use super::netns_id::Nsid;
use crate::Mac;

/// Kinds of links whose `IFLA_LINK` is the other end of a wire, not a device that they stand on.
const WIRES: [&str; 3] = ["veth", "vxcan", "netkit"];

/// How the ports of a macvlan's parent reach each other (`IFLA_MACVLAN_MODE`).
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

/// At which layer an ipvlan works (`IFLA_IPVLAN_MODE`).
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

/// What a link is (`IFLA_INFO_KIND`), with the settings of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Kind {
    /// A macvlan: an interface of its own MAC address on a parent.
    Macvlan {
        /// How it reaches the parent's other ports.
        mode: MacvlanMode,
        /// `IFLA_MACVLAN_BC_QUEUE_LEN`; `None` leaves the kernel's default.
        bc_queue_len: Option<u32>,
    },
    /// An ipvlan: an interface with its parent's MAC address.
    Ipvlan {
        /// At which layer it works.
        mode: IpvlanMode,
        /// Whom of the parent's ports it may talk to; `None` leaves the kernel's default (bridge).
        flag: Option<IpvlanFlag>,
    },
    /// A VLAN of 802.1Q on a parent.
    Vlan {
        /// VLAN id, 0–4094.
        id: u16,
    },
    /// An interface that leads nowhere (`dummy`).
    Dummy,
    /// Anything else: the kernel's name for it, empty for a physical device.
    Other {
        /// The kernel's name of the kind (`IFLA_INFO_KIND`).
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

    /// Whether it is one end of a wire, as a veth is.
    pub fn is_wire(&self) -> bool {
        WIRES.contains(&self.name())
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
    /// The lower device, and in which namespace it is.
    pub parent: Parent,
    /// MAC address; `None`: the kernel chooses.
    pub mac: Option<Mac>,
    /// MTU in bytes; `None`: the parent's.
    pub mtu: Option<u32>,
    /// Set it up in the same message.
    pub up: bool,
}

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Index in its namespace.
    pub index: u32,
    /// Its name in its namespace; where that is no UTF-8, the text of its bytes as [`LinkName::text`] has it.
    pub name: String,
    /// Its alternative names (`IFLA_PROP_LIST`), each as good as its name for looking it up.
    pub alt_names: Vec<LinkName>,
    /// The text that an administrator has put on it (`IFLA_IFALIAS`).
    pub alias: Option<String>,
    /// What kind of link it is.
    pub kind: Kind,
    /// MAC address, where it has one of 6 bytes.
    pub mac: Option<Mac>,
    /// The MAC address that its device came with (`IFLA_PERM_ADDRESS`): nobody can set it. `None` for most virtual links, and
    /// before kernel 5.6.
    pub permanent_mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// What else can be set of it, and goes with it into another namespace.
    pub settings: LinkSettings,
    /// It is the loopback interface (`IFF_LOOPBACK`).
    pub loopback: bool,
    /// Up, and what is sent leaves it (`IFF_RUNNING`, `IFF_LOWER_UP`).
    pub carrier: bool,
    /// Index of the lower device (`IFLA_LINK`), in `parent_nsid`'s namespace if that is set.
    pub parent: Option<u32>,
    /// The namespace of the lower device, where that is another than the link's (`IFLA_LINK_NETNSID`).
    pub parent_nsid: Option<Nsid>,
    /// Index of the bridge or bond that it is a port of (`IFLA_MASTER`).
    pub master: Option<u32>,
    /// The device on a bus that it belongs to, by its address there (`IFLA_PARENT_DEV_NAME`, kernel ≥ 5.14).
    pub device: Option<String>,
    /// The bus of that device (`IFLA_PARENT_DEV_BUS_NAME`, kernel ≥ 5.14): `pci`, `virtio`, `usb`.
    pub bus: Option<String>,
    /// Which port of that device it is, where the driver says so (`IFLA_PHYS_PORT_NAME`).
    pub port: Option<String>,
}

/// What of a link matters to one that is made on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentLink {
    /// Index in its namespace.
    pub index: u32,
    /// Its name in its namespace, as [`Link::name`] has it.
    pub name: String,
    /// MAC address, where it has one of 6 bytes.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// It stands on another link, is one end of a wire, or leads into another namespace: whose frames it has, only a further look tells.
    pub leads_on: bool,
}

impl From<Link> for ParentLink {
    fn from(link: Link) -> ParentLink {
        let leads_on = link.leads_away() || link.parent.is_some();
        let Link { index, name, mac, mtu, .. } = link;
        ParentLink { index, name, mac, mtu, leads_on }
    }
}

impl Link {
    /// A link of which nothing is known but these: down, without a carrier.
    pub fn bare(index: u32, name: String, kind: Kind) -> Link {
        Link {
            index,
            name,
            alt_names: Vec::new(),
            alias: None,
            kind,
            mac: None,
            permanent_mac: None,
            mtu: 0,
            up: false,
            settings: LinkSettings::default(),
            loopback: false,
            carrier: false,
            parent: None,
            parent_nsid: None,
            master: None,
            device: None,
            bus: None,
            port: None,
        }
    }

    /// The index of what it stands on in its own namespace, if it stands on anything there.
    pub fn lower(&self) -> Option<u32> {
        self.parent.filter(|_| !self.leads_away() && !self.kind.is_wire())
    }

    /// The index of the other end of its wire, where that is in its own namespace.
    pub fn other_end(&self) -> Option<u32> {
        self.parent.filter(|_| !self.leads_away() && self.kind.is_wire())
    }

    /// Whether what it stands on, or the other end of its wire, is in another namespace.
    pub fn leads_away(&self) -> bool {
        self.parent_nsid.is_some()
    }

    /// Whether somebody has it hear what is not for it.
    pub fn is_promiscuous(&self) -> bool {
        self.settings.flags.is_some_and(|flags| flags & LinkSettings::PROMISCUITY != 0)
    }
}

/// Changes to a link that exists; `None` leaves a property as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetLink {
    /// Index of the link.
    pub index: u32,
    /// New name. A link that is up can be renamed from kernel 6.2 (EBUSY before).
    pub name: Option<String>,
    /// Set up or down. Down holds the kernel's RTNL lock for 11–20 ms.
    pub up: Option<bool>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// The MAC address that it shall have.
    pub mac: Option<Mac>,
    /// Alias; an empty string removes it.
    pub alias: Option<String>,
    /// What else it shall have.
    pub settings: LinkSettings,
}
