//! Functions that their drivers reset after each change of their settings, as i40e, ice and iavf: until that has ended the
//! physical function takes no further change and tells nothing of them, and their interfaces neither come up nor take an
//! address (EBUSY). The administrator's MAC address is the interface's when it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::model::Model;
use crate::Mac;

/// How long things take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resets {
    /// A message with settings.
    pub message: Duration,
    /// Reading the settings of all functions of one physical function.
    pub reading: Duration,
    /// A function's reset; zero: there is none.
    pub reset: Duration,
}

/// Those that run now.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) lasting: Resets,
    /// By physical function and number: when it ends, and the address that is to be taken over.
    until: BTreeMap<(u32, u32), (Instant, Option<Mac>)>,
    /// Those that take no change, and of which the physical function tells all the same.
    busy: BTreeSet<(u32, u32)>,
}

impl Running {
    pub(super) fn runs(&self, pf: u32, vf: u32) -> bool {
        self.until.get(&(pf, vf)).is_some_and(|(end, _)| *end > Instant::now())
    }

    /// Whether the physical function takes a change of it.
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

    /// Wherever an interface is by then, it has its address.
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
