//! Virtual functions in memory, as igb has them: the administrator's MAC address reaches the function when its driver
//! takes it anew, and unless it is trusted it may take no other then. What it takes itself is told as if it were the
//! administrator's.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use super::model::{HOST, Model};
use super::namespace::bare_link;
use crate::seam::{Kind, Link};
use crate::{Mac, Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// By their physical function's index.
    pub(super) settings: BTreeMap<u32, Vec<Vf>>,
    /// Physical function and number by PCI address.
    places: BTreeMap<String, (u32, u32)>,
    /// Those whose MAC address is the administrator's.
    fixed: BTreeSet<(u32, u32)>,
}

impl Model {
    pub(super) fn vfs(&self, pf: u32) -> Vec<Vf> {
        self.functions.settings.get(&pf).cloned().unwrap_or_default()
    }

    pub(super) fn add_vf(&mut self, pf: u32, address: &str, name: &str) -> u32 {
        let mac = self.fresh_mac();
        let all = self.functions.settings.entry(pf).or_default();
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
        self.functions.places.insert(address.to_owned(), (pf, index));
        let kind = Kind::Other { name: String::new() };
        let link = Link {
            mac: Some(mac),
            device: Some(address.to_owned()),
            alt_names: vec![format!("{name}-alt")],
            ..bare_link(0, name, kind, 1500)
        };
        if let Ok(host) = self.namespace(HOST) {
            host.insert(link);
        }
        index
    }

    /// As the kernel: setting by setting, what came before the refused one stays.
    pub(super) fn set_vf(&mut self, key: u64, pf: u32, vf: u32, change: &VfChange) -> Result<(), Errno> {
        let igb = self.like_igb;
        self.link(key, pf).ok_or(Errno::ENODEV)?;
        let found = self.functions.settings.get_mut(&pf).filter(|_| key == HOST).ok_or(Errno::EOPNOTSUPP)?;
        let settings = found.iter_mut().find(|one| one.index == vf).ok_or(Errno::EINVAL)?;
        for one in change.singly() {
            if let (true, Some(errno)) = (igb, refused_by_igb(&one)) {
                return Err(errno);
            }
            *settings = settings.after(&one);
            match one.mac {
                Some(mac) if mac.is_zero() => drop(self.functions.fixed.remove(&(pf, vf))),
                Some(_) => drop(self.functions.fixed.insert((pf, vf))),
                None => {}
            }
        }
        Ok(())
    }

    fn of_address(&mut self, address: &str) -> Option<(bool, &mut Vf)> {
        let (pf, index) = self.functions.places.get(address)?;
        let fixed = self.functions.fixed.contains(&(*pf, *index));
        let vf = self.functions.settings.get_mut(pf)?.iter_mut().find(|vf| vf.index == *index)?;
        Some((fixed, vf))
    }

    /// A link takes an address by itself: refused to a function that has the administrator's, even if it is that one.
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

    /// The interface comes back in the host's namespace as a new one.
    pub(super) fn bind_anew(&mut self, address: &str) -> Result<(), Errno> {
        let random = self.fresh_mac();
        let (fixed, vf) = self.of_address(address).ok_or(Errno::ENODEV)?;
        vf.mac = if fixed { vf.mac } else { Some(random) };
        let mac = vf.mac;
        let mine = |link: &&Link| link.device.as_deref() == Some(address);
        for namespace in self.namespaces.values_mut() {
            let old = namespace.links.values().find(mine).map(|link| link.index);
            old.and_then(|index| namespace.take(index));
        }
        let kind = Kind::Other { name: String::new() };
        let device = Some(address.to_owned());
        let host = self.namespace(HOST)?;
        let name = (0..).map(|n| format!("eth{n}")).find(|name| host.named(name).is_none());
        let link = bare_link(0, &name.unwrap_or_default(), kind, 1500);
        host.insert(Link { mac, device, ..link });
        Ok(())
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
