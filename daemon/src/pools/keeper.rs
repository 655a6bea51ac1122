//! The keeper: looks at the machine when something has changed and now and then, and has done what is due.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_sriov::pool::{Condition, Hold, Member, Pool};
use fairlead_sriov::{Function, PciAddr, Scan};

use super::eye::{Arrival, Eye, functions};
use super::holders::{Holders, before_us};
use super::membership::{self, Membership, Place};
use super::news::Settled;
use super::record::{Mark, Record};
use super::trouble::Trouble;
use super::workshop::Wish;
use super::{Known, Live, Pools, State};
use crate::settings::PoolSettings;

/// What no event tells is looked for so often.
pub const SLOW: Duration = Duration::from_secs(60);

/// The second look is so long after the first.
const SECOND: Duration = Duration::from_secs(1);

/// How much a look looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// The members that news were about.
    Glance,
    /// What is there, before anybody is served: nothing is made.
    First,
    /// What has come and gone.
    Quick,
    /// Also whether what is ready still is.
    Thorough,
}

impl Pools {
    /// Waits until a look is due, and says how much it is to look at; has queued work done meanwhile. `None` when the daemon
    /// stops.
    pub fn next_look(self: &Arc<Pools>, thorough: Instant) -> Option<Look> {
        loop {
            self.work();
            let state = self.lock();
            let until = state.next_due().map_or(thorough, |next| next.min(thorough));
            let waits = |state: &mut State| {
                let is_sooner = state.next_due().is_some_and(|next| next < until); // what has failed meanwhile
                !(state.stopped || state.is_to_be_looked_at() || state.chores.want_a_worker() || is_sooner)
            };
            let left = until.saturating_duration_since(Instant::now());
            let (mut state, _) =
                self.changed.wait_timeout_while(state, left, waits).unwrap_or_else(PoisonError::into_inner);
            if state.stopped {
                return None;
            }
            if Instant::now() >= thorough {
                state.look = None;
                return Some(Look::Thorough);
            }
            if state.second_look.is_some_and(|at| at <= Instant::now()) {
                state.second_look = None;
                state.look = state.look.max(Some(Look::Quick));
            }
            if state.is_to_be_looked_at() {
                return Some(state.look.take().unwrap_or(Look::Glance));
            }
            drop(state);
            self.wake(Instant::now());
        }
    }

    /// Queues what is due by `now` because a pause is over.
    pub(crate) fn wake(&self, now: Instant) {
        self.act_at(now, |_| ());
    }

    /// Something may have changed.
    pub fn look_soon(&self, how: Look) {
        let mut state = self.lock();
        state.look = state.look.max(Some(how));
        self.changed.notify_all();
    }

    /// Compares the pools with the machine. Changes nothing there: what is to be changed is queued.
    pub fn look(&self, how: Look, holders: Holders<'_>) {
        self.glance(holders);
        if how == Look::Glance {
            return;
        }
        let declared = {
            let mut state = self.lock();
            let nothing = state.declared.is_empty() && state.pools.is_empty();
            if nothing && self.shop.records.all().is_empty() {
                return state.has_nothing_to_tell();
            }
            state.declared.clone()
        };
        let scan = match self.shop.scan_anew() {
            Ok(scan) => scan,
            Err(error) => return tracing::error!(%error, "the machine's virtual functions cannot be listed"),
        };
        scan.unreadable.iter().for_each(|error| tracing::warn!(%error, "a device is left out"));
        let boot = &self.shop.boot_id;
        let driver_before = |address| Some(self.shop.records.get(address)?.was_in(boot)?.driver.clone());
        let membership = membership::of(&declared, &scan, driver_before);
        let mut eye = Eye::new(&self.shop, &scan);
        self.depart(&declared, &membership, &scan);
        self.arrive(&declared, &membership, holders, &mut eye);
        self.orphans(&declared, &membership, &scan, holders);
        self.claim(holders);
        self.reclaim(holders);
        self.compare(how, &mut eye);
        let (readings, mut notices) = (eye.closed(), membership.notices);
        if how != Look::First {
            // At last: what is made now is not in what was looked at.
            notices.extend(self.make_functions(&declared, &scan));
        }
        self.act(|state| {
            state.notices = notices;
            readings.tell(&mut state.unread, &scan);
            state.looked_at(&declared, &scan);
            if how == Look::First {
                state.look_again(&declared);
            }
        });
    }

    /// Members that are not in the machine any more, or not this pool's. One that could not be read is still there.
    fn depart(&self, declared: &[PoolSettings], membership: &Membership, scan: &Scan) {
        let read = |address| functions(scan).any(|function| function.address == address);
        let members: Vec<PciAddr> = self.lock().members().map(|(_, member)| member.address).collect();
        let unread = members.into_iter().filter(|address| !read(*address));
        let gone: Vec<PciAddr> = unread.filter(|address| self.is_gone(*address)).collect();
        self.act(|state| {
            if state.declared != declared {
                return; // The membership is another one by now, and the next look is due.
            }
            for (at, live) in (0..).zip(&mut state.pools) {
                let members: Vec<PciAddr> = live.pool.members().map(|member| member.address).collect();
                for address in members {
                    let place = membership.places.get(&address);
                    if gone.contains(&address) {
                        live.pool.vanished(address);
                    } else if read(address) {
                        live.pool.dismiss(address, place.is_none_or(|place| place.pool != at));
                    }
                }
            }
        });
    }

    fn is_gone(&self, address: PciAddr) -> bool {
        self.shop.inventory.function(address).is_err_and(|e| matches!(Trouble::from(e), Trouble::Gone(_)))
    }

    /// Members that are new, or back.
    fn arrive(&self, declared: &[PoolSettings], all: &Membership, holders: Holders<'_>, eye: &mut Eye<'_>) {
        eye.ask(&self.newcomers(all, eye));
        let inherited = (holders.inherited)();
        for (address, place) in &all.places {
            let Some(settings) = declared.get(place.pool) else { continue };
            let (is_in, is_gone) = {
                let state = self.lock();
                let found = state.member(*address).map(|(_, member)| member.condition == Condition::Gone);
                (found.is_some(), found == Some(true))
            };
            if is_in && !is_gone {
                continue;
            }
            if eye.hangs(*address) && self.shop.records.mark_of(*address) == Mark::Clean {
                continue; // Another of its card does: the next look asks this one itself.
            }
            if is_gone {
                // It is another one now, whatever the last one was.
                self.keep(*address, self.shop.records.change(*address, Record::vanished));
            }
            self.shop.records.begin(*address, &settings.name, || Mac::local((self.random)()));
            let found = eye.arrival(*address, &Wish::of(settings));
            let record = self.shop.records.get(*address);
            let inherited = before_us(&inherited, *address).is_some();
            self.act(|state| {
                if state.declared == declared {
                    let lent = inherited || (holders.ours)(*address).is_some();
                    state.arrive(*address, place, found, lent, record);
                }
            });
        }
    }

    /// Those that are no members yet, and were before this daemon.
    fn newcomers(&self, all: &Membership, eye: &Eye<'_>) -> BTreeSet<PciAddr> {
        let state = self.lock();
        let is_new = |address: &PciAddr| state.member(*address).is_none() && eye.is_adopted(*address);
        all.places.keys().copied().filter(is_new).collect()
    }

    /// Functions that were changed for a pool that has them no more; and what is on record of some that are not there: it is
    /// kept as long as there is their pool.
    fn orphans(&self, declared: &[PoolSettings], membership: &Membership, scan: &Scan, holders: Holders<'_>) {
        if self.lock().partly_read {
            return;
        }
        for record in self.shop.records.all() {
            let address = record.address;
            let known = self.lock().member(address).is_some();
            if known || membership.places.contains_key(&address) {
                continue;
            }
            match functions(scan).find(|function| function.address == address) {
                Some(function) if record.was_in(&self.shop.boot_id).is_some() => {
                    let is_given = self.shop.records.mark_of(address) == Mark::Given;
                    let inherited = before_us(&(holders.inherited)(), address).is_some();
                    self.act(|state| {
                        let lent = inherited || (holders.ours)(address).is_some();
                        state.adopt_orphan(&record, function, lent, is_given);
                    });
                }
                None if !self.is_gone(address) => {} // it came after the look, or cannot be read
                None if declared.iter().any(|pool| pool.name == record.pool) => {}
                _ => {
                    self.shop.records.forget(address);
                    self.keep(address, self.shop.records.settle(address));
                }
            }
        }
    }

    /// Whether what was somebody else's still is, and what is ready.
    fn compare(&self, how: Look, eye: &mut Eye<'_>) {
        let all = self.lock().settled(how);
        let next = all.iter().map(|settled| settled.address).filter(|address| !eye.hangs(*address));
        eye.ask(&next.collect());
        for settled in &all {
            if eye.hangs(settled.address) {
                continue;
            }
            let found = eye.compare(settled.address, &settled.wish, settled.known.as_ref());
            self.found(settled, found);
        }
    }
}

impl State {
    /// Ends what was told of what is declared no more.
    fn has_nothing_to_tell(&mut self) {
        self.notices.clear();
        self.unread.clear();
        self.unmade.clear();
    }

    /// Those that are somebody else's, and with a thorough look those that are ready.
    fn settled(&self, how: Look) -> Vec<Settled> {
        let is_due = |member: &Member| member.condition != Condition::Ready || how == Look::Thorough;
        let due = self.members().filter(|(_, member)| is_due(member));
        due.filter_map(|(live, member)| self.at_rest(live, member)).collect()
    }

    fn arrive(
        &mut self,
        address: PciAddr,
        place: &Place,
        found: Arrival,
        lent: bool,
        record: Option<Record>,
    ) {
        if self.is_on_the_way(address) {
            return;
        }
        let hold = record.and_then(|record| record.held).map(|held| held.hold());
        let Some(live) = self.pools.get_mut(place.pool) else { return };
        // Its ADD has come for one that was ready; for another the next one's may.
        let given = found.given && !(lent && found.condition == Condition::Ready);
        let condition = if lent { Condition::Lent } else { found.condition };
        let member = Member::new(address, place.physical, place.numa_node);
        let verified = lent || (found.verified && hold.is_none());
        let left = given && condition == Condition::Due;
        live.pool.appeared(Member { condition, hold, given, verified, left, ..member });
        self.known.extend(found.known.map(|known| (address, known)));
    }

    /// Whether a call has it in hands: the look after it has arrived sees whose it became.
    fn is_on_the_way(&mut self, address: PciAddr) -> bool {
        let is_missed = self.on_the_way.contains(&address);
        if is_missed {
            self.missed.insert(address);
        }
        is_missed
    }

    /// It is given back, and nobody's then.
    fn adopt_orphan(&mut self, record: &Record, function: &Function, lent: bool, is_given: bool) {
        let address = record.address;
        if self.is_on_the_way(address) {
            return;
        }
        let (condition, given) = match (lent, is_given) {
            (true, _) => (Condition::Lent, false),
            (false, true) => (Condition::Ready, true),
            (false, false) => (Condition::Due, false),
        };
        let hold = Some(Hold::Dismissed(record.held.as_ref().map(|held| Box::new(held.hold()))));
        let member = Member::new(address, function.physical.address, function.numa_node);
        let mut pool = Pool::default();
        pool.appeared(Member { condition, hold, given, ..member });
        let wish = Wish::of_none(record);
        self.pools.push(Live { name: record.pool.clone(), settings: None, wish, pool });
    }

    /// A task has ended.
    pub(super) fn ended(&mut self, address: PciAddr, done: Result<Option<Known>, Trouble>) {
        let Some(live) = self.of(address) else { return };
        match done {
            Ok(Some(known)) => {
                live.pool.prepared(address);
                self.known.insert(address, known);
            }
            Ok(None) => {
                live.pool.given_back(address);
                self.known.remove(&address);
            }
            Err(Trouble::Taken(who)) => live.pool.taken(address, &who),
            Err(Trouble::Gone(_)) => live.pool.lost(address),
            Err(why) => {
                tracing::warn!(pci = %address, pool = live.name, error = %why, "a function of a pool is not ready");
                live.failed(address, &why);
            }
        }
    }

    /// A member that was ready, or somebody else's, was looked at.
    pub(super) fn compared(&mut self, address: PciAddr, was: &Condition, found: Result<Known, Trouble>) {
        let Some(live) = self.of(address) else { return };
        match (was, found) {
            (Condition::Ready, Ok(_)) => {}
            (_, Err(Trouble::Taken(who))) => live.pool.taken(address, &who),
            (_, Err(Trouble::Gone(_))) => live.pool.vanished(address),
            (Condition::Ready, Err(Trouble::Changed(why))) => {
                tracing::warn!(pci = %address, pool = live.name, why, "a function of a pool is made ready anew");
                live.pool.spoiled(address);
            }
            (Condition::Ready, Err(why)) => live.failed(address, &why),
            (_, _) => live.pool.left(address),
        }
    }

    /// When the next try is due of a member that waits for one, or the second look.
    fn next_due(&self) -> Option<Instant> {
        self.pools.iter().filter_map(|live| live.pool.next_try()).chain(self.second_look).min()
    }

    /// What has come and gone after the first look, before anybody listened for it, is looked for when kubelet has had its
    /// first list; functions are made at once.
    fn look_again(&mut self, declared: &[PoolSettings]) {
        let makes = declared.iter().any(|pool| pool.numvfs.is_some());
        self.look = makes.then_some(Look::Quick);
        self.second_look = (!makes).then(|| Instant::now() + SECOND);
    }
}

impl Live {
    /// A member is not what it is to be: through a fault of its own, or of others.
    fn failed(&mut self, address: PciAddr, why: &Trouble) {
        let (reason, now) = (why.to_string(), Instant::now());
        match why.is_of_others() {
            true => self.pool.hindered(address, &reason, now),
            false => drop(self.pool.failed(address, &reason, now)),
        }
    }
}
