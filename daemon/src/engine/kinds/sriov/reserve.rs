//! Reserves a VF for one ADD: chooses it, keeps everybody else from it, and refuses one that does not suit, is not near the pod or is what
//! the node lives on.
//!
//! What is reserved here is free again when the reservation is dropped, until the intent is on record. Nothing is changed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_sriov::numa::Locality;
use fairlead_sriov::pools::state::Member;
use fairlead_sriov::pools::{DrawError, ReadyVf, Refused, Reservation};
use fairlead_sriov::{InventoryError, PciAddr, USER_SPACE_DRIVERS, Unserved, VFIO_PCI, VfDevice};

use super::config::{Device, Sriov};
use super::pools;
use super::quarantine::quarantined;
use super::services::SriovServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::enter_pod_netns;
use crate::engine::keyed_locks::KeyedLock;
use crate::engine::kinds::{HolderRemovals, Kinds, NotAttached, SriovCniVfs, lendable};
use crate::engine::netdev::POLL;
use crate::store::{Attachment, Phase};

/// How often a removal that an ADD waits for is begun again.
const HURRIED: Duration = Duration::from_millis(250);

/// A VF that nobody else gets.
pub(crate) struct ReservedVf<'k> {
    device: VfDevice,
    driver: String,
    reservation: Reservation<'k>,
    locality: Option<Locality>,
    _locks: Vec<KeyedLock<'k>>,
}

impl ReservedVf<'_> {
    /// Its PCI address.
    pub(crate) fn address(&self) -> PciAddr {
        self.device.address
    }

    /// What sysfs says of it.
    pub(super) fn device(&self) -> &VfDevice {
        &self.device
    }

    /// The name of the driver that has it.
    pub(super) fn driver(&self) -> &str {
        &self.driver
    }

    /// What its pool knows of it, where it has it ready.
    pub(super) fn known(&self) -> Option<&ReadyVf> {
        self.reservation.known()
    }

    /// How it lies to the pod, where that was asked for.
    pub(crate) fn locality(&self) -> Option<&Locality> {
        self.locality.as_ref()
    }

    /// It is on record now.
    pub(crate) fn keep(self) {
        self.reservation.keep();
    }
}

impl SriovServices {
    /// Keeps every other ADD and the pools from the VF that this request wants, or from one that is drawn for it, until the intent
    /// is on record. Code 11 for one that a pod has already, or that is not ready in time. Not from within a pod's namespace: others
    /// must be looked at, and it can take seconds.
    pub(crate) fn reserve(
        &self,
        wanted: Sriov,
        removals: &dyn HolderRemovals,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
    ) -> Result<(Sriov, ReservedVf<'_>), NotAttached> {
        let ready = wanted.address().is_ok_and(|address| self.pools.has_ready(address, |_| true));
        if !ready {
            self.wait_for_pools(kinds, request)?;
        }
        let wanted = self.with_allocated_device(request, wanted).map_err(NotAttached::by_code)?;
        let reserved = self.reserve_device(&wanted, removals, kinds, request)?;
        let address = reserved.device.address;
        self.report_locality(request, address, reserved.locality());
        Ok((wanted.with_vf(address), reserved))
    }

    /// The same for a type that asks for no settings and knows no pools: the VF at this address, where a pool has it and a device plugin
    /// serves it. `None` for any other device.
    pub(crate) fn reserve_served_of_pool(
        &self,
        address: PciAddr,
        removals: &dyn HolderRemovals,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
    ) -> Result<Option<ReservedVf<'_>>, NotAttached> {
        self.wait_for_pools(kinds, request)?;
        if self.pools.pool_of(address).is_none()
            || self.resource_that_serves(request, &address.to_string())?.is_none()
        {
            return Ok(None);
        }
        let (_, reserved) = self.reserve(Sriov::as_it_is(address), removals, kinds, request)?;
        Ok(Some(reserved))
    }

    /// Waits until it is known which VFs pools have.
    fn wait_for_pools(&self, kinds: &Kinds, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        // Nothing is waited for on behalf of a namespace that is not the caller's.
        drop(enter_pod_netns::enter(self.kernel.as_ref(), &self.host_id, request)?);
        self.wait_for_first_look(kinds.vf_deadline(request))
    }

    /// Waits until the pools were compared with the machine after the start. Code 11 when sysfs or a driver keeps that up past `limit`.
    pub(crate) fn wait_for_first_look(&self, limit: Instant) -> Result<(), CniError> {
        match self.pools.wait_for_first_look(limit) {
            true => Ok(()),
            false => Err(CniError::new(
                Code::TryAgain,
                "the machine's VFs have not been looked through since the daemon's start",
            )
            .with("it is waited for again with the next try; if it stays so, a device or driver hangs: see the log")),
        }
    }

    fn reserve_device(
        &self,
        wanted: &Sriov,
        removals: &dyn HolderRemovals,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
    ) -> Result<ReservedVf<'_>, NotAttached> {
        let limit = kinds.vf_deadline(request);
        let (reservation, mut locality, mut locks) = match &wanted.device {
            Device::OfPool(pool) => {
                let (reservation, locality) = self.draw(kinds, request, pool, limit)?;
                (reservation, locality, Vec::new())
            }
            Device::Known(_) | Device::OfResource(_) => {
                let (reservation, lock) = self.take(wanted.address()?, removals, kinds, limit)?;
                (reservation, None, vec![lock])
            }
        };
        let (device, driver) = self.looked_at(&reservation).map_err(NotAttached::by_code)?;
        must_suit(wanted, &device, &driver, request.numa.is_some()).map_err(NotAttached::by_code)?;
        if locality.is_none() {
            locality = self.verify_locality(request, &device)?;
        }
        if driver == VFIO_PCI {
            // Reserved before it is judged: two ADDs must not both find the same group free.
            locks.extend(self.reserve_group(removals, request, &device, limit)?);
            if let Err(unfit) = self.must_be_fit(&device, reservation.known()) {
                // Its pool looks at it at once, so that the next draw does not have it again.
                reservation.doubt();
                return Err(NotAttached::by_code(unfit));
            }
        } else if reservation.known().is_none() {
            // One that is ready was looked at by its pool, which has none that somebody uses.
            lendable::vf_must_be_dispensable(kinds, request, &device).map_err(NotAttached::by_code)?;
        }
        Ok(ReservedVf { device, driver, reservation, locality, _locks: locks })
    }

    /// The VF at this address, once nobody else has it.
    fn take(
        &self,
        address: PciAddr,
        removals: &dyn HolderRemovals,
        sriov_cni: &dyn SriovCniVfs,
        limit: Instant,
    ) -> Result<(Reservation<'_>, KeyedLock<'_>), NotAttached> {
        let mine = |a: &Attachment| a.has_pci_device(address);
        let name = address.to_string();
        let lock = reserve_alone(self, removals, &name, &mine, limit, |why| vf_not_to_be_had(address, why))?;
        if let Some(holder) = self.store.newer_with_vf(address) {
            let why = format!("it may be {}, {}", holder.label(), holder.version);
            return Err(vf_not_to_be_had(address, &why).into());
        }
        // With the lock held: this may restore the VF, and no other ADD may take it meanwhile.
        sriov_cni.settle(address)?;
        let refused = |e: Refused| match (e.why.passes(), pools::refused(address, &e)) {
            // What passes by itself is no lack: the runtime tries again, and no other path is taken.
            (true, error) => NotAttached::Failed(error),
            (false, error) => NotAttached::Unavailable(error),
        };
        Ok((self.pools.lend(address, limit).map_err(refused)?, lock))
    }

    /// A VF that could be a pod's, and its driver. Of one that is ready nothing is read that its pool knows.
    fn looked_at(&self, reservation: &Reservation<'_>) -> Result<(VfDevice, String), CniError> {
        let device = match reservation.known() {
            Some(known) => known.vf.clone(),
            None => self.inventory.vf(reservation.address()).map_err(|e| unusable(&e))?,
        };
        // Asked of a ready VF too: a vDPA device may have been made of it since its pool looked.
        if let Some(unserved) = self.pools.unserved(device.address).map_err(|e| unusable(&e))? {
            return Err(refused_as_unserved(&unserved));
        }
        let driver = driver_of(&device)?;
        Ok((device, driver))
    }

    /// A VF of a pool, the nearest that is ready. An empty pool is waited for, unless there is another path.
    fn draw(
        &self,
        sriov_cni: &dyn SriovCniVfs,
        request: &AttachmentRequest<'_>,
        pool: &str,
        limit: Instant,
    ) -> Result<(Reservation<'_>, Option<Locality>), NotAttached> {
        // No lack: kubelet may have allocated one to the pod.
        self.pools.must_be_known(pool).map_err(|e| pools::undrawn(&e))?;
        let near = self.pod_nodes(request)?;
        let nodes = self.pools.nodes(pool);
        let ranks = near.ranks(&nodes).map_err(|e| {
            let msg = format!("pool {pool:?}: {e}");
            NotAttached::Unavailable(CniError::new(Code::InvalidConfig, msg).with(e.remedy()))
        })?;
        let limit = if request.fallback_follows { Instant::now() } else { limit };
        let drawn = self.draw_unowned(sriov_cni, pool, limit, |member| ranks.get(&member.numa_node).copied());
        let reservation = drawn?.map_err(|e| {
            let told = pools::undrawn(&e);
            NotAttached::Unavailable(match nodes.iter().all(|node| ranks.contains_key(node)) {
                true => told,
                false => CniError {
                    msg: format!(
                        "{}; numa is strict, and others than the pod's node are not taken",
                        told.msg
                    ),
                    ..told
                },
            })
        })?;
        let locality = reservation.known().and_then(|known| near.locality(known.vf.numa_node));
        Ok((reservation, locality))
    }

    /// Draws, past what sriov-cni has given to a pod since the pool was looked at. Where that is not known nothing is drawn.
    fn draw_unowned(
        &self,
        sriov_cni: &dyn SriovCniVfs,
        pool: &str,
        limit: Instant,
        rank: impl Fn(&Member) -> Option<u32>,
    ) -> Result<Result<Reservation<'_>, DrawError>, CniError> {
        loop {
            let reservation = match self.pools.draw_by(pool, limit, &rank) {
                Ok(reservation) => reservation,
                empty => return Ok(empty),
            };
            let Some(holder) = sriov_cni.owner(reservation.address())? else {
                return Ok(Ok(reservation));
            };
            tracing::warn!(pci = %reservation.address(), pool, holder, "a VF of a pool is somebody else's pod's");
            // To its pool it is lent, until a look finds it nobody's.
            reservation.keep();
        }
    }
}

/// Keeps every other ADD from what has this name; waits until none of its holders is on its way back any more.
pub(crate) fn reserve_alone<'k>(
    sriov: &'k SriovServices,
    removals: &dyn HolderRemovals,
    name: &str,
    holds: &dyn Fn(&Attachment) -> bool,
    limit: Instant,
    refused: impl Fn(&str) -> CniError,
) -> Result<KeyedLock<'k>, CniError> {
    let lock = sriov.reserved.take(name, limit);
    let lock = lock.ok_or_else(|| refused("another call takes it just now"))?;
    let mut hurried: Option<(u64, Phase, Instant)> = None;
    loop {
        let Some(holder) = sriov.store.all().into_iter().find(|a| holds(a)) else { return Ok(lock) };
        if let (Some(left), Some(address)) = (&holder.quarantined, holder.pci_device()) {
            // Nobody hurries it: each try binds it anew.
            return Err(quarantined(&holder, address, left));
        }
        let since = hurried.filter(|(id, phase, _)| (*id, *phase) == (holder.id, holder.phase));
        if since.is_none_or(|(_, _, since)| since.elapsed() >= HURRIED) {
            // X22: an older sandbox's; its process may end meanwhile.
            hurried = Some((holder.id, holder.phase, Instant::now()));
            removals.advance(&holder);
        }
        match sriov.store.get(holder.id).map(|now| now.phase) {
            // Its pod lives and may keep it for ever: waiting would only use up the caller's time.
            Some(Phase::Adding | Phase::Attached) => {
                let (container, ifname) = (&holder.key.container, &holder.key.ifname);
                return Err(refused(&format!("it is interface {ifname:?} of container {container}")));
            }
            Some(_) if Instant::now() >= limit => {
                return Err(late(&refused, removals.removal_failure(holder.id)));
            }
            _ => sleep(POLL),
        }
    }
}

/// Refuses a VF that is not what its path wants: its driver, and, where the type is our own, the pod's access to it.
fn must_suit(wanted: &Sriov, device: &VfDevice, driver: &str, by_path: bool) -> Result<(), CniError> {
    let address = device.address;
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

/// Why a VF is no pod's to have, and the remedy.
fn refused_as_unserved(unserved: &Unserved) -> CniError {
    let remedy = match unserved {
        Unserved::ExclusiveRdma { .. } => {
            "share RDMA devices (`rdma system set netns shared`, while there is no other network namespace; or ib_core's parameter netns_mode=1); or take isRdma out of the pool's selectors: the VF is lent as an interface then, and a chained plugin `rdma` can move its RDMA device"
        }
        Unserved::Vdpa { .. } => "delete the vDPA device (`vdpa dev del`), or take another VF",
    };
    CniError::new(Code::InvalidConfig, unserved.to_string()).with(remedy)
}

/// The driver that has it: vfio-pci, or one that makes a netdev.
fn driver_of(device: &VfDevice) -> Result<String, CniError> {
    let address = device.address;
    let refuse = |msg: String, remedy: &str| Err(CniError::new(Code::InvalidConfig, msg).with(remedy));
    match device.driver.as_deref() {
        Some(driver) if driver == VFIO_PCI => Ok(driver.to_owned()),
        // Some vendors have vfio drivers of their own (mlx5_vfio_pci), which make no netdev either.
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

/// Code 11 for a VF that is somebody else's now.
pub(crate) fn vf_not_to_be_had(address: PciAddr, why: &str) -> CniError {
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

/// Why a VF cannot be used at all, and the remedy.
pub(crate) fn unusable(error: &InventoryError) -> CniError {
    let code = match error {
        InventoryError::Io { .. } => Code::Io,
        _ => Code::InvalidConfig,
    };
    CniError::new(code, error.to_string()).with("correct the deviceID, or make the VF (sriov_numvfs)")
}
