//! Kinds of links: one folder for each way in which a pod can get an interface, all with the same files and operations.
//!
//! | folder | what happens to the link |
//! |---|---|
//! | [`made`] | made in place for the pod, deleted with it (macvlan, ipvlan, vlan, dummy) |
//! | [`loopback`] | the namespace's own `lo` |
//! | [`moved`] | a netdev of the host, moved into the pod and back (host-device) |
//! | [`vf`] | the netdev of a VF, set up through its PF, moved into the pod and restored |
//! | [`vfio`] | a VF under vfio-pci: set up, never moved, restored |
//! | [`vhost_user`] | a port of a switch in user space, whose socket the pod has |
//!
//! `sriov` is the configuration type of the last two and what both need: inventory, reservation, settings, pools.
//! `sriov_cni_import` restores what the plugin before us has left of VFs.
//!
//! | operation | file | works from |
//! |---|---|---|
//! | validate | `config.rs` | the configuration alone |
//! | reserve, plan, apply | `attach.rs` | the validated configuration and the host |
//! | find, undo, adopt after a restart | `detach.rs` | the record alone |
//! | check, describe | `inspect.rs` | configuration or record, and the host |
//!
//! The core calls [`Network`] for what goes by a configuration (`by_configuration.rs`) and [`Kinds`] for what goes by a record
//! (`by_record.rs`); it knows no kind. A new
//! kind is a folder, and a variant and its arms here. Nothing in here knows the core: what a kind needs of it is [`HolderRemovals`].

mod add_failure;
mod by_configuration;
mod by_record;
mod device_info;
mod lendable;
pub(crate) mod loopback;
pub(crate) mod made;
pub(crate) mod moved;
mod services;
pub(crate) mod sriov;
pub(crate) mod sriov_cni_import;
mod undo_outcome;
pub(crate) mod vf;
pub(crate) mod vfio;
pub(crate) mod vhost_user;

use fairlead_cni::result::CniResult;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Mac, Net, NetError};
use fairlead_sriov::PciAddr;
use fairlead_sriov::numa::Locality;

use super::attachment_request::AttachmentRequest;
use super::keyed_locks::KeyedLock;
use crate::store::LinkRecord;

pub(crate) use super::netdev::Checked;
pub(crate) use add_failure::NotAttached;
pub(crate) use device_info::DeviceInfoFiles;
pub(crate) use services::{HolderRemovals, Kinds, SriovCniVfs};
pub(crate) use undo_outcome::{AwaitsCarrier, Undone};

/// A validated configuration of a built-in type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Network {
    /// A link is made in place.
    Made(made::Made),
    /// The namespace's own `lo` is used.
    Loopback,
    /// A netdev of the host is moved.
    HostDevice(moved::HostDevice),
    /// A VF is moved, or set up for a process that drives it.
    Sriov(sriov::Sriov),
    /// A switch in user space gets a port.
    VhostUser(Box<vhost_user::VhostUser>),
}

/// The types of configurations that are built in, in the order in which they are named to people.
pub(crate) const BUILT_IN: [&str; BUILT_IN_COUNT] =
    concat([&made::TYPES, &moved::TYPES, &sriov::TYPES, &vhost_user::TYPES, &loopback::TYPES]);
const BUILT_IN_COUNT: usize = made::TYPES.len()
    + moved::TYPES.len()
    + sriov::TYPES.len()
    + vhost_user::TYPES.len()
    + loopback::TYPES.len();

const fn concat<const N: usize, const L: usize>(lists: [&[&'static str]; L]) -> [&'static str; N] {
    let (mut all, mut at, mut list) = ([""; N], 0, 0);
    while list < L {
        let mut n = 0;
        while n < lists[list].len() {
            all[at] = lists[list][n];
            (at, n) = (at + 1, n + 1);
        }
        list += 1;
    }
    all
}

/// How a type goes about addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// A configuration without `ipam.type` is an error.
    Required,
    /// The same, unless the plugin before it in a chain was given addresses: it takes those over.
    RequiredUnlessChained,
    /// Without `ipam.type` the interface is layer 2 only.
    Optional,
    /// `ipam` is not looked at.
    Never,
}

/// What an ADD holds of the host until its intent is on record.
#[allow(
    clippy::large_enum_variant,
    reason = "an ADD has one, on its stack: a box would only cost an allocation"
)]
pub(crate) enum Reservation<'k> {
    /// Nothing: the kind has nothing that another pod could take first.
    Nothing,
    /// A VF that nobody else gets.
    Vf(sriov::ReservedVf<'k>),
    /// A device of the host that is lent as it is.
    Device(lendable::LendableDevice<'k>),
    /// A port of a pool, which no other ADD gets.
    Port {
        /// Held as long as this is.
        _lock: KeyedLock<'k>,
    },
    /// The link of the host that a new one will stand on, where the configuration leaves the choice; anybody else may stand on it, too.
    Parent {
        /// The one that was chosen.
        link: fairlead_host::Link,
        /// How it lies to the pod.
        locality: Option<Locality>,
    },
}

impl Reservation<'_> {
    /// How what was chosen lies to the pod, where that was asked for.
    pub(crate) fn locality(&self) -> Option<&Locality> {
        match self {
            Reservation::Parent { locality, .. } => locality.as_ref(),
            Reservation::Nothing | Reservation::Device(_) | Reservation::Port { .. } => None,
            Reservation::Vf(reserved) => reserved.locality(),
        }
    }

    /// The PCI device of the host that was reserved, where the record of its link does not tell it.
    pub(crate) fn taken_device(&self) -> Option<PciAddr> {
        match self {
            Reservation::Nothing
            | Reservation::Vf(_)
            | Reservation::Port { .. }
            | Reservation::Parent { .. } => None,
            Reservation::Device(taken) => taken.address(),
        }
    }

    /// The intent is on record: from now on that keeps everybody else away.
    pub(crate) fn keep(self) {
        if let Reservation::Vf(reserved) = self {
            reserved.keep();
        }
    }
}

/// What is about to be done: as it goes on record, and as it is carried out.
pub(crate) struct Plan {
    /// What the record says of the link.
    pub(crate) record: LinkRecord,
    /// What [`Kinds::apply`] does.
    pub(crate) work: Work,
}

/// What is to be done about a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// A link is made.
    Made(made::NewMade),
    /// `lo` is set up.
    Loopback,
    /// A netdev of the host is moved.
    Moved(crate::store::MovedNetdev),
    /// A VF is set up, and its netdev moved.
    Vf(vf::Change),
    /// A VF is set up for the process that drives it.
    Vfio(vfio::Change),
    /// A port is made.
    VhostUser(vhost_user::NewPort),
    /// Nothing: a process in user space has the device.
    Nothing,
}

/// What an ADD has come to: the interface as the answer describes it.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// The index of the netdev in the pod that gets addresses and routes; `None`: there is none, or it has them already.
    pub(crate) netdev: Option<u32>,
    /// Its MAC address.
    pub(crate) mac: Option<Mac>,
    /// Its MTU in bytes, where the answer has it; else 0.
    pub(crate) mtu: u32,
    /// The PCI address of its device, where the answer has it.
    pub(crate) pci_id: String,
    /// The path of its socket on the host, where it has one; else empty.
    pub(crate) socket_path: String,
    /// The whole answer, of a kind that gets its addresses from the kernel.
    pub(crate) result: Option<CniResult>,
    /// The netdev comes up only with the carrier of its NIC, which may take a while.
    pub(crate) awaits_carrier: bool,
}

/// Whether networks of a type have an IPAM at all: `lo` has the addresses that the kernel gives it, whatever its configuration says.
pub(crate) fn takes_addresses(plugin: &str) -> bool {
    !loopback::TYPES.contains(&plugin)
}

/// The kernel's module with a kind of link.
pub(crate) fn module_of(kind: &str) -> &str {
    if kind == "vlan" { "8021q" } else { kind }
}

/// Code 7 for a type that somebody gave our executable the name of.
pub(crate) fn not_built_in(plugin: &str) -> CniError {
    CniError::new(Code::InvalidConfig, format!("type {plugin:?} is not built into Fairlead")).with(format!(
        "it serves {}; put the original plugin back with `fairleadd uninstall`",
        BUILT_IN.join(", ")
    ))
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

/// The name of the new interface is free in the pod. With it taken the kernel would move a netdev all the same, under its
/// old name.
fn must_be_free(request: &AttachmentRequest<'_>, pod: &mut dyn Net) -> Result<(), CniError> {
    let taken = pod.link_by_name(&request.key.ifname);
    let told = |e| super::errors::kernel(&request.key.network, "looking at the pod's namespace", &e);
    match taken.map_err(told)? {
        Some(_) => Err(name_taken(request)),
        None => Ok(()),
    }
}

fn name_taken(request: &AttachmentRequest<'_>) -> CniError {
    CniError::new(
        Code::AlreadyThere,
        format!(
            "network {:?}: an interface {:?} is already in the pod's namespace",
            request.key.network, request.key.ifname
        ),
    )
    .with("DEL the attachment that has it, or give this one another name")
}

/// Why a plan could not be carried out.
pub(crate) enum ApplyError {
    /// The kernel refused: the core says of which interface.
    Kernel(NetError),
    /// The same, and the kind knows why.
    Explained(NetError, String),
    /// Everything else, as it is told.
    Cni(CniError),
}

impl From<NetError> for ApplyError {
    fn from(error: NetError) -> ApplyError {
        ApplyError::Kernel(error)
    }
}

impl From<CniError> for ApplyError {
    fn from(error: CniError) -> ApplyError {
        ApplyError::Cni(error)
    }
}
