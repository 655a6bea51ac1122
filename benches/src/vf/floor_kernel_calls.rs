//! The kernel calls without which no VF gets into a pod, out of it, and is ready for the next one.

use std::path::Path;

use fairlead_host::real::RealKernel;
use fairlead_host::{Address, AddressFlags, NetKernel, Op, Override, PciKernel, SetLink};
use ipnet::{IpNet, Ipv4Net};

use super::vf_on_host::VfOnHost;
use crate::network_config::IFNAME;
use crate::subject::KernelCallError;

/// The interface of one VF, and the pod that it is for.
#[derive(Debug)]
pub(super) struct VfKernelCalls<'a> {
    pub(super) kernel: &'a RealKernel,
    pub(super) netns: &'a Path,
    /// The interface index, which is the same in the pod: no other link there has it.
    pub(super) index: u32,
    pub(super) address: Ipv4Net,
}

impl VfKernelCalls<'_> {
    /// Moves and renames the interface in one message, sets it up, adds the address.
    pub(super) fn take(&self) -> Result<(), KernelCallError> {
        let index = self.index;
        let mut pod = self.kernel.pod(self.netns)?;
        pod.batch(&[
            Op::TakeFromHost { index, as_index: None, name: IFNAME.to_owned(), up: false },
            Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() }),
            Op::AddAddress(self.address()),
        ])?;
        Ok(())
    }

    /// Removes the address and frees the name.
    pub(super) fn silence(&self) -> Result<(), KernelCallError> {
        let name = Some(format!("floor{}", self.index));
        let mut pod = self.kernel.pod(self.netns)?;
        pod.batch(&[
            Op::DeleteAddress(self.address()),
            Op::SetLink(SetLink { index: self.index, name, ..SetLink::default() }),
        ])?;
        Ok(())
    }

    /// Moves the interface back under its name, and resets the VF, so that nothing is left of what the pod did.
    pub(super) fn return_to_host(&self, on_host: &VfOnHost) -> Result<(), KernelCallError> {
        let address = on_host.address.to_string();
        let back = Op::MoveToHost { index: self.index, as_index: None, name: on_host.name.clone() };
        self.kernel.pod(self.netns)?.batch(&[back])?;
        self.kernel.unbind(&address)?;
        self.kernel.reset(&address)?;
        self.kernel.bind(&address, &on_host.driver, Override::Keep)?;
        Ok(())
    }

    fn address(&self) -> Address {
        Address {
            index: self.index,
            net: IpNet::V4(self.address),
            broadcast: None,
            flags: AddressFlags::default(),
        }
    }
}
