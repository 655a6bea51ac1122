//! Where the pod is, and which VF is near it. Used to rank the VFs of a pool, and to verify a VF that somebody else chose.
//!
//! Asked for by `numa` of our own type alone. A kubelet that does not answer is an error where it decides something, never "the pod
//! is nowhere".

use std::collections::{BTreeMap, BTreeSet};

use fairlead_cni::{CniError, Code};
use fairlead_host::Link;
use fairlead_host::topology::Topology;
use fairlead_kubelet::ResourcesOfPod;
use fairlead_sriov::numa::{self, Assigned, Choice, Locality, NumaPolicy, NumaRefusal};
use fairlead_sriov::{PciAddr, VfDevice};

use super::kubelet_devices::{pod_of, unknown};
use super::services::SriovServices;
use crate::engine::attachment_request::AttachmentRequest;

/// Where the pod is, and how firmly its VF must be there.
pub(super) struct PodNodes {
    policy: NumaPolicy,
    pod: BTreeSet<u32>,
    topology: Topology,
}

impl SriovServices {
    /// Where the pod is. The machine and kubelet are asked only where the answer decides, or tells, something.
    pub(super) fn pod_nodes(&self, request: &AttachmentRequest<'_>) -> Result<PodNodes, CniError> {
        self.pod_nodes_by(request, request.numa.unwrap_or(NumaPolicy::Any))
    }

    fn pod_nodes_by(
        &self,
        request: &AttachmentRequest<'_>,
        policy: NumaPolicy,
    ) -> Result<PodNodes, CniError> {
        if policy == NumaPolicy::Any {
            return Ok(PodNodes { policy, pod: BTreeSet::new(), topology: Topology::default() });
        }
        let topology = Topology::read(&self.sysfs).map_err(|e| {
            CniError::new(Code::Io, format!("the machine's NUMA nodes cannot be read: {e}"))
                .with("sysfs must be mounted where the daemon is")
        })?;
        Ok(PodNodes { policy, pod: self.nodes_of(request, &topology)?, topology })
    }

    /// The pod's nodes: those that the caller names, else those of what kubelet has given it. None where there is no kubelet, or
    /// the call is for no pod of it.
    fn nodes_of(
        &self,
        request: &AttachmentRequest<'_>,
        topology: &Topology,
    ) -> Result<BTreeSet<u32>, CniError> {
        if let Some(named) = named_nodes(request) {
            return Ok(named);
        }
        let Ok(pod) = pod_of(request) else { return Ok(BTreeSet::new()) };
        if !self.pod_resources.is_expected() {
            return Ok(BTreeSet::new());
        }
        let given = self.resources_of(request, &pod);
        let given = given.map_err(|error| unknown(&format!("on which NUMA node pod {pod} is"), &error))?;
        Ok(assigned(given).nodes(topology))
    }

    /// The pod's nodes, as far as they are known without asking anybody: those that the caller names, else those of what kubelet has given
    /// the pod, where it was asked for that already. None on a machine whose nodes can't be read.
    pub(crate) fn known_nodes(&self, request: &AttachmentRequest<'_>) -> BTreeSet<u32> {
        if let Some(named) = named_nodes(request) {
            return named;
        }
        let Some(given) = request.pod_resources.get() else { return BTreeSet::new() };
        Topology::read(&self.sysfs).map(|topology| assigned(given).nodes(&topology)).unwrap_or_default()
    }

    /// Which of these interfaces of the host is nearest to the pod, and how it lies. Where nobody says how firmly, the nearest is taken.
    pub(crate) fn nearest_interface(
        &self,
        request: &AttachmentRequest<'_>,
        interfaces: &[Link],
    ) -> Result<(usize, Locality), CniError> {
        let near = self.pod_nodes_by(request, request.numa.unwrap_or_default())?;
        let node = |link: &Link| self.inventory.node_of(&link.name);
        let nodes = interfaces.iter().map(node).collect::<Result<Vec<_>, _>>().map_err(|e| {
            CniError::new(Code::Io, format!("on which NUMA node the masters are is not known: {e}"))
                .with("sysfs must be mounted where the daemon is")
        })?;
        let order = numa::order(near.policy, &near.pod, &nodes, &near.topology);
        let order = order.map_err(|e| {
            CniError::new(Code::InvalidConfig, format!("of several masters none can be taken: {e}"))
                .with(e.remedy())
        })?;
        let nearest = order.into_iter().next().map(|choice| (choice.at, choice.locality));
        nearest.ok_or_else(|| CniError::new(Code::Internal, "there is no master to choose from"))
    }

    /// Logs and counts how the VF that is taken lies to its pod.
    pub(super) fn report_locality(
        &self,
        request: &AttachmentRequest<'_>,
        pci: PciAddr,
        near: Option<&Locality>,
    ) {
        let Some(near) = near else { return };
        tracing::info!(container = %request.key.container, ifname = %request.key.ifname, network = %request.key.network, %pci, near = %near,
            "a VF was chosen for a pod");
        self.calls.near(near.label(), near.distance());
    }

    /// A VF that somebody else has chosen for the pod: how it lies, if it may be taken. `strict` refuses; for the others it
    /// is only told, and what cannot be asked is passed over.
    pub(super) fn verify_locality(
        &self,
        request: &AttachmentRequest<'_>,
        device: &VfDevice,
    ) -> Result<Option<Locality>, CniError> {
        let Some(policy) = request.numa.filter(|policy| *policy != NumaPolicy::Any) else { return Ok(None) };
        let near = match self.pod_nodes(request) {
            Err(error) if policy == NumaPolicy::Preferred => {
                tracing::warn!(pci = %device.address, %error, "how a VF lies to its pod is not known");
                return Ok(None);
            }
            near => near?,
        };
        let verified = numa::verify(policy, &near.pod, device.numa_node, &near.topology);
        let locality = verified.map_err(|e| {
            let msg = format!("VF {} was given to the pod, and {e}", device.address);
            CniError::new(Code::InvalidConfig, msg).with(e.remedy())
        })?;
        Ok(Some(locality))
    }
}

impl PodNodes {
    /// A rank for every node that the pool's VFs are on, the nearest first; equally near ones have the same. A node that
    /// is not in it must not be taken from.
    pub(super) fn ranks(
        &self,
        nodes: &BTreeSet<Option<u32>>,
    ) -> Result<BTreeMap<Option<u32>, u32>, NumaRefusal> {
        let nodes: Vec<Option<u32>> = nodes.iter().copied().collect();
        let order = numa::order(self.policy, &self.pod, &nodes, &self.topology)?;
        let (mut ranks, mut rank) = (BTreeMap::new(), 0);
        for pair in order.iter().zip(std::iter::once(None).chain(order.iter().map(Some))) {
            let (choice, before): (&Choice, Option<&Choice>) = pair;
            rank += u32::from(before.is_some_and(|before| !equally_near(&before.locality, &choice.locality)));
            ranks.extend(nodes.get(choice.at).map(|node| (*node, rank)));
        }
        Ok(ranks)
    }

    /// How a VF on this node lies.
    pub(super) fn locality(&self, node: Option<u32>) -> Option<Locality> {
        numa::verify(self.policy, &self.pod, node, &self.topology).ok()
    }
}

fn equally_near(one: &Locality, other: &Locality) -> bool {
    match (one, other) {
        (Locality::Remote { distance: one, .. }, Locality::Remote { distance: other, .. }) => one == other,
        (one, other) => one.label() == other.label(),
    }
}

/// The nodes that the caller names, if it names any.
fn named_nodes(request: &AttachmentRequest<'_>) -> Option<BTreeSet<u32>> {
    let named = &request.conf.args_cni_numa_nodes;
    (!named.is_empty()).then(|| named.iter().copied().collect())
}

/// What kubelet has given the pod, of all its containers.
fn assigned(given: &ResourcesOfPod) -> Assigned {
    let of_containers = given.containers.iter();
    Assigned {
        cpus: of_containers.clone().flat_map(|c| &c.cpus).chain(&given.cpus).copied().collect(),
        memory_nodes: of_containers
            .clone()
            .flat_map(|c| &c.memory_nodes)
            .chain(&given.memory_nodes)
            .copied()
            .collect(),
        device_nodes: of_containers.flat_map(|c| &c.devices).flat_map(|d| &d.nodes).copied().collect(),
    }
}
