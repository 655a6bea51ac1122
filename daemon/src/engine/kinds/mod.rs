//! Kinds of links: one folder for each way in which a pod can get an interface, all with the same files and operations.
//!
//! | folder | what happens to the link |
//! |---|---|
//! | [`made`] | made in place for the pod, deleted with it (macvlan, ipvlan, vlan) |
//! | [`loopback`] | the namespace's own `lo` |
//! | [`moved`] | a netdev of the host, moved into the pod and back (host-device) |
//! | [`vf`] | the netdev of a VF, set up through its PF, moved into the pod and restored |
//! | [`vfio`] | a VF under vfio-pci: set up, never moved, restored |
//!
//! `sriov` is the configuration type of the last two and what both need: inventory, reservation, settings, pools.
//!
//! | operation | file | works from |
//! |---|---|---|
//! | validate | `config.rs` | the configuration alone |
//! | reserve, plan, apply | `attach.rs` | the validated configuration and the host |
//! | silence, undo, adopt after a restart | `detach.rs` | the record alone |
//! | check, describe | `inspect.rs` | configuration or record, and the host |
//!
//! The core calls [`Network`] for what goes by a configuration and [`Kinds`] for what goes by a record; it knows no kind. A new
//! kind is a folder, and a variant here. Nothing in here knows the core: what a kind needs of it is [`Owners`].

pub(crate) mod loopback;
pub(crate) mod made;
pub(crate) mod moved;
mod outcome;
mod services;
pub(crate) mod sriov;
pub(crate) mod vf;
pub(crate) mod vfio;

use std::borrow::Cow;

use fairlead_cni::args::Args;
use fairlead_cni::config::NetConf;
use fairlead_cni::result::CniResult;
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Mac, Net, NetError};
use fairlead_sriov::numa::Locality;

use super::netns_reach::Reach;
use super::request::AttachmentRequest;
use crate::store::{Attachment, LinkRecord};

pub(crate) use outcome::NotAttached;
pub(crate) use services::{AwaitsCarrier, Kinds, Owners};

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
}

/// The types of configurations that are built in, in the order in which they are named to people.
pub(crate) const BUILT_IN: [&str; TYPES.0] = TYPES.1;

const TYPES: (usize, [&str; BUILT_IN_COUNT]) =
    (BUILT_IN_COUNT, concat([&made::TYPES, &moved::TYPES, &sriov::TYPES, &loopback::TYPES]));
const BUILT_IN_COUNT: usize =
    made::TYPES.len() + moved::TYPES.len() + sriov::TYPES.len() + loopback::TYPES.len();

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
}

impl Reservation<'_> {
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

impl Reservation<'_> {
    /// How the VF that was reserved lies to the pod, where that was asked for.
    pub(crate) fn locality(&self) -> Option<&Locality> {
        match self {
            Reservation::Nothing => None,
            Reservation::Vf(reserved) => reserved.locality(),
        }
    }
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
    /// The whole answer, of a kind that gets its addresses from the kernel.
    pub(crate) result: Option<CniResult>,
    /// The netdev comes up only with the carrier of its NIC, which may take a while.
    pub(crate) awaits_carrier: bool,
}

/// What CHECK compares next, once the kind has compared what it knows.
pub(crate) enum Checked {
    /// Everything is as it should be; there is nothing more to compare.
    Whole,
    /// The netdev in the pod, whose MAC address, addresses and routes are still to be compared.
    Netdev(Link),
    /// Something is not what ADD made it: why.
    Changed(String),
}

impl Network {
    /// Reads and validates the configuration of a built-in type, without looking at the host. Code 7 for what cannot be.
    pub(crate) fn validate(conf: &NetConf, args: &Args) -> Result<Network, CniError> {
        let kind = conf.plugin_type.as_str();
        if made::TYPES.contains(&kind) {
            return made::Made::validate(conf, args).map(Network::Made);
        }
        if moved::TYPES.contains(&kind) {
            return moved::HostDevice::validate(conf).map(Network::HostDevice);
        }
        if sriov::TYPES.contains(&kind) {
            return sriov::Sriov::validate(conf, args).map(Network::Sriov);
        }
        if loopback::TYPES.contains(&kind) {
            return Ok(Network::Loopback);
        }
        Err(not_built_in(kind))
    }

    /// Keeps for this request what another pod could take first. Not from within a pod's namespace: it can take seconds.
    /// Returns the network with the VF that was reserved.
    pub(crate) fn reserve<'n, 'k>(
        &'n self,
        kinds: &'k Kinds,
        owners: &dyn Owners,
        request: &AttachmentRequest<'_>,
    ) -> Result<(Cow<'n, Network>, Reservation<'k>), NotAttached> {
        match self {
            Network::Sriov(network) => {
                let (network, reserved) = kinds.sriov.reserve(network.clone(), owners, request)?;
                Ok((Cow::Owned(Network::Sriov(network)), Reservation::Vf(reserved)))
            }
            other => Ok((Cow::Borrowed(other), Reservation::Nothing)),
        }
    }

    /// Looks at the host and says what is to be done. Changes nothing.
    pub(crate) fn plan(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        reservation: &Reservation<'_>,
        pod: &mut dyn Net,
    ) -> Result<Plan, CniError> {
        match (self, reservation) {
            (Network::Made(network), _) => network.plan(kinds, request, pod),
            (Network::Loopback, _) => Ok(loopback::plan()),
            (Network::HostDevice(network), _) => network.plan(kinds, request, pod),
            (Network::Sriov(network), Reservation::Vf(reserved)) => {
                let snapshot = kinds.sriov.snapshot(network, reserved)?;
                match snapshot.netdev {
                    Some(_) => vf::plan(network, &snapshot, request, pod),
                    None => Ok(vfio::plan(network, &snapshot)),
                }
            }
            (Network::Sriov(_), Reservation::Nothing) => {
                Err(CniError::new(Code::Internal, "a VF was not reserved before it was planned with"))
            }
        }
    }

    /// CHECK, as far as the kind goes; `prev` is what ADD answered, and `at` this interface in it.
    pub(crate) fn check(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        prev: &CniResult,
        at: usize,
        pod: &mut dyn Net,
    ) -> Result<Checked, CniError> {
        match self {
            Network::Made(network) => network.check(kinds, request, pod),
            Network::Loopback => loopback::check(request, pod),
            Network::HostDevice(network) => network.check(kinds, request, pod),
            Network::Sriov(network) if kinds.sriov.is_vfio(network, request.key)? => {
                let answered = prev.interfaces.get(at).map(|i| i.mac.as_str()).unwrap_or_default();
                vfio::check(&kinds.sriov, network, answered)
            }
            Network::Sriov(network) => vf::check(&kinds.sriov, network, request, pod),
        }
    }

    /// The same network with the device that its attachment has, where the configuration names none (CHECK).
    pub(crate) fn of_attachment(
        &self,
        attachment: Option<&Attachment>,
        ifname: &str,
    ) -> Result<Cow<'_, Network>, CniError> {
        match self {
            Network::Sriov(network) => {
                let network = network.clone().of_attachment(attachment, ifname)?;
                Ok(Cow::Owned(Network::Sriov(network)))
            }
            other => Ok(Cow::Borrowed(other)),
        }
    }

    /// The file that tells the pod's other parts about its device, below the host's root.
    pub(crate) fn device_info(&self) -> Option<&str> {
        match self {
            Network::Sriov(network) => network.device_info.as_deref(),
            Network::Made(_) | Network::Loopback | Network::HostDevice(_) => None,
        }
    }

    /// For a sentence: the interface that the new one stands on, or the device that it is made of, as configured.
    pub(crate) fn of_device(&self) -> String {
        match self {
            Network::Made(network) => network.of_device(),
            Network::Loopback => String::new(),
            Network::HostDevice(network) => network.of_device(),
            Network::Sriov(network) => network.of_device(),
        }
    }

    /// What the host lacks for an ADD of this network just now, as far as it can be told without reserving anything. A question
    /// that fails is an error: what is not known is not lacking.
    pub(crate) fn lacks(&self, kinds: &Kinds) -> Result<Option<String>, CniError> {
        if let Some(kind) = self.missing_kernel_kind(kinds).map_err(|e| looking_for_needs(&e))? {
            return Ok(Some(format!("the kernel has no {kind}")));
        }
        if let Some(master) = self.missing_master(kinds).map_err(|e| looking_for_needs(&e))? {
            return Ok(Some(format!("the host has no interface {master:?}")));
        }
        match self {
            Network::HostDevice(network) => network.lacks(kinds),
            Network::Made(_) | Network::Loopback | Network::Sriov(_) => Ok(None),
        }
    }

    /// The kind of link (`IFLA_INFO_KIND`) that the network needs and the kernel does not have.
    pub(crate) fn missing_kernel_kind(&self, kinds: &Kinds) -> Result<Option<&'static str>, NetError> {
        match self {
            Network::Made(network) if !kinds.kernel_has(network.kernel_kind())? => {
                Ok(Some(network.kernel_kind()))
            }
            _ => Ok(None),
        }
    }

    /// The master by its name, if it should be in the host's namespace and is not.
    pub(crate) fn missing_master(&self, kinds: &Kinds) -> Result<Option<String>, NetError> {
        match self {
            Network::Made(network) => network.missing_master(kinds),
            Network::Loopback | Network::HostDevice(_) | Network::Sriov(_) => Ok(None),
        }
    }

    /// Whether a link is of the kind that this type makes: what may be removed when nothing is on record (K10).
    pub(crate) fn made(&self, link: &Link) -> bool {
        matches!(self, Network::Made(network) if network.kernel_kind() == link.kind.name())
    }

    /// The link that a made one stands on, as configured, for `doctor`.
    pub(crate) fn parent(&self) -> Option<made::ParentRef> {
        match self {
            Network::Made(network) => network.parent(),
            Network::Loopback | Network::HostDevice(_) | Network::Sriov(_) => None,
        }
    }

    /// How much it wants an address.
    pub(crate) fn addressing(&self) -> Addressing {
        match self {
            Network::Made(network) => network.addressing(),
            Network::HostDevice(_) | Network::Sriov(_) => Addressing::Optional,
            Network::Loopback => Addressing::Never,
        }
    }

    /// Whether the kernel is told to announce address changes (`arp_notify`, `ndisc_notify`): as the reference plugins do
    /// it, with an address at ADD or always.
    pub(crate) fn notifies(&self, has_address: bool) -> bool {
        match self {
            Network::Made(network) => network.notifies(has_address),
            Network::Sriov(_) => true,
            Network::HostDevice(_) | Network::Loopback => false,
        }
    }

    /// Whether DEL may be answered as soon as the interface is silent: not where the parent can hold only one such
    /// link, nor where somebody else may look for the device at once. An ADD that wants the same VF waits for it.
    pub(crate) fn silent_is_gone(&self) -> bool {
        match self {
            Network::Made(network) => network.silent_is_gone(),
            Network::Sriov(_) => true,
            Network::HostDevice(_) | Network::Loopback => false,
        }
    }

    /// Whether a command waits for more than the kernel, so that it belongs on the slow lane.
    pub(crate) fn waits(&self, kinds: &Kinds, command: Command, attachment: Option<&Attachment>) -> bool {
        match (self, command) {
            (Network::HostDevice(_), Command::Add) => true,
            (Network::Sriov(network), Command::Add) => !kinds.sriov.has_ready(network),
            // The settings of VFs take long to read.
            (Network::Sriov(_), Command::Check) => true,
            // The DEL of a VF under vfio-pci waits for the process that has it; one that is not on record may be sriov-cni's,
            // to be restored before the answer.
            (Network::Sriov(_), Command::Del) => {
                !attachment.is_some_and(|a| matches!(a.link, LinkRecord::Moved(_)))
            }
            _ => false,
        }
    }
}

fn looking_for_needs(error: &NetError) -> CniError {
    super::errors::kernel("", "looking for what a path needs", error)
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

impl Kinds {
    /// Carries a plan out; what it changes is on record.
    pub(crate) fn apply(
        &self,
        owners: &dyn Owners,
        request: &AttachmentRequest<'_>,
        work: &Work,
        attachment: &Attachment,
        pod: &mut dyn Net,
    ) -> Result<Applied, ApplyError> {
        match work {
            Work::Made(new) => made::apply(owners, request, new, pod),
            Work::Loopback => loopback::apply(request, pod).map_err(ApplyError::Cni),
            Work::Moved(netdev) => moved::apply(&request.key.ifname, netdev, pod),
            Work::Vf(change) => vf::apply(&self.sriov, &request.key.ifname, change, attachment, pod),
            Work::Vfio(change) => vfio::apply(&self.sriov, change, attachment).map_err(ApplyError::Cni),
            Work::Nothing => Ok(Applied::default()),
        }
    }

    /// The link of an attachment in its namespace, if it is still there.
    pub(crate) fn find(&self, attachment: &Attachment, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
        match &attachment.link {
            LinkRecord::Made { index, .. } => made::find(attachment, *index, pod),
            LinkRecord::Moved(netdev) => match &netdev.vf {
                Some(vf) => vf::find(attachment, netdev, vf, pod),
                None => moved::find(netdev, &attachment.key.ifname, pod),
            },
            LinkRecord::Vfio(_) | LinkRecord::Loopback | LinkRecord::Conflist { .. } | LinkRecord::None => {
                Ok(None)
            }
        }
    }

    /// The index of the attachment's link, where the record alone says it.
    pub(crate) fn recorded_index(&self, attachment: &Attachment) -> Option<u32> {
        match &attachment.link {
            LinkRecord::Made { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// Takes the attachment's link down for good, or restores what it was made of. From the record alone; it may be begun again
    /// at any step. What waits for a carrier is left, and said.
    pub(crate) fn undo(
        &self,
        attachment: &Attachment,
        reach: Reach<'_>,
    ) -> Result<Option<AwaitsCarrier>, CniError> {
        let removing = |e: NetError| {
            let doing = format!("removing {:?}", attachment.key.ifname);
            super::errors::kernel(&attachment.key.network, &doing, &e)
        };
        let done = match &attachment.link {
            LinkRecord::Made { index, .. } => made::undo(self, attachment, *index, reach),
            LinkRecord::Loopback => loopback::undo(reach),
            LinkRecord::Moved(netdev) => match &netdev.vf {
                Some(vf) => return vf::undo(self, attachment, netdev, vf, reach),
                None => moved::undo(self.kernel.as_ref(), netdev, &attachment.key.ifname, reach),
            },
            LinkRecord::Vfio(vf) => return vfio::undo(&self.sriov, attachment, vf),
            LinkRecord::Conflist { .. } | LinkRecord::None => Ok(()),
        };
        done.map(|()| None).map_err(removing)
    }

    /// Removes what the attachment left beside its link, once that is gone.
    pub(crate) fn release(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.sriov.withdraw_device_info(attachment)
    }

    /// Forgets the attachment by `forget`; what a pool lent for it goes back to the pool in the same step.
    pub(crate) fn forget(
        &self,
        attachment: &Attachment,
        forget: impl FnOnce() -> Result<(), CniError>,
    ) -> Result<(), CniError> {
        match attachment.vf() {
            Some(vf) => self.sriov.pools.take_back(vf.address, forget),
            None => forget(),
        }
    }

    /// Refuses while a process has what the attachment's removal restores: whoever has no caller who waits looks once.
    pub(crate) fn must_be_unused(&self, attachment: &Attachment) -> Result<(), CniError> {
        match &attachment.link {
            LinkRecord::Vfio(vf) => self.sriov.must_be_unused(attachment, vf),
            _ => Ok(()),
        }
    }

    /// Whether DEL can be answered when the interface is silent, before the link is gone.
    pub(crate) fn can_be_silenced(&self, attachment: &Attachment) -> bool {
        matches!(attachment.link, LinkRecord::Made { .. } | LinkRecord::Moved(_))
    }

    /// Whether the link has to leave a namespace that lives, so that it is entered once more, and soon. Any other link is given
    /// time to die with its namespace, which costs nothing.
    pub(crate) fn leaves_the_pod(&self, attachment: &Attachment) -> bool {
        attachment.vf().is_some()
    }

    /// Whether the link proves that the namespace that has this number now is another one than the attachment's: the kernel may
    /// have given the number to the next namespace at once. `None`: the kind has no such proof.
    pub(crate) fn is_absent_at(&self, attachment: &Attachment, nsid: fairlead_host::Nsid) -> Option<bool> {
        match &attachment.link {
            LinkRecord::Made { index, mac, .. } => {
                let link = self.kernel.link_at(nsid, *index);
                Some(link.is_ok_and(|link| link.is_none_or(|link| link.mac != *mac)))
            }
            _ => None,
        }
    }

    /// What of the link an attachment of an earlier boot still has to restore.
    pub(crate) fn after_reboot(&self, link: LinkRecord) -> LinkRecord {
        match link {
            LinkRecord::Moved(netdev) if netdev.vf.is_none() => LinkRecord::Moved(netdev),
            list @ LinkRecord::Conflist { .. } => list,
            // The link died with its namespace, and a VF begins a boot with nothing of what it was before.
            _ => LinkRecord::None,
        }
    }

    /// The link as the operator sees it: what it is, and its MAC address.
    pub(crate) fn describe(&self, attachment: &Attachment) -> (String, Option<String>) {
        match &attachment.link {
            LinkRecord::Made { kind, mac, .. } => (kind.name().to_owned(), mac.map(|m| m.to_string())),
            LinkRecord::Moved(netdev) => {
                (format!("lent {}", netdev.was.name), netdev.was.mac.map(|m| m.to_string()))
            }
            LinkRecord::Vfio(vf) => (format!("given {}", vf.address), None),
            LinkRecord::Loopback => ("loopback".to_owned(), None),
            LinkRecord::Conflist { .. } => ("list".to_owned(), None),
            LinkRecord::None => ("none".to_owned(), None),
        }
    }
}

/// Why a plan could not be carried out.
pub(crate) enum ApplyError {
    /// The kernel refused: the core says of which interface.
    Kernel(NetError),
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
