//! A VF on the host, while no pod has it: how it was at first, and whether it is so again.

use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::real::RealKernel;
use fairlead_host::{Link, Mac, NetError, NetKernel, Op, Override, PciKernel, SetLink, Vf, VfChange};
use fairlead_sriov::vf_netdev::{interface, wait_for_netdev};
use fairlead_sriov::{BadPciAddr, Inventory, InventoryError, PciAddr};

/// The time that an interface may take to appear.
const APPEARS: Duration = Duration::from_secs(10);
/// The time that a VF may take to become ready.
const READY: Duration = Duration::from_secs(60);

/// Why a VF cannot be measured, or is not as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VfOnHostError {
    /// The text is no PCI address.
    #[error(transparent)]
    Address(#[from] BadPciAddr),
    /// The machine has no such VF.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The kernel refused a question.
    #[error("VF {address}: {source}")]
    Net {
        /// The PCI address of the VF.
        address: PciAddr,
        /// Why the kernel refused.
        #[source]
        source: NetError,
    },
    /// The VF lacks something.
    #[error("VF {address} has no {what}; make the VFs, and leave them to their kernel driver")]
    Without {
        /// The PCI address of the VF.
        address: PciAddr,
        /// What the VF lacks.
        what: &'static str,
    },
    /// The VF did not come back as it was.
    #[error("VF {address} came home with {is} instead of {was}")]
    Changed {
        /// The PCI address of the VF.
        address: PciAddr,
        /// What the VF has now.
        is: String,
        /// What the VF had at first.
        was: String,
    },
    /// The daemon does not have the VF ready in time.
    #[error("VF {0} is not ready within {1:?}")]
    NotReady(String, Duration),
}

/// A VF as it was at first, when no pod had it.
#[derive(Debug, Clone)]
pub(crate) struct VfOnHost {
    /// The PCI address of the VF.
    pub(crate) address: PciAddr,
    /// The driver that it is bound to.
    pub(crate) driver: String,
    /// The name of its interface.
    pub(crate) name: String,
    mac: Option<Mac>,
    /// The name of its PF's interface.
    pub(crate) physical_name: String,
    physical: u32,
    settings: Vf,
}

impl VfOnHost {
    /// Records the VF with that PCI address, which no pod may have.
    pub(crate) fn of(kernel: &RealKernel, address: &str) -> Result<VfOnHost, VfOnHostError> {
        let address: PciAddr = address.parse()?;
        let vf = Inventory::new("/sys".as_ref()).vf(address)?;
        let without = |what| VfOnHostError::Without { address, what };
        let net = |source| VfOnHostError::Net { address, source };
        let mut host = kernel.host().map_err(net)?;
        let link = interface(host.as_mut(), address, &vf.interfaces).map_err(net)?;
        let link = link.ok_or_else(|| without("interface in this namespace"))?;
        let physical = interface(host.as_mut(), vf.physical.address, &vf.physical.interfaces);
        let physical = physical.map_err(net)?.ok_or_else(|| without("PF's interface"))?;
        let settings =
            host.vfs(physical.index).map_err(net)?.into_iter().find(|settings| settings.index == vf.index);
        Ok(VfOnHost {
            address,
            driver: vf.driver.ok_or_else(|| without("driver"))?,
            name: link.name,
            mac: link.mac,
            physical: physical.index,
            physical_name: physical.name,
            settings: settings.ok_or_else(|| without("settings"))?,
        })
    }

    /// Records the VF after its MAC address was fixed: otherwise its driver makes up another each time it is
    /// bound.
    pub(crate) fn fixed(kernel: &RealKernel, address: &str) -> Result<VfOnHost, VfOnHostError> {
        let on_host = VfOnHost::of(kernel, address)?;
        let change = VfChange { mac: on_host.mac, ..VfChange::default() };
        let set = Op::SetVfs { pf: on_host.physical, changes: vec![(on_host.settings.index, change)] };
        let set = kernel.host().and_then(|mut host| host.batch(&[set]));
        let bound = set.and_then(|()| kernel.bind(address, &on_host.driver, Override::Keep));
        bound.map_err(|e| on_host.net(e))?;
        on_host.renamed(kernel)?;
        VfOnHost::of(kernel, address)
    }

    /// Waits for the VF's interface in this namespace.
    pub(crate) fn link(&self, kernel: &RealKernel) -> Result<Link, VfOnHostError> {
        let mut host = kernel.host().map_err(|e| self.net(e))?;
        let link = wait_for_netdev(host.as_mut(), self.address, APPEARS).map_err(|e| self.net(e))?;
        link.ok_or(VfOnHostError::Without { address: self.address, what: "interface in this namespace" })
    }

    /// Reads the administrator's settings of the VF.
    pub(crate) fn settings(&self, kernel: &RealKernel) -> Result<Vf, VfOnHostError> {
        let all = kernel.host().and_then(|mut host| host.vfs(self.physical)).map_err(|e| self.net(e))?;
        let mine = all.into_iter().find(|vf| vf.index == self.settings.index);
        mine.ok_or(VfOnHostError::Without { address: self.address, what: "settings" })
    }

    /// Gives the interface its name back: a driver that is bound again chooses any.
    pub(crate) fn renamed(&self, kernel: &RealKernel) -> Result<(), VfOnHostError> {
        let link = self.link(kernel)?;
        if link.name == self.name {
            return Ok(());
        }
        let rename = SetLink { index: link.index, name: Some(self.name.clone()), ..SetLink::default() };
        let renamed = kernel.host().and_then(|mut host| host.batch(&[Op::SetLink(rename)]));
        renamed.map_err(|e| self.net(e))
    }

    /// Compares everything with how it was at first.
    pub(crate) fn is_as_it_was(&self, kernel: &RealKernel) -> Result<(), VfOnHostError> {
        let link = self.link(kernel)?;
        let settings = self.settings(kernel)?;
        let text = |name: &str, mac, settings: &Vf| format!("{name} {mac:?} {settings:?}");
        let (is, was) = (text(&link.name, link.mac, &settings), text(&self.name, self.mac, &self.settings));
        if is == was { Ok(()) } else { Err(VfOnHostError::Changed { address: self.address, is, was }) }
    }

    fn net(&self, source: NetError) -> VfOnHostError {
        VfOnHostError::Net { address: self.address, source }
    }
}

/// Waits until `is_ready` says so of a VF; returns the time at which that was.
pub(super) fn until_ready(address: &str, is_ready: impl Fn(&str) -> bool) -> Result<Instant, VfOnHostError> {
    let begun = Instant::now();
    while !is_ready(address) {
        if begun.elapsed() > READY {
            return Err(VfOnHostError::NotReady(address.to_owned(), READY));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(Instant::now())
}
