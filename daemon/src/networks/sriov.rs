//! `sriov`: a VF, set up by its PF, lent to the pod (by vfio-pci: given) and given back as it was.

use fairlead_cni::args::Args;
use fairlead_cni::config::sriov::{Driver, LinkState, Vlan};
use fairlead_cni::config::{self, NetConf};
use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Vf, VfLinkState, VfVlan, VlanProto};
use fairlead_sriov::{VfDevice, PciAddr, VFIO_PCI, VfProfile};

use super::{Facts, LinkPlan, wanted_mac};
use crate::store::{Lent, LentVf};

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sriov {
    /// Which VF.
    pub device: Device,
    /// How it is to be set up.
    pub profile: VfProfile,
    /// Where to tell what the device is (`CNIDeviceInfoFile`), below the host's root.
    pub device_info: Option<String>,
    /// Who must have it.
    pub driver: Option<Driver>,
    /// Whether its pod can reach its nodes below /dev: it was given to the pod, or the configuration says so.
    pub has_access: bool,
}

/// Which VF is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// This one.
    Known(PciAddr),
    /// One of those of this resource that kubelet has given the pod: known once kubelet was asked.
    OfResource(String),
    /// One that is ready in this pool: known once it is drawn.
    OfPool(String),
}

/// A VF that can be lent, as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtHome {
    /// Where it is.
    pub vf: VfDevice,
    /// Who drives it.
    pub driver: String,
    /// Its settings; `None` where nothing of them is needed, because they are dear to read.
    pub settings: Option<Vf>,
}

impl Sriov {
    /// Reads the configuration; what the runtime says goes before `CNI_ARGS`, that before the configuration.
    pub fn validate(conf: &NetConf, args: &Args) -> Result<Sriov, CniError> {
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
        let device_info = conf.runtime.device_info_file.as_deref().map(absolute).transpose()?;
        Ok(Sriov { device, profile, device_info, driver: read.driver, has_access })
    }

    /// The VF. Code 999 before it is known.
    pub fn address(&self) -> Result<PciAddr, CniError> {
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
    pub fn takes(&self, driver: &str) -> bool {
        self.driver.is_none_or(|wanted| (wanted == Driver::Vfio) == (driver == VFIO_PCI))
    }

    /// What differs is set, then its interface, if it has one, is moved and renamed; what it was is on record before.
    pub fn plan(&self, facts: &Facts<'_>) -> Result<LinkPlan, CniError> {
        let address = self.address()?;
        let Some(home) = facts.vf else {
            return Err(CniError::new(Code::InvalidConfig, format!("there is no VF {address}")));
        };
        let plan = home.settings.as_ref().map(|now| self.profile.plan(now)).unwrap_or_default();
        let vf = LentVf {
            address,
            physical: home.vf.physical.address,
            index: home.vf.index,
            driver: home.driver.clone(),
            iommu_group: home.vf.iommu_group,
            before: plan.undo,
        };
        let Some(link) = facts.parent else {
            let given = home.settings.as_ref().and_then(|now| now.mac).filter(|mac| !mac.is_zero());
            let mac = self.profile.mac.or(given);
            return Ok(LinkPlan::GiveVf { vf, change: plan.change, mac });
        };
        let lent = Lent { vf: Some(vf), ..Lent::of(link) };
        Ok(LinkPlan::LendVf { lent, change: plan.change, mac: self.profile.mac })
    }

    /// Whether the link in the pod is the VF's, as far as the kernel tells (from 5.14).
    pub fn check(&self, link: &Link) -> Result<(), String> {
        match (link.device.as_deref(), &self.device) {
            (Some(device), Device::Known(wanted)) if device != wanted.to_string() => {
                Err(format!("{:?} is the interface of {device} instead of {wanted}", link.name))
            }
            _ => Ok(()),
        }
    }

    /// Whether the VF's settings still are what this configuration asks for.
    pub fn check_settings(&self, now: &Vf) -> Result<(), String> {
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

fn absolute(path: &str) -> Result<String, CniError> {
    match path.starts_with('/') && !path.ends_with('/') {
        true => Ok(path.to_owned()),
        false => Err(CniError::new(
            Code::InvalidConfig,
            format!("runtimeConfig.CNIDeviceInfoFile: {path:?} is no absolute path of a file"),
        )
        .with("it is the meta plugin that gives it")),
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
