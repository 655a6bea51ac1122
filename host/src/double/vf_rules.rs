//! VFs in memory, as igb has them: under vfio-pci they have no interface; the administrator's MAC address reaches the VF when its
//! driver is bound again, and unless the VF is trusted it may take no other then. A MAC address that it takes itself is reported
//! as if it were the administrator's.

use std::time::Duration;

use nix::errno::Errno;

use super::model::{HOST, Model};
use super::namespace::bare_link;
use super::vfs::Device;
use crate::VFIO_PCI;
use crate::seam::{IommuGroup, Kind, Link, LinkName, Override};
use crate::{Mac, Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};

impl Model {
    pub(super) fn vfs(&self, pf: u32) -> Vec<Vf> {
        let all = self.vfs.settings.get(&pf).into_iter().flatten();
        all.filter(|vf| !self.vfs.resets.runs(pf, vf.index)).cloned().collect()
    }

    pub(super) fn add_vf(&mut self, pf: u32, address: &str, name: &str) -> u32 {
        let mac = self.fresh_mac();
        let all = self.vfs.settings.entry(pf).or_default();
        let index = u32::try_from(all.len()).unwrap_or(u32::MAX);
        all.push(Vf {
            index,
            mac: Some(mac),
            vlan: Some(VfVlan::default()),
            rate: Some(VfRate::default()),
            spoofchk: Some(true),
            trust: Some(false),
            link_state: Some(VfLinkState::Auto),
        });
        let device = Device {
            place: (pf, index),
            driver: Some("igbvf".to_owned()),
            fixed: None,
            dead: false,
            without_interface: false,
            attached_when_bound: None,
            rdma: None,
        };
        self.vfs.devices.insert(address.to_owned(), device);
        let kind = Kind::Other { name: String::new() };
        let link = Link {
            mac: Some(mac),
            device: Some(address.to_owned()),
            alt_names: vec![LinkName::from(format!("{name}-alt"))],
            ..bare_link(0, name, kind, 1500)
        };
        if let Ok(host) = self.namespace(HOST) {
            host.insert(link);
        }
        index
    }

    /// As the kernel: setting by setting, what came before the refused one stays.
    pub(super) fn set_vfs(&mut self, key: u64, pf: u32, changes: &[(u32, VfChange)]) -> Result<(), Errno> {
        self.link(key, pf).ok_or(Errno::ENODEV)?;
        changes.iter().try_for_each(|(vf, change)| {
            if !self.vfs.resets.takes(pf, *vf) {
                return Err(Errno::EBUSY);
            }
            let done = self.set_vf(key, pf, *vf, change);
            let lasting = self.vfs.resets.lasting.reset;
            self.vfs.resets.begin(pf, *vf, change.mac, lasting);
            done
        })
    }

    fn set_vf(&mut self, key: u64, pf: u32, vf: u32, change: &VfChange) -> Result<(), Errno> {
        let igb = self.like_igb;
        let dark = self.link(key, pf).is_some_and(|link| !link.carrier);
        let found = self.vfs.settings.get_mut(&pf).filter(|_| key == HOST).ok_or(Errno::EOPNOTSUPP)?;
        let settings = found.iter_mut().find(|one| one.index == vf).ok_or(Errno::EINVAL)?;
        for one in change.singly() {
            if let (true, Some(errno)) = (igb, refused_by_igb(&one)) {
                return Err(errno);
            }
            if dark && one.rate.is_some() {
                return Err(Errno::EINVAL);
            }
            *settings = settings.after(&one);
            match one.mac {
                Some(mac) if mac.is_zero() => drop(self.vfs.fixed.remove(&(pf, vf))),
                Some(_) => drop(self.vfs.fixed.insert((pf, vf))),
                None => {}
            }
        }
        Ok(())
    }

    fn of_address(&mut self, address: &str) -> Option<(bool, &mut Vf)> {
        let (pf, index) = self.vfs.devices.get(address)?.place;
        let fixed = self.vfs.fixed.contains(&(pf, index));
        let vf = self.vfs.settings.get_mut(&pf)?.iter_mut().find(|vf| vf.index == index)?;
        Some((fixed, vf))
    }

    /// A link takes an address by itself: refused to a VF that has the administrator's, even if it is that one.
    pub(super) fn take_mac(&mut self, key: u64, index: u32, mac: Mac) -> Result<(), Errno> {
        let Some(address) = self.link(key, index).and_then(|link| link.device) else { return Ok(()) };
        match self.of_address(&address) {
            Some((true, vf)) if vf.trust != Some(true) => Err(Errno::EADDRNOTAVAIL),
            Some((_, vf)) => {
                vf.mac = Some(mac);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn unbind(&mut self, address: &str) -> Result<(), Errno> {
        self.vfs.check_unused(address)?;
        self.drive(address, None)
    }

    pub(super) fn bind(&mut self, address: &str, driver: &str, fixed: Override) -> Result<(), Errno> {
        self.vfs.check_unused(address)?;
        let device = self.vfs.device(address)?;
        match fixed {
            Override::Keep => {}
            Override::Set => device.fixed = Some(driver.to_owned()),
            Override::Clear => device.fixed = None,
        }
        if device.fixed.as_deref().is_some_and(|only| only != driver) {
            return Err(Errno::ENODEV);
        }
        self.drive(address, None)?;
        self.drive(address, Some(driver))
    }

    pub(super) fn reset(&mut self, address: &str) -> Result<(), Errno> {
        self.vfs.check_unused(address)?;
        match self.vfs.device(address)?.driver.as_deref() {
            None | Some(VFIO_PCI) => Ok(()),
            Some(_) => Err(Errno::EPERM),
        }
    }

    pub(super) fn iommu_group(&self, number: u32) -> IommuGroup {
        self.vfs.groups.get(&number).copied().unwrap_or(IommuGroup::Free)
    }

    pub(super) fn answers(&mut self, address: &str) -> Result<bool, Errno> {
        self.vfs.device(address).map(|device| !device.dead)
    }

    /// The interface goes with its driver; a kernel driver makes a new one in the host's namespace.
    pub(super) fn drive(&mut self, address: &str, driver: Option<&str>) -> Result<(), Errno> {
        let device = self.vfs.device(address)?;
        device.driver = driver.map(str::to_owned);
        let makes_rdma = device.rdma.is_some() && driver.is_some_and(|driver| driver != VFIO_PCI);
        match makes_rdma {
            true => self.vfs.make_rdma(address)?,
            false => self.vfs.show(address)?,
        }
        self.take_interface(address);
        match driver {
            None | Some(VFIO_PCI) => Ok(()),
            Some(_) => self.appear(address),
        }
    }

    /// The interface of a VF is gone, in whatever namespace it was.
    fn take_interface(&mut self, address: &str) {
        let mine = |link: &&Link| link.device.as_deref() == Some(address);
        for namespace in self.namespaces.values_mut() {
            let old = namespace.links.values().find(mine).map(|link| link.index);
            old.and_then(|index| namespace.take(index));
        }
    }

    /// The driver of a VF gives its interface up, and keeps the VF.
    pub(super) fn give_interface_up(&mut self, address: &str) -> Result<(), Errno> {
        self.take_interface(address);
        self.vfs.show_interface(address, None)
    }

    fn appear(&mut self, address: &str) -> Result<(), Errno> {
        if self.vfs.device(address)?.without_interface {
            return self.vfs.show_interface(address, None);
        }
        let random = self.fresh_mac();
        let (fixed, vf) = self.of_address(address).ok_or(Errno::ENODEV)?;
        vf.mac = if fixed { vf.mac } else { Some(random) };
        let mac = vf.mac;
        let kind = Kind::Other { name: String::new() };
        let device = Some(address.to_owned());
        let host = self.namespace(HOST)?;
        let name = (0..).map(|n| format!("eth{n}")).find(|name| host.named(name).is_none());
        let name = name.unwrap_or_default();
        let index = host.insert(Link { mac, device, ..bare_link(0, &name, kind, 1500) });
        self.vfs.show_interface(address, Some(&name))?;
        if let Some(program) = self.vfs.device(address)?.attached_when_bound {
            self.left_on(HOST, index)?.attach(program, true);
        }
        Ok(())
    }

    pub(super) fn begin_reset(&mut self, address: &str, lasting: Duration) {
        if let Some((pf, vf)) = self.vfs.place(address) {
            self.vfs.resets.begin(pf, vf, None, lasting);
        }
    }

    pub(super) fn keep_busy(&mut self, address: &str, busy: bool) {
        let Some(place) = self.vfs.place(address) else { return };
        match busy {
            true => self.vfs.resets.busy.insert(place),
            false => self.vfs.resets.busy.remove(&place),
        };
    }

    pub(super) fn link_is_resetting(&self, key: u64, index: u32) -> bool {
        let place = self.link(key, index).and_then(|link| self.vfs.place(&link.device?));
        place.is_some_and(|(pf, vf)| self.vfs.resets.runs(pf, vf))
    }

    /// Gives each interface whose reset has ended its address, in whatever namespace it is by then.
    pub(super) fn end_resets(&mut self) {
        for (place, mac) in self.vfs.resets.ended() {
            let address = self.vfs.address(place);
            let all = self.namespaces.values_mut().flat_map(|netns| netns.links.values_mut());
            for link in all.filter(|link| link.device.as_ref() == address) {
                link.mac = Some(mac);
            }
        }
    }
}

fn refused_by_igb(one: &VfChange) -> Option<Errno> {
    match one {
        VfChange { link_state: Some(_), .. } => Some(Errno::EOPNOTSUPP),
        VfChange { vlan: Some(VfVlan { proto: VlanProto::Dot1ad, .. }), .. } => Some(Errno::EPROTONOSUPPORT),
        VfChange { rate: Some(VfRate { min: 1.., .. }), .. } => Some(Errno::EINVAL),
        _ => None,
    }
}
