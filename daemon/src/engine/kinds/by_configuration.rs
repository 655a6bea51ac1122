//! What goes by a validated configuration: each operation is handed to the kind that serves the configuration.

use std::borrow::Cow;

use fairlead_cni::args::Args;
use fairlead_cni::config::NetConf;
use fairlead_cni::result::CniResult;
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError};

use super::{
    Addressing, Checked, HolderRemovals, Kinds, Network, NotAttached, Plan, Reservation, loopback, made,
    moved, not_built_in, sriov, vf, vfio, vhost_user,
};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::store::{Attachment, LinkRecord};

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
        if vhost_user::TYPES.contains(&kind) {
            return vhost_user::VhostUser::validate(conf, args)
                .map(|port| Network::VhostUser(Box::new(port)));
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
        removals: &dyn HolderRemovals,
        request: &AttachmentRequest<'_>,
    ) -> Result<(Cow<'n, Network>, Reservation<'k>), NotAttached> {
        match self {
            Network::Sriov(network) => {
                let (network, reserved) = kinds.sriov.reserve(network.clone(), removals, kinds, request)?;
                Ok((Cow::Owned(Network::Sriov(network)), Reservation::Vf(reserved)))
            }
            Network::HostDevice(network) => {
                Ok((Cow::Borrowed(self), network.reserve(kinds, removals, request)?))
            }
            Network::Made(network) => Ok((Cow::Borrowed(self), network.reserve(kinds, removals, request)?)),
            Network::VhostUser(network) if network.is_kubelets() => {
                let (network, lock) = vhost_user::reserve(kinds, removals, network, request)?;
                Ok((Cow::Owned(Network::VhostUser(Box::new(network))), Reservation::Port { _lock: lock }))
            }
            Network::VhostUser(network) if network.is_in_shared_dir() => {
                let network = vhost_user::find_shared_dir(kinds, network, request)?;
                Ok((Cow::Owned(Network::VhostUser(Box::new(network))), Reservation::Nothing))
            }
            Network::Loopback | Network::VhostUser(_) => Ok((Cow::Borrowed(self), Reservation::Nothing)),
        }
    }

    /// Whether [`Network::reserve`] may ask or wait for others.
    pub(crate) fn waits_for_others(&self) -> bool {
        match self {
            Network::Made(network) => network.may_ask_kubelet(),
            Network::VhostUser(network) => network.is_kubelets() || network.is_in_shared_dir(),
            Network::Sriov(_) | Network::HostDevice(_) => true,
            Network::Loopback => false,
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
            (Network::Made(network), _) => network.plan(kinds, request, reservation, pod),
            (Network::Loopback, _) => Ok(loopback::plan()),
            (Network::VhostUser(network), _) => vhost_user::plan(kinds, network, request),
            (Network::HostDevice(_), _) => moved::plan(kinds, request, reservation, pod),
            (Network::Sriov(network), Reservation::Vf(reserved)) => {
                let snapshot = kinds.sriov.snapshot(network, reserved)?;
                // The driver that has the VF decides, not the configuration: under vfio-pci there is no netdev to move.
                match snapshot.netdev {
                    Some(_) => vf::plan(&kinds.sriov, network, &snapshot, request, pod),
                    None => Ok(vfio::plan(network, &snapshot)),
                }
            }
            (Network::Sriov(_), _) => {
                Err(CniError::new(Code::Internal, "a VF was not reserved before it was planned with"))
            }
        }
    }

    /// CHECK, as far as the kind goes; `prev` is what ADD answered, and `at` this interface in it. `attachment`: what is on record, if
    /// anything is.
    pub(crate) fn check(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        attachment: Option<&Attachment>,
        (prev, at): (&CniResult, usize),
        pod: &mut dyn Net,
    ) -> Result<Checked, CniError> {
        match self {
            Network::Made(network) => network.check(kinds, request, attachment, pod),
            Network::Loopback => loopback::check(request, pod),
            Network::VhostUser(_) => match attachment.and_then(|a| Some((a, a.vhost_user()?))) {
                Some((attachment, record)) => {
                    kinds.vhost_user.at_home(|services| vhost_user::check(services, attachment, record))
                }
                None => Ok(Checked::Changed("nothing is on record of its port".to_owned())),
            },
            Network::HostDevice(network) => network.check(kinds, request, attachment, pod),
            Network::Sriov(network) if kinds.sriov.is_vfio(network, request.key)? => {
                // Under vfio-pci no netdev shows the MAC address: what the PF says is compared with the answer of ADD.
                let answered = prev.interfaces.get(at).map(|i| i.mac.as_str()).unwrap_or_default();
                vfio::check(&kinds.sriov, network, attachment.and_then(Attachment::vf), answered)
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
            Network::VhostUser(network) => network.device_info.as_deref(),
            Network::Made(_) | Network::Loopback | Network::HostDevice(_) => None,
        }
    }

    /// For a sentence: the interface that the new one stands on, or the device that it is made of, as configured.
    pub(crate) fn of_device(&self) -> String {
        match self {
            Network::Made(network) => network.of_device(),
            Network::Loopback | Network::VhostUser(_) => String::new(),
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
            return Ok(Some(format!("the host has no interface {master}")));
        }
        match self {
            Network::HostDevice(network) => network.lacks(kinds),
            Network::VhostUser(network) => Ok(kinds.vhost_user.lacks_for_add(&network.config.switch)),
            // Whether a VF can be had shows only when it is reserved.
            Network::Made(_) | Network::Loopback | Network::Sriov(_) => Ok(None),
        }
    }

    /// Why no ADD of this network can succeed until somebody starts what serves it. For STATUS: it answers soon.
    pub(crate) fn unserved(&self, kinds: &Kinds) -> Option<String> {
        match self {
            Network::VhostUser(network) => kinds.vhost_user.lacks_for_status(&network.config.switch),
            Network::Made(_) | Network::Loopback | Network::HostDevice(_) | Network::Sriov(_) => None,
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
            Network::Loopback | Network::HostDevice(_) | Network::Sriov(_) | Network::VhostUser(_) => {
                Ok(None)
            }
        }
    }

    /// Whether a link is of the kind that this type makes: what may be deleted when nothing is on record (K10).
    pub(crate) fn made(&self, link: &Link) -> bool {
        matches!(self, Network::Made(network) if network.kernel_kind() == link.kind.name())
    }

    /// What goes on record of a pod's link that another plugin has moved there, before it is brought home, when nothing is on record (K10);
    /// `None`: it is none that this network means, or may be the pod's own.
    pub(crate) fn moved_by_another(
        &self,
        kinds: &Kinds,
        link: &Link,
    ) -> Result<Option<LinkRecord>, CniError> {
        match self {
            Network::HostDevice(network) => {
                let moved = network.moved_by_another(kinds, link)?;
                Ok(moved.map(|netdev| LinkRecord::Moved(Box::new(netdev))))
            }
            // sriov-cni keeps records of its own, by which its VFs are restored.
            Network::Made(_) | Network::Loopback | Network::Sriov(_) | Network::VhostUser(_) => Ok(None),
        }
    }

    /// Whether a pod's link that is none of those may be a device of the host all the same, and be destroyed with the pod's namespace.
    pub(crate) fn may_be_lost(&self, kinds: &Kinds, link: &Link) -> Result<bool, CniError> {
        match self {
            Network::HostDevice(network) => network.may_be_lost(kinds, link),
            Network::Made(_) | Network::Loopback | Network::Sriov(_) | Network::VhostUser(_) => Ok(false),
        }
    }

    /// The link that a made one stands on, as configured, for `doctor`.
    pub(crate) fn parent(&self) -> Option<made::ParentRef> {
        match self {
            Network::Made(network) => network.parent(),
            Network::Loopback | Network::HostDevice(_) | Network::Sriov(_) | Network::VhostUser(_) => None,
        }
    }

    /// How much it wants an address.
    pub(crate) fn addressing(&self) -> Addressing {
        match self {
            Network::Made(network) => network.addressing(),
            Network::HostDevice(_) | Network::Sriov(_) | Network::VhostUser(_) => Addressing::Optional,
            Network::Loopback => Addressing::Never,
        }
    }

    /// Whether the kernel is told to announce address changes (`arp_notify`, `ndisc_notify`): as the reference plugins do
    /// it, with an address at ADD or always.
    pub(crate) fn notifies(&self, has_address: bool) -> bool {
        match self {
            Network::Made(network) => network.notifies(has_address),
            Network::Sriov(_) => true,
            Network::HostDevice(_) | Network::Loopback | Network::VhostUser(_) => false,
        }
    }

    /// Whether the answer has the name resolution of the IPAM (`dns`), where that gives any, instead of the network's own: as the
    /// reference plugins do it.
    pub(crate) fn answers_dns_of_ipam(&self) -> bool {
        match self {
            Network::Made(network) => network.answers_dns_of_ipam(),
            Network::Sriov(_) => true,
            Network::HostDevice(_) | Network::Loopback | Network::VhostUser(_) => false,
        }
    }

    /// Whether DEL may be answered as soon as the interface is silent: not where the parent can hold only one such
    /// link, nor where somebody else may look for the device at once. An ADD that wants the same VF waits for it.
    pub(crate) fn silent_is_gone(&self) -> bool {
        match self {
            Network::Made(network) => network.silent_is_gone(),
            Network::Sriov(_) => true,
            Network::HostDevice(_) | Network::Loopback | Network::VhostUser(_) => false,
        }
    }

    /// Whether a command waits for more than the kernel, so that it belongs on the slow lane.
    pub(crate) fn waits(&self, kinds: &Kinds, command: Command, attachment: Option<&Attachment>) -> bool {
        match (self, command) {
            (Network::HostDevice(_), Command::Add) => true,
            // Only a ready VF that needs no other settings is moved at once. Any other is waited for, read or set up first, and
            // kubelet is asked about one that it may have given to another pod.
            // The same for a device that the new link takes over, and for where the pod is, if it is to have the nearest of several.
            (Network::Made(network), Command::Add) => {
                network.may_ask_kubelet() && kinds.sriov.pod_resources.is_expected()
            }
            (Network::Sriov(network), Command::Add) => {
                !kinds.sriov.has_ready(network) || kinds.sriov.may_ask_kubelet(network)
            }
            // Kubelet is asked which port the pod has, or the pod's volumes are waited for.
            (Network::VhostUser(network), Command::Add) => {
                network.is_kubelets() || network.is_in_shared_dir()
            }
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
    errors::kernel("", "looking for what a path needs", error)
}
