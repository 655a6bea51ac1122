//! Whether kubelet has given the pod a device that its network names: a device that a device plugin serves is the pod's that
//! kubelet gave it to, whatever a network's configuration says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_kubelet::{PodResourcesError, ResourceDevices};
use fairlead_sriov::PciAddr;
use parking_lot::Mutex;

use super::config::Sriov;
use super::kubelet_devices::{pod_of, unknown};
use super::services::SriovServices;
use crate::engine::attachment_request::AttachmentRequest;

/// Kubelet may take so long to tell what device plugins announce and what pods have.
const ALLOCATABLE: Duration = Duration::from_millis(500);

/// So long it is taken for said that nobody announces a device. A device plugin registers seconds before the first pod can be
/// given something of it.
const FRESH: Duration = Duration::from_secs(2);

/// So long a device that is announced no more stays its resource's: twice the longest pause after which kubelet starts a device
/// plugin that crashes.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What the node's device plugins announce and what pods have of it, as kubelet has told it last.
///
/// Kubelet tells of no device whose plugin is away, as in an upgrade, that is unhealthy, or whose plugin has not registered since
/// kubelet's own start. A pod that was given it has it all the same, and kubelet lists it as the pod's. So both are asked for, and what
/// is announced no more is remembered for a while.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedDevices(Mutex<Announced>);

/// A device by its id and its resource: plugins that count their devices have the same ids.
type Device = (String, String);

#[derive(Debug, Default)]
struct Announced {
    /// What device plugins announce, or did lately, with when the first answer came that did not have it any more; `None`: the last one
    /// had it.
    devices: BTreeMap<Device, Option<Instant>>,
    /// What pods have.
    given: BTreeSet<Device>,
    /// When kubelet was asked last, whether or not it answered.
    asked: Option<Instant>,
    /// It answered then.
    is_answered: bool,
}

impl Announced {
    fn is_fresh(&self, must_be_told: bool) -> bool {
        let is_recent = self.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        is_recent && (self.is_answered || !must_be_told)
    }

    /// All that is known: what is announced, or was lately, and then what pods have.
    fn all(&self) -> impl Iterator<Item = &Device> {
        self.devices.keys().chain(&self.given)
    }

    /// The device of this id that is announced, or was announced last.
    fn announced_last(&self, id: &str) -> Option<(&Device, &Option<Instant>)> {
        let of_id = self.devices.range(from(id)..).take_while(|(device, _)| device.0 == id);
        of_id.max_by_key(|(_, absent_since)| (absent_since.is_none(), **absent_since))
    }
}

impl AnnouncedDevices {
    /// Keeps what device plugins announce `now`.
    fn note_announced(&self, all: &[ResourceDevices], now: Instant) {
        let mut known = self.0.lock();
        for absent_since in known.devices.values_mut() {
            absent_since.get_or_insert(now);
        }
        known.devices.extend(each_of(all).map(|device| (device, None)));
        let is_remembered = |since: Instant| now.duration_since(since) < REMEMBERED;
        known.devices.retain(|_, absent_since| absent_since.is_none_or(is_remembered));
    }

    /// Keeps what pods have.
    fn note_given(&self, all: &[ResourceDevices]) {
        let given = each_of(all).collect();
        self.0.lock().given = given;
    }

    /// Kubelet was asked. Where it has not answered, what it said before stands.
    fn note_asked(&self, is_answered: bool) {
        let mut known = self.0.lock();
        (known.asked, known.is_answered) = (Some(Instant::now()), is_answered);
    }

    /// The resource of a device that is announced, was lately, or is a pod's.
    fn resource_of(&self, id: &str) -> Option<String> {
        let known = self.0.lock();
        let mut given = known.given.range(from(id)..).take_while(|device| device.0 == id);
        let device = given.next().or_else(|| known.announced_last(id).map(|(device, _)| device));
        device.map(|(_, resource)| resource.clone())
    }

    /// Whether nobody need be asked of a device: it is announced, or the last answer is new. `must_be_told`: kubelet's silence does not
    /// count as an answer.
    fn is_settled(&self, id: &str, must_be_told: bool) -> bool {
        let known = self.0.lock();
        let is_announced = known.announced_last(id).is_some_and(|(_, absent_since)| absent_since.is_none());
        is_announced || known.is_fresh(must_be_told)
    }

    /// Whether kubelet's last answer is new.
    pub(super) fn is_told(&self) -> bool {
        self.0.lock().is_fresh(true)
    }

    /// Whether devices of a resource are announced, were lately, or are pods'.
    pub(super) fn has(&self, resource: &str) -> bool {
        self.0.lock().all().any(|(_, of)| of == resource)
    }

    /// Whether a VF that `is` one of those meant is announced, or was lately.
    fn announces(&self, is: impl Fn(PciAddr) -> bool) -> bool {
        let ids: Vec<String> = self.0.lock().devices.keys().map(|(id, _)| id.clone()).collect();
        ids.iter().any(|id| id.parse::<PciAddr>().is_ok_and(&is))
    }

    /// A VF that a device plugin serves and that `is` the one, and its resource.
    fn vf(&self, is: impl Fn(PciAddr) -> bool) -> Option<(PciAddr, String)> {
        // Sysfs is read without the lock.
        let all: Vec<Device> = self.0.lock().all().cloned().collect();
        let mut vfs = all.into_iter().filter_map(|(id, resource)| Some((id.parse().ok()?, resource)));
        vfs.find(|(address, _)| is(*address))
    }
}

/// The least device of this id.
fn from(id: &str) -> Device {
    (id.to_owned(), String::new())
}

fn each_of(all: &[ResourceDevices]) -> impl Iterator<Item = Device> {
    all.iter().flat_map(|devices| devices.ids.iter().map(move |id| (id.clone(), devices.resource.clone())))
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
    /// that another allocator's pool has, while kubelet has not said who serves it and does not answer, or tells of no VF of that pool.
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
        let of_others = pool.filter(|pool| self.pools.is_allocated_by_others(pool));
        let has_plugin =
            |pool: &String| self.announced.announces(|vf| self.pools.pool_of(vf).as_ref() == Some(pool));
        let is_settled =
            of_others.as_ref().is_none_or(has_plugin) && self.announced.is_settled(id, of_others.is_some());
        let mut silence = None;
        if !is_settled {
            let limit = request.waiting.deadline.min(Instant::now() + ALLOCATABLE);
            silence = self.ask_what_is_announced(limit).err();
        }
        // Kubelet that does not answer: what it said before stands.
        let known = self.announced.resource_of(id);
        match (of_others, silence) {
            _ if known.is_some() => Ok(known),
            (Some(_), Some(error)) => {
                Err(unknown(&format!("whether a device plugin serves VF {id}"), &error))
            }
            (Some(pool), None) if !has_plugin(&pool) => Err(without_plugin(id, &pool)),
            _ => Ok(None),
        }
    }

    /// Asks kubelet what the device plugins of the node announce and what pods have; answers the former.
    pub(super) fn ask_what_is_announced(
        &self,
        limit: Instant,
    ) -> Result<Vec<ResourceDevices>, PodResourcesError> {
        let told = self.pod_resources.allocatable(limit).and_then(|all| {
            self.announced.note_announced(&all, Instant::now());
            self.announced.note_given(&self.pod_resources.allocated(limit)?);
            Ok(all)
        });
        self.announced.note_asked(told.is_ok());
        if let Err(error) = &told {
            tracing::debug!(%error, "what device plugins announce, or what pods have of it, is not known");
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

/// That kubelet tells of no VF of another allocator's pool is not taken for a no: its device plugin is away.
fn without_plugin(id: &str, pool: &str) -> CniError {
    let msg = format!(
        "whether a device plugin serves VF {id} is not known: pool {pool:?} is another allocator's, and no device plugin announces a VF of it to kubelet"
    );
    CniError::new(Code::TryAgain, msg).with(
        "the runtime will try again; if it stays so, start that device plugin and have its configuration select the pool's VFs, or take allocator: external out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RADIO: &str = "intel.com/radio";

    fn devices(resource: &str, ids: &[&str]) -> ResourceDevices {
        ResourceDevices {
            resource: resource.to_owned(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..ResourceDevices::default()
        }
    }

    fn resources(known: &AnnouncedDevices) -> [Option<String>; 2] {
        ["a", "b"].map(|id| known.resource_of(id))
    }

    #[test]
    fn a_device_that_is_announced_no_more_is_remembered_for_a_while_and_known_for_as_long_as_a_pod_has_it() {
        let (known, begin, radio) = (AnnouncedDevices::default(), Instant::now(), Some(RADIO.to_owned()));
        known.note_announced(&[devices(RADIO, &["a", "b"])], begin);
        known.note_given(&[devices(RADIO, &["a"])]);
        // However long nobody asked: its absence counts from the first answer without it.
        let gone = begin + 10 * REMEMBERED;
        known.note_announced(&[], gone);
        known.note_announced(&[], gone + REMEMBERED - Duration::from_millis(1));
        assert_eq!(resources(&known), [radio.clone(), radio.clone()]);
        known.note_announced(&[], gone + REMEMBERED);
        assert_eq!(resources(&known), [radio, None]);
        known.note_given(&[]);
        assert_eq!(resources(&known), [None, None]);
    }

    #[test]
    fn resources_whose_plugins_count_their_devices_are_told_apart() {
        let (known, other) = (AnnouncedDevices::default(), "rdma/hca_b");
        known.note_announced(&[devices(RADIO, &["0", "1"]), devices(other, &["0", "1"])], Instant::now());
        assert!(known.has(RADIO) && known.has(other));
        let given = AnnouncedDevices::default();
        given.note_given(&[devices(RADIO, &["0"]), devices(other, &["0"])]);
        assert!(given.has(RADIO) && given.has(other) && !given.has("rdma/hca_c"));
    }

    #[test]
    fn a_device_that_is_announced_again_is_as_new_and_of_the_resource_that_has_it_now() {
        let (known, begin, core) = (AnnouncedDevices::default(), Instant::now(), Some("a/core".to_owned()));
        known.note_announced(&[devices(RADIO, &["a", "b"])], begin);
        known.note_announced(&[], begin);
        assert!(!known.is_settled("a", true), "kubelet is asked of what is only remembered");
        known.note_announced(&[devices("a/core", &["a", "b"])], begin + REMEMBERED / 2);
        assert!(known.is_settled("a", true));
        known.note_announced(&[devices("a/core", &["a"])], begin + REMEMBERED);
        assert_eq!(resources(&known), [core.clone(), core]);
    }
}
