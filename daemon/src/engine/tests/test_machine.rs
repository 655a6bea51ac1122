//! What befalls the machine under a rig: interfaces that somebody renames or uses, VFs that go and come back, records as
//! another boot left them.

use std::fs;
use std::os::unix::fs::symlink;

use fairlead_host::{Address, AddressFlags, NetKernel, Op, SetLink};

use super::pools::SECOND;
use super::*;

const PHYSICAL: &str = "0000:21:00.0";

impl Rig {
    /// Has an interface of the host up or down.
    pub(super) fn set_up(&self, name: &str, up: bool) {
        let index = self.index_of(name);
        self.in_host(Op::SetLink(SetLink { index, up: Some(up), ..SetLink::default() }));
    }

    /// Has an interface of the host another name.
    pub(super) fn rename(&self, from: &str, to: &str) {
        let index = self.index_of(from);
        self.in_host(Op::SetLink(SetLink { index, name: Some(to.to_owned()), ..SetLink::default() }));
    }

    /// Somebody uses an interface of the host: with this address, until it is taken away.
    pub(super) fn use_it(&self, name: &str) -> Address {
        let net = "192.0.2.7/24".parse().unwrap();
        let flags = AddressFlags::default();
        let address = Address { index: self.index_of(name), net, broadcast: None, flags };
        self.in_host(Op::AddAddress(address.clone()));
        address
    }

    pub(super) fn in_host(&self, op: Op) {
        self.kernel.host().unwrap().batch(&[op]).unwrap();
    }

    fn index_of(&self, name: &str) -> u32 {
        self.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().index
    }

    /// The VF whose interface has this name.
    pub(super) fn named(&self, name: &str) -> Option<String> {
        self.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().device
    }

    /// Takes a VF out of the machine, as far as sysfs tells.
    pub(super) fn unplug(&self, address: &str) {
        fs::remove_file(self.virtfn(number(address))).unwrap();
        fs::rename(self.device(address), self.dir.path().join(address)).unwrap();
    }

    /// One like it is made: what is in the directory is the same, and the directory is another one.
    pub(super) fn plug_in_again(&self, address: &str) {
        let (removed, device) = (self.dir.path().join(address), self.device(address));
        // Made while the other one is there: a file system, other than sysfs, may give its inode number to the next directory.
        fs::create_dir(&device).unwrap();
        for file in fs::read_dir(&removed).unwrap().collect::<Vec<_>>() {
            let name = file.unwrap().file_name();
            fs::rename(removed.join(&name), device.join(&name)).unwrap();
        }
        fs::remove_dir(&removed).unwrap();
        symlink(format!("../{address}"), self.virtfn(number(address))).unwrap();
    }

    fn device(&self, address: &str) -> PathBuf {
        self.dir.path().join("sys/bus/pci/devices").join(address)
    }

    fn virtfn(&self, number: usize) -> PathBuf {
        self.device(PHYSICAL).join(format!("virtfn{number}"))
    }

    /// What is on record of the pools' members.
    pub(super) fn records(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.dir.path().join("state/pools")).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }
}

fn number(address: &str) -> usize {
    [VF, SECOND].iter().position(|of_pf| *of_pf == address).unwrap()
}
