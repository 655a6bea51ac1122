//! The reconciler: compares the pools with the machine when something has changed and now and then. It changes nothing on
//! the machine itself; what is to be changed is queued for the work queue.
//!
//! One thread of the caller's runs it: `next_look`, `look`, and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::member_scan::{MemberScan, vfs};
use super::member_snapshot::MemberSnapshot;
use super::membership::{self, Membership};
use super::owners::VfOwners;
use super::pool_definition::PoolSettings;
use super::provision_error::ProvisionError;
use super::scan_scope::Look;
use super::shared::PoolEntry;
use super::state::{Member, MemberState};
use super::{Pools, ReadyVf, Shared};
use crate::{PciAddr, Scan};

/// What no event reports is looked for so often.
pub const SLOW: Duration = Duration::from_secs(60);

/// The second look is so long after the first: kubelet has had its first list by then.
const SECOND: Duration = Duration::from_secs(1);

impl Pools {
    /// Waits until a look is due and answers how much that is to compare; starts threads for queued work meanwhile. `None` when
    /// the daemon stops.
    pub fn next_look(self: &Arc<Pools>, thorough: Instant) -> Option<Look> {
        loop {
            self.work();
            let state = self.lock();
            let until = state.next_due().map_or(thorough, |next| next.min(thorough));
            let waits = |state: &mut Shared| {
                let is_sooner = state.next_due().is_some_and(|next| next < until); // what has failed meanwhile
                !(state.stopped
                    || state.is_to_be_looked_at()
                    || state.work_queue.want_a_worker()
                    || is_sooner)
            };
            let left = until.saturating_duration_since(Instant::now());
            let mut state = self.wait_while(state, left, waits);
            if state.stopped {
                return None;
            }
            if Instant::now() >= thorough {
                // A thorough look includes any other that was asked for.
                state.look = None;
                return Some(Look::Thorough);
            }
            let due = state.take_look(Instant::now());
            drop(state);
            if due.is_some() {
                return due;
            }
            self.wake(Instant::now());
        }
    }

    /// The look that is due by `now` besides the thorough one, if any is; it is not due any more.
    pub fn take_look(&self, now: Instant) -> Option<Look> {
        self.lock().take_look(now)
    }

    /// Queues what is due by `now` because a pause is over.
    pub fn wake(&self, now: Instant) {
        self.update_at(now, |_| ());
    }

    /// Has the reconciler look soon, because something may have changed.
    pub fn look_soon(&self, how: Look) {
        let mut state = self.lock();
        state.look = state.look.max(Some(how));
        self.changed.notify_all();
    }

    /// Compares the pools with the machine. Changes nothing there: what is to be changed is queued.
    pub fn look(&self, how: Look, owners: VfOwners<'_>) {
        self.compare_with_machine(how, owners);
        if how == Look::First {
            self.lock().looked_at = true;
            self.changed.notify_all();
        }
    }

    /// Whether the first look has ended.
    pub fn is_looked_at(&self) -> bool {
        self.lock().looked_at
    }

    /// Waits for the end of the first look until `limit`; whether it has ended.
    pub fn wait_for_first_look(&self, limit: Instant) -> bool {
        let left = limit.saturating_duration_since(Instant::now());
        self.wait_while(self.lock(), left, |state| !state.looked_at).looked_at
    }

    fn compare_with_machine(&self, how: Look, owners: VfOwners<'_>) {
        self.check_suspects(owners);
        if how == Look::News {
            return;
        }
        let Some(declared) = self.declared_or_on_record() else { return };
        let scan = match self.provisioner.scan_with_devlink() {
            Ok(scan) => scan,
            Err(error) => return tracing::error!(%error, "the machine's VFs cannot be listed"),
        };
        scan.unreadable.iter().for_each(|error| tracing::warn!(%error, "a device is left out"));
        let on_record = |address| self.provisioner.records.get(address);
        let membership = membership::of(&declared, &scan, &self.provisioner.boot_id, on_record);
        let mut member_scan = MemberScan::new(&self.provisioner, &scan);
        // In this order: a VF leaves its old pool before its new one takes it, and is a member before it is compared.
        self.retire_missing(&declared, &membership, &scan);
        self.admit_new(&declared, &membership, owners, &mut member_scan);
        self.restore_orphans(&declared, &membership, &scan, owners);
        self.claim_owned(owners);
        self.reclaim_unowned(owners);
        self.compare(how, &mut member_scan);
        let (settings_by_pf, mut notices) = (member_scan.into_settings(), membership.notices);
        if how != Look::First {
            // At last: VFs that are created now are not in what was looked at.
            notices.extend(self.create_missing_vfs(&declared, &scan));
        }
        self.update(|state| {
            state.notices = notices;
            settings_by_pf.report(&mut state.unreadable_pfs, &scan);
            state.looked_at(&declared, &scan);
            if how == Look::First {
                state.look_again(&declared);
            }
        });
    }

    /// The declared pools; `None` where there is nothing to compare, neither declared nor on record.
    fn declared_or_on_record(&self) -> Option<Vec<PoolSettings>> {
        let mut state = self.lock();
        if state.declared.is_empty() && state.pools.is_empty() && self.provisioner.records.all().is_empty() {
            state.clear_notices();
            return None;
        }
        Some(state.declared.clone())
    }

    /// Lets go members that are not in the machine any more, or not this pool's. One that could not be read is still there.
    fn retire_missing(&self, declared: &[PoolSettings], membership: &Membership, scan: &Scan) {
        let read = |address| vfs(scan).any(|vf| vf.address == address);
        let members: Vec<PciAddr> = self.lock().members().map(|(_, member)| member.address).collect();
        let unread = members.into_iter().filter(|address| !read(*address));
        // Sysfs is read before the lock is taken.
        let gone: Vec<PciAddr> = unread.filter(|address| self.is_gone(*address)).collect();
        self.update(|state| {
            if state.declared != declared {
                return; // The membership is another one by now, and the next look is due.
            }
            for (at, entry) in (0..).zip(&mut state.pools) {
                let members: Vec<PciAddr> = entry.pool.members().map(|member| member.address).collect();
                for address in members {
                    let assignment = membership.assignments.get(&address);
                    if gone.contains(&address) {
                        entry.pool.vanished(address);
                    } else if read(address) {
                        entry
                            .pool
                            .dismiss(address, assignment.is_none_or(|assignment| assignment.pool != at));
                    }
                }
            }
        });
    }

    /// Whether sysfs says for certain that a VF is not there: an error of reading says nothing.
    pub(super) fn is_gone(&self, address: PciAddr) -> bool {
        self.provisioner
            .inventory
            .vf(address)
            .is_err_and(|e| matches!(ProvisionError::from(e), ProvisionError::Gone(_)))
    }

    /// Looks whether what was somebody else's still is, and with a thorough look whether what is ready still is.
    fn compare(&self, how: Look, member_scan: &mut MemberScan<'_>) {
        let all = self.lock().members_at_rest(how);
        let next = all.iter().map(|member| member.address).filter(|address| !member_scan.hangs(*address));
        member_scan.ask(&next.collect());
        for member in &all {
            if member_scan.hangs(member.address) {
                continue;
            }
            let found = member_scan.compare(member.address, &member.desired, member.known.as_ref());
            self.compared(member, found);
        }
    }
}

impl Shared {
    /// Takes back all notices: nothing is declared any more.
    fn clear_notices(&mut self) {
        self.notices.clear();
        self.unreadable_pfs.clear();
        self.failed_creations.clear();
    }

    /// Members that are somebody else's, and with a thorough look those that are ready.
    fn members_at_rest(&self, how: Look) -> Vec<MemberSnapshot> {
        let is_due =
            |member: &Member| !matches!(member.state, MemberState::Ready { .. }) || how == Look::Thorough;
        let due = self.members().filter(|(_, member)| is_due(member));
        due.filter_map(|(entry, member)| self.at_rest(entry, member)).collect()
    }

    /// A task of the work queue has ended.
    pub(super) fn ended(&mut self, address: PciAddr, done: Result<Option<ReadyVf>, ProvisionError>) {
        let Some(entry) = self.of(address) else { return };
        match done {
            Ok(Some(known)) => {
                entry.pool.prepared(address);
                self.known.insert(address, known);
            }
            Ok(None) => {
                entry.pool.given_back(address);
                self.known.remove(&address);
            }
            Err(ProvisionError::Taken(who)) => entry.pool.taken(address, &who),
            Err(ProvisionError::Gone(_)) => entry.pool.lost(address),
            Err(why) => {
                tracing::warn!(pci = %address, pool = entry.name, error = %why, "a VF of a pool is not ready");
                entry.failed(address, &why);
            }
        }
    }

    /// A member that was ready, or that somebody else used, was looked at.
    pub(super) fn note_comparison(
        &mut self,
        address: PciAddr,
        was_ready: bool,
        found: Result<ReadyVf, ProvisionError>,
    ) {
        let Some(entry) = self.of(address) else { return };
        match (was_ready, found) {
            // Whoever binds it may have set it otherwise, within what it keeps.
            (true, Ok(known)) => drop(self.known.insert(address, known)),
            (_, Err(ProvisionError::Taken(who))) => entry.pool.taken(address, &who),
            (_, Err(ProvisionError::Gone(_))) => entry.pool.vanished(address),
            (true, Err(ProvisionError::Changed(why))) => {
                tracing::warn!(pci = %address, pool = entry.name, why, "a VF of a pool is made ready anew");
                entry.pool.spoiled(address);
            }
            (true, Err(why)) => entry.failed(address, &why),
            (_, _) => entry.pool.left(address),
        }
    }

    fn take_look(&mut self, now: Instant) -> Option<Look> {
        if self.second_look.is_some_and(|at| at <= now) {
            self.second_look = None;
            self.look = self.look.max(Some(Look::Quick));
        }
        // Without a look that was asked for there are only suspects, which are compared alone.
        self.is_to_be_looked_at().then(|| self.look.take().unwrap_or(Look::News))
    }

    /// When the next try is due of a member that waits for one, or the second look.
    fn next_due(&self) -> Option<Instant> {
        self.pools.iter().filter_map(|entry| entry.pool.next_try()).chain(self.second_look).min()
    }

    /// What has come and gone after the first look, before anybody listened for it, is looked for when kubelet has had its
    /// first list; VFs are made at once.
    fn look_again(&mut self, declared: &[PoolSettings]) {
        let makes = declared.iter().any(|pool| pool.numvfs.is_some());
        self.look = makes.then_some(Look::Quick);
        self.second_look = (!makes).then(|| Instant::now() + SECOND);
    }
}

impl PoolEntry {
    /// Counts a failure of a member, or has it wait for others where those are to blame.
    fn failed(&mut self, address: PciAddr, why: &ProvisionError) {
        let (reason, now) = (why.to_string(), Instant::now());
        match why.is_of_others() {
            true => self.pool.hindered(address, &reason, now),
            false => drop(self.pool.failed(address, &reason, now)),
        }
    }
}
