//! Resets of VFs after each change of their settings, as by i40e, ice and iavf: until the reset has ended the PF takes no further
//! change of the VF and reports nothing of it, and its interface neither comes up nor takes an address (EBUSY). The
//! administrator's MAC address is the interface's when the reset has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::model::Model;
use crate::Mac;

/// How long things take a driver that resets its VFs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resets {
    /// A message with settings takes so long.
    pub message: Duration,
    /// Reading the settings of all VFs of one PF takes so long.
    pub reading: Duration,
    /// A VF's reset takes so long; zero: there is none.
    pub reset: Duration,
}

/// The resets that run now.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) lasting: Resets,
    /// By PF and number: when the reset ends, and the address that the interface then has.
    until: BTreeMap<(u32, u32), (Instant, Option<Mac>)>,
    /// VFs that take no change and are reported all the same.
    busy: BTreeSet<(u32, u32)>,
}

impl Running {
    pub(super) fn runs(&self, pf: u32, vf: u32) -> bool {
        self.until.get(&(pf, vf)).is_some_and(|(end, _)| *end > Instant::now())
    }

    /// Whether the PF takes a change of the VF.
    pub(super) fn takes(&self, pf: u32, vf: u32) -> bool {
        !self.runs(pf, vf) && !self.busy.contains(&(pf, vf))
    }

    pub(super) fn begin(&mut self, pf: u32, vf: u32, mac: Option<Mac>, lasting: Duration) {
        if !lasting.is_zero() {
            let mac = mac.filter(|mac| !mac.is_zero());
            self.until.insert((pf, vf), (Instant::now() + lasting, mac));
        }
    }

    fn ended(&mut self) -> Vec<((u32, u32), Mac)> {
        let now = Instant::now();
        let mut taken = Vec::new();
        self.until.retain(|place, (end, mac)| {
            let runs = *end > now;
            taken.extend(mac.filter(|_| !runs).map(|mac| (*place, mac)));
            runs
        });
        taken
    }
}

impl Model {
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
