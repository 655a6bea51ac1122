//! The kernel calls without which no VF gets into a pod, out of it, and is ready for the next one.

use std::path::Path;

use fairlead_host::real::RealKernel;
use fairlead_host::{Address, AddressFlags, NetKernel, Op, Override, PciKernel, SetLink};
use ipnet::{IpNet, Ipv4Net};

use super::home::Home;
use crate::network::IFNAME;
use crate::subject::KernelCallError;

/// An interface of a VF, and the pod that it is for.
#[derive(Debug)]
pub(super) struct Lending<'a> {
    pub(super) kernel: &'a RealKernel,
    pub(super) netns: &'a Path,
    /// Its index, here and there: no other link of the pod has it.
    pub(super) index: u32,
    pub(super) address: Ipv4Net,
}

impl Lending<'_> {
    /// Move and rename in one message, up, address.
    pub(super) fn take(&self) -> Result<(), KernelCallError> {
        let index = self.index;
        let mut pod = self.kernel.pod(self.netns)?;
        pod.batch(&[
            Op::TakeFromHost { index, name: IFNAME.to_owned(), up: false },
            Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() }),
            Op::AddAddress(self.address()),
        ])?;
        Ok(())
    }

    /// No address, and the name is free.
    pub(super) fn silence(&self) -> Result<(), KernelCallError> {
        let name = Some(format!("floor{}", self.index));
        let mut pod = self.kernel.pod(self.netns)?;
        pod.batch(&[
            Op::DeleteAddress(self.address()),
            Op::SetLink(SetLink { index: self.index, name, ..SetLink::default() }),
        ])?;
        Ok(())
    }

    /// Back under its name, and whatever the pod left in it is gone.
    pub(super) fn bring_home(&self, home: &Home) -> Result<(), KernelCallError> {
        let address = home.address.to_string();
        let back = Op::MoveToHost { index: self.index, name: home.name.clone() };
        self.kernel.pod(self.netns)?.batch(&[back])?;
        self.kernel.unbind(&address)?;
        self.kernel.reset(&address)?;
        self.kernel.bind(&address, &home.driver, Override::Keep)?;
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
