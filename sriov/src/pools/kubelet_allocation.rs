//! Kubelet allocates members to pods: before their ADD comes, or without one ever coming. What the pod needs to reach a VF, and
//! that a VF which another pod may have had is cleaned first.

use std::time::{Duration, Instant};

use fairlead_host::IommuGroup;

use super::membership::as_selected;
use super::pool_definition::PoolSettings;
use super::records::{OriginalState, Record};
use super::resource_offer::{VfAccess, VfioNode};
use super::state::{Member, MemberState, Refusal};
use super::target::DesiredState;
use super::{Pools, Refused, Shared};
use crate::{PciAddr, Rdma, ScannedVf, Selector, VFIO_PCI};

/// The node of the connection manager, which is of all RDMA devices.
const RDMA_CM: &str = "rdma_cm";

/// How long kubelet waits for a VF that is being cleaned. Its own limit for an answer is longer.
const CLEANING: Duration = Duration::from_secs(10);

impl Pools {
    /// Allocates a member to a pod; answers what the pod needs to reach it.
    pub(super) fn allocate(&self, address: PciAddr) -> Result<VfAccess, String> {
        self.allocate_at(Instant::now(), address)
    }

    pub(super) fn allocate_at(&self, now: Instant, address: PciAddr) -> Result<VfAccess, String> {
        let (settings, _) = self.lock().allocatable(address)?;
        self.hand_over(now, address, self.goes_with_rdma(&settings, address)?)?;
        // Read when it is clean: until it was bound anew it may have no RDMA device, or one whose number is another VF's after that.
        let access = self.access(address).and_then(|access| self.unless_without_rdma(address, access));
        let noted = access.and_then(|access| self.note_told_nodes(address, &access).map(|()| access));
        noted.inspect_err(|_| self.cancel_allocation(address))
    }

    /// Notes the nodes that kubelet is told, before it is: the pod's next sandbox may come without another question of kubelet's. After a
    /// reboot too, so that the IOMMU group is on the record.
    fn note_told_nodes(&self, address: PciAddr, access: &VfAccess) -> Result<(), String> {
        let group = access.vfio.map(|node| node.number);
        let noted = self.provisioner.records.change(address, |record| record.told_group = group);
        noted.map_err(|error| {
            format!("its IOMMU group cannot be noted ({error}): make room in the state directory")
        })?;
        let nodes = access.rdma.iter().flat_map(|rdma| &rdma.nodes).map(String::as_str);
        let own: Vec<&str> = nodes.filter(|node| *node != RDMA_CM).collect();
        self.provisioner.records.note_told_nodes(address, &own).map_err(|error| {
            format!("its RDMA nodes cannot be noted ({error}): make room in the run directory")
        })
    }

    /// Refuses a lent VF with other nodes than kubelet gives the containers of its pod: kubelet asks when a pod is admitted, and the VF may
    /// have been bound or made anew since, or the machine was booted.
    pub(super) fn must_have_told_nodes(&self, address: PciAddr) -> Result<(), Refused> {
        let (may_be_offered, pool_with_rdma) = {
            let state = self.lock();
            let settings = state.member(address).and_then(|(entry, _)| entry.settings.as_ref());
            // Where no declared pool has the VF just now, one may have had it when kubelet was told.
            let may_be_offered = settings.is_none_or(|settings| settings.offered_as().is_some());
            let with_rdma = settings.filter(|settings| settings.tells_rdma_nodes());
            (may_be_offered, with_rdma.map(|settings| settings.name.clone()))
        };
        let by_group = may_be_offered.then(|| self.other_group(address)).flatten();
        let by_rdma = || {
            let pool = pool_with_rdma?;
            self.other_rdma_nodes(address).map(|why| Refused { pool, why })
        };
        by_group.or_else(by_rdma).map_or(Ok(()), Err)
    }

    /// Why not, where a VF is in another IOMMU group than kubelet was told. That node may be another pod's VF by now, whatever driver
    /// this one has.
    fn other_group(&self, address: PciAddr) -> Option<Refused> {
        let of_record = |record: &Record| Some((record.told_group?, record.pool.clone()));
        let (told, pool) = self.provisioner.records.with(address, of_record).flatten()?;
        // What sysfs does not say now is no reason: under vfio-pci a VF that is in no group is refused for that.
        let now = self.provisioner.inventory.iommu_group(address).ok()??;
        let nodes = |group: u32| format!("those of IOMMU group {group}");
        let why = Refusal::OtherNodes { told: nodes(told), now: nodes(now) };
        (now != told).then_some(Refused { pool, why })
    }

    /// Why not, where a VF has other RDMA nodes than kubelet was told.
    fn other_rdma_nodes(&self, address: PciAddr) -> Option<Refusal> {
        let told = self.provisioner.records.told_nodes(address);
        // What sysfs does not say now is no reason: a VF that has lost its RDMA device is not ready for long.
        let now = self.provisioner.inventory.rdma(address).unwrap_or_default();
        let has_others = now.has_verbs() && !told.iter().all(|node| now.nodes.contains(node));
        has_others.then(|| Refusal::OtherNodes { told: told.join(", "), now: now.nodes.join(", ") })
    }

    /// Gives a member to a pod, whose ADD will come for it, or which has it without one. What is at work, or what a pod may have
    /// had without an ADD, is prepared first; kubelet waits so long for that. For one that is lent the ADD waits, unless it is to be
    /// `at_home`: then kubelet waits, as far as it can. On record when this succeeds.
    fn hand_over(&self, now: Instant, address: PciAddr, at_home: bool) -> Result<(), String> {
        let mut allocated = self.update_at(now, |state| state.allocate(address, now));
        let waits = match &allocated {
            Ok(()) => at_home && !self.lock().is_home(address),
            Err(why) => why.passes(),
        };
        if waits {
            let why = allocated.err().unwrap_or(Refusal::Lent);
            tracing::info!(pci = %address, %why, "kubelet gives a VF to a pod: it is prepared first");
            self.wait_for_cleaning(address);
            allocated = self.update(|state| {
                let entry = state.of(address).ok_or(Refusal::Gone)?;
                entry.pool.allocated_when_ready(address)
            });
        }
        allocated.map_err(|why| why.to_string())?;
        // The mark comes before the answer: after a crash in between nobody takes a VF that a pod has for clean.
        self.mark(address).map_err(|error| {
            self.cancel_allocation(address);
            format!("that a pod has it cannot be marked ({error}): make room in the run directory")
        })
    }

    /// Kubelet is answered: its pod has this VF, and all others that it has asked for with it.
    pub(super) fn allocation_answered(&self, address: PciAddr) {
        let now = Instant::now();
        self.update_at(now, |state| {
            state.of(address).map(|entry| entry.pool.allocation_answered(address, now))
        });
    }

    /// The pod that a VF was allocated to is refused it, or another one that it wants beside it.
    pub(super) fn cancel_allocation(&self, address: PciAddr) {
        self.update(|state| state.of(address).map(|entry| entry.pool.cancel_allocation(address)));
    }

    fn wait_for_cleaning(&self, address: PciAddr) {
        // After a failure the pause may be longer than kubelet waits: the pod is refused at once.
        let at_work = |m: &Member| m.is_awaited() && m.setback().is_none();
        let waits = |state: &mut Shared| state.member(address).is_some_and(|(_, m)| at_work(m));
        drop(self.wait_while(self.lock(), CLEANING, waits));
    }

    /// Refuses a VF whose RDMA nodes its pod is to have and nobody can tell.
    fn unless_without_rdma(&self, address: PciAddr, access: VfAccess) -> Result<VfAccess, String> {
        let lacks_it = access.rdma.as_ref().map(|rdma| !rdma.has_verbs());
        match lacks_it {
            Some(_) if !self.lock().is_home(address) => {
                Err("its last pod has it still, and which RDMA device is its own shows when it is clean"
                    .to_owned())
            }
            Some(true) => {
                Err("its driver has made no RDMA device, or no node of it yet, and its pool says isRdma"
                    .to_owned())
            }
            Some(false) | None => Ok(access),
        }
    }

    /// What a pod needs to reach a member. Devlink is not asked: a card may take its time to answer, and kubelet waits.
    fn access(&self, address: PciAddr) -> Result<VfAccess, String> {
        let (settings, desired) = self.lock().allocatable(address)?;
        let record = self.provisioner.records.get(address);
        let original = record.as_ref().and_then(|record| record.original_in(&self.provisioner.boot_id));
        let (found, selector) = self.selected(&settings, address, original)?;
        // The driver that it has when it is ready: just now it may be between two drivers.
        let driver = original.map(|original| desired.driver(original)).or(found.vf.driver.as_deref());
        let with = |is: fn(&Selector) -> bool| selector.is_some_and(is);
        let vfio = match driver {
            Some(VFIO_PCI) => Some(self.vfio_group(found.vf.iommu_group, settings.allow_no_iommu)?),
            _ => None,
        };
        // Under vfio-pci it has none.
        let rdma = (vfio.is_none() && with(|s| s.is_rdma)).then(|| self.rdma(&found.rdma));
        let extra = settings.additional_info(address);
        let vhost_net = with(|s| s.need_vhost_net) && self.vhost_net_nodes.are_there();
        Ok(VfAccess { vfio, rdma, vhost_net, extra })
    }

    /// Whether RDMA nodes go with a VF to its pod.
    fn goes_with_rdma(&self, settings: &PoolSettings, address: PciAddr) -> Result<bool, String> {
        // A scan takes its time, and most pools need none for this.
        if !settings.tells_rdma_nodes() {
            return Ok(false);
        }
        let record = self.provisioner.records.get(address);
        let original = record.as_ref().and_then(|record| record.original_in(&self.provisioner.boot_id));
        let (_, selector) = self.selected(settings, address, original)?;
        Ok(selector.is_some_and(|selector| selector.is_rdma))
    }

    /// A VF as the machine has it now, and the selector that matches it as it was before its pool changed it.
    fn selected<'s>(
        &self,
        settings: &'s PoolSettings,
        address: PciAddr,
        original: Option<&OriginalState>,
    ) -> Result<(ScannedVf, Option<&'s Selector>), String> {
        let scan = self.provisioner.scan().map_err(|e| e.to_string())?;
        let mut of_all = scan.physical.iter().flat_map(|pf| pf.vfs.iter().map(move |found| (pf, found)));
        let of_it = of_all.find(|(_, found)| found.vf.address == address);
        let (pf, found) = of_it.ok_or("it is not in the machine")?;
        Ok((found.clone(), settings.selectors.matching(pf, &as_selected(found, original))))
    }

    fn vfio_group(&self, number: Option<u32>, allow_no_iommu: bool) -> Result<VfioNode, String> {
        let number = number.ok_or("it has no IOMMU group: the machine's IOMMU is off")?;
        let group = self.provisioner.kernel.iommu_group(number).map_err(|e| e.to_string())?;
        let no_iommu = group == IommuGroup::NoIommu;
        match no_iommu && !allow_no_iommu {
            true => Err("there is no IOMMU behind it, and its pool does not say allowNoIommu".to_owned()),
            false => Ok(VfioNode { number, no_iommu }),
        }
    }

    /// A VF's RDMA devices, with the node of the connection manager, which is of all devices.
    fn rdma(&self, found: &Rdma) -> Rdma {
        let mut rdma = found.clone();
        if self.provisioner.inventory.has_rdma_cm() {
            rdma.nodes.push(RDMA_CM.to_owned());
        }
        rdma
    }
}

impl Shared {
    /// Whether a member is with its pool, clean.
    fn is_home(&self, address: PciAddr) -> bool {
        self.member(address).is_some_and(|(_, member)| matches!(member.state, MemberState::Ready { .. }))
    }

    fn allocate(&mut self, address: PciAddr, now: Instant) -> Result<(), Refusal> {
        self.of(address).map_or(Err(Refusal::Gone), |entry| entry.pool.allocate(address, now))
    }

    /// The pool of a member and what it wants of that, unless the member must not be allocated now.
    fn allocatable(&self, address: PciAddr) -> Result<(PoolSettings, DesiredState), String> {
        let (entry, member) = self.member(address).ok_or("no pool has it any more")?;
        if member.givable().is_err() {
            return Err(format!("it is {} {}", member.state_name(), member.reason()).trim_end().to_owned());
        }
        let settings = entry.settings.clone().ok_or("its pool is not in the configuration any more")?;
        Ok((settings, entry.desired.clone()))
    }
}
