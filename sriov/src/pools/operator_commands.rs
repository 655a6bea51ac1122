//! What the operator sees of the pools, and what he orders (K26). Orders change what is wanted of members; the work itself is
//! queued like all work, and waited for.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_host::spoken_duration::spoken;
use serde_json::{Value, json};

use super::membership::Notice;
use super::owners::VfOwners;
use super::scan_scope::Look;
use super::state::Pool;
use super::{Pools, Shared};
use crate::PciAddr;

/// An order is answered when all of it is done, or after this.
const LIMIT: Duration = Duration::from_secs(30);

/// What the operator orders of a pool or of one VF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// The VFs are made ready, whatever `min` says.
    Fill,
    /// They are given back as they were, and stay so.
    Drain,
    /// They are given to no pod.
    Quarantine,
    /// Those that are shown as quarantined are tried again; of one that is allocated, ordered by its address: no pod has it. One that was
    /// drained stays so: [`Verb::Fill`] ends that, so that an order for a whole pool brings back nothing that was taken from it on purpose.
    Release,
}

/// The operator has named something that is neither a pool nor a member of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pool, and no pool has such a VF")]
pub struct UnknownPool(pub String);

impl Verb {
    /// Its name as it is typed and as it stands in paths of the API.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Fill => "fill",
            Verb::Drain => "drain",
            Verb::Quarantine => "quarantine",
            Verb::Release => "release",
        }
    }

    /// What is said of a member on which the order was carried out.
    pub fn done(self) -> &'static str {
        match self {
            Verb::Fill => "filled",
            Verb::Drain => "drained",
            Verb::Quarantine => "quarantined",
            Verb::Release => "released",
        }
    }

    /// Carries the order out on one member. `alone`: it was ordered of this VF, and not of its pool.
    fn carry_out(self, pool: &mut Pool, address: PciAddr, alone: bool) {
        let is_given =
            pool.member(address).is_some_and(|member| member.is_given() && !member.is_quarantined());
        match self {
            Verb::Fill => pool.fill(address),
            Verb::Drain => pool.drain(address),
            Verb::Quarantine => pool.quarantine(address, "by order of the operator"),
            // By its address only: an order for a whole pool must not take VFs from pods that use them without an ADD.
            Verb::Release if alone && is_given => pool.nobody_has(address),
            Verb::Release => pool.release(address),
        }
    }
}

impl Pools {
    /// All members and all notices, for `/v1/pools`.
    pub fn table(&self, owners: VfOwners<'_>) -> Value {
        let members: Vec<PciAddr> = self.lock().members().map(|(_, member)| member.address).collect();
        let held = owner_of_each(members, owners);
        let state = self.lock();
        let vfs: Vec<Value> = state.members().map(|(_, m)| state.row(m.address, &held)).collect();
        let pools: Vec<Value> = state
            .pools
            .iter()
            .map(|entry| json!({ "name": entry.name, "declared": entry.settings.is_some(), "functions": entry.stock() }))
            .collect();
        json!({
            "functions": vfs,
            "pools": pools,
            "notices": state.all_notices().collect::<Vec<_>>(),
        })
    }

    /// Carries an order out on a pool or one VF; answers when it is done, or still at work after a while.
    ///
    /// # Errors
    /// When `of` is neither a pool nor a member of one.
    pub fn order(&self, verb: Verb, of: &str, owners: VfOwners<'_>) -> Result<Value, UnknownPool> {
        let all = self.update(|state| {
            let all = state.members_named(of)?;
            for address in &all {
                if let Some(entry) = state.of(*address) {
                    verb.carry_out(&mut entry.pool, *address, entry.name != of);
                }
            }
            Ok::<_, UnknownPool>(all)
        })?;
        tracing::info!(order = verb.name(), of, vfs = all.len(), "the operator's order");
        // A member that somebody else used may be free by now: only a look can say that.
        self.look_soon(Look::Thorough);
        // What waits for its PF, or for the operator, would hold the answer back until the limit.
        let at_work = |state: &mut Shared| {
            let member = |address: &PciAddr| state.member(*address).map(|(_, member)| member);
            !state.stopped
                && all
                    .iter()
                    .filter_map(member)
                    .any(|m| m.state.is_at_work() && !m.is_quarantined() && !m.is_hindered())
        };
        drop(self.wait_while(self.lock(), LIMIT, at_work));
        let held = owner_of_each(all.iter().copied(), owners);
        let state = self.lock();
        Ok(all.iter().map(|address| state.row(*address, &held)).collect())
    }

    /// Everything that is not as it should be, in one sentence; empty where all is well.
    pub fn trouble(&self) -> String {
        let state = self.lock();
        let bad = |word: &str| state.standings.values().filter(|standing| standing.state == word).count();
        let hindered = state.members().filter(|(_, member)| member.is_hindered()).count();
        let counted = [
            ("quarantined", bad("quarantined")),
            ("somebody else's", bad("foreign")),
            ("kept from being ready by something else", hindered),
        ];
        let mut words: Vec<String> = counted
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{count} VFs of pools are {word}"))
            .collect();
        if !state.looked_at && !state.declared.is_empty() {
            words.push("the machine's VFs have not been looked through since the start".to_owned());
        }
        words.extend(state.all_notices().filter(|n| n.wrong).map(|n| n.seen.clone()));
        words.join("; ")
    }
}

impl Shared {
    /// All notices for the operator.
    pub(super) fn all_notices(&self) -> impl Iterator<Item = &Notice> {
        let unasked = self.unreadable_pfs.values().chain(self.failed_creations.values());
        self.refused.iter().chain(&self.notices).chain(unasked).chain(&self.announcements)
    }

    /// The members that a pool's name or a PCI address means.
    fn members_named(&self, of: &str) -> Result<Vec<PciAddr>, UnknownPool> {
        let is_address = of.parse::<PciAddr>().ok();
        let meant = |entry: &str, address: PciAddr| entry == of || is_address == Some(address);
        let all: Vec<PciAddr> = self
            .members()
            .filter(|(entry, member)| meant(&entry.name, member.address))
            .map(|(_, member)| member.address)
            .collect();
        match all.is_empty() && !self.pools.iter().any(|entry| entry.name == of) {
            true => Err(UnknownPool(of.to_owned())),
            false => Ok(all),
        }
    }

    fn row(&self, address: PciAddr, held: &BTreeMap<PciAddr, String>) -> Value {
        let Some((entry, member)) = self.member(address) else {
            return json!({ "function": address, "state": "no member any more" });
        };
        let known = self.known.get(&address);
        let standing = self.standings.get(&address);
        let since = standing.and_then(|standing| standing.since.duration_since(UNIX_EPOCH).ok());
        let age = standing.and_then(|standing| SystemTime::now().duration_since(standing.since).ok());
        json!({
            "pool": entry.name,
            "function": address,
            "physical": member.pf,
            "node": member.numa_node,
            "driver": known.map(|known| &known.driver),
            "state": member.state_name(),
            "since": since.map(|since| since.as_secs()),
            "for": age.map(|age| spoken(age.as_secs())),
            "reason": member.reason(),
            "attachment": held.get(&address),
        })
    }
}

/// The owners of VFs; asked before the pools' lock is taken.
fn owner_of_each(all: impl IntoIterator<Item = PciAddr>, owners: VfOwners<'_>) -> BTreeMap<PciAddr, String> {
    let sriov_cni = (owners.sriov_cni)();
    all.into_iter().filter_map(|address| Some((address, owners.of(address, &sriov_cni)?))).collect()
}
