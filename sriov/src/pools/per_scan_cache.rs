//! What one look at the machine has learnt so far. What can be learnt of all members at once is learnt once: which devices
//! answer, and which interfaces the host has.
//!
//! The cache never sees a change: whoever has changed anything looks with a new one.

use std::cell::{OnceCell, RefCell};
use std::collections::btree_map::Entry;

use fairlead_host::{Answers, IommuGroup, Kernel, Link, Net, NetError};

use crate::VFIO_PCI;
use crate::{PciAddr, VfDevice};

/// What is known of the machine since this was made.
pub(super) struct ScanCache<'k> {
    kernel: &'k dyn Kernel,
    answers: RefCell<Answers>,
    links: OnceCell<Vec<Link>>,
}

impl<'k> ScanCache<'k> {
    /// Nothing is known yet.
    pub(super) fn of(kernel: &'k dyn Kernel) -> ScanCache<'k> {
        ScanCache { kernel, answers: RefCell::default(), links: OnceCell::new() }
    }

    /// Asks these VFs whether they answer, and for their groups those that vfio-pci has, together.
    pub(super) fn ask<'f>(&self, vfs: impl Iterator<Item = &'f VfDevice>) {
        let (mut addresses, mut groups) = (Vec::new(), Vec::new());
        for vf in vfs {
            addresses.push(vf.address.to_string());
            let group = vf.iommu_group.filter(|_| vf.driver.as_deref() == Some(VFIO_PCI));
            groups.extend(group);
        }
        if !addresses.is_empty() {
            self.answers.replace(self.kernel.answers_of(&addresses, &groups));
        }
    }

    /// Whether a VF's configuration space answers.
    pub(super) fn answers(&self, address: PciAddr) -> Result<bool, NetError> {
        let address = address.to_string();
        let asked = known(self.answers.borrow_mut().devices.entry(address.clone()));
        asked.unwrap_or_else(|| self.kernel.answers(&address))
    }

    /// Whether a process could open an IOMMU group.
    pub(super) fn group(&self, number: u32) -> Result<IommuGroup, NetError> {
        let asked = known(self.answers.borrow_mut().groups.entry(number));
        asked.unwrap_or_else(|| self.kernel.iommu_group(number))
    }

    /// The host's namespace.
    pub(super) fn host(&self) -> Result<Box<dyn Net + 'k>, NetError> {
        self.kernel.host()
    }

    /// All interfaces of the host, read once.
    pub(super) fn links(&self, host: &mut dyn Net) -> Result<&[Link], NetError> {
        if let Some(links) = self.links.get() {
            return Ok(links);
        }
        let links = host.links()?;
        Ok(self.links.get_or_init(|| links))
    }
}

/// The answer to a question that was asked with others. An answer stays; an error is returned once, and whoever comes then asks
/// again.
fn known<K: Ord, T: Copy>(entry: Entry<'_, K, Result<T, NetError>>) -> Option<Result<T, NetError>> {
    match entry {
        Entry::Occupied(known) => Some(match known.get() {
            Ok(answer) => Ok(*answer),
            Err(_) => known.remove(),
        }),
        Entry::Vacant(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_host::double::{FakeKernel, KernelRequest};
    use fairlead_host::{NetKernel, PciKernel};
    use nix::errno::Errno;

    use super::*;

    const GROUP: u32 = 19;

    #[test]
    fn what_was_asked_together_is_not_asked_again_and_an_error_is_told_once() {
        let kernel = FakeKernel::new();
        let pf = kernel.add_host_link("eth0");
        kernel.add_vf(pf, "0000:21:10.0", "eth1");
        let address: PciAddr = "0000:21:10.0".parse().unwrap();
        let cache = ScanCache::of(&kernel);
        cache.answers.replace(kernel.answers_of(&[address.to_string()], &[GROUP]));
        kernel.set_dead("0000:21:10.0", true);
        kernel.set_group(GROUP, IommuGroup::InUse);
        for _ in 0..2 {
            assert!(cache.answers(address).unwrap(), "as it was when it was asked");
            assert_eq!(cache.group(GROUP).unwrap(), IommuGroup::Free);
        }
        assert!(!ScanCache::of(&kernel).answers(address).unwrap(), "whoever looks anew asks anew");
        kernel.forget_calls();
        kernel.fail_at(0, Errno::EIO);
        cache.answers.replace(kernel.answers_of(&[address.to_string()], &[]));
        assert_eq!(cache.answers(address).unwrap_err().errno(), Some(Errno::EIO));
        assert!(!cache.answers(address).unwrap());
    }

    #[test]
    fn the_hosts_interfaces_are_read_once() {
        let kernel = FakeKernel::new();
        kernel.add_host_link("eth0");
        let cache = ScanCache::of(&kernel);
        let mut host = kernel.host().unwrap();
        let before = cache.links(host.as_mut()).unwrap().len();
        kernel.add_host_link("eth1");
        assert_eq!(cache.links(host.as_mut()).unwrap().len(), before);
        let reads = kernel.calls().into_iter().filter(|call| call.request == KernelRequest::Links).count();
        assert_eq!(reads, 1);
    }
}
