//! Network types: one file each, all of the same shape — what a configuration asks for, which link that means, and
//! whether a link still is what it should be. Pure: nothing in here touches the kernel.

pub mod host_device;
pub mod interface;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod sriov;
pub mod vlan;

use fairlead_cni::args::Args;
use fairlead_cni::config::NetConf;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Kind, Link, Mac, NewLink, Parent, VfChange};
use fairlead_sriov::PciAddr;

use crate::store::{Lent, LentVf};

/// Which link a new one stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentRef {
    /// Its name; `None`: the interface of the default route.
    pub name: Option<String>,
    /// In the pod's namespace instead of the host's (`linkInContainer`).
    pub in_container: bool,
}

/// How a device of the host is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceRef {
    /// By interface name.
    Name(String),
    /// By MAC address.
    Mac(Mac),
    /// By a device directory under /sys (`kernelpath`), with a `net/` directory in it.
    Sysfs(String),
    /// By PCI or auxiliary bus address.
    Bus(String),
}

/// What a plan needs to know beside the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// `CNI_IFNAME`
    pub ifname: &'a str,
    /// The link that [`Network::parent`] names, or that is lent. A VF that vfio-pci has is none.
    pub parent: Option<&'a Link>,
    /// The VF that [`Network::vf`] names.
    pub vf: Option<&'a sriov::AtHome>,
    /// A free index for a new link.
    pub index: u32,
    /// A random MAC address for a new link.
    pub mac: Mac,
}

/// What is to be done about the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkPlan {
    /// Make one, with this MAC address in the end.
    Make(NewLink, Option<Mac>),
    /// Lend one of the host's.
    Lend(Lent),
    /// Set a VF up and lend it.
    LendVf {
        /// What it is.
        lent: Lent,
        /// Settings that differ from what is wanted.
        change: VfChange,
        /// The MAC address that its interface is to have.
        mac: Option<Mac>,
    },
    /// Set a VF up that vfio-pci has: the pod has it already.
    GiveVf {
        /// What it is.
        vf: LentVf,
        /// Settings that differ from what is wanted.
        change: VfChange,
        /// The MAC address that its PF has for it.
        mac: Option<Mac>,
    },
    /// Use `lo`.
    Loopback,
}

/// How much a type wants an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// A configuration without `ipam.type` is an error.
    Required,
    /// Without `ipam.type` the interface is layer 2 only.
    Optional,
    /// `ipam` is not looked at.
    Never,
}

/// A validated configuration of a built-in type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// `macvlan`
    Macvlan(macvlan::Macvlan),
    /// `ipvlan`
    Ipvlan(ipvlan::Ipvlan),
    /// `vlan`
    Vlan(vlan::Vlan),
    /// `host-device`
    HostDevice(host_device::HostDevice),
    /// `sriov`
    Sriov(sriov::Sriov),
    /// `loopback`
    Loopback,
}

/// The types that are built in.
pub const BUILT_IN: [&str; 6] = ["macvlan", "ipvlan", "vlan", "host-device", "sriov", "loopback"];

impl Network {
    /// Reads and validates the configuration of a built-in type.
    pub fn validate(conf: &NetConf, args: &Args) -> Result<Network, CniError> {
        match conf.plugin_type.as_str() {
            "macvlan" => macvlan::Macvlan::validate(conf, args).map(Network::Macvlan),
            "ipvlan" => ipvlan::Ipvlan::validate(conf).map(Network::Ipvlan),
            "vlan" => vlan::Vlan::validate(conf).map(Network::Vlan),
            "host-device" => host_device::HostDevice::validate(conf).map(Network::HostDevice),
            "sriov" => sriov::Sriov::validate(conf, args).map(Network::Sriov),
            "loopback" => loopback::validate(conf).map(|()| Network::Loopback),
            other => Err(not_built_in(other)),
        }
    }

    /// The link that it stands on, if its type has one.
    pub fn parent(&self) -> Option<ParentRef> {
        match self {
            Network::Macvlan(n) => Some(n.parent()),
            Network::Ipvlan(n) => Some(n.parent()),
            Network::Vlan(n) => Some(n.parent()),
            Network::HostDevice(_) | Network::Sriov(_) | Network::Loopback => None,
        }
    }

    /// The device of the host that it takes, if its type takes one.
    pub fn device(&self) -> Option<&host_device::HostDevice> {
        match self {
            Network::HostDevice(n) => Some(n),
            _ => None,
        }
    }

    /// The VF that it takes, if its type takes one.
    pub fn vf(&self) -> Option<&sriov::Sriov> {
        match self {
            Network::Sriov(n) => Some(n),
            _ => None,
        }
    }

    /// The same with the VF that it has turned out to be.
    #[must_use]
    pub fn with_vf(self, address: PciAddr) -> Network {
        match self {
            Network::Sriov(n) => Network::Sriov(sriov::Sriov { device: sriov::Device::Known(address), ..n }),
            other => other,
        }
    }

    /// For a sentence: the interface that the new one stands on, or the device that it is made of, as configured.
    pub fn of_device(&self) -> String {
        if let Some(vf) = self.vf() {
            return match &vf.device {
                sriov::Device::Known(address) => format!(" of device \"{address}\""),
                sriov::Device::OfResource(resource) => format!(" of a device of resource {resource:?}"),
                sriov::Device::OfPool(pool) => format!(" of pool {pool:?}"),
            };
        }
        match (self.parent(), self.device().map(|d| &d.device)) {
            (Some(ParentRef { name: Some(master), .. }), _) => format!(" on {master:?}"),
            (_, Some(DeviceRef::Name(text) | DeviceRef::Sysfs(text) | DeviceRef::Bus(text))) => {
                format!(" of device {text:?}")
            }
            (_, Some(DeviceRef::Mac(mac))) => format!(" of device {mac}"),
            (_, None) => String::new(),
        }
    }

    /// What is to be done about the link. Pure.
    pub fn plan(&self, facts: &Facts<'_>) -> Result<LinkPlan, CniError> {
        match self {
            Network::Macvlan(n) => n.plan(facts),
            Network::Ipvlan(n) => n.plan(facts),
            Network::Vlan(n) => n.plan(facts),
            Network::HostDevice(n) => n.plan(facts),
            Network::Sriov(n) => n.plan(facts),
            Network::Loopback => Ok(LinkPlan::Loopback),
        }
    }

    /// Whether a link still is what this configuration asked for.
    pub fn check(&self, link: &Link) -> Result<(), String> {
        match self {
            Network::Macvlan(n) => n.check(link),
            Network::Ipvlan(n) => n.check(link),
            Network::Vlan(n) => n.check(link),
            Network::HostDevice(n) => n.check(link),
            Network::Sriov(n) => n.check(link),
            Network::Loopback => Ok(()),
        }
    }

    /// The kind of link that this type makes (`IFLA_INFO_KIND`), if it makes any.
    pub fn kind_name(&self) -> Option<&'static str> {
        match self {
            Network::Macvlan(_) => Some("macvlan"),
            Network::Ipvlan(_) => Some("ipvlan"),
            Network::Vlan(_) => Some("vlan"),
            Network::HostDevice(_) | Network::Sriov(_) | Network::Loopback => None,
        }
    }

    /// Whether a link is of the kind that this type makes: what may be removed when nothing is on record (K10).
    pub fn made(&self, link: &Link) -> bool {
        self.kind_name() == Some(link.kind.name())
    }

    /// How much it wants an address.
    pub fn addressing(&self) -> Addressing {
        match self {
            Network::Macvlan(_) | Network::HostDevice(_) | Network::Sriov(_) => Addressing::Optional,
            Network::Ipvlan(_) | Network::Vlan(_) => Addressing::Required,
            Network::Loopback => Addressing::Never,
        }
    }

    /// Whether the kernel is told to announce address changes (`arp_notify`, `ndisc_notify`): as the reference plugins do
    /// it, with an address at ADD or always.
    pub fn notifies(&self, has_address: bool) -> bool {
        match self {
            Network::Macvlan(_) | Network::Ipvlan(_) => has_address,
            Network::Sriov(_) => true,
            Network::Vlan(_) | Network::HostDevice(_) | Network::Loopback => false,
        }
    }

    /// Whether DEL may be answered as soon as the interface is silent: not where the parent can hold only one such
    /// link, nor where somebody else may look for the device at once. An ADD that wants the same VF waits for it.
    pub fn silent_is_gone(&self) -> bool {
        match self {
            Network::Macvlan(n) => !n.takes_parent_over(),
            Network::Ipvlan(_) | Network::Sriov(_) => true,
            Network::Vlan(_) | Network::HostDevice(_) | Network::Loopback => false,
        }
    }
}

/// The kernel's module with a kind of link.
pub fn module_of(kind: &str) -> &str {
    if kind == "vlan" { "8021q" } else { kind }
}

/// Code 7 for a type that somebody gave our executable the name of.
pub fn not_built_in(plugin: &str) -> CniError {
    CniError::new(Code::InvalidConfig, format!("type {plugin:?} is not built into Fairlead")).with(format!(
        "it serves {}; put the original plugin back with `fairleadd uninstall`",
        BUILT_IN.join(", ")
    ))
}

/// A link of this kind on the parent, which is answered too; the MTU is checked (K24), the MAC address left open.
fn on_parent<'a>(
    facts: &Facts<'a>,
    in_container: bool,
    mtu: Option<u32>,
    kind: Kind,
) -> Result<(NewLink, &'a Link), CniError> {
    let parent = facts
        .parent
        .ok_or_else(|| CniError::new(Code::InvalidConfig, "the network has no master interface"))?;
    if let Some(mtu) = mtu.filter(|mtu| *mtu > parent.mtu) {
        let msg = format!("mtu {mtu} is above {} of its master {:?}", parent.mtu, parent.name);
        return Err(CniError::new(Code::InvalidConfig, msg)
            .with("lower `mtu` in the network's configuration or raise the master's"));
    }
    let place = if in_container { Parent::Same(parent.index) } else { Parent::Host(parent.index) };
    let (name, index) = (facts.ifname.to_owned(), Some(facts.index));
    Ok((NewLink { name, index, kind, parent: place, mac: None, mtu, up: true }, parent))
}

/// A MAC address that an interface can have.
fn wanted_mac(text: &str) -> Result<Mac, CniError> {
    let mac: Mac = text.parse().map_err(|e| CniError::new(Code::InvalidConfig, format!("mac: {e}")))?;
    if mac.is_multicast() || mac.is_zero() {
        return Err(CniError::new(
            Code::InvalidConfig,
            format!("mac {mac} is no address that an interface can have"),
        )
        .with("take a unicast address: the lowest bit of its first byte is 0"));
    }
    Ok(mac)
}
