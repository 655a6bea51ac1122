//! Which pool has which VF: the first, in the order of the configuration, whose selectors match it. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::pool_definition::{Allocator, PoolSettings};
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
    pub(super) notices: Vec<Notice>,
}

/// Assigns the VFs of a scan to pools. `driver_before`: the driver of a VF before a pool gave it another one; selectors go by
/// that.
pub(super) fn of(
    pools: &[PoolSettings],
    scan: &Scan,
    driver_before: impl Fn(PciAddr) -> Option<String>,
) -> Membership {
    let mut membership = Membership::default();
    let mut overlaps = BTreeMap::<(usize, usize), Vec<PciAddr>>::new();
    let as_selected = |found: &ScannedVf| {
        let mut found = found.clone();
        found.vf.driver = driver_before(found.vf.address).or(found.vf.driver);
        found
    };
    let all = scan.physical.iter().flat_map(|physical| physical.vfs.iter().map(move |vf| (physical, vf)));
    let vfs: Vec<(&ScannedPf, ScannedVf)> =
        all.map(|(physical, found)| (physical, as_selected(found))).collect();
    for (physical, found) in &vfs {
        let address = found.vf.address;
        let mut matching =
            (0..).zip(pools).filter(|(_, pool)| pool.selectors.matching(physical, found).is_some());
        let Some((pool, _)) = matching.next() else { continue };
        for (later, _) in matching {
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
    membership.notices.extend(without_vfs(pools, &vfs, &membership.assignments));
    membership
}

/// Notices about pools whose selectors match no VF of this node, or none that no earlier pool has.
fn without_vfs(
    pools: &[PoolSettings],
    vfs: &[(&ScannedPf, ScannedVf)],
    assignments: &BTreeMap<PciAddr, Assignment>,
) -> Vec<Notice> {
    let has_one = |at: usize| assignments.values().any(|assignment| assignment.pool == at);
    let notice = |pool: &PoolSettings| {
        let (why, remedy) = match pool.selectors.why_none(vfs) {
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
    let wrong = announces(first) && announces(later);
    let which: Vec<String> = all.iter().map(ToString::to_string).collect();
    let (which, first, later) = (which.join(", "), &first.name, &later.name);
    let (seen, remedy) = match wrong {
        true => (
            format!("pools {first:?} and {later:?} both announce {which} to kubelet"),
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
