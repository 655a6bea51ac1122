//! One look at the machine: the state that each member is in. Changes nothing.
//!
//! Every PF is asked once for the settings of all its VFs. Where one VF of a NIC hangs, the other VFs of that NIC are not
//! waited for in the same look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fairlead_host::Vf;

use super::membership::Notice;
use super::per_scan_cache::ScanCache;
use super::provision_error::ProvisionError;
use super::provisioner::Provisioner;
use super::state::{Mark, MemberState, Pending};
use super::target::{DesiredState, ReadyVf};
use crate::{PciAddr, Scan, VfDevice};

/// One look at the machine.
pub(super) struct MemberScan<'l> {
    provisioner: &'l Provisioner,
    settings_by_pf: SettingsByPf,
    cache: ScanCache<'l>,
    scan: &'l Scan,
    /// PFs of which a VF has not answered in time: one limit is waited for each, not one for each VF.
    hanging: BTreeSet<PciAddr>,
}

/// A new member as it was found; `known` where it is as its pool wants it.
pub(super) struct FoundMember {
    pub(super) state: MemberState,
    pub(super) known: Option<ReadyVf>,
}

/// The settings of VFs by their PF, or why that could not be asked.
#[derive(Default)]
pub(super) struct SettingsByPf(BTreeMap<PciAddr, Result<Arc<Vec<Vf>>, String>>);

impl<'l> MemberScan<'l> {
    /// Begins a look; nothing is read yet.
    pub(super) fn new(provisioner: &'l Provisioner, scan: &'l Scan) -> MemberScan<'l> {
        MemberScan {
            provisioner,
            settings_by_pf: SettingsByPf::default(),
            cache: provisioner.cache(),
            scan,
            hanging: BTreeSet::new(),
        }
    }

    /// Asks the VFs that are looked at next, together: their answers are waited for at the same time.
    pub(super) fn ask(&self, next: &BTreeSet<PciAddr>) {
        self.cache.ask(vfs(self.scan).filter(|vf| next.contains(&vf.address)));
    }

    /// Whether a VF was adopted in this boot; another one need not be looked at.
    pub(super) fn is_adopted(&self, address: PciAddr) -> bool {
        self.provisioner
            .records
            .get(address)
            .is_some_and(|record| record.original_in(&self.provisioner.boot_id).is_some())
    }

    /// Ends the look; answers the settings that it has read.
    pub(super) fn into_settings(self) -> SettingsByPf {
        self.settings_by_pf
    }

    /// What a new member is in. One that a pod may have without an ADD is ready whatever it looks like: nothing is done to it
    /// before it is allocated again. One that was being cleaned is verified as it was before, unless it is broken.
    pub(super) fn find_new(&mut self, address: PciAddr, desired: &DesiredState) -> FoundMember {
        let provisioner = self.provisioner;
        if !self.is_adopted(address) {
            return FoundMember { state: MemberState::Idle, known: None };
        }
        let mark = provisioner.records.mark_of(address);
        let desired = &desired.after_a_pod(mark == Mark::Awaited);
        let found = (!self.hangs(address)).then(|| self.compare(address, desired, None));
        let allocated = matches!(mark, Mark::Given | Mark::Awaited);
        match (found, mark) {
            (found, Mark::Given) => {
                let known = found.and_then(Result::ok);
                FoundMember { state: MemberState::Ready { allocated, verified: true }, known }
            }
            (Some(Ok(known)), Mark::Clean) => {
                let state = MemberState::Ready { allocated, verified: true };
                FoundMember { state, known: Some(known) }
            }
            (Some(Err(ProvisionError::Taken(who))), _) => {
                let pending = Pending { allocated, ..Pending::default() };
                FoundMember { state: MemberState::Foreign { who, pending }, known: None }
            }
            (found, mark) => {
                let is_well = matches!(found, Some(Ok(_) | Err(ProvisionError::Changed(_))));
                let verified = is_well && mark != Mark::Soiled;
                let pending = Pending { allocated, verified, left_behind: allocated, ..Pending::default() };
                FoundMember { state: MemberState::Due(pending), known: None }
            }
        }
    }

    /// Whether another VF of the same PF has kept this look waiting in vain.
    pub(super) fn hangs(&self, address: PciAddr) -> bool {
        self.vf(address).is_some_and(|vf| self.hanging.contains(&vf.physical.address))
    }

    fn vf(&self, address: PciAddr) -> Option<&'l VfDevice> {
        vfs(self.scan).find(|vf| vf.address == address)
    }

    /// Compares a member with what its pool wants. Where its PF cannot be asked, one that is ready has the settings that it was
    /// `known` to have.
    pub(super) fn compare(
        &mut self,
        address: PciAddr,
        desired: &DesiredState,
        known: Option<&ReadyVf>,
    ) -> Result<ReadyVf, ProvisionError> {
        let (provisioner, cache) = (self.provisioner, &self.cache);
        let Some(vf) = self.vf(address) else {
            return Err(ProvisionError::Unfit("it is not there".to_owned()));
        };
        let read = self
            .settings_by_pf
            .0
            .entry(vf.physical.address)
            .or_insert_with(|| provisioner.admin.all(vf).map_err(|e| e.to_string()));
        let found = match (read, known) {
            (Ok(settings), _) => provisioner.compare(vf, desired, settings, cache),
            // A PF that cannot be asked for a moment must not cost a ready VF its place.
            (Err(_), Some(known)) => {
                provisioner.compare(vf, desired, std::slice::from_ref(&known.settings), cache)
            }
            // Whether somebody else uses the VF shows without its PF, and is the more exact answer.
            (Err(why), None) => {
                provisioner.may_be_had(vf, desired, cache).and(Err(ProvisionError::Physical(why.clone())))
            }
        };
        if found.as_ref().is_err_and(ProvisionError::is_a_hang) {
            self.hanging.insert(vf.physical.address);
        }
        found
    }
}

impl SettingsByPf {
    /// Reports PFs that could not be asked, until they can, or are gone.
    pub(super) fn report(&self, notices: &mut BTreeMap<PciAddr, Notice>, scan: &Scan) {
        notices.retain(|address, _| scan.physical.iter().any(|physical| physical.address == *address));
        for (physical, read) in &self.0 {
            match read {
                Ok(_) => drop(notices.remove(physical)),
                Err(why) => drop(notices.insert(*physical, unreadable(*physical, why))),
            }
        }
    }
}

/// All VFs of a scan.
pub(super) fn vfs(scan: &Scan) -> impl Iterator<Item = &VfDevice> {
    scan.physical.iter().flat_map(|physical| physical.vfs.iter().map(|found| &found.vf))
}

fn unreadable(physical: PciAddr, why: &str) -> Notice {
    Notice {
        wrong: true,
        seen: format!("PF {physical} cannot be asked for its VFs' settings: {why}"),
        remedy: "see that its driver has it and its interface is in the host's namespace; VFs that were ready are given \
                 out, the others are tried again"
            .to_owned(),
    }
}
