//! Pools of virtual functions that are ready before a pod asks: which functions they have, who does the slow work, what an ADD
//! is given and what becomes of it afterwards.
//!
//! All that may take time happens on the keeper's threads. A function is at one place only: with its pod (as long as the
//! engine's store says so), at work, or in the pool; this module's lock is held for no longer than a look at that.

mod adopting;
mod chores;
mod eye;
mod holders;
mod keeper;
mod loan;
mod making;
mod membership;
mod metrics;
mod naming;
mod news;
mod offers;
mod orders;
mod record;
mod sight;
mod trouble;
mod user;
mod verifying;
mod workshop;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use fairlead_host::{DevlinkDevice, Kernel};
use fairlead_sriov::pool::{Member, Pool, Task};
use fairlead_sriov::{Administrator, DevicePluginConfig, Inventory, PciAddr};

pub use holders::Holders;
pub(crate) use holders::Inherited;
pub use keeper::{Look, SLOW};
pub use loan::{DrawError, Loan, Refused};
pub use metrics::PoolMetrics;
pub use offers::{AnnouncedResource, Offer, OfferedVf, OfferedVfs, VfAccess, VfioNode};
pub use orders::Verb;
pub use workshop::Known;

use crate::settings::{PoolSettings, Settings};
use chores::{Chore, Chores};
use membership::Notice;
use offers::Offers;
use record::{Held, Mark, Record, Records};
use workshop::{Wish, Workshop};

/// The pools.
pub struct Pools {
    shop: Workshop,
    state: Mutex<State>,
    changed: Condvar,
    metrics: PoolMetrics,
    random: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Held by whoever marks a member as it stands.
    marking: Mutex<()>,
}

/// What pools stand on.
pub struct Ground<'a> {
    /// What outlives the boot.
    pub state_dir: &'a Path,
    /// What does not.
    pub run_dir: &'a Path,
    /// This boot.
    pub boot_id: &'a str,
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// Who reads and sets settings.
    pub admin: Arc<Administrator>,
    /// Who sees functions.
    pub inventory: Inventory,
    /// Where it is counted.
    pub metrics: PoolMetrics,
    /// For lasting MAC addresses.
    pub random: Box<dyn Fn() -> u64 + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// As the configuration has them.
    declared: Vec<PoolSettings>,
    /// What of the configuration cannot be used.
    refused: Vec<Notice>,
    /// Part of the configuration cannot be read: nothing is given back because it does not name it.
    partly_read: bool,
    /// In the same order, and behind them those that are declared no more and still have members.
    pools: Vec<Live>,
    known: BTreeMap<PciAddr, Known>,
    stands: BTreeMap<PciAddr, Stand>,
    /// Functions that a call has in hands between their pool and the engine's store: neither says whose they are. Once for
    /// each call.
    on_the_way: Vec<PciAddr>,
    /// Those of them that a look would have had in a pool.
    missed: BTreeSet<PciAddr>,
    chores: Chores,
    /// Physical functions whose functions are being made, and what became of the last try where it failed.
    making: BTreeSet<PciAddr>,
    unmade: BTreeMap<PciAddr, Notice>,
    notices: Vec<Notice>,
    /// Physical functions that could not be asked when they were last to be, and why.
    unread: BTreeMap<PciAddr, Notice>,
    /// What is wrong with what device plugins announce.
    announcements: Vec<Notice>,
    offers: Offers,
    look: Option<Look>,
    /// When the look after the first one is due.
    second_look: Option<Instant>,
    /// Members that are to be looked at because of news about them, or because an ADD could not have them.
    suspects: BTreeSet<PciAddr>,
    stopped: bool,
}

/// A pool and its members.
struct Live {
    name: String,
    /// `None` for one that is declared no more.
    settings: Option<PoolSettings>,
    wish: Wish,
    pool: Pool,
}

/// A member that stands otherwise than before.
struct Turned {
    address: PciAddr,
    /// In whose hands it is is to be marked.
    marked: bool,
    /// Something else holds it, or nothing any more.
    held: bool,
}

/// Since when a member stands as it does.
struct Stand {
    state: &'static str,
    since: SystemTime,
    reason: String,
    held: Option<Held>,
    mark: Mark,
    /// How often that has changed.
    turns: u64,
}

impl Pools {
    /// Reads what is on record. Nothing is looked at yet.
    pub fn open(ground: Ground<'_>) -> io::Result<Pools> {
        let shop = Workshop {
            kernel: ground.kernel,
            admin: ground.admin,
            inventory: ground.inventory,
            records: Records::open(ground.state_dir, ground.run_dir)?,
            boot_id: ground.boot_id.to_owned(),
            devlink: Mutex::default(),
        };
        Ok(Pools {
            shop,
            state: Mutex::default(),
            changed: Condvar::new(),
            metrics: ground.metrics,
            random: ground.random,
            marking: Mutex::default(),
        })
    }

    /// Has its metrics tell how its functions stand.
    pub fn count(self: &Arc<Pools>) {
        self.metrics.count(Arc::downgrade(self));
    }

    /// What devlink told the last look; `None` of a function of no pool, which no look is for.
    pub fn devlink_of(&self, function: PciAddr) -> Option<Arc<[DevlinkDevice]>> {
        let is_member = self.lock().member(function).is_some();
        is_member.then(|| self.shop.devlink())
    }

    /// Takes a configuration; the keeper acts on it with its next look, which is at once.
    pub fn configure(self: &Arc<Pools>, settings: &Settings) {
        let (mut declared, refused, whole) = declared(settings);
        let mut state = self.lock();
        state.partly_read = !whole;
        if !whole {
            // What cannot be read just now is no order to give everything back.
            let known = |pool: &PoolSettings| declared.iter().any(|declared| declared.name == pool.name);
            let of_file: Vec<PoolSettings> = state
                .declared
                .iter()
                .filter(|pool| pool.resource.is_some() && !known(pool))
                .cloned()
                .collect();
            declared.extend(of_file);
        }
        if state.declared != declared || state.refused != refused {
            state.declared = declared;
            state.refused = refused;
            state.arrange();
            state.arrange_offers(&Arc::downgrade(self));
            // Also whether what is ready still is what its pool wants.
            state.look = Some(Look::Thorough);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one way to change anything: what is due afterwards is queued, what holds a member is put on record, whoever waits
    /// looks again.
    fn act<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.act_at(Instant::now(), change)
    }

    fn act_at<T>(&self, now: Instant, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let answer = change(&mut state);
        state.queue_what_is_due(now);
        let owes = |address| self.shop.record(address).is_ok_and(|r| r.was_in(&self.shop.boot_id).is_some());
        let forgotten = state.forget(owes);
        for address in &forgotten {
            // Before another pool may have it, which begins a record of its own.
            self.shop.records.forget(*address);
            state.look = state.look.max(Some(Look::Quick));
        }
        let turned = state.note();
        state.show_offers();
        drop(state);
        self.changed.notify_all();
        for address in forgotten {
            self.keep(address, self.shop.records.settle(address));
        }
        for Turned { address, marked, held } in turned {
            if marked {
                self.keep(address, self.mark(address));
            }
            if held {
                self.keep(address, self.shop.records.change(address, |record| self.hold(record)));
            }
        }
        answer
    }

    /// What holds a member, as it stands when the record is written: of two who write, the later one knows.
    fn hold(&self, record: &mut Record) {
        if let Some(stand) = self.lock().stands.get(&record.address) {
            record.held.clone_from(&stand.held);
        }
    }

    /// In whose hands a member is, as it stands when that is marked. A pod has it only when its mark says so.
    fn mark(&self, address: PciAddr) -> io::Result<()> {
        let _marking = self.marking.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = self.lock().stands.get(&address).map_or(Mark::Soiled, |stand| stand.mark);
        self.shop.records.mark(address, mark)
    }

    fn keep(&self, address: PciAddr, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::error!(pci = %address, %error,
                "what is on record of a pool's function cannot be changed; make room in the state directory, or make it writable");
        }
    }

    /// Ends the keeper's threads. What they had still to do is done after the next start.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

/// The pools of a configuration, what of it cannot be used, and whether all of it could be read.
fn declared(settings: &Settings) -> (Vec<PoolSettings>, Vec<Notice>, bool) {
    let (mut pools, mut refused) = (settings.pools.clone(), Vec::new());
    let (Some(path), Some(read)) = (&settings.device_plugin_config, &settings.device_plugin) else {
        return (pools, refused, !settings.unread);
    };
    let mut refuse = |seen: String, remedy: &str| {
        let seen = format!("{}: {seen}", path.display());
        refused.push(Notice { wrong: true, seen, remedy: remedy.to_owned() });
    };
    let read = read.as_ref().map_err(String::clone);
    let read = read.and_then(|text| DevicePluginConfig::read(text).map_err(|e| e.to_string()));
    let whole = read.is_ok();
    match read {
        Ok(config) => {
            for resource in config.refused {
                refuse(
                    resource.to_string(),
                    "take out what is not served yet; the other resources are served",
                );
            }
            let others = config.resources.into_iter().map(PoolSettings::of_resource);
            pools.extend(others);
        }
        Err(why) => refuse(why, "correct devicePluginConfig, or the file"),
    }
    (pools, refused, whole)
}

impl State {
    fn members(&self) -> impl Iterator<Item = (&Live, &Member)> {
        self.pools.iter().flat_map(|live| live.pool.members().map(move |member| (live, member)))
    }

    fn queue_what_is_due(&mut self, now: Instant) {
        let due: Vec<Task> = self.pools.iter_mut().flat_map(|live| live.pool.due(now)).collect();
        for task in due {
            let physical = self.member(task.address()).map(|(_, member)| member.physical);
            physical.into_iter().for_each(|physical| self.chores.push(physical, Chore::Member(task)));
        }
    }

    fn of(&mut self, address: PciAddr) -> Option<&mut Live> {
        self.pools.iter_mut().find(|live| live.pool.member(address).is_some())
    }

    fn member(&self, address: PciAddr) -> Option<(&Live, &Member)> {
        self.members().find(|(_, member)| member.address == address)
    }

    /// Has the pools as they are declared, each with the members that it had; those that are declared no more come last.
    fn arrange(&mut self) {
        let mut before = std::mem::take(&mut self.pools);
        for settings in &self.declared {
            let known = before.iter().position(|live| live.name == settings.name);
            let mut pool = known.map_or_else(Pool::default, |at| before.remove(at).pool);
            pool.set_stock(settings.stock());
            self.pools.push(Live {
                name: settings.name.clone(),
                wish: Wish::of(settings),
                settings: Some(settings.clone()),
                pool,
            });
        }
        self.pools.extend(before.into_iter().map(|live| Live { settings: None, ..live }));
    }

    /// Members that were dismissed and have nothing of ours any more.
    fn forget(&mut self, owes: impl Fn(PciAddr) -> bool) -> Vec<PciAddr> {
        let forgotten: Vec<PciAddr> =
            self.pools.iter_mut().flat_map(|live| live.pool.forget_dismissed(&owes)).collect();
        for address in &forgotten {
            self.known.remove(address);
            self.stands.remove(address);
            self.withdraw(*address);
        }
        self.pools.retain(|live| live.settings.is_some() || live.pool.members().next().is_some());
        forgotten
    }

    /// Since when each member stands as it does; answers what of that is for the record.
    fn note(&mut self) -> Vec<Turned> {
        let (mut changed, mut turned) = (Vec::new(), Vec::new());
        for (live, member) in self.members() {
            let (address, state, reason) = (member.address, member.state(), member.reason());
            let before = self.stands.get(&address);
            let held = Held::of(member.hold.as_ref());
            let is_held = before.is_none_or(|before| before.held != held);
            let mark = Mark::of(member);
            let marked = before.is_none_or(|before| before.mark != mark);
            let same = before.filter(|b| !is_held && b.state == state && b.reason == reason);
            if same.is_some() && !marked {
                continue;
            }
            if same.is_none() {
                tell(live, member);
            }
            let since = same.map_or_else(SystemTime::now, |same| same.since);
            let turns = before.map_or(0, |before| before.turns) + 1;
            let stand = Stand { state, since, reason: reason.to_owned(), held, mark, turns };
            turned.push(Turned { address, marked, held: is_held });
            changed.push((address, stand));
        }
        self.stands.extend(changed);
        turned
    }

    fn turns(&self, address: PciAddr) -> u64 {
        self.stands.get(&address).map_or(0, |stand| stand.turns)
    }
}

fn tell(live: &Live, member: &Member) {
    let (pci, pool, state, reason) = (member.address, &live.name, member.state(), member.reason());
    match state {
        "quarantined" => tracing::error!(%pci, pool, reason, "a function is quarantined"),
        "foreign" => tracing::warn!(%pci, pool, reason, "a function of a pool is left alone"),
        "gone" | "drained" => tracing::info!(%pci, pool, state, "a function of a pool"),
        _ => tracing::debug!(%pci, pool, state, "a function of a pool"),
    }
}
