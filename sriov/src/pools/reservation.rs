//! VFs on their way to a pod and back: a VF is reserved until the caller has on record who owns it, and goes back to its pool if
//! that never comes.
//!
//! Between the pool and the caller's store nobody can say whose a VF is. A look that meets one then leaves it alone, and comes
//! again when the call has ended.

use std::collections::BTreeSet;
use std::time::Instant;

use super::records::RecordedHold;
use super::state::{Mark, Member, MemberState, Refusal};
use super::{Look, Pools, ReadyVf, Shared};
use crate::PciAddr;

/// A reserved VF, which nobody else is given. Dropped without [`Reservation::keep`], it is what it was.
pub struct Reservation<'p> {
    pools: &'p Pools,
    address: PciAddr,
    known: Option<ReadyVf>,
    /// What its member was in; `None` for a VF of no pool.
    before: Option<MemberState>,
    kept: bool,
}

/// Why a VF of a pool is not lent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is a VF of pool {pool:?}, and {why}")]
pub struct Refused {
    /// The pool that has it.
    pub pool: String,
    /// Why the pool does not lend it.
    #[source]
    pub why: Refusal,
}

/// Why a draw gives nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// There is no such pool.
    #[error("there is no pool {0:?} in the configuration")]
    NoSuchPool(String),
    /// Nobody knows whether there is such a pool: part of the configuration cannot be read.
    #[error("pool {0:?} is not in what of the configuration could be read")]
    ConfigurationUnread(String),
    /// Another allocator gives its VFs to pods.
    #[error("pool {0:?} is given out by kubelet, and an ADD has only what kubelet gave its pod")]
    NotDrawnFrom(String),
    /// None is ready that the caller would have.
    #[error("pool {pool:?} has no VF ready: {stock}")]
    Empty {
        /// The pool's name.
        pool: String,
        /// How its members stand.
        stock: String,
    },
}

impl Reservation<'_> {
    /// The VF's PCI address.
    pub fn address(&self) -> PciAddr {
        self.address
    }

    /// What is known of it, where it was ready.
    pub fn known(&self) -> Option<&ReadyVf> {
        self.known.as_ref()
    }

    /// Gives the VF back because it is not what its pool takes it for: it is what it was, and looked at once more.
    pub fn doubt(self) {
        let (pools, address) = (self.pools, self.address);
        // Returned first: a member that is lent is not looked at.
        drop(self);
        pools.lock().suspect(address);
        pools.changed.notify_all();
    }

    /// Ends the reservation: the caller's store says whose the VF is from now on. It comes back by [`Pools::take_back`], or when a
    /// look finds that nobody owns it.
    pub fn keep(mut self) {
        // A VF of no pool has no member that its mark follows from, and an earlier pool may have left it marked as clean.
        if self.before.is_none() {
            self.pools.mark_soiled(self.address);
        }
        self.kept = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let address = self.address;
        match self.before.take().filter(|_| !self.kept) {
            None => {
                self.pools.lock().has_arrived(address);
                self.pools.changed.notify_all();
            }
            Some(before) => self.pools.update(|state| {
                state.has_arrived(address);
                if let Some(entry) = state.of(address) {
                    entry.pool.unused(address, before);
                }
            }),
        }
    }
}

impl Pools {
    /// Reserves a VF for a pod; one that is at work or coming home is waited for until `limit`, and so is one to which nothing was done,
    /// until it is prepared. A VF of no pool is lent as it is, unless its pool is only not known.
    ///
    /// # Errors
    /// Why its pool does not lend it.
    pub fn lend(&self, address: PciAddr, limit: Instant) -> Result<Reservation<'_>, Refused> {
        self.must_be_clean_if_unknown(address)?;
        loop {
            let why = match self.update(|state| state.lend(address)) {
                Ok((known, before)) => {
                    let reservation = Reservation { pools: self, address, known, before, kept: false };
                    return self.must_have_told_nodes(address).map(|()| reservation);
                }
                Err(why) => why,
            };
            let left = limit.saturating_duration_since(Instant::now());
            if !why.why.passes() || left.is_zero() {
                return Err(why);
            }
            let waits = |state: &mut Shared| state.member(address).is_some_and(|(_, m)| m.is_awaited());
            drop(self.wait_while(self.lock(), left, waits));
        }
    }

    /// Refuses a VF that is not clean while its pool is not known. Nobody cleans where the configuration cannot be read: of what is
    /// on record nothing is lent but what was left clean, or ready for the pod that kubelet allocated it to.
    fn must_be_clean_if_unknown(&self, address: PciAddr) -> Result<(), Refused> {
        let is_undeclared = {
            let state = self.lock();
            state.partly_read && state.member(address).is_none()
        };
        if !is_undeclared {
            return Ok(());
        }
        let Some(record) = self.provisioner.records.get(address) else { return Ok(()) };
        let is_as_left = || matches!(self.provisioner.records.mark_of(address), Mark::Clean | Mark::Given);
        let why = match &record.held {
            Some(RecordedHold::Quarantined(why)) => format!("quarantined: {why}"),
            _ if record.original_in(&self.provisioner.boot_id).is_none() || is_as_left() => return Ok(()),
            _ => "not known to be clean".to_owned(),
        };
        let why =
            format!("{why}; correct the daemon's configuration, which cannot be read (`fairleadd doctor`)");
        Err(Refused { pool: record.pool, why: Refusal::NotYet(why) })
    }

    /// Marks a VF that is no pool's now as not clean for a pool that has it later.
    fn mark_soiled(&self, address: PciAddr) {
        if self.provisioner.records.get(address).is_some() {
            self.log_unwritten(address, self.provisioner.records.mark(address, Mark::Soiled));
        }
    }

    /// Refuses a pool that may be declared in the part of the configuration that could not be read.
    ///
    /// # Errors
    /// [`DrawError::ConfigurationUnread`].
    pub fn must_be_known(&self, pool: &str) -> Result<(), DrawError> {
        let state = self.lock();
        let is_declared = || state.declared.iter().any(|declared| declared.name == pool);
        match state.partly_read && !is_declared() {
            true => Err(DrawError::ConfigurationUnread(pool.to_owned())),
            false => Ok(()),
        }
    }

    /// Reserves a member to which nothing was done, for work on its name; it is idle again when this is dropped.
    pub(super) fn take_idle(&self, address: PciAddr) -> Option<Reservation<'_>> {
        let is_taken = self.update(|state| {
            let is_taken = state.of(address).is_some_and(|entry| entry.pool.take_idle(address));
            state.in_transit.extend(is_taken.then_some(address));
            is_taken
        });
        let before = Some(MemberState::Idle);
        is_taken.then(|| Reservation { pools: self, address, known: None, before, kept: false })
    }

    /// Whether a VF is ready in its pool, and what is known of it `fits`.
    pub fn has_ready(&self, address: PciAddr, fits: impl FnOnce(&ReadyVf) -> bool) -> bool {
        let state = self.lock();
        let is_ready = |m: &Member| matches!(m.state, MemberState::Ready { .. }) && m.lendable().is_ok();
        state.member(address).is_some_and(|(_, member)| is_ready(member))
            && state.known.get(&address).is_some_and(fits)
    }

    /// Reserves a ready VF of a pool that ADD draws from, of the lowest `rank`; those that have none are not taken.
    ///
    /// # Errors
    /// When there is no such pool, or no VF of it to be had.
    pub fn draw(
        &self,
        pool: &str,
        rank: impl Fn(&Member) -> Option<u32>,
    ) -> Result<Reservation<'_>, DrawError> {
        self.update(|state| {
            let named = state.pools.iter_mut().filter(|entry| entry.name == pool);
            // VFs that an earlier daemon had in the pool, and this one gives back, stand under the same name without settings.
            let declared = named.filter_map(|entry| Some((entry.settings.clone()?, entry))).next();
            let (settings, entry) = declared.ok_or_else(|| DrawError::NoSuchPool(pool.to_owned()))?;
            if !settings.is_drawn_from() {
                return Err(DrawError::NotDrawnFrom(pool.to_owned()));
            }
            let drawn = entry.pool.draw(settings.spread(), rank);
            let empty = || DrawError::Empty { pool: pool.to_owned(), stock: entry.stock() };
            let address = drawn.ok_or_else(empty)?;
            state.in_transit.push(address);
            let known = state.known.get(&address).cloned();
            Ok(Reservation {
                pools: self,
                address,
                known,
                before: Some(MemberState::Ready { allocated: false, verified: true }),
                kept: false,
            })
        })
    }

    /// The same; an empty pool is waited for until `limit`.
    ///
    /// # Errors
    /// As [`Pools::draw`].
    pub fn draw_by(
        &self,
        pool: &str,
        limit: Instant,
        rank: impl Fn(&Member) -> Option<u32>,
    ) -> Result<Reservation<'_>, DrawError> {
        loop {
            let empty = match self.draw(pool, &rank) {
                Err(empty @ DrawError::Empty { .. }) => empty,
                other => return other,
            };
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(empty);
            }
            let waits = |state: &mut Shared| {
                let mut members = state
                    .pools
                    .iter()
                    .filter(|entry| entry.name == pool)
                    .flat_map(|entry| entry.pool.members());
                !members.any(|member| member.is_ready() && rank(member).is_some())
            };
            drop(self.wait_while(self.lock(), left, waits));
        }
    }

    /// Whether the pool names a VF's interface again before anybody else has it, as it was named when it was adopted. A VF to which
    /// nothing was done keeps whatever name it comes home with.
    pub fn restores_name(&self, address: PciAddr) -> bool {
        let boot_id = &self.provisioner.boot_id;
        let records = &self.provisioner.records;
        records.with(address, |record| record.name_in(boot_id).is_some()).unwrap_or_default()
    }

    /// Whether the pool makes all settings of a VF again before anybody else has it.
    pub fn restores_settings(&self, address: PciAddr) -> bool {
        let boot_id = &self.provisioner.boot_id;
        let records = &self.provisioner.records;
        records.with(address, |record| record.original_in(boot_id).is_some()).unwrap_or_default()
    }

    /// A pod has left on a VF what could not be undone, in words (`why`): its pool, which [makes it anew](Pools::restores_settings), gives
    /// it to nobody before it was bound anew and verified. On record when this returns, for the next daemon too.
    pub fn soiled(&self, address: PciAddr, why: &str) {
        let written =
            self.provisioner.records.change(address, |record| record.unclean = Some(why.to_owned()));
        self.log_unwritten(address, written);
        self.update(|state| {
            if let Some(entry) = state.of(address) {
                entry.pool.soiled(address, why);
            }
        });
    }

    /// The resource under which kubelet allocates a pool's VFs, if it does.
    pub fn resource(&self, pool: &str) -> Option<String> {
        let state = self.lock();
        state.declared.iter().find(|declared| declared.name == pool)?.resource_name.clone()
    }

    /// Whether another device plugin than ours gives a pool's VFs to pods.
    pub fn is_allocated_by_others(&self, pool: &str) -> bool {
        let state = self.lock();
        state.declared.iter().any(|declared| declared.name == pool && !declared.is_only_ours())
    }

    /// The pool that has a VF; where the configuration cannot be read, the one that had it.
    pub fn pool_of(&self, address: PciAddr) -> Option<String> {
        let state = self.lock();
        let of_member = state.member(address).map(|(entry, _)| entry.name.clone());
        let is_undeclared = state.partly_read && of_member.is_none();
        drop(state);
        let recorded = is_undeclared.then(|| self.provisioner.records.get(address)).flatten();
        of_member.or(recorded.map(|record| record.pool))
    }

    /// A pool that has VFs of a PF.
    pub fn pool_with_pf(&self, pf: PciAddr) -> Option<String> {
        self.lock().members().find(|(_, member)| member.pf == pf).map(|(entry, _)| entry.name.clone())
    }

    /// The NUMA nodes that a pool's VFs are on.
    pub fn nodes(&self, pool: &str) -> BTreeSet<Option<u32>> {
        let state = self.lock();
        let of_pool = state.members().filter(|(entry, _)| entry.name == pool);
        of_pool.map(|(_, member)| member.numa_node).collect()
    }

    /// Takes a VF back from its pod: nobody owns it as soon as `forget` has taken that off the caller's record.
    ///
    /// # Errors
    /// Those of `forget`; the VF stays its owner's then.
    pub fn take_back<E>(&self, address: PciAddr, forget: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        // A look that finds it nobody's before this returns must not have it given out twice.
        self.lock().in_transit.push(address);
        let forgotten = forget();
        self.update(|state| {
            state.has_arrived(address);
            if let (Ok(()), Some(entry)) = (&forgotten, state.of(address)) {
                entry.pool.returned(address);
                // Whoever had it without having been lent it has set it up: what is known of it is not so any more.
                entry.pool.spoiled(address);
            }
        });
        forgotten
    }
}

impl Shared {
    /// Takes a VF at once or not at all; answers what is known of it and what it was in.
    fn lend(&mut self, address: PciAddr) -> Result<(Option<ReadyVf>, Option<MemberState>), Refused> {
        // No pool has it yet. As long as it is in transit, a look that finds it does not put it into one.
        let Some(entry) = self.of(address) else {
            self.in_transit.push(address);
            return Ok((None, None));
        };
        let before = entry.pool.member(address).map(|member| member.state.clone());
        let given = entry.pool.lend(address);
        given.map_err(|why| Refused { pool: entry.name.clone(), why })?;
        let known = self.known.get(&address).cloned();
        self.in_transit.push(address);
        Ok((known, before))
    }

    /// A call has ended that had a VF in hands.
    fn has_arrived(&mut self, address: PciAddr) {
        if let Some(at) = self.in_transit.iter().position(|other| *other == address) {
            self.in_transit.swap_remove(at);
        }
        // A look has passed it over: only another look puts it into its pool.
        if self.missed_in_transit.remove(&address) {
            self.look = self.look.max(Some(Look::Quick));
        }
    }
}

impl super::shared::PoolEntry {
    /// How its members stand, in words: `2 lent, 1 quarantined`.
    pub(super) fn stock(&self) -> String {
        let count = |state: &str| self.pool.members().filter(|member| member.state_name() == state).count();
        let counted = Member::STATE_NAMES.iter().map(|state| (count(state), state)).filter(|(n, _)| *n > 0);
        let words: Vec<String> = counted.map(|(n, state)| format!("{n} {state}")).collect();
        if words.is_empty() { "it has no VFs".to_owned() } else { words.join(", ") }
    }
}
