//! The pools that kubelet gives out, as it is offered them: one resource each, of all pools that have its name.
//!
//! What was never verified is not announced (X23). What comes home from a pod is still healthy: an ADD waits for it. Whatever
//! has failed, was somebody else's, idle, gone or held is unhealthy at once, and healthy when it is verified again (X17).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};

use fairlead_host::IommuGroup;
use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::{Member, Spread};
use fairlead_sriov::{Rdma, Scan, Selector};
use tokio::sync::watch;

use super::membership::Notice;
use super::workshop::{VFIO, Wish};
use super::{Live, Pools, State};
use crate::settings::PoolSettings;

/// What is offered, and what is known for that.
#[derive(Default)]
pub(super) struct Offers {
    resources: BTreeMap<String, Arc<Offer>>,
    /// Resources whose pools have been compared with the machine.
    looked_at: BTreeSet<String>,
    /// Functions that were verified once.
    announced: BTreeSet<PciAddr>,
    /// Physical functions without a carrier.
    dark: BTreeSet<PciAddr>,
    /// Another allocator's pools of which nobody announced a function when that was last asked.
    unannounced: BTreeSet<String>,
}

/// A VF of a pool, as it is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedVf {
    /// The VF's PCI address.
    pub address: PciAddr,
    /// The NUMA node that pods are to be aligned to, where the pool says which.
    pub numa_node: Option<u32>,
    /// Whether it may be allocated to pods. One that is still being restored may be.
    pub healthy: bool,
    /// The PF that it is of.
    pub pf: PciAddr,
}

/// The complete list of a resource's VFs; `None` until the pools have been compared with the machine.
pub type OfferedVfs = Option<Arc<[OfferedVf]>>;

/// What a pod needs to reach a VF, beside its network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VfAccess {
    /// The IOMMU group of a VF that is bound to vfio-pci.
    pub vfio: Option<VfioNode>,
    /// The RDMA devices and nodes, where the pool gives them to pods, with `rdma_cm`, which all devices share.
    pub rdma: Option<Rdma>,
    /// Whether the pod gets the nodes of vhost-net and tun.
    pub vhost_net: bool,
    /// Further facts for the pod, from the configuration.
    pub extra: BTreeMap<String, String>,
}

/// An IOMMU group's node under `/dev/vfio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfioNode {
    /// The number in the node's name.
    pub number: u32,
    /// The machine's IOMMU is off, so that this is no real group.
    pub no_iommu: bool,
}

/// A resource that a device plugin of the node announces, ours or another's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedResource {
    /// The resource's full name, as in `intel.com/radio`.
    pub name: String,
    /// Its devices, by the names that the device plugin gave them.
    pub ids: Vec<String>,
}

/// One resource that kubelet allocates from the pools of its name.
pub struct Offer {
    resource: String,
    list: watch::Sender<OfferedVfs>,
    pools: Weak<Pools>,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl Offer {
    /// The resource's name in pod specs.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Over which PFs a pod's VFs are to be.
    pub fn spread(&self) -> Spread {
        self.pools.upgrade().map(|pools| pools.lock().spread_of(&self.resource)).unwrap_or_default()
    }

    /// The complete list, with every change of it.
    pub fn list(&self) -> watch::Receiver<OfferedVfs> {
        self.list.subscribe()
    }

    /// Allocates a VF to a pod, and returns what the pod needs to reach it.
    ///
    /// # Errors
    /// In words for the pod's event, when the VF must not be allocated now.
    pub fn allocate(&self, address: PciAddr) -> Result<VfAccess, String> {
        let pools = self.pools.upgrade().ok_or_else(|| "the daemon stops".to_owned())?;
        pools.given(address)
    }

    /// Takes back an allocation that kubelet was never told of.
    pub fn cancel_allocation(&self, address: PciAddr) {
        if let Some(pools) = self.pools.upgrade() {
            pools.not_given(address);
        }
    }
}

impl Pools {
    /// The resources that kubelet is to be offered, as they are configured.
    pub fn offers(&self) -> Vec<Arc<Offer>> {
        self.lock().offers.resources.values().map(Arc::clone).collect()
    }

    /// What every device plugin of the node announces: a function that two announce is told, and a pool for another allocator
    /// that none announces.
    pub fn announced(&self, all: &[AnnouncedResource]) {
        self.act(|state| {
            state.announcements = state.doubles_among(all);
            let unannounced = state.unannounced(all);
            // Twice in a row: a plugin that registers with a new kubelet takes a moment.
            let still = unannounced.intersection(&state.offers.unannounced).map(|pool| nobodys(pool));
            let told: Vec<Notice> = still.collect();
            state.announcements.extend(told);
            state.offers.unannounced = unannounced;
        });
    }

    /// A pod is given a member: what it needs to reach it.
    fn given(&self, address: PciAddr) -> Result<VfAccess, String> {
        let access = self.access(address)?;
        self.give(address)?;
        Ok(access)
    }

    /// What a pod needs to reach a member.
    fn access(&self, address: PciAddr) -> Result<VfAccess, String> {
        let (settings, wish) = self.lock().given_out(address)?;
        let scan = self.shop.scan().map_err(|e| e.to_string())?;
        let record = self.shop.records.get(address);
        let was = record.as_ref().and_then(|record| record.was_in(&self.shop.boot_id));
        let of_all = scan.physical.iter().flat_map(|pf| pf.functions.iter().map(move |found| (pf, found)));
        let (physical, found) = of_all
            .into_iter()
            .find(|(_, found)| found.function.address == address)
            .ok_or("it is not in the machine")?;
        let driver = was.map(|was| wish.driver(was)).or(found.function.driver.as_deref());
        let mut as_selected = found.clone();
        as_selected.function.driver = was.map(|was| was.driver.clone()).or(as_selected.function.driver);
        let selector = settings.selectors.matching(physical, &as_selected);
        let with = |is: fn(&Selector) -> bool| selector.is_some_and(is);
        let vfio = match driver {
            Some(VFIO) => Some(self.vfio_group(found.function.iommu_group, settings.allow_no_iommu)?),
            _ => None,
        };
        let rdma = with(|s| s.is_rdma).then(|| self.rdma(&found.rdma));
        let extra = settings.additional_info(address);
        Ok(VfAccess { vfio, rdma, vhost_net: with(|s| s.need_vhost_net), extra })
    }

    fn vfio_group(&self, number: Option<u32>, allow_no_iommu: bool) -> Result<VfioNode, String> {
        let number = number.ok_or("it has no IOMMU group: the machine's IOMMU is off")?;
        let group = self.shop.kernel.iommu_group(number).map_err(|e| e.to_string())?;
        let no_iommu = group == IommuGroup::NoIommu;
        match no_iommu && !allow_no_iommu {
            true => Err("there is no IOMMU behind it, and its pool does not say allowNoIommu".to_owned()),
            false => Ok(VfioNode { number, no_iommu }),
        }
    }

    /// With the node of the connection manager, which is of all devices.
    fn rdma(&self, found: &Rdma) -> Rdma {
        let mut rdma = found.clone();
        if self.shop.inventory.has_rdma_cm() {
            rdma.nodes.push("rdma_cm".to_owned());
        }
        rdma
    }
}

impl State {
    fn spread_of(&self, resource: &str) -> Spread {
        let pool = self.declared.iter().find(|pool| pool.offered_as() == Some(resource));
        pool.map(PoolSettings::spread).unwrap_or_default()
    }

    /// Offers what is declared, and nothing else.
    pub(super) fn arrange_offers(&mut self, pools: &Weak<Pools>) {
        let wanted: BTreeSet<String> =
            self.declared.iter().filter_map(PoolSettings::offered_as).map(str::to_owned).collect();
        self.offers.resources.retain(|resource, _| wanted.contains(resource));
        self.offers.looked_at.retain(|resource| wanted.contains(resource));
        for resource in wanted {
            self.offers.resources.entry(resource.clone()).or_insert_with(|| {
                Arc::new(Offer { resource, list: watch::Sender::new(None), pools: Weak::clone(pools) })
            });
        }
    }

    /// The machine was compared with what was declared.
    pub(super) fn looked_at(&mut self, declared: &[PoolSettings], scan: &Scan) {
        let offered = declared.iter().filter_map(PoolSettings::offered_as);
        self.offers.looked_at.extend(offered.map(str::to_owned));
        let dark = scan.physical.iter().filter(|physical| {
            physical.interface.as_ref().is_some_and(|interface| interface.carrier != Some(true))
        });
        self.offers.dark = dark.map(|physical| physical.address).collect();
    }

    /// Whether something that is offered depends on a physical function's carrier.
    pub(super) fn goes_by_carrier(&self, physical: PciAddr) -> bool {
        let says_so = |pool: &PoolSettings| pool.withdraw_on_link_down && pool.offered_as().is_some();
        self.members().any(|(live, m)| m.physical == physical && live.settings.as_ref().is_some_and(says_so))
    }

    /// Tells kubelet what has changed.
    pub(super) fn show_offers(&mut self) {
        let verified = self.members().filter(|(_, member)| member.verified);
        let verified: Vec<PciAddr> = verified.map(|(_, member)| member.address).collect();
        self.offers.announced.extend(verified);
        for (resource, offer) in &self.offers.resources {
            if !self.offers.looked_at.contains(resource) {
                continue;
            }
            let list: Arc<[OfferedVf]> = self.offered_vfs(resource).into();
            offer.list.send_if_modified(|told| {
                let changed = told.as_ref() != Some(&list);
                *told = Some(list);
                changed
            });
        }
    }

    /// A function is nobody's any more.
    pub(super) fn withdraw(&mut self, address: PciAddr) {
        self.offers.announced.remove(&address);
    }

    fn offered_vfs(&self, resource: &str) -> Vec<OfferedVf> {
        let of_resource = self.members().filter_map(|(live, member)| {
            let settings = live.settings.as_ref().filter(|pool| pool.offered_as() == Some(resource))?;
            self.offers.announced.contains(&member.address).then_some((settings, member))
        });
        let vf = |(settings, member): (&PoolSettings, &Member)| {
            let dark = settings.withdraw_on_link_down && self.offers.dark.contains(&member.physical);
            OfferedVf {
                address: member.address,
                numa_node: member.numa_node.filter(|_| settings.tells_topology()),
                healthy: member.givable().is_ok() && !dark,
                pf: member.physical,
            }
        };
        of_resource.map(vf).collect()
    }

    /// The pool that gives a member out, unless that is not to be given now.
    fn given_out(&self, address: PciAddr) -> Result<(PoolSettings, Wish), String> {
        let (live, member) = self.member(address).ok_or("no pool has it any more")?;
        if member.givable().is_err() {
            return Err(format!("it is {} {}", member.state(), member.reason()).trim_end().to_owned());
        }
        let settings = live.settings.clone().ok_or("its pool is not in the configuration any more")?;
        Ok((settings, live.wish.clone()))
    }

    /// Pools that are another allocator's, and nobody announces a function of them.
    fn unannounced(&self, all: &[AnnouncedResource]) -> BTreeSet<String> {
        let announced: BTreeSet<PciAddr> =
            all.iter().flat_map(|resource| &resource.ids).filter_map(|id| id.parse().ok()).collect();
        let is_others = |live: &&Live| live.settings.as_ref().is_some_and(|pool| !pool.is_only_ours());
        let is_nobodys = |live: &&Live| {
            let mut members = live.pool.members().peekable();
            members.peek().is_some() && members.all(|member| !announced.contains(&member.address))
        };
        let pools = self.pools.iter().filter(is_others).filter(is_nobodys);
        pools.map(|live| live.name.clone()).collect()
    }

    /// Members of pools that another device plugin announces.
    fn doubles_among(&self, all: &[AnnouncedResource]) -> Vec<Notice> {
        let ours = |resource: &&AnnouncedResource| self.offers.resources.contains_key(&resource.name);
        let strangers = all.iter().filter(|resource| !ours(resource));
        let mut doubles = BTreeMap::<(&str, &str), BTreeSet<&str>>::new();
        for resource in strangers {
            for id in &resource.ids {
                let member = id.parse().ok().and_then(|address| self.member(address));
                let settings = member.and_then(|(live, _)| live.settings.as_ref());
                if let Some(pool) = settings.filter(|pool| pool.is_only_ours()) {
                    doubles.entry((&pool.name, &resource.name)).or_default().insert(id);
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
        seen: format!("pool {pool:?} is another allocator's, and no device plugin announces a function of it to kubelet: no pod gets one"),
        remedy: "start that device plugin, and have its configuration select them; or take allocator: external out".to_owned(),
    }
}
