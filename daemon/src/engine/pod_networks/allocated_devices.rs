//! Which of the devices that kubelet has allocated to a pod its networks get (X10).

use fairlead_cni::{CniError, Code};
use fairlead_kube::PodRef;
use fairlead_kubelet::{PodName, ResourcesOfPod};

use crate::call::Waiting;
use crate::engine::Engine;

/// What kubelet has allocated to one pod, and what of it the networks of this ADD have already, the default one included.
#[derive(Debug, Default)]
pub(in crate::engine) struct AllocatedDevices {
    allocated: Option<ResourcesOfPod>,
    given: Vec<String>,
}

impl Engine {
    /// The next device of a definition's resource that no network of the pod has. `None`: the definition names no resource, or one that no
    /// device plugin serves.
    pub(super) fn next_device(
        &self,
        pod: &PodRef,
        resource: Option<&str>,
        devices: &mut AllocatedDevices,
        (container, waiting): (&str, &Waiting),
    ) -> Result<Option<String>, CniError> {
        let Some(resource) = resource else { return Ok(None) };
        let pod = PodName { namespace: pod.namespace.clone(), name: pod.name.clone() };
        let sriov = &self.core.kinds.sriov;
        let allocated = match devices.allocated.take() {
            Some(allocated) => allocated,
            None => sriov.allocated_to(&pod, resource, waiting.deadline)?,
        };
        let allocated = devices.allocated.insert(allocated);
        let held = (container, devices.given.as_slice());
        let id = sriov.next_of_definition(&pod, allocated, resource, (held, waiting.deadline))?;
        devices.given.extend(id.clone());
        Ok(id)
    }
}

/// The error of a network that was made without a device, though its definition names this resource: it may lack just that.
pub(in crate::engine) fn without_device(error: CniError, resource: Option<&str>) -> CniError {
    let Some(resource) = resource.filter(|_| error.code == Code::InvalidConfig) else { return error };
    let why = format!(
        "the definition names resource {resource:?}, of which kubelet has given the pod no device and which no device plugin serves: where the network needs one, start the device plugin, and have the pod's containers ask for it (resources.limits)"
    );
    let details = [error.details.as_str(), why.as_str()].into_iter().filter(|part| !part.is_empty());
    let details = details.collect::<Vec<_>>().join("; ");
    error.with(details)
}
