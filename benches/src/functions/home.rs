//! A VF where it is when no pod has it, and whether it is there again as it was.

use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::real::RealKernel;
use fairlead_host::{Link, Mac, NetError, NetKernel, Op, Override, PciKernel, SetLink, Vf, VfChange};
use fairlead_sriov::interface::{appear, interface};
use fairlead_sriov::{BadPciAddr, Inventory, InventoryError, PciAddr};

/// How long an interface may take to be there.
const APPEARS: Duration = Duration::from_secs(10);
/// And a VF until it is ready.
const READY: Duration = Duration::from_secs(60);

/// Why a VF cannot be measured, or is not as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeError {
    /// It has no PCI address.
    #[error(transparent)]
    Address(#[from] BadPciAddr),
    /// The machine has no such VF.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The kernel refused a question.
    #[error("VF {address}: {source}")]
    Net {
        /// The VF.
        address: PciAddr,
        /// The reason.
        #[source]
        source: NetError,
    },
    /// Something of it is missing.
    #[error("VF {address} has no {what}; make the VFs, and leave them to their kernel driver")]
    Without {
        /// The VF.
        address: PciAddr,
        /// What.
        what: &'static str,
    },
    /// It came home otherwise than it left.
    #[error("VF {address} came home with {is} instead of {was}")]
    Changed {
        /// The VF.
        address: PciAddr,
        /// What it has now.
        is: String,
        /// What it had.
        was: String,
    },
    /// The daemon does not have it ready.
    #[error("VF {0} is not ready within {1:?}")]
    NotReady(String, Duration),
}

/// A VF, as it was at first.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    /// Its PCI address.
    pub(crate) address: PciAddr,
    /// Its driver.
    pub(crate) driver: String,
    /// Its interface's name.
    pub(crate) name: String,
    mac: Option<Mac>,
    /// Its PF's interface.
    pub(crate) physical_name: String,
    physical: u32,
    settings: Vf,
}

impl Home {
    /// The VF with that PCI address, which must be at home.
    pub(crate) fn of(kernel: &RealKernel, address: &str) -> Result<Home, HomeError> {
        let address: PciAddr = address.parse()?;
        let vf = Inventory::new("/sys".as_ref()).vf(address)?;
        let without = |what| HomeError::Without { address, what };
        let net = |source| HomeError::Net { address, source };
        let mut host = kernel.host().map_err(net)?;
        let link = interface(host.as_mut(), address, &vf.interfaces).map_err(net)?;
        let link = link.ok_or_else(|| without("interface in this namespace"))?;
        let physical = interface(host.as_mut(), vf.physical.address, &vf.physical.interfaces);
        let physical = physical.map_err(net)?.ok_or_else(|| without("PF's interface"))?;
        let settings =
            host.vfs(physical.index).map_err(net)?.into_iter().find(|vf| vf.index == vf.index);
        Ok(Home {
            address,
            driver: vf.driver.ok_or_else(|| without("driver"))?,
            name: link.name,
            mac: link.mac,
            physical: physical.index,
            physical_name: physical.name,
            settings: settings.ok_or_else(|| without("settings"))?,
        })
    }

    /// The same, with its MAC address for good: without, its driver makes up another whenever it takes the VF.
    pub(crate) fn fixed(kernel: &RealKernel, address: &str) -> Result<Home, HomeError> {
        let home = Home::of(kernel, address)?;
        let change = VfChange { mac: home.mac, ..VfChange::default() };
        let set = Op::SetVfs { pf: home.physical, changes: vec![(home.settings.index, change)] };
        let set = kernel.host().and_then(|mut host| host.batch(&[set]));
        let bound = set.and_then(|()| kernel.bind(address, &home.driver, Override::Keep));
        bound.map_err(|e| home.net(e))?;
        home.renamed(kernel)?;
        Home::of(kernel, address)
    }

    /// Its interface in this namespace, waited for.
    pub(crate) fn link(&self, kernel: &RealKernel) -> Result<Link, HomeError> {
        let mut host = kernel.host().map_err(|e| self.net(e))?;
        let link = appear(host.as_mut(), self.address, APPEARS).map_err(|e| self.net(e))?;
        link.ok_or(HomeError::Without { address: self.address, what: "interface in this namespace" })
    }

    /// The administrator's settings as they are.
    pub(crate) fn settings(&self, kernel: &RealKernel) -> Result<Vf, HomeError> {
        let all = kernel.host().and_then(|mut host| host.vfs(self.physical)).map_err(|e| self.net(e))?;
        let mine = all.into_iter().find(|vf| vf.index == self.settings.index);
        mine.ok_or(HomeError::Without { address: self.address, what: "settings" })
    }

    /// Its interface has its name again: a driver that takes a VF anew gives any.
    pub(crate) fn renamed(&self, kernel: &RealKernel) -> Result<(), HomeError> {
        let link = self.link(kernel)?;
        if link.name == self.name {
            return Ok(());
        }
        let rename = SetLink { index: link.index, name: Some(self.name.clone()), ..SetLink::default() };
        let renamed = kernel.host().and_then(|mut host| host.batch(&[Op::SetLink(rename)]));
        renamed.map_err(|e| self.net(e))
    }

    /// Everything is as it was.
    pub(crate) fn is_as_it_was(&self, kernel: &RealKernel) -> Result<(), HomeError> {
        let link = self.link(kernel)?;
        let settings = self.settings(kernel)?;
        let told = |name: &str, mac, settings: &Vf| format!("{name} {mac:?} {settings:?}");
        let (is, was) = (told(&link.name, link.mac, &settings), told(&self.name, self.mac, &self.settings));
        if is == was { Ok(()) } else { Err(HomeError::Changed { address: self.address, is, was }) }
    }

    fn net(&self, source: NetError) -> HomeError {
        HomeError::Net { address: self.address, source }
    }
}

/// Waits until `is_ready` says so of a VF; answers when that was.
pub(super) fn until(address: &str, is_ready: impl Fn(&str) -> bool) -> Result<Instant, HomeError> {
    let begun = Instant::now();
    while !is_ready(address) {
        if begun.elapsed() > READY {
            return Err(HomeError::NotReady(address.to_owned(), READY));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(Instant::now())
}
