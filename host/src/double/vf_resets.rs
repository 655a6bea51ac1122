//! Resets of VFs after each change of their settings, as by i40e, ice and iavf: until the reset has ended the PF takes no further
//! change of the VF and reports nothing of it, and its interface neither comes up nor takes an address (EBUSY). The
//! administrator's MAC address is the interface's when the reset has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

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
    pub(super) busy: BTreeSet<(u32, u32)>,
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

    pub(super) fn ended(&mut self) -> Vec<((u32, u32), Mac)> {
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
