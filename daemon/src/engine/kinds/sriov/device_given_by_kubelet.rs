//! Whether kubelet has given the pod a device that its network names: a device that a device plugin serves is the pod's that
//! kubelet gave it to, whatever a network's configuration says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_kubelet::{PodResourcesError, ResourceDevices};
use fairlead_sriov::PciAddr;
use parking_lot::Mutex;

use super::config::Sriov;
use super::kubelet_devices::{pod_of, unknown};
use super::services::SriovServices;
use crate::engine::attachment_request::AttachmentRequest;

/// Kubelet may take so long to tell what device plugins announce.
const ALLOCATABLE: Duration = Duration::from_millis(500);

/// So long it is taken for said that nobody announces a device. A device plugin registers seconds before the first pod can be
/// given something of it.
const FRESH: Duration = Duration::from_secs(2);

/// What the node's device plugins announce, as kubelet has told it last.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedDevices(Mutex<Announced>);

#[derive(Debug, Default)]
struct Announced {
    /// The resource of each device, by the device's id.
    resources: BTreeMap<String, String>,
    /// When kubelet was asked last, whether or not it answered.
    asked: Option<Instant>,
    /// It answered then.
    is_answered: bool,
}

impl AnnouncedDevices {
    /// Keeps what kubelet has told.
    pub(super) fn note(&self, all: &[ResourceDevices]) {
        let of = |devices: &ResourceDevices| {
            let resource = devices.resource.clone();
            devices.ids.clone().into_iter().map(move |id| (id, resource.clone()))
        };
        let resources = all.iter().flat_map(of).collect();
        *self.0.lock() = Announced { resources, asked: Some(Instant::now()), is_answered: true };
    }

    /// The resource of a device, and whether it is so new that nobody need be asked again. `must_be_told`: kubelet's silence does not
    /// count as news.
    fn resource_of(&self, id: &str, must_be_told: bool) -> (Option<String>, bool) {
        let announced = self.0.lock();
        let is_recent = announced.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        let is_fresh = is_recent && (announced.is_answered || !must_be_told);
        (announced.resources.get(id).cloned(), is_fresh)
    }

    /// A VF that a device plugin serves and that `is` the one, and its resource.
    fn vf(&self, is: impl Fn(PciAddr) -> bool) -> Option<(PciAddr, String)> {
        // Sysfs is read without the lock.
        let resources = self.0.lock().resources.clone();
        let mut vfs = resources.into_iter().filter_map(|(id, resource)| Some((id.parse().ok()?, resource)));
        vfs.find(|(address, _)| is(*address))
    }

    /// Kubelet has not answered: what it said before stands.
    fn note_silence(&self) {
        let mut announced = self.0.lock();
        announced.asked = Some(Instant::now());
        announced.is_answered = false;
    }
}

impl SriovServices {
    /// Refuses a device that kubelet allocates and has not given to the pod of this request: code 7 when it says so, 11 when it
    /// does not answer. A device that no device plugin is known to serve is anybody's, unless a pool of another allocator has it.
    pub(crate) fn must_be_given(&self, request: &AttachmentRequest<'_>, id: &str) -> Result<(), CniError> {
        match self.resource_that_serves(request, id)? {
            Some(resource) => self.must_be_given_of(request, id, &resource),
            None => Ok(()),
        }
    }

    /// The same for a device of a resource of ours.
    pub(crate) fn must_be_given_of(
        &self,
        request: &AttachmentRequest<'_>,
        id: &str,
        resource: &str,
    ) -> Result<(), CniError> {
        let refused = |why: &str| {
            let msg = format!("device {id} is of resource {resource:?}, which kubelet allocates, and {why}");
            CniError::new(Code::InvalidConfig, msg)
        };
        let pod = pod_of(request).map_err(|_| {
            refused("the call names no pod").with(
                "K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS name it; a Kubernetes runtime passes them",
            )
        })?;
        let given = self
            .resources_of(request, &pod)
            .map_err(|error| unknown(&format!("whether kubelet has given device {id} to the pod"), &error))?;
        let mut devices = given.containers.iter().flat_map(|container| &container.devices);
        if devices.any(|devices| devices.ids.iter().any(|own| own == id)) {
            return Ok(());
        }
        Err(refused(&format!("it has not given it to pod {pod}"))
            .with("have the pod ask for the resource (resources.limits), and leave the choice of the device to kubelet"))
    }

    /// Whether [`SriovServices::must_be_given`] may have to ask kubelet. On a node without one nothing is allocated.
    pub(crate) fn may_ask_kubelet(&self, network: &Sriov) -> bool {
        network.address().is_ok() && self.pod_resources.is_expected()
    }

    /// A VF of this PF that a device plugin serves, and its resource. Code 11 when kubelet does not answer: what it does not say is not
    /// taken for a no.
    pub(crate) fn served_vf_of(
        &self,
        request: &AttachmentRequest<'_>,
        pf: PciAddr,
    ) -> Result<Option<(PciAddr, String)>, CniError> {
        let first = self.sysfs.join("bus/pci/devices").join(pf.to_string()).join("virtfn0");
        if !self.pod_resources.is_expected() || !first.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let is_its = |vf: PciAddr| self.inventory.vf(vf).is_ok_and(|vf| vf.physical.address == pf);
        if let Some(known) = self.announced.vf(is_its) {
            return Ok(Some(known));
        }
        let asked = self.ask_what_is_announced(request.waiting.deadline.min(Instant::now() + ALLOCATABLE));
        asked.map_err(|error| unknown(&format!("whether a device plugin serves VFs of {pf}"), &error))?;
        Ok(self.announced.vf(is_its))
    }

    /// Whether a device plugin is known to serve this VF: then an ADD has it only where kubelet has given it to the pod.
    pub(crate) fn is_served(&self, request: &AttachmentRequest<'_>, vf: PciAddr) -> bool {
        matches!(self.resource_that_serves(request, &vf.to_string()), Ok(Some(_)))
    }

    /// The resource under which a device plugin is known to serve a device: by our own pools, or as kubelet tells. Code 11 for a VF
    /// that another allocator's pool has, while kubelet has not said who serves it and does not answer.
    pub(super) fn resource_that_serves(
        &self,
        request: &AttachmentRequest<'_>,
        id: &str,
    ) -> Result<Option<String>, CniError> {
        if !self.pod_resources.is_expected() {
            return Ok(None);
        }
        let pool = id.parse::<PciAddr>().ok().and_then(|address| self.pools.pool_of(address));
        if let Some(resource) = pool.as_ref().and_then(|pool| self.pools.resource(pool)) {
            return Ok(Some(resource));
        }
        let must_be_told = pool.is_some_and(|pool| self.pools.is_allocated_by_others(&pool));
        let (known, is_fresh) = self.announced.resource_of(id, must_be_told);
        if known.is_some() || is_fresh {
            return Ok(known);
        }
        match self.ask_what_is_announced(request.waiting.deadline.min(Instant::now() + ALLOCATABLE)) {
            Err(error) if must_be_told => {
                Err(unknown(&format!("whether a device plugin serves VF {id}"), &error))
            }
            // Kubelet that does not answer: what it said before stands.
            _ => Ok(self.announced.resource_of(id, must_be_told).0),
        }
    }

    /// Asks kubelet what the device plugins of the node announce.
    fn ask_what_is_announced(&self, limit: Instant) -> Result<Vec<ResourceDevices>, PodResourcesError> {
        let told = self.pod_resources.allocatable(limit);
        match &told {
            Ok(all) => self.announced.note(all),
            Err(error) => {
                self.announced.note_silence();
                tracing::debug!(%error, "what device plugins announce is not known");
            }
        }
        told
    }

    /// Asks kubelet whether another device plugin announces a VF of ours too.
    pub(crate) fn look_for_doubles(&self) {
        if let Ok(all) = self.ask_what_is_announced(Instant::now() + ALLOCATABLE) {
            self.pools.announced(&crate::device_offers::announced_resources(all));
        }
    }
}
