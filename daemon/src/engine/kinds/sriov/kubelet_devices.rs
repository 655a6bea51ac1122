//! VFs that kubelet has allocated to the pod: where a configuration names a resource instead of a device, kubelet is asked what
//! the pod has, and every attachment of it gets the next one.

use std::time::Instant;

use fairlead_cni::{CniError, Code};
use fairlead_kubelet::{NoDevice, PodName, PodResourcesError, ResourcesOfPod, next_device};
use fairlead_sriov::PciAddr;

use super::config::{Device, Sriov};
use super::services::SriovServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::store::Phase;

impl SriovServices {
    /// The configuration with the VF that it is about: for a resource the next of the pod's devices. Code 11 when kubelet does
    /// not answer, 7 when the pod has none left.
    pub(super) fn with_allocated_device(
        &self,
        request: &AttachmentRequest<'_>,
        network: Sriov,
    ) -> Result<Sriov, CniError> {
        match &network.device {
            Device::Known(address) => {
                self.must_be_given(request, &address.to_string())?;
                Ok(network)
            }
            Device::OfResource(resource) => {
                let address = self.allocated_by_kubelet(request, resource)?;
                Ok(network.with_vf(address))
            }
            Device::OfPool(pool) => match self.pools.resource(pool) {
                // Kubelet allocates the VFs of this pool: drawing one could take what another pod was given.
                Some(resource) => {
                    let address = self.allocated_by_kubelet(request, &resource)?;
                    Ok(Sriov { has_access: true, ..network.with_vf(address) })
                }
                None => Ok(network),
            },
        }
    }

    /// What kubelet has allocated to the pod of a request. It did that before the sandbox was made, so it is asked once.
    pub(super) fn resources_of<'j>(
        &self,
        request: &'j AttachmentRequest<'_>,
        pod: &PodName,
    ) -> Result<&'j ResourcesOfPod, PodResourcesError> {
        if let Some(told) = request.pod_resources.get() {
            return Ok(told);
        }
        let told = self.pod_resources.pod(pod, request.waiting.deadline)?;
        Ok(request.pod_resources.get_or_init(|| told))
    }

    /// The first device of a resource that kubelet has allocated to the pod and no attachment of its sandbox holds. The caller has
    /// locked the container. One that an older sandbox of the pod still has is waited for when it is reserved.
    pub(super) fn allocated_by_kubelet(
        &self,
        request: &AttachmentRequest<'_>,
        resource: &str,
    ) -> Result<PciAddr, CniError> {
        let (pod, id) = self.next_of_pod(request, resource)?;
        id.parse().map_err(|e| {
            CniError::new(Code::InvalidConfig, format!("pod {pod}, resource {resource:?}: {e}"))
                .with("type sriov takes resources whose devices are VFs")
        })
    }

    /// The same for devices of any kind, with the pod that the request is for.
    pub(crate) fn next_of_pod(
        &self,
        request: &AttachmentRequest<'_>,
        resource: &str,
    ) -> Result<(PodName, String), CniError> {
        let pod = pod_of(request)?;
        let allocated = self.resources_of(request, &pod).map_err(|error| device_unknown(resource, &error))?;
        let id = self.next_allocated(&pod, allocated, resource, (&request.key.container, &[]));
        Ok((pod, id.map_err(|error| none(&error))?))
    }

    /// The same for a definition that stands for the resource; `None`: no device plugin serves it, and the network is made without a
    /// device, as Multus makes it. Marker programs of bridges only count such a resource in the node's capacity.
    pub(crate) fn next_of_definition(
        &self,
        pod: &PodName,
        allocated: &ResourcesOfPod,
        resource: &str,
        (held, deadline): ((&str, &[String]), Instant),
    ) -> Result<Option<String>, CniError> {
        let error = match self.next_allocated(pod, allocated, resource, held) {
            Ok(id) => return Ok(Some(id)),
            Err(error) => error,
        };
        // Of a resource that is served the pod has to ask for one.
        let without =
            matches!(error, NoDevice::NotAllocated { .. }) && !self.is_announced(resource, deadline)?;
        if without { Ok(None) } else { Err(none(&error)) }
    }

    /// Whether a device plugin serves devices of this resource, also while it is away. Code 11 when kubelet does not answer.
    fn is_announced(&self, resource: &str, deadline: Instant) -> Result<bool, CniError> {
        if !self.announced.is_told() {
            self.ask_what_is_announced(deadline).map_err(|error| {
                unknown(&format!("whether a device plugin serves resource {resource:?}"), &error)
            })?;
        }
        Ok(self.announced.has(resource))
    }

    /// The first device of a resource, of those that kubelet has allocated to a pod, that neither an attachment of the container
    /// holds nor another one of this ADD has been `given`.
    fn next_allocated(
        &self,
        pod: &PodName,
        allocated: &ResourcesOfPod,
        resource: &str,
        (container, given): (&str, &[String]),
    ) -> Result<String, NoDevice> {
        let of_records = self.store.all().into_iter().filter_map(|a| {
            // A VF on its way back may be taken again: reserving it waits for that.
            let holds = a.key.container == container && matches!(a.phase, Phase::Adding | Phase::Attached);
            let device = a.vf().map(|vf| vf.address.to_string());
            device.or_else(|| a.pool_port().map(str::to_owned)).filter(|_| holds)
        });
        let held: Vec<String> = of_records.chain(given.iter().cloned()).collect();
        next_device(pod, allocated, resource, |id| held.iter().any(|held| held == id))
    }

    /// What kubelet has allocated to a pod. `resource`: what the caller wants of it, for the error.
    pub(crate) fn allocated_to(
        &self,
        pod: &PodName,
        resource: &str,
        deadline: Instant,
    ) -> Result<ResourcesOfPod, CniError> {
        self.pod_resources.pod(pod, deadline).map_err(|error| device_unknown(resource, &error))
    }
}

fn device_unknown(resource: &str, error: &PodResourcesError) -> CniError {
    unknown(&format!("which device of resource {resource:?} the pod has"), error)
}

/// The pod that a call is for.
pub(super) fn pod_of(request: &AttachmentRequest<'_>) -> Result<PodName, CniError> {
    let arg = |key: &str| {
        request.args.get(key).filter(|value| !value.is_empty()).map(str::to_owned).ok_or_else(|| {
            CniError::new(Code::BadEnvironment, format!("\"resourceName\" needs {key} in CNI_ARGS"))
                .with("a Kubernetes runtime passes it; elsewhere give \"deviceID\"")
        })
    };
    Ok(PodName { namespace: arg("K8S_POD_NAMESPACE")?, name: arg("K8S_POD_NAME")? })
}

/// What kubelet has not said: that passes, and is never taken for "it has none".
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
