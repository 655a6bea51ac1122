//! VFs that the reconciler takes into pools: new ones, those that are back, and those that an earlier daemon has changed for a
//! pool which has them no more.
//!
//! What such a VF is in follows from its record, its mark and one look at it, before anybody may have it. A VF that a call has
//! in hands just then is left alone: nobody can say yet whose it becomes.

use std::collections::BTreeSet;

use fairlead_host::Mac;

use super::member_scan::{FoundMember, MemberScan, vfs};
use super::membership::{Assignment, Membership};
use super::owners::{VfOwners, sriov_cni_owner};
use super::pool_definition::PoolSettings;
use super::records::Record;
use super::shared::PoolEntry;
use super::state::{Hold, Mark, Member, MemberState, Pending, Pool};
use super::target::DesiredState;
use super::{Pools, Shared};
use crate::{PciAddr, Scan, VfDevice};

impl Pools {
    /// Takes in members that are new, or back.
    pub(super) fn admit_new(
        &self,
        declared: &[PoolSettings],
        all: &Membership,
        owners: VfOwners<'_>,
        member_scan: &mut MemberScan<'_>,
    ) {
        member_scan.ask(&self.newcomers(all, member_scan));
        let sriov_cni = (owners.sriov_cni)();
        for (address, assignment) in &all.assignments {
            let Some(settings) = declared.get(assignment.pool) else { continue };
            let (is_in, is_gone) = {
                let state = self.lock();
                let found = state.member(*address).map(|(_, member)| member.state == MemberState::Gone);
                (found.is_some(), found == Some(true))
            };
            if is_in && !is_gone {
                continue;
            }
            if member_scan.hangs(*address) && self.provisioner.records.mark_of(*address) == Mark::Clean {
                continue; // Another of its card does: the next look asks this one itself.
            }
            if is_gone {
                // It is another one now, whatever the last one was.
                self.log_unwritten(*address, self.provisioner.records.change(*address, Record::vanished));
            }
            self.provisioner.records.begin(*address, &settings.name, || Mac::local((self.random)()));
            let found = member_scan.find_new(*address, &DesiredState::of(settings));
            let record = self.provisioner.records.get(*address);
            let hold = record.and_then(|record| record.hold(&self.provisioner.boot_id));
            let has_sriov_cni_owner = sriov_cni_owner(&sriov_cni, *address).is_some();
            self.update(|state| {
                // Otherwise the configuration has changed meanwhile: the assignment is of the old one, and the next look is due.
                if state.declared == declared {
                    // Our store is asked under the lock: a VF that returned between answer and entry would count as lent.
                    let lent = has_sriov_cni_owner || (owners.ours)(*address).is_some();
                    state.admit(*address, assignment, found, lent, hold);
                }
            });
        }
    }

    /// VFs that are no members yet, and were members of an earlier daemon's pools: those are looked at.
    fn newcomers(&self, all: &Membership, member_scan: &MemberScan<'_>) -> BTreeSet<PciAddr> {
        let state = self.lock();
        let is_new = |address: &PciAddr| state.member(*address).is_none() && member_scan.is_adopted(*address);
        all.assignments.keys().copied().filter(is_new).collect()
    }

    /// Has VFs given back that were changed for a pool which has them no more, and forgets what is on record of VFs that are not
    /// there, or that no pool can have. That is kept as long as their pool is declared and may have them again.
    pub(super) fn restore_orphans(
        &self,
        declared: &[PoolSettings],
        membership: &Membership,
        scan: &Scan,
        owners: VfOwners<'_>,
    ) {
        // The pool of such a VF may be declared in the part that could not be read.
        if self.lock().partly_read {
            return;
        }
        let boot_id = &self.provisioner.boot_id;
        for record in self.provisioner.records.all() {
            let address = record.address;
            let known = self.lock().member(address).is_some();
            if known || membership.assignments.contains_key(&address) {
                continue;
            }
            match vfs(scan).find(|vf| vf.address == address) {
                Some(vf) if record.original_in(boot_id).is_some() => {
                    let is_given = self.provisioner.records.mark_of(address) == Mark::Given;
                    let has_sriov_cni_owner = sriov_cni_owner(&(owners.sriov_cni)(), address).is_some();
                    self.update(|state| {
                        let lent = has_sriov_cni_owner || (owners.ours)(address).is_some();
                        state.adopt_orphan(&record, record.hold(boot_id), vf, lent, is_given);
                    });
                }
                // Its driver may not have made all yet that the pool goes by.
                Some(_) if membership.awaited.contains(&address) => {}
                None if !self.is_gone(address) => {} // it came after the look, or cannot be read
                None if declared.iter().any(|pool| pool.name == record.pool) => {}
                _ => {
                    self.provisioner.records.forget(address);
                    self.log_unwritten(address, self.provisioner.records.settle(address));
                }
            }
        }
    }
}

impl Shared {
    fn admit(
        &mut self,
        address: PciAddr,
        assignment: &Assignment,
        found: FoundMember,
        lent: bool,
        hold: Option<Hold>,
    ) {
        if self.is_in_transit(address) {
            return;
        }
        let Some(entry) = self.pools.get_mut(assignment.pool) else { return };
        // One that was given was bound anew before: a daemon that was killed then had not taken that off the record yet.
        let is_given = !lent && matches!(found.state, MemberState::Ready { allocated: true, .. });
        let hold = hold.filter(|hold| !(is_given && matches!(hold, Hold::Unclean(_))));
        let is_held = hold.is_some();
        let allocated = found.state.is_allocated_to_the_next();
        let state = match lent {
            true => MemberState::Lent { allocated, verified: true, left_behind: false },
            false => found.state,
        };
        let member = Member::new(address, assignment.pf, assignment.numa_node);
        let mut member = Member { state, hold, ..member };
        if is_held && !lent {
            member.doubt();
        }
        entry.pool.appeared(member);
        self.known.extend(found.known.map(|known| (address, known)));
    }

    /// Whether a call has it in hands: the look after it has arrived sees whose it became.
    fn is_in_transit(&mut self, address: PciAddr) -> bool {
        let is_in_transit = self.in_transit.contains(&address);
        if is_in_transit {
            self.missed_in_transit.insert(address);
        }
        is_in_transit
    }

    /// Takes a VF in that no declared pool has any more: it is given back, and forgotten then.
    fn adopt_orphan(
        &mut self,
        record: &Record,
        held: Option<Hold>,
        vf: &VfDevice,
        lent: bool,
        is_given: bool,
    ) {
        let address = record.address;
        if self.is_in_transit(address) {
            return;
        }
        let state = match (lent, is_given) {
            (true, _) => MemberState::Lent { allocated: false, verified: false, left_behind: false },
            // Its pod may use it without an ADD: it is not touched before the pod is gone.
            (false, true) => MemberState::Ready { allocated: true, verified: false },
            (false, false) => MemberState::Due(Pending::default()),
        };
        let hold = Some(Hold::Dismissed(held.map(Box::new)));
        let member = Member::new(address, vf.physical.address, vf.numa_node);
        let mut pool = Pool::default();
        pool.appeared(Member { state, hold, ..member });
        let desired = DesiredState::of_none(record);
        self.pools.push(PoolEntry { name: record.pool.clone(), settings: None, desired, pool });
    }
}
