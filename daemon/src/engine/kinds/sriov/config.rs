//! What a configuration of type `sriov` asks for: which VF, and how its PF is to set it up.

use fairlead_cni::args::Args;
use fairlead_cni::config::sriov::{Driver, LinkState, Vlan};
use fairlead_cni::config::{self, NetConf};
use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Vf, VfLinkState, VfVlan, VlanProto};
use fairlead_sriov::{PciAddr, VFIO_PCI, VfProfile};

use crate::engine::kinds::{device_info, wanted_mac};
use crate::store::Attachment;

/// The types of configurations that are served here.
pub(crate) const TYPES: [&str; 1] = ["sriov"];

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sriov {
    /// The VF that is wanted.
    pub(crate) device: Device,
    /// How it is to be set up.
    pub(crate) profile: VfProfile,
    /// Where to tell what the device is (`CNIDeviceInfoFile`), below the host's root: a file in the directory for that.
    pub(crate) device_info: Option<String>,
    /// The driver that must have it; `None`: whichever has it.
    pub(crate) driver: Option<Driver>,
    /// Whether its pod can reach its nodes below /dev: it was given to the pod, or the configuration says so.
    pub(crate) has_access: bool,
}

/// The VF that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Device {
    /// The one at this address.
    Known(PciAddr),
    /// One of those of this resource that kubelet has given the pod: known once kubelet was asked.
    OfResource(String),
    /// One that is ready in this pool: known once it is drawn.
    OfPool(String),
}

impl Sriov {
    /// Reads the configuration; what the runtime says goes before `CNI_ARGS`, that before the configuration.
    pub(crate) fn validate(conf: &NetConf, args: &Args) -> Result<Sriov, CniError> {
        let read = config::Sriov::parse(conf)?;
        let device = match read.device(conf, args)? {
            config::sriov::Device::Named(id) => Device::Known(id.parse().map_err(|e| {
                CniError::new(Code::InvalidConfig, format!("deviceID: {e}"))
                    .with("give the PCI address of a VF")
            })?),
            config::sriov::Device::OfResource(resource) => Device::OfResource(resource),
            config::sriov::Device::OfPool(pool) => Device::OfPool(pool),
        };
        // A path of our own type has no deviceID but the one that the pod was given.
        let has_access = read.on_host || !matches!(device, Device::OfPool(_));
        let mac = read.mac(conf, args)?;
        let profile = VfProfile {
            mac: mac.as_deref().map(wanted_mac).transpose()?,
            vlan: read.vlan.map(vlan),
            spoofchk: read.spoofchk,
            trust: read.trust,
            link_state: read.link_state.map(link_state),
            min_rate: read.min_tx_rate,
            max_rate: read.max_tx_rate,
        };
        let device_info = conf.runtime.device_info_file.as_deref().map(device_info::validate).transpose()?;
        Ok(Sriov { device, profile, device_info, driver: read.driver, has_access })
    }

    /// A VF's interface just as it is, for a pod that kubelet has given the VF to.
    pub(crate) fn as_it_is(address: PciAddr) -> Sriov {
        Sriov {
            device: Device::Known(address),
            profile: VfProfile::default(),
            device_info: None,
            driver: Some(Driver::Kernel),
            has_access: true,
        }
    }

    /// The address of the VF. Code 999 before it is known.
    pub(crate) fn address(&self) -> Result<PciAddr, CniError> {
        match &self.device {
            Device::Known(address) => Ok(*address),
            Device::OfResource(resource) => {
                let told = format!("it is not known yet which device of resource {resource:?} it is");
                Err(CniError::new(Code::Internal, told))
            }
            Device::OfPool(pool) => {
                let told = format!("it is not known yet which VF of pool {pool:?} it is");
                Err(CniError::new(Code::Internal, told))
            }
        }
    }

    /// Whether a VF with this driver is what is wanted.
    pub(crate) fn takes(&self, driver: &str) -> bool {
        self.driver.is_none_or(|wanted| (wanted == Driver::Vfio) == (driver == VFIO_PCI))
    }

    /// The same with the VF that it has turned out to be.
    #[must_use]
    pub(super) fn with_vf(self, address: PciAddr) -> Sriov {
        Sriov { device: Device::Known(address), ..self }
    }

    /// The same with the VF that is on record for it.
    pub(crate) fn of_attachment(
        self,
        attachment: Option<&Attachment>,
        ifname: &str,
    ) -> Result<Sriov, CniError> {
        let (Device::OfResource(of) | Device::OfPool(of)) = &self.device else { return Ok(self) };
        // Kubelet and the pool are not asked: by now they would name another VF than the one it got.
        let recorded = attachment.and_then(|a| a.vf().map(|vf| vf.address));
        let address = recorded.ok_or_else(|| {
            let told = format!("no VF of {of:?} is on record for {ifname:?}");
            CniError::new(Code::Changed, told).with("delete the pod and make it anew")
        })?;
        Ok(self.with_vf(address))
    }

    /// For a sentence: the VF, as configured.
    pub(crate) fn of_device(&self) -> String {
        match &self.device {
            Device::Known(address) => format!(" of device \"{address}\""),
            Device::OfResource(resource) => format!(" of a device of resource {resource:?}"),
            Device::OfPool(pool) => format!(" of pool {pool:?}"),
        }
    }

    /// Whether the link in the pod is the VF's netdev, as far as the kernel says (from 5.14).
    pub(crate) fn is_of_netdev(&self, link: &Link) -> Result<(), String> {
        match (link.device.as_deref(), &self.device) {
            (Some(device), Device::Known(wanted)) if device != wanted.to_string() => {
                Err(format!("{:?} is the interface of {device} instead of {wanted}", link.name))
            }
            _ => Ok(()),
        }
    }

    /// Whether the VF's settings still are what this configuration asks for; the reason why they are not.
    pub(crate) fn check_settings(&self, now: &Vf) -> Result<(), String> {
        let plan = self.profile.plan(now);
        if plan.change.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the settings of its VF {} have changed: {} instead of {}",
            self.address().map_err(|e| e.msg)?,
            plan.undo.describe(),
            plan.change.describe()
        ))
    }
}

fn vlan(vlan: Vlan) -> VfVlan {
    let proto = if vlan.service { VlanProto::Dot1ad } else { VlanProto::Dot1q };
    VfVlan { id: vlan.id, qos: vlan.qos, proto }
}

fn link_state(state: LinkState) -> VfLinkState {
    match state {
        LinkState::Auto => VfLinkState::Auto,
        LinkState::Enable => VfLinkState::Enable,
        LinkState::Disable => VfLinkState::Disable,
    }
}
