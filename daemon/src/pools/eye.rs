//! One look at the machine: what members are in, with every physical function asked once for all. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fairlead_host::Vf;
use fairlead_sriov::pool::Condition;
use fairlead_sriov::{Function, PciAddr, Scan};

use super::membership::Notice;
use super::record::Mark;
use super::sight::Sight;
use super::trouble::Trouble;
use super::workshop::{Known, Wish, Workshop};

/// One look at the machine: every physical function's settings are read once.
pub(super) struct Eye<'l> {
    shop: &'l Workshop,
    readings: Readings,
    sight: Sight<'l>,
    scan: &'l Scan,
    /// Physical functions of which one does not end what it is asked: one limit is waited for each, not one for each function.
    hanging: BTreeSet<PciAddr>,
}

/// A new member as it was found.
pub(super) struct Arrival {
    pub(super) condition: Condition,
    pub(super) known: Option<Known>,
    /// Kubelet has given it to a pod.
    pub(super) given: bool,
    pub(super) verified: bool,
}

/// The settings of functions by their physical one, or why that could not be asked.
#[derive(Default)]
pub(super) struct Readings(BTreeMap<PciAddr, Result<Arc<Vec<Vf>>, String>>);

impl<'l> Eye<'l> {
    /// Nothing is read yet.
    pub(super) fn new(shop: &'l Workshop, scan: &'l Scan) -> Eye<'l> {
        Eye { shop, readings: Readings::default(), sight: shop.sight(), scan, hanging: BTreeSet::new() }
    }

    /// Asks those that are looked at next, together.
    pub(super) fn ask(&self, next: &BTreeSet<PciAddr>) {
        self.sight.ask(functions(self.scan).filter(|function| next.contains(&function.address)));
    }

    /// Whether something is on record of it in this boot: it is looked at then.
    pub(super) fn is_adopted(&self, address: PciAddr) -> bool {
        self.shop.records.get(address).is_some_and(|record| record.was_in(&self.shop.boot_id).is_some())
    }

    /// What it has read.
    pub(super) fn closed(self) -> Readings {
        self.readings
    }

    /// What a new member is in. One that a pod may have without an ADD is ready whatever it looks like: nothing is done to it
    /// before it is given again. One that was being cleaned is verified as it was before, unless it is broken.
    pub(super) fn arrival(&mut self, address: PciAddr, wish: &Wish) -> Arrival {
        let shop = self.shop;
        if !self.is_adopted(address) {
            return Arrival::of(Condition::Idle);
        }
        let mark = shop.records.mark_of(address);
        let wish = &wish.after_a_pod(mark == Mark::Awaited);
        let found = (!self.hangs(address)).then(|| self.compare(address, wish, None));
        let given = matches!(mark, Mark::Given | Mark::Awaited);
        match (found, mark) {
            (found, Mark::Given) => {
                let known = found.and_then(Result::ok);
                Arrival { known, given, verified: true, ..Arrival::of(Condition::Ready) }
            }
            (Some(Ok(known)), Mark::Clean) => {
                Arrival { known: Some(known), verified: true, ..Arrival::of(Condition::Ready) }
            }
            (Some(Err(Trouble::Taken(who))), _) => Arrival { given, ..Arrival::of(Condition::Foreign(who)) },
            (found, mark) => {
                let is_well = matches!(found, Some(Ok(_) | Err(Trouble::Changed(_))));
                let verified = is_well && mark != Mark::Soiled;
                Arrival { given, verified, ..Arrival::of(Condition::Due) }
            }
        }
    }

    /// Whether another function of the same card has kept this look waiting in vain.
    pub(super) fn hangs(&self, address: PciAddr) -> bool {
        self.function(address).is_some_and(|function| self.hanging.contains(&function.physical.address))
    }

    fn function(&self, address: PciAddr) -> Option<&'l Function> {
        functions(self.scan).find(|function| function.address == address)
    }

    /// Where its physical function cannot be asked, one that is ready has the settings that it was `known` to have.
    pub(super) fn compare(
        &mut self,
        address: PciAddr,
        wish: &Wish,
        known: Option<&Known>,
    ) -> Result<Known, Trouble> {
        let (shop, sight) = (self.shop, &self.sight);
        let Some(function) = self.function(address) else {
            return Err(Trouble::Unfit("it is not there".to_owned()));
        };
        let read = self
            .readings
            .0
            .entry(function.physical.address)
            .or_insert_with(|| shop.admin.all(function).map_err(|e| e.to_string()));
        let found = match (read, known) {
            (Ok(settings), _) => shop.compare(function, wish, settings, sight),
            (Err(_), Some(known)) => {
                shop.compare(function, wish, std::slice::from_ref(&known.settings), sight)
            }
            (Err(why), None) => {
                shop.may_be_had(function, wish, sight).and(Err(Trouble::Physical(why.clone())))
            }
        };
        if found.as_ref().is_err_and(Trouble::is_a_hang) {
            self.hanging.insert(function.physical.address);
        }
        found
    }
}

impl Arrival {
    fn of(condition: Condition) -> Arrival {
        Arrival { condition, known: None, given: false, verified: false }
    }
}

impl Readings {
    /// Physical functions that could not be asked are told until they can, or are gone.
    pub(super) fn tell(&self, told: &mut BTreeMap<PciAddr, Notice>, scan: &Scan) {
        told.retain(|address, _| scan.physical.iter().any(|physical| physical.address == *address));
        for (physical, read) in &self.0 {
            match read {
                Ok(_) => drop(told.remove(physical)),
                Err(why) => drop(told.insert(*physical, unread(*physical, why))),
            }
        }
    }
}

/// All of them.
pub(super) fn functions(scan: &Scan) -> impl Iterator<Item = &Function> {
    scan.physical.iter().flat_map(|physical| physical.functions.iter().map(|found| &found.function))
}

fn unread(physical: PciAddr, why: &str) -> Notice {
    Notice {
        wrong: true,
        seen: format!("physical function {physical} cannot be asked for its functions' settings: {why}"),
        remedy: "see that its driver has it and its interface is in the host's namespace; functions that were ready are given \
                 out, the others are tried again"
            .to_owned(),
    }
}
