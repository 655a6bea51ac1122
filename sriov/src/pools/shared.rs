//! What all threads share under the pools' one lock: the pools with their members, what is known of each, since when it stands
//! as it does, and what is due.
//!
//! Whatever changes a member is followed by [`Shared::note_changes`] before the lock is released (see `Pools::update`): each
//! view of a member (its record, its mark, kubelet's list, the log) is derived there, and only for members that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use super::membership::Notice;
use super::pool_definition::PoolSettings;
use super::records::{self, RecordedHold};
use super::resource_offer::Offers;
use super::scan_scope::Look;
use super::state::{Mark, Member, Pool, Task};
use super::target::{DesiredState, ReadyVf};
use super::work_queue::{Work, WorkQueue};
use crate::PciAddr;

/// Everything under the lock.
#[derive(Default)]
pub(super) struct Shared {
    /// The pools as the configuration declares them.
    pub(super) declared: Vec<PoolSettings>,
    /// What of the configuration cannot be used.
    pub(super) refused: Vec<Notice>,
    /// Part of the configuration cannot be read: nothing is given back because it does not name it.
    pub(super) partly_read: bool,
    /// In the same order, and behind them those that are declared no more and still have members.
    pub(super) pools: Vec<PoolEntry>,
    /// What is known of members that were ready when they were last looked at.
    pub(super) known: BTreeMap<PciAddr, ReadyVf>,
    pub(super) standings: BTreeMap<PciAddr, Standing>,
    /// VFs that a call has in hands between their pool and the caller's store: neither says whose they are. Once for each
    /// call.
    pub(super) in_transit: Vec<PciAddr>,
    /// Those of them that a look would have put into a pool.
    pub(super) missed_in_transit: BTreeSet<PciAddr>,
    pub(super) work_queue: WorkQueue,
    /// PFs whose VFs are being created.
    pub(super) creating: BTreeSet<PciAddr>,
    /// PFs of which the last try to create VFs failed, and how.
    pub(super) failed_creations: BTreeMap<PciAddr, Notice>,
    pub(super) notices: Vec<Notice>,
    /// PFs that could not be asked when they were last to be, and why.
    pub(super) unreadable_pfs: BTreeMap<PciAddr, Notice>,
    /// What is wrong with what device plugins announce.
    pub(super) announcements: Vec<Notice>,
    pub(super) offers: Offers,
    pub(super) look: Option<Look>,
    /// When the look after the first one is due.
    pub(super) second_look: Option<Instant>,
    /// Members that are to be looked at because of an event about them, or because an ADD could not have them.
    pub(super) suspects: BTreeSet<PciAddr>,
    pub(super) stopped: bool,
    /// The first look has ended.
    pub(super) looked_at: bool,
}

/// A pool and its members.
pub(super) struct PoolEntry {
    pub(super) name: String,
    /// `None` for one that is declared no more.
    pub(super) settings: Option<PoolSettings>,
    pub(super) desired: DesiredState,
    pub(super) pool: Pool,
}

/// What of a member that changed has to be written.
pub(super) struct RecordChange {
    pub(super) address: PciAddr,
    /// Its mark says otherwise now.
    pub(super) marked: bool,
    /// Something else holds it, or nothing any more.
    pub(super) held: bool,
}

/// How a member stands, and since when.
pub(super) struct Standing {
    pub(super) state: &'static str,
    pub(super) since: SystemTime,
    reason: String,
    pub(super) held: Option<RecordedHold>,
    pub(super) unclean: Option<String>,
    pub(super) mark: Mark,
    /// How often that has changed.
    revision: u64,
}

impl Shared {
    pub(super) fn members(&self) -> impl Iterator<Item = (&PoolEntry, &Member)> {
        self.pools.iter().flat_map(|entry| entry.pool.members().map(move |member| (entry, member)))
    }

    pub(super) fn queue_what_is_due(&mut self, now: Instant) {
        let due: Vec<Task> = self.pools.iter_mut().flat_map(|entry| entry.pool.due(now)).collect();
        for task in due {
            let pf = self.member(task.address()).map(|(_, member)| member.pf);
            pf.into_iter().for_each(|pf| self.work_queue.push(pf, Work::Member(task)));
        }
    }

    /// The pool that has a member.
    pub(super) fn of(&mut self, address: PciAddr) -> Option<&mut PoolEntry> {
        self.pools.iter_mut().find(|entry| entry.pool.member(address).is_some())
    }

    pub(super) fn member(&self, address: PciAddr) -> Option<(&PoolEntry, &Member)> {
        self.pools.iter().find_map(|entry| Some((entry, entry.pool.member(address)?)))
    }

    /// Lets go members that were dismissed and have nothing of ours any more; answers which.
    pub(super) fn forget_dismissed(&mut self, owes: impl Fn(PciAddr) -> bool) -> Vec<PciAddr> {
        let mut forgotten = Vec::new();
        for entry in &mut self.pools {
            forgotten.extend(entry.pool.forget_dismissed(&owes));
        }
        for address in &forgotten {
            self.known.remove(address);
            self.standings.remove(address);
            self.withdraw(*address);
        }
        self.pools.retain(|entry| entry.settings.is_some() || entry.pool.members().next().is_some());
        forgotten
    }

    /// Derives every view of the members that have changed; answers what of that is to be written.
    pub(super) fn note_changes(&mut self) -> Vec<RecordChange> {
        let mut changes = Vec::new();
        for entry in &mut self.pools {
            let changed = entry.pool.take_changed();
            if changed.is_empty() {
                continue;
            }
            let resource = entry.settings.as_ref().and_then(PoolSettings::offered_as);
            self.offers.changed(resource, changed.iter().filter_map(|address| entry.pool.member(*address)));
            for member in changed.into_iter().filter_map(|address| entry.pool.member(address)) {
                let before = self.standings.get(&member.address);
                if let Some((standing, change)) = Standing::changed(before, member) {
                    if before.is_none_or(|before| !before.looks_like(&standing)) {
                        log_change(entry, member);
                    }
                    self.standings.insert(member.address, standing);
                    changes.push(change);
                }
            }
        }
        self.show_offers();
        changes
    }

    /// How often a member has changed: whoever looked at it without the lock sees by that whether it is still as it was.
    pub(super) fn revision(&self, address: PciAddr) -> u64 {
        self.standings.get(&address).map_or(0, |standing| standing.revision)
    }
}

impl Standing {
    /// How a member stands now and what of that is to be written, unless it stands as before.
    fn changed(before: Option<&Standing>, member: &Member) -> Option<(Standing, RecordChange)> {
        let now = Standing {
            state: member.state_name(),
            since: SystemTime::now(),
            reason: member.reason().to_owned(),
            held: RecordedHold::of(member.hold.as_ref()),
            unclean: records::unclean(member.hold.as_ref()).map(str::to_owned),
            mark: member.mark(),
            revision: before.map_or(0, |before| before.revision) + 1,
        };
        let marked = before.is_none_or(|before| before.mark != now.mark);
        let held = before.is_none_or(|before| (&before.held, &before.unclean) != (&now.held, &now.unclean));
        let same = before.filter(|before| before.looks_like(&now));
        if same.is_some() && !marked {
            return None;
        }
        let since = same.map_or(now.since, |same| same.since);
        Some((Standing { since, ..now }, RecordChange { address: member.address, marked, held }))
    }

    /// Whether the operator would see no difference.
    fn looks_like(&self, other: &Standing) -> bool {
        let recorded = |standing: &Standing| (standing.held.clone(), standing.unclean.clone());
        self.state == other.state && self.reason == other.reason && recorded(self) == recorded(other)
    }
}

fn log_change(entry: &PoolEntry, member: &Member) {
    let (pci, pool, state, reason) = (member.address, &entry.name, member.state_name(), member.reason());
    match state {
        "quarantined" => tracing::error!(%pci, pool, reason, "a VF is quarantined"),
        "foreign" => tracing::warn!(%pci, pool, reason, "a VF of a pool is left alone"),
        "gone" | "drained" => tracing::info!(%pci, pool, state, "a VF of a pool"),
        _ => tracing::debug!(%pci, pool, state, "a VF of a pool"),
    }
}
