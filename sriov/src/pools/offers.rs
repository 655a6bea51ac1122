//! The pools that kubelet allocates from, as it is offered them: one resource each, of all pools that have its name.
//!
//! What was never verified is not announced (X23). What comes home from a pod is still healthy: an ADD waits for it. Whatever
//! has failed, was somebody else's, idle, gone or held is unhealthy at once, and healthy when it is verified again (X17).
//!
//! A list is made again only when a member of its resource has changed, and goes to whoever has subscribed to it. Nothing here
//! knows kubelet's interface.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use super::membership::Notice;
use super::pool_definition::PoolSettings;
use super::resource_offer::{AnnouncedResource, Offer, OfferedVf};
use super::shared::PoolEntry;
use super::state::{Member, Spread};
use super::{Pools, Shared};
use crate::{PciAddr, Scan};

impl Pools {
    /// The resources that kubelet is to be offered, as they are configured. A resource that stays declared stays the same
    /// [`Offer`].
    pub fn offers(&self) -> Vec<Arc<Offer>> {
        self.lock().offers.resources.values().map(Arc::clone).collect()
    }

    /// Compares what every device plugin of the node announces with the pools: reported are a VF that two announce, and a pool
    /// for another allocator that none announces.
    pub fn announced(&self, all: &[AnnouncedResource]) {
        self.update(|state| {
            state.announcements = state.doubles_among(all);
            let unannounced = state.unannounced(all);
            // Twice in a row: a plugin that registers with a new kubelet takes a moment.
            let still = unannounced.intersection(&state.offers.unannounced).map(|pool| nobodys(pool));
            let reported: Vec<Notice> = still.collect();
            state.announcements.extend(reported);
            state.offers.unannounced = unannounced;
        });
    }
}

impl Shared {
    pub(super) fn spread_of(&self, resource: &str) -> Spread {
        let pool = self.declared.iter().find(|pool| pool.offered_as() == Some(resource));
        pool.map(PoolSettings::spread).unwrap_or_default()
    }

    /// Offers what is declared, and nothing else.
    pub(super) fn arrange_offers(&mut self, pools: &Weak<Pools>) {
        let wanted: BTreeSet<String> =
            self.declared.iter().filter_map(PoolSettings::offered_as).map(str::to_owned).collect();
        self.offers.resources.retain(|resource, _| wanted.contains(resource));
        self.offers.looked_at.retain(|resource| wanted.contains(resource));
        for resource in &wanted {
            // One that is there stays: a new `Offer` would have its resource registered with kubelet again.
            let offer = || Arc::new(Offer::new(resource.clone(), Weak::clone(pools)));
            self.offers.resources.entry(resource.clone()).or_insert_with(offer);
        }
        self.offers.stale = wanted;
    }

    /// The machine was compared with what was declared.
    pub(super) fn looked_at(&mut self, declared: &[PoolSettings], scan: &Scan) {
        let offered = declared.iter().filter_map(PoolSettings::offered_as);
        self.offers.looked_at.extend(offered.map(str::to_owned));
        // An interface that is down reports no carrier at all. A PF without an interface here is not known to lack one.
        let dark = scan.physical.iter().filter(|physical| {
            physical.interface.as_ref().is_some_and(|interface| interface.carrier != Some(true))
        });
        self.offers.dark = dark.map(|physical| physical.address).collect();
        // A carrier concerns every member of its PF, and a first look every list.
        self.offers.stale = self.offers.resources.keys().cloned().collect();
    }

    /// Whether something that is offered depends on a PF's carrier.
    pub(super) fn goes_by_carrier(&self, pf: PciAddr) -> bool {
        let says_so = |pool: &PoolSettings| pool.withdraw_on_link_down && pool.offered_as().is_some();
        self.members().any(|(entry, m)| m.pf == pf && entry.settings.as_ref().is_some_and(says_so))
    }

    /// Makes the lists again of which a member has changed, and shows them to whoever follows them.
    pub(super) fn show_offers(&mut self) {
        for resource in std::mem::take(&mut self.offers.stale) {
            if !self.offers.looked_at.contains(&resource) {
                continue; // Its first list comes with the end of the look, and is complete.
            }
            if let Some(offer) = self.offers.resources.get(&resource) {
                offer.show(self.offered_vfs(&resource).into());
            }
        }
    }

    /// A VF is no member any more.
    pub(super) fn withdraw(&mut self, address: PciAddr) {
        self.offers.announced.remove(&address);
    }

    fn offered_vfs(&self, resource: &str) -> Vec<OfferedVf> {
        let of_resource = self.members().filter_map(|(entry, member)| {
            let settings = entry.settings.as_ref().filter(|pool| pool.offered_as() == Some(resource))?;
            // X23: kubelet is not told of a VF before it was verified once. From then on it stays listed, healthy or not.
            self.offers.announced.contains(&member.address).then_some((settings, member))
        });
        let offered = |(settings, member): (&PoolSettings, &Member)| {
            let is_dark = settings.withdraw_on_link_down && self.offers.dark.contains(&member.pf);
            OfferedVf {
                address: member.address,
                numa_node: member.numa_node.filter(|_| settings.exposes_topology()),
                healthy: member.givable().is_ok() && !is_dark,
                pf: member.pf,
            }
        };
        of_resource.map(offered).collect()
    }

    /// Pools that are another allocator's, and nobody announces a VF of them.
    fn unannounced(&self, all: &[AnnouncedResource]) -> BTreeSet<String> {
        let announced: BTreeSet<PciAddr> =
            all.iter().flat_map(|announced| &announced.ids).filter_map(|id| id.parse().ok()).collect();
        let is_others = |entry: &&PoolEntry| entry.settings.as_ref().is_some_and(|pool| !pool.is_only_ours());
        let is_nobodys = |entry: &&PoolEntry| {
            let mut members = entry.pool.members().peekable();
            members.peek().is_some() && members.all(|member| !announced.contains(&member.address))
        };
        let pools = self.pools.iter().filter(is_others).filter(is_nobodys);
        pools.map(|entry| entry.name.clone()).collect()
    }

    /// Members of pools that another device plugin announces.
    fn doubles_among(&self, all: &[AnnouncedResource]) -> Vec<Notice> {
        let ours = |announced: &&AnnouncedResource| self.offers.resources.contains_key(&announced.name);
        let strangers = all.iter().filter(|announced| !ours(announced));
        let mut doubles = BTreeMap::<(&str, &str), BTreeSet<&str>>::new();
        for announced in strangers {
            for id in &announced.ids {
                let member = id.parse().ok().and_then(|address| self.member(address));
                let settings = member.and_then(|(entry, _)| entry.settings.as_ref());
                if let Some(pool) = settings.filter(|pool| pool.is_only_ours()) {
                    doubles.entry((&pool.name, &announced.name)).or_default().insert(id);
                }
            }
        }
        doubles.into_iter().map(|((pool, resource), ids)| double(pool, resource, &ids)).collect()
    }
}

fn double(pool: &str, resource: &str, ids: &BTreeSet<&str>) -> Notice {
    let ids: Vec<&str> = ids.iter().copied().collect();
    Notice {
        wrong: true,
        seen: format!(
            "another device plugin announces {} of pool {pool:?} to kubelet, as {resource:?}",
            ids.join(", ")
        ),
        remedy: "take them out of its configuration (kubelet forgets it five minutes after its end), or say allocator: external for the pool".to_owned(),
    }
}

fn nobodys(pool: &str) -> Notice {
    Notice {
        wrong: true,
        seen: format!("pool {pool:?} is another allocator's, and no device plugin announces a VF of it to kubelet: no pod gets one"),
        remedy: "start that device plugin, and have its configuration select them; or take allocator: external out".to_owned(),
    }
}
