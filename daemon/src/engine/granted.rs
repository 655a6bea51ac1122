//! VFs that kubelet has given the pod: where a configuration names a resource instead of a device, kubelet
//! is asked what the pod has, and every attachment of it gets the next one.

use fairlead_cni::{CniError, Code};
use fairlead_kubelet::{NoDevice, PodName, PodResourcesError, ResourcesOfPod, next_device};
use fairlead_sriov::PciAddr;

use super::Engine;
use super::job::Job;
use crate::networks::Network;
use crate::networks::sriov::{Device, Sriov};
use crate::store::Phase;

impl Engine {
    /// The network with the VF that it is about: for a resource the next of the pod's devices. Code 11 when kubelet does
    /// not tell, 7 when the pod has none left.
    pub(super) fn with_device(&self, job: &Job, network: Network) -> Result<Network, CniError> {
        match &network {
            Network::Sriov(Sriov { device: Device::OfResource(resource), .. }) => {
                let address = self.given_by_kubelet(job, resource)?;
                Ok(network.with_vf(address))
            }
            Network::Sriov(Sriov { device: Device::OfPool(pool), .. }) => match self.pools.resource(pool) {
                Some(resource) => {
                    let address = self.given_by_kubelet(job, &resource)?;
                    match network.with_vf(address) {
                        Network::Sriov(given) => Ok(Network::Sriov(Sriov { has_access: true, ..given })),
                        other => Ok(other),
                    }
                }
                None => Ok(network),
            },
            _ => Ok(network),
        }
    }

    /// The network with the VF that is on record for it.
    pub(super) fn with_recorded_device(&self, job: &Job, network: Network) -> Result<Network, CniError> {
        match &network {
            Network::Sriov(Sriov { device: Device::OfResource(of) | Device::OfPool(of), .. }) => {
                let recorded = self.store.find(&job.key).and_then(|a| a.vf().map(|f| f.address));
                let address = recorded.ok_or_else(|| {
                    let told = format!("no VF of {of:?} is on record for {:?}", job.key.ifname);
                    CniError::new(Code::Changed, told).with("delete the pod and make it anew")
                })?;
                Ok(network.with_vf(address))
            }
            _ => Ok(network),
        }
    }

    /// What kubelet has given the pod of a call.
    pub(super) fn given_to<'j>(
        &self,
        job: &'j Job,
        pod: &PodName,
    ) -> Result<&'j ResourcesOfPod, PodResourcesError> {
        if let Some(told) = job.given.get() {
            return Ok(told);
        }
        let told = self.pod_resources.pod(pod, job.deadline)?;
        Ok(job.given.get_or_init(|| told))
    }

    /// The first device of a resource that kubelet has given the pod and no attachment of its sandbox holds. The caller has
    /// claimed the container. One that an older sandbox of the pod still has is waited for when it is reserved.
    pub(super) fn given_by_kubelet(&self, job: &Job, resource: &str) -> Result<PciAddr, CniError> {
        let pod = pod_of(job)?;
        let given = self.given_to(job, &pod).map_err(|error| {
            unknown(&format!("which device of resource {resource:?} the pod has"), &error)
        })?;
        let held: Vec<String> = self
            .store
            .all()
            .iter()
            .filter(|a| a.key.container == job.key.container)
            .filter(|a| matches!(a.phase, Phase::Adding | Phase::Attached))
            .filter_map(|a| a.vf().map(|f| f.address.to_string()))
            .collect();
        let id = next_device(&pod, given, resource, |id| held.iter().any(|held| held == id));
        let id = id.map_err(|e| none(&e))?;
        id.parse().map_err(|e| {
            CniError::new(Code::InvalidConfig, format!("pod {pod}, resource {resource:?}: {e}"))
                .with("type sriov takes resources whose devices are VFs")
        })
    }
}

/// The pod that a call is for.
pub(super) fn pod_of(job: &Job) -> Result<PodName, CniError> {
    let arg = |key: &str| {
        job.args.get(key).filter(|value| !value.is_empty()).map(str::to_owned).ok_or_else(|| {
            CniError::new(Code::BadEnvironment, format!("\"resourceName\" needs {key} in CNI_ARGS"))
                .with("a Kubernetes runtime passes it; elsewhere give \"deviceID\"")
        })
    };
    Ok(PodName { namespace: arg("K8S_POD_NAMESPACE")?, name: arg("K8S_POD_NAME")? })
}

/// What kubelet has not told: that passes, and is never taken for "it has none".
pub(super) fn unknown(what: &str, error: &PodResourcesError) -> CniError {
    let remedy = match error {
        PodResourcesError::UnknownPod(_) | PodResourcesError::Ambiguous(_) => {
            "the runtime will try again; pods that kubelet has not started need \"deviceID\""
        }
        _ => {
            "the runtime will try again; if it stays so: does kubelet run, and is its directory what the key kubelet.dir says?"
        }
    };
    CniError::new(Code::TryAgain, format!("{what} is not known: {error}")).with(remedy)
}

fn none(error: &NoDevice) -> CniError {
    CniError::new(Code::InvalidConfig, error.to_string()).with(
        "have the pod's containers ask for as many of the resource (resources.limits) as the pod has interfaces of it",
    )
}
