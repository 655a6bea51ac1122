//! Which VF is near the pod: where the pod is, from whoever knows it, and what that means for the VFs that could be
//! taken, or for the one that somebody else has chosen.
//!
//! Asked for by `numa` of our own type alone. A kubelet that does not tell is an error where it decides something, never "the pod
//! is nowhere".

use std::collections::{BTreeMap, BTreeSet};

use fairlead_cni::{CniError, Code};
use fairlead_host::topology::Topology;
use fairlead_kubelet::ResourcesOfPod;
use fairlead_sriov::VfDevice;
use fairlead_sriov::numa::{self, Assigned, Choice, Locality, NumaPolicy, NumaRefusal};

use super::job::Job;
use super::{Engine, granted};
use crate::networks::Network;

/// Where the pod is, and how firmly its VF must be there.
pub(super) struct Nearness {
    policy: NumaPolicy,
    pod: BTreeSet<u32>,
    topology: Topology,
}

impl Engine {
    /// Where the pod is. The machine and kubelet are asked only where the answer decides, or tells, something.
    pub(super) fn nearness(&self, job: &Job) -> Result<Nearness, CniError> {
        let policy = job.numa.unwrap_or(NumaPolicy::Any);
        if policy == NumaPolicy::Any {
            return Ok(Nearness { policy, pod: BTreeSet::new(), topology: Topology::default() });
        }
        let topology = Topology::read(&self.sysfs).map_err(|e| {
            CniError::new(Code::Io, format!("the machine's NUMA nodes cannot be read: {e}"))
                .with("sysfs must be mounted where the daemon is")
        })?;
        Ok(Nearness { policy, pod: self.nodes_of(job, &topology)?, topology })
    }

    /// The pod's nodes: those that the caller names, else those of what kubelet has given it. None where there is no kubelet, or
    /// the call is for no pod of it.
    fn nodes_of(&self, job: &Job, topology: &Topology) -> Result<BTreeSet<u32>, CniError> {
        if !job.conf.args_cni_numa_nodes.is_empty() {
            return Ok(job.conf.args_cni_numa_nodes.iter().copied().collect());
        }
        let Ok(pod) = granted::pod_of(job) else { return Ok(BTreeSet::new()) };
        if !self.pod_resources.is_expected() {
            return Ok(BTreeSet::new());
        }
        let given = self.given_to(job, &pod);
        let given =
            given.map_err(|error| granted::unknown(&format!("on which NUMA node pod {pod} is"), &error))?;
        Ok(assigned(given).nodes(topology))
    }

    /// How the VF that is taken lies to its pod, in the log and the metric.
    pub(super) fn tell_nearness(&self, job: &Job, network: &Network) {
        let Some((near, vf)) = job.near.as_ref().zip(network.vf()) else { return };
        let pci = vf.address().map(|address| address.to_string()).unwrap_or_default();
        tracing::info!(container = %job.key.container, ifname = %job.key.ifname, network = %job.key.network, pci, near = %near,
            "a VF was chosen for a pod");
        self.calls.near(near.label(), near.distance());
    }

    /// A VF that somebody else has chosen for the pod: how it lies, if it may be taken. `strict` refuses; for the others it
    /// is only told, and what cannot be asked is passed over.
    pub(super) fn verify_nearness(
        &self,
        job: &Job,
        vf: &VfDevice,
    ) -> Result<Option<Locality>, CniError> {
        let Some(policy) = job.numa.filter(|policy| *policy != NumaPolicy::Any) else { return Ok(None) };
        let near = match self.nearness(job) {
            Err(error) if policy == NumaPolicy::Preferred => {
                tracing::warn!(pci = %vf.address, %error, "how a VF lies to its pod is not known");
                return Ok(None);
            }
            near => near?,
        };
        let verified = numa::verify(policy, &near.pod, vf.numa_node, &near.topology);
        let locality = verified.map_err(|e| {
            let msg = format!("VF {} was given to the pod, and {e}", vf.address);
            CniError::new(Code::InvalidConfig, msg).with(e.remedy())
        })?;
        Ok(Some(locality))
    }
}

impl Nearness {
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
