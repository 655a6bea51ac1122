//! The MAC address of a VF's netdev under a kernel driver. The netdev takes over the address that the PF has for the VF, or takes
//! back its own, in the way that its driver needs.

use std::io;
use std::time::Instant;

use fairlead_host::{Kernel, Link, Mac, Net, NetError, Op, Override, SetLink};
use nix::errno::Errno;

use crate::PciAddr;
use crate::vf_netdev::{APPEARS, interface, wait_for_netdev};
use crate::wait_out_reset::{Pauses, SETTLES, patiently};

/// Drivers whose interface takes the MAC address over only when the VF is bound to them again.
const NEED_REBIND: [&str; 2] = ["igbvf", "ixgbevf"];
/// Drivers whose interface takes the MAC address over by itself, when the reset that this causes has ended.
const FOLLOWS: [&str; 1] = ["iavf"];

/// A VF with an interface, and the driver that makes that.
#[derive(Clone, Copy)]
pub struct KernelVf<'k> {
    /// The kernel through which it is bound to its driver again.
    pub kernel: &'k dyn Kernel,
    /// Its PCI address.
    pub address: PciAddr,
    /// The driver that it has.
    pub driver: &'k str,
}

impl KernelVf<'_> {
    /// Has the interface take the MAC address over that the PF has for the VF. Answers the interface as it is then.
    ///
    /// # Errors
    /// When the driver does not take it.
    pub fn take_over(&self, host: &mut dyn Net, link: &Link, mac: Mac) -> Result<Link, NetError> {
        let link = match self.driver {
            driver if NEED_REBIND.contains(&driver) => self.bound_anew(host)?,
            driver if FOLLOWS.contains(&driver) => self.wait_until_followed(host, link, mac)?,
            _ => match self.try_mac(host, link, mac)? {
                Some(link) => link,
                None => self.bound_anew(host)?,
            },
        };
        match link.mac == Some(mac) {
            true => Ok(link),
            false => Err(self.failed(
                format!("taking the MAC address {mac} over"),
                io::Error::other(format!("driver {} did not", self.driver)),
            )),
        }
    }

    /// Gives the interface its own MAC address again; one that has the PF's for good comes back with that.
    ///
    /// # Errors
    /// When the interface does not come back.
    pub fn take_back(&self, host: &mut dyn Net, link: &Link, mac: Mac) -> Result<Link, NetError> {
        if let Some(link) = self.try_mac(host, link, mac)? {
            return Ok(link);
        }
        let link = self.bound_anew(host)?;
        if link.mac == Some(mac) {
            return Ok(link);
        }
        Ok(self.try_mac(host, &link, mac)?.unwrap_or(link))
    }

    /// Gives the interface a MAC address by itself; `None`: its driver does not let it have that. Some drivers change it only
    /// while the interface is down, and so it is after this.
    pub fn try_mac(&self, host: &mut dyn Net, link: &Link, mac: Mac) -> Result<Option<Link>, NetError> {
        let index = link.index;
        host.batch(&[Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() })])?;
        let set = Op::SetLink(SetLink { index, mac: Some(mac), ..SetLink::default() });
        match patiently(Instant::now() + SETTLES, || host.batch(std::slice::from_ref(&set))) {
            Ok(()) => interface(host, self.address, std::slice::from_ref(&link.name))?
                .ok_or_else(|| self.absent())
                .map(Some),
            Err(e) if needs_binding(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits until the interface has the address by itself; answers it as it is in the end, with the address or without.
    fn wait_until_followed(&self, host: &mut dyn Net, link: &Link, mac: Mac) -> Result<Link, NetError> {
        let mut pauses = Pauses::until(Instant::now() + SETTLES);
        loop {
            let now = interface(host, self.address, std::slice::from_ref(&link.name))?;
            match now {
                Some(link) if link.mac == Some(mac) || !pauses.pause() => return Ok(link),
                Some(_) => {}
                None => return Err(self.absent()),
            }
        }
    }

    /// Binds the VF to its driver again; answers the interface that this makes then.
    ///
    /// # Errors
    /// When the driver refuses the VF, or makes no interface.
    pub fn bound_anew(&self, host: &mut dyn Net) -> Result<Link, NetError> {
        self.kernel.bind(&self.address.to_string(), self.driver, Override::Keep)?;
        wait_for_netdev(host, self.address, APPEARS)?.ok_or_else(|| self.absent())
    }

    fn absent(&self) -> NetError {
        self.failed(
            format!("having its interface back from driver {}", self.driver),
            io::Error::new(io::ErrorKind::TimedOut, "it did not appear in the host's namespace"),
        )
    }

    fn failed(&self, doing: String, source: io::Error) -> NetError {
        NetError::Driver { device: self.address.to_string(), doing, source }
    }
}

/// Whether a driver answers so that takes another address only when the VF is bound to it again.
fn needs_binding(error: &NetError) -> bool {
    let refusals = [Errno::EADDRNOTAVAIL, Errno::EPERM, Errno::EACCES, Errno::EOPNOTSUPP, Errno::EINVAL];
    error.errno().is_some_and(|errno| refusals.contains(&errno))
}
