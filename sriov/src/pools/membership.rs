//! Which pool has which VF: the first, in the order of the configuration, whose selectors match it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::pool_definition::{Allocator, PoolSettings};
use super::records::{OriginalState, Record};
use crate::{PciAddr, Scan, ScannedPf, ScannedVf};

/// Something that the operator is to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Notice {
    /// The configuration is wrong, not only unusual.
    pub(super) wrong: bool,
    /// What was seen.
    pub(super) seen: String,
    /// What to do about it.
    pub(super) remedy: String,
}

/// The pool that a VF belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The pool, by its place in the configuration.
    pub(super) pool: usize,
    /// The VF's PF.
    pub(super) pf: PciAddr,
    /// The VF's NUMA node.
    pub(super) numa_node: Option<u32>,
}

/// All VFs that belong to a pool, and what of that the operator is to know.
#[derive(Debug, Default)]
pub(super) struct Membership {
    pub(super) assignments: BTreeMap<PciAddr, Assignment>,
    /// VFs of none that their last pool would have again if their driver made what it goes by.
    pub(super) awaited: BTreeSet<PciAddr>,
    pub(super) notices: Vec<Notice>,
}

/// The pool that has a VF by its record, and selects it still as far as what the VF has by its driver does not count.
struct LastPool {
    /// The pool, by its place in the configuration.
    pool: usize,
    /// It keeps the VF: that has no driver just now, and the record does not tell what it has by one.
    stays: bool,
}

/// A VF as selectors go by it: with its driver, and what it has by that, as before a pool gave it another one, or none.
pub(super) fn as_selected(found: &ScannedVf, original: Option<&OriginalState>) -> ScannedVf {
    let mut found = found.clone();
    let Some(original) = original else { return found };
    found.vf.driver = Some(original.driver.clone());
    if let Some(devices) = original.rdma.as_ref().filter(|_| found.rdma.devices.is_empty()) {
        found.rdma.devices.clone_from(devices);
    }
    found
}

/// Assigns the VFs of a scan to pools. `on_record`: the record of a VF; selectors go by what it was before a pool changed that in the
/// boot of this identity.
pub(super) fn of(
    pools: &[PoolSettings],
    scan: &Scan,
    boot_id: &str,
    on_record: impl Fn(PciAddr) -> Option<Record>,
) -> Membership {
    let mut membership = Membership::default();
    let mut overlaps = BTreeMap::<(usize, usize), Vec<PciAddr>>::new();
    let mut vfs = Vec::<(&ScannedPf, ScannedVf)>::new();
    let mut last_pools = BTreeMap::<PciAddr, LastPool>::new();
    for (physical, found) in all_vfs(scan) {
        let record = on_record(found.vf.address);
        let original = record.as_ref().and_then(|record| record.original_in(boot_id));
        let last = record.as_ref().and_then(|record| last_pool(pools, physical, found, record, original));
        last_pools.extend(last.map(|last| (found.vf.address, last)));
        vfs.push((physical, as_selected(found, original)));
    }
    for (physical, found) in &vfs {
        let address = found.vf.address;
        let last = last_pools.get(&address);
        let matching = match last.filter(|last| last.stays) {
            Some(last) => vec![last.pool],
            None => all_matching(pools, physical, found),
        };
        let mut matching = matching.into_iter();
        let Some(pool) = matching.next() else {
            membership.awaited.extend(last.map(|_| address));
            continue;
        };
        for later in matching {
            overlaps.entry((pool, later)).or_default().push(address);
        }
        let assignment = Assignment { pool, pf: physical.address, numa_node: found.vf.numa_node };
        membership.assignments.insert(address, assignment);
    }
    let overlapping = overlaps
        .into_iter()
        .filter_map(|((first, later), all)| Some(overlap(pools.get(first)?, pools.get(later)?, &all)));
    membership.notices = overlapping.collect();
    let unreached =
        scan.physical.iter().flat_map(|physical| unreached(pools, physical, &membership.assignments));
    membership.notices.extend(unreached.collect::<Vec<_>>());
    membership.notices.extend(without_vfs(pools, scan, &vfs, &membership.assignments));
    membership
}

fn all_vfs(scan: &Scan) -> impl Iterator<Item = (&ScannedPf, &ScannedVf)> {
    scan.physical.iter().flat_map(|physical| physical.vfs.iter().map(move |found| (physical, found)))
}

/// The pools whose selectors match a VF, by their places in the configuration.
fn all_matching(pools: &[PoolSettings], physical: &ScannedPf, found: &ScannedVf) -> Vec<usize> {
    let matches = |pool: &PoolSettings| pool.selectors.matching(physical, found).is_some();
    (0..).zip(pools).filter(|(_, pool)| matches(pool)).map(|(at, _)| at).collect()
}

fn last_pool(
    pools: &[PoolSettings],
    physical: &ScannedPf,
    found: &ScannedVf,
    record: &Record,
    original: Option<&OriginalState>,
) -> Option<LastPool> {
    let is_it = |pool: &PoolSettings| pool.name == record.pool && pool.selectors.may_match(physical, found);
    let pool = pools.iter().position(is_it)?;
    let is_known = found.vf.driver.is_some() || original.is_some_and(|original| original.rdma.is_some());
    Some(LastPool { pool, stays: !is_known })
}

/// Notices about pools whose selectors match no VF of this node, or none that no earlier pool has.
fn without_vfs(
    pools: &[PoolSettings],
    scan: &Scan,
    vfs: &[(&ScannedPf, ScannedVf)],
    assignments: &BTreeMap<PciAddr, Assignment>,
) -> Vec<Notice> {
    let has_one = |at: usize| assignments.values().any(|assignment| assignment.pool == at);
    let notice = |pool: &PoolSettings| {
        let cards = cards_meant(pool, scan);
        let (why, remedy) = match pool.selectors.why_none(vfs) {
            Some(_) if !cards.is_empty() => (
                format!("its selectors match {}: only VFs are served", cards.join(", ")),
                "make VFs of the PF (sriov_numvfs of sysfs), or take the resource out of the file",
            ),
            _ if vfs.is_empty() => (
                "this node has none".to_owned(),
                "make VFs: `numvfs` of a pool that names the PF, or sriov_numvfs of sysfs",
            ),
            Some(why) => {
                (why, "correct the selectors by what was found; make VFs with numvfs where there are none")
            }
            None => (
                "earlier pools have all that its selectors match".to_owned(),
                "say in the selectors which pool is meant",
            ),
        };
        // Many nodes share one configuration, and some have no such NIC.
        let wrong = false;
        Notice { wrong, seen: format!("pool {:?} has no VF: {why}", pool.name), remedy: remedy.to_owned() }
    };
    pools.iter().enumerate().filter(|(at, _)| !has_one(*at)).map(|(_, pool)| notice(pool)).collect()
}

/// The cards without VFs that the device plugin would announce for a pool that stands for a resource of its file, in words.
fn cards_meant(pool: &PoolSettings, scan: &Scan) -> Vec<String> {
    if pool.resource.is_none() {
        return Vec::new();
    }
    let is_meant = |card: &&ScannedPf| pool.selectors.matching(card, &card.as_device()).is_some();
    let physical = scan.physical.iter().filter(|card| card.has == 0).filter(is_meant);
    let physical = physical.map(|card| format!("PF {} without VFs", card.address));
    let others =
        scan.others.iter().filter(is_meant).map(|card| format!("NIC {} without SR-IOV", card.address));
    physical.chain(others).collect()
}

/// Notices about VFs that no frame reaches: in switchdev mode a VF's frames go to its representor and nowhere else.
fn unreached(
    pools: &[PoolSettings],
    physical: &ScannedPf,
    assignments: &BTreeMap<PciAddr, Assignment>,
) -> Vec<Notice> {
    let mut lacking = BTreeMap::<usize, Vec<String>>::new();
    for found in physical.vfs.iter().filter(|found| physical.switchdev && found.representor.is_none()) {
        if let Some(assignment) = assignments.get(&found.vf.address) {
            lacking.entry(assignment.pool).or_default().push(found.vf.address.to_string());
        }
    }
    let notice = |(pool, which): (usize, Vec<String>)| {
        let (card, which) = (physical.address, which.join(", "));
        Some(Notice {
            wrong: false,
            seen: format!(
                "pool {:?}: {card} is in switchdev mode, and the host has no representor of {which}: nothing reaches a VF without one",
                pools.get(pool)?.name
            ),
            remedy: format!(
                "look for them with `devlink port show`; without them: `devlink dev eswitch set pci/{card} mode legacy`"
            ),
        })
    };
    lacking.into_iter().filter_map(notice).collect()
}

fn overlap(first: &PoolSettings, later: &PoolSettings, all: &[PciAddr]) -> Notice {
    let announces =
        |pool: &PoolSettings| pool.resource_name.is_some() || pool.allocator == Allocator::External;
    // Of two resources of the device plugin's file the first has a VF that both select, as with the device plugin itself.
    let are_of_its_file = first.resource.is_some() && later.resource.is_some();
    let wrong = announces(first) && announces(later) && !are_of_its_file;
    let which: Vec<String> = all.iter().map(ToString::to_string).collect();
    let (which, first, later) = (which.join(", "), &first.name, &later.name);
    let (seen, remedy) = match wrong {
        true => (
            format!("pools {first:?} and {later:?} both would announce {which} to kubelet"),
            "give each VF to one of them by its selectors: a VF has exactly one allocator",
        ),
        false => (
            format!(
                "pools {first:?} and {later:?} both select {which}; {first:?} has them, because it comes first"
            ),
            "say in the selectors which pool is meant",
        ),
    };
    Notice { wrong, seen, remedy: remedy.to_owned() }
}
