//! Which of the devices that kubelet has allocated to a pod its networks get (X10).

use fairlead_cni::CniError;
use fairlead_kube::PodRef;
use fairlead_kubelet::{PodName, ResourcesOfPod};

use crate::call::Waiting;
use crate::engine::Engine;
use crate::store::Attachment;

/// What kubelet has allocated to one pod, and what of it the networks of this ADD have already.
#[derive(Debug, Default)]
pub(super) struct AllocatedDevices {
    allocated: Option<ResourcesOfPod>,
    given: Vec<String>,
}

impl Engine {
    /// The next device of a resource that no network of the pod has.
    pub(super) fn next_device(
        &self,
        pod: &PodRef,
        resource: &str,
        devices: &mut AllocatedDevices,
        (first, waiting): (&Attachment, &Waiting),
    ) -> Result<String, CniError> {
        self.next_device_of(pod, resource, devices, (&first.key.container, waiting))
    }

    /// The same for a container that has no attachment yet.
    pub(super) fn next_device_of(
        &self,
        pod: &PodRef,
        resource: &str,
        devices: &mut AllocatedDevices,
        (container, waiting): (&str, &Waiting),
    ) -> Result<String, CniError> {
        let pod = PodName { namespace: pod.namespace.clone(), name: pod.name.clone() };
        let sriov = &self.core.kinds.sriov;
        let allocated = match devices.allocated.take() {
            Some(allocated) => allocated,
            None => sriov.allocated_to(&pod, resource, waiting.deadline)?,
        };
        let allocated = devices.allocated.insert(allocated);
        // The default network, too, may have one of them.
        let held = (container, devices.given.as_slice());
        let id = sriov.next_allocated(&pod, allocated, resource, held)?;
        devices.given.push(id.clone());
        Ok(id)
    }
}
