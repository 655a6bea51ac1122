//! VFs before they are lent: who has one, how it is, and what is to be done to it.
//! What is done here is undone by the homecoming.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Mac, Net, NetError, Op, SetLink, Vf, VfChange};
use fairlead_sriov::interface::{self, Look, NAMED};
use fairlead_sriov::pool::Member;
use fairlead_sriov::resetting::{SETTLES, is_resetting, patiently};
use fairlead_sriov::{VfDevice, InventoryError, KernelVf, PciAddr, Unserved, VFIO_PCI};

use super::claims::Claim;
use super::job::Job;
use super::{Engine, errors, pooled};
use crate::networks::Network;
use crate::networks::host_device::USER_SPACE_DRIVERS;
use crate::networks::sriov::{AtHome, Device, Sriov};
use crate::pools::{DrawError, Loan, Refused};
use crate::store::{Attachment, Lent, LentVf, Phase};

pub(super) const LOOK: Duration = Duration::from_millis(10);
/// How often a homecoming that an ADD waits for is begun again.
const HURRIED: Duration = Duration::from_millis(250);

/// A VF that nobody else gets.
pub(super) struct Reserved<'e> {
    /// It.
    vf: VfDevice,
    /// Who drives it.
    driver: String,
    loan: Loan<'e>,
    _claims: Vec<Claim<'e>>,
}

impl Reserved<'_> {
    /// Which VF.
    pub(super) fn address(&self) -> PciAddr {
        self.vf.address
    }

    /// It is on record now.
    pub(super) fn keep(self) {
        self.loan.keep();
    }
}

impl Engine {
    /// Keeps every other ADD and the pools from the VF that this one wants, or from one that it draws, until the intent
    /// is on record. Code 11 for one that is lent already, or is not ready in time. Not from within a pod's namespace: others
    /// must be looked at, and it can take seconds.
    pub(super) fn reserve(&self, job: &mut Job, network: &Network) -> Result<Option<Reserved<'_>>, CniError> {
        let Some(wanted) = network.vf() else { return Ok(None) };
        let limit = job.deadline.min(Instant::now() + self.policy().function_wait);
        let (loan, mut claims) = match &wanted.device {
            Device::OfPool(pool) => (self.draw(job, pool, limit)?, Vec::new()),
            Device::Known(_) | Device::OfResource(_) => {
                let address = wanted.address()?;
                let mine = |a: &Attachment| a.has(address);
                let name = address.to_string();
                let claim = self.reserve_alone(&name, &mine, limit, |why| lent(address, why))?;
                self.inherit(address)?;
                let refused = |e: Refused| match (e.why.passes(), pooled::refused(address, &e)) {
                    (true, error) => error,
                    (false, error) => job.lacking(error),
                };
                (self.pools.lend(address, limit).map_err(refused)?, vec![claim])
            }
        };
        let (vf, driver) = self.looked_at(&loan).map_err(|e| job.noting(e))?;
        must_suit(wanted, &vf, &driver, job.numa.is_some()).map_err(|e| job.noting(e))?;
        if job.near.is_none() {
            job.near = self.verify_nearness(job, &vf)?;
        }
        if driver == VFIO_PCI {
            claims.extend(self.reserve_group(job, &vf, limit)?);
            if let Err(unfit) = self.must_be_fit(&vf, loan.known()) {
                loan.doubt();
                return Err(job.noting(unfit));
            }
        }
        Ok(Some(Reserved { vf, driver, loan, _claims: claims }))
    }

    /// A VF that could be a pod's, and its driver. Of one that is ready nothing is read that its pool knows.
    fn looked_at(&self, loan: &Loan<'_>) -> Result<(VfDevice, String), CniError> {
        let vf = match loan.known() {
            Some(known) => known.vf.clone(),
            None => self.inventory.vf(loan.address()).map_err(|e| unusable(&e))?,
        };
        if let Some(unserved) = self.inventory.unserved(vf.address).map_err(|e| unusable(&e))? {
            return Err(not_given(&unserved));
        }
        let driver = driver_of(&vf)?;
        Ok((vf, driver))
    }

    /// A VF of a pool, the nearest that is ready. An empty pool is waited for, unless there is another path.
    fn draw(&self, job: &mut Job, pool: &str, limit: Instant) -> Result<Loan<'_>, CniError> {
        // Not lacking: kubelet may have given the pod one.
        self.pools.must_be_told(pool).map_err(|e| pooled::undrawn(&e))?;
        let near = self.nearness(job)?;
        let nodes = self.pools.nodes(pool);
        let ranks = near.ranks(&nodes).map_err(|e| {
            job.lacking(CniError::new(Code::InvalidConfig, format!("pool {pool:?}: {e}")).with(e.remedy()))
        })?;
        let limit = if job.another { Instant::now() } else { limit };
        let drawn = self.draw_ours(pool, limit, |member| ranks.get(&member.numa_node).copied());
        let loan = drawn?.map_err(|e| {
            let told = job.lacking(pooled::undrawn(&e));
            match nodes.iter().all(|node| ranks.contains_key(node)) {
                true => told,
                false => CniError {
                    msg: format!(
                        "{}; numa is strict, and others than the pod's node are not taken",
                        told.msg
                    ),
                    ..told
                },
            }
        })?;
        job.near = loan.known().and_then(|known| near.locality(known.vf.numa_node));
        Ok(loan)
    }

    /// Draws, past what sriov-cni has given to a pod since the pool was looked at. Where that cannot be told nothing is drawn.
    fn draw_ours(
        &self,
        pool: &str,
        limit: Instant,
        rank: impl Fn(&Member) -> Option<u32>,
    ) -> Result<Result<Loan<'_>, DrawError>, CniError> {
        loop {
            let loan = match self.pools.draw_by(pool, limit, &rank) {
                Ok(loan) => loan,
                empty => return Ok(empty),
            };
            let Some(holder) = self.given_by_sriov_cni(loan.address())? else { return Ok(Ok(loan)) };
            tracing::warn!(pci = %loan.address(), pool, holder, "a VF of a pool is somebody else's pod's");
            // To its pool it is lent, until a look finds it nobody's.
            loan.keep();
        }
    }

    /// Keeps every other ADD from what has this name; waits until none of its holders is coming home any more.
    pub(super) fn reserve_alone(
        &self,
        name: &str,
        holds: &dyn Fn(&Attachment) -> bool,
        limit: Instant,
        refused: impl Fn(&str) -> CniError,
    ) -> Result<Claim<'_>, CniError> {
        let claim = self.reserved.take(name, limit);
        let claim = claim.ok_or_else(|| refused("another call takes it just now"))?;
        let mut hurried: Option<(u64, Phase, Instant)> = None;
        loop {
            let Some(holder) = self.store.all().into_iter().find(|a| holds(a)) else { return Ok(claim) };
            let since = hurried.filter(|(id, phase, _)| (*id, *phase) == (holder.id, holder.phase));
            if since.is_none_or(|(_, _, since)| since.elapsed() >= HURRIED) {
                // X22: an older sandbox's; its process may end meanwhile.
                hurried = Some((holder.id, holder.phase, Instant::now()));
                match holder.phase {
                    Phase::Removing => self.reaper.expect(holder.id, Instant::now()),
                    _ => self.collect_if_dead(&holder, None),
                }
            }
            match self.store.get(holder.id).map(|now| now.phase) {
                Some(Phase::Adding | Phase::Attached) => {
                    let (container, ifname) = (&holder.key.container, &holder.key.ifname);
                    return Err(refused(&format!("it is interface {ifname:?} of container {container}")));
                }
                Some(_) if Instant::now() >= limit => {
                    return Err(late(&refused, self.reaper.why(holder.id)));
                }
                _ => sleep(LOOK),
            }
        }
    }

    /// The VF that was reserved, as it is, with its interface if its driver makes one. Of one that its pool has ready
    /// nothing is read that the pool knows.
    pub(super) fn at_home(
        &self,
        wanted: &Sriov,
        reserved: &Reserved<'_>,
    ) -> Result<(Option<Link>, AtHome), CniError> {
        let address = wanted.address()?;
        let (vf, driver, ready) =
            (reserved.vf.clone(), reserved.driver.clone(), reserved.loan.known());
        if driver == VFIO_PCI {
            return Ok((None, self.ready_to_give(wanted, vf, ready)?));
        }
        let told = |e: NetError| errors::kernel("", "looking for the VF's interface", &e);
        let mut host = self.kernel.host().map_err(told)?;
        let link = interface::interface(host.as_mut(), address, &vf.interfaces).map_err(told)?;
        let link = link.ok_or_else(|| lent(address, "its interface is not in the host's namespace"))?;
        let settings = match (ready, wanted.profile.is_empty()) {
            (Some(known), _) => Some(known.settings.clone()),
            (None, true) => None,
            (None, false) => Some(self.admin.settings(&vf).map_err(|e| errors::setting(&e))?),
        };
        Ok((Some(link), AtHome { vf, driver, settings }))
    }

    /// The settings of a VF that is lent, where its configuration asks for any.
    pub(super) fn settings_now(&self, wanted: &Sriov) -> Result<Option<Vf>, CniError> {
        if wanted.profile.is_empty() {
            return Ok(None);
        }
        let vf = self.inventory.vf(wanted.address()?).map_err(|e| unusable(&e))?;
        self.admin.settings(&vf).map(Some).map_err(|e| errors::setting(&e))
    }

    /// Sets what differs.
    pub(super) fn set_up(&self, vf: &LentVf, change: &VfChange) -> Result<(), CniError> {
        if change.is_empty() {
            return Ok(());
        }
        let vf = self.inventory.vf(vf.address).map_err(|e| unusable(&e))?;
        self.admin.set(&vf, change).map_err(|e| errors::setting(&e))
    }

    /// Sets what differs and has the VF take its MAC address over; answers the index of its interface.
    pub(super) fn prepare(&self, given: &Lent, change: &VfChange, mac: Option<Mac>) -> Result<u32, CniError> {
        let Some(vf) = &given.vf else { return Ok(given.index) };
        let told = |e: NetError| errors::kernel("", &format!("setting up VF {}", vf.address), &e);
        self.set_up(vf, change)?;
        let Some(mac) = mac else { return Ok(given.index) };
        let mut host = self.kernel.host().map_err(told)?;
        let Some(link) = host.link_by_index(given.index).map_err(told)? else { return Ok(given.index) };
        if link.mac == Some(mac) {
            return Ok(link.index);
        }
        let link = self.kernel_vf(vf).take_over(host.as_mut(), &link, mac).map_err(told)?;
        let look = Look { up: None, ..given.was.look() };
        let index = link.index;
        interface::dress(host.as_mut(), vf.address, link, &look, NAMED, |_, _| Ok(())).map_err(told)?;
        Ok(index)
    }

    /// A lent VF and its driver.
    pub(super) fn kernel_vf<'a>(&'a self, vf: &'a LentVf) -> KernelVf<'a> {
        KernelVf { kernel: self.kernel.as_ref(), address: vf.address, driver: &vf.driver }
    }
}

/// Moves an interface of the host into the pod under the pod's name for it, and sets it up; answers what it is there. All
/// in one message: each waits for the kernel's lock for links, which every other call at work wants too. Under a driver that
/// is still resetting the VF it comes up later.
pub(super) fn lend(pod: &mut dyn Net, index: u32, ifname: &str) -> Result<Option<Link>, NetError> {
    match pod.batch(&[Op::TakeFromHost { index, name: ifname.to_owned(), up: true }]) {
        Err(e) if is_resetting(&e) => {
            let Some(link) = pod.link_by_name(ifname)? else { return Err(e) };
            let up = Op::SetLink(SetLink { index: link.index, up: Some(true), ..SetLink::default() });
            patiently(Instant::now() + SETTLES, || pod.batch(std::slice::from_ref(&up)))?;
        }
        done => done?,
    }
    pod.link_by_name(ifname)
}

/// Whether a VF is what its path wants: its driver, and, where the type is our own, the pod's access to it.
fn must_suit(wanted: &Sriov, vf: &VfDevice, driver: &str, by_path: bool) -> Result<(), CniError> {
    let address = vf.address;
    let unsuited = |msg: String, remedy: &str| Err(CniError::new(Code::InvalidConfig, msg).with(remedy));
    if !wanted.takes(driver) {
        let msg = format!("VF {address} is bound to {driver}, and the path asks for another driver");
        return unsuited(msg, "correct `driver` of the path, or of the pool");
    }
    if by_path && driver == VFIO_PCI && !wanted.has_access {
        let msg = format!("VF {address} is bound to {driver}, and kubelet has not given it to the pod");
        return unsuited(
            msg,
            "CNI cannot add a device to a container: give the pool a resourceName that the pod asks for, or say \"deviceAccess\": \"host\" where the pod has the host's devices",
        );
    }
    Ok(())
}

/// What a caller is told of a VF that is no pod's to have.
fn not_given(unserved: &Unserved) -> CniError {
    let remedy = match unserved {
        Unserved::ExclusiveRdma { .. } => {
            "share RDMA devices (`rdma system set netns shared`, while there is no other network namespace; or ib_core's parameter netns_mode=1), or give the pod a VF without one"
        }
        Unserved::Vdpa { .. } => "delete the vDPA device (`vdpa dev del`), or take another VF",
    };
    CniError::new(Code::InvalidConfig, unserved.to_string()).with(remedy)
}

/// Who drives it: vfio-pci, or a driver that makes an interface.
fn driver_of(vf: &VfDevice) -> Result<String, CniError> {
    let address = vf.address;
    let refuse = |msg: String, remedy: &str| Err(CniError::new(Code::InvalidConfig, msg).with(remedy));
    match vf.driver.as_deref() {
        Some(driver) if driver == VFIO_PCI => Ok(driver.to_owned()),
        Some(driver) if USER_SPACE_DRIVERS.contains(&driver) || driver.contains("vfio") => refuse(
            format!(
                "VF {address} is bound to {driver}: of the drivers for user space sriov serves vfio-pci only"
            ),
            "bind it to vfio-pci or to its kernel driver, or take another VF",
        ),
        Some(driver) => Ok(driver.to_owned()),
        None => refuse(
            format!("VF {address} has no driver"),
            "bind it to its kernel driver, or to vfio-pci for a process that drives it itself",
        ),
    }
}

pub(super) fn lent(address: PciAddr, why: &str) -> CniError {
    CniError::new(Code::TryAgain, format!("VF {address} cannot be had: {why}"))
        .with("a VF is one pod's at a time: DEL the attachment that has it, or take another one")
}

/// What is told of one that has not come home in time, and why not where that is known.
fn late(refused: &impl Fn(&str) -> CniError, why: Option<CniError>) -> CniError {
    let late = "it has not come home from its last pod yet";
    match why {
        Some(CniError { msg, details, .. }) => CniError { details, ..refused(&format!("{late}: {msg}")) },
        None => refused(late),
    }
}

pub(super) fn unusable(error: &InventoryError) -> CniError {
    let code = match error {
        InventoryError::Io { .. } => Code::Io,
        _ => Code::InvalidConfig,
    };
    CniError::new(code, error.to_string()).with("correct the deviceID, or make the VF (sriov_numvfs)")
}
