//! Which of the devices that kubelet has allocated to a pod an attachment gets (X10). Pure.
//!
//! The order is that of the runtimes and of the meta plugins: container by container, the devices of each sorted. Every
//! attachment takes the next device that no other one holds. The caller says which are held, from what is on record; so a
//! repeated or a failed ADD changes nothing.

use super::pod_resources::{PodName, ResourcesOfPod};

/// Why a pod has no device for an attachment (D23).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoDevice {
    /// Kubelet has allocated no device of the resource to the pod.
    #[error("pod {pod} has no device of resource {resource:?}: {}", resources_text(.others))]
    NotAllocated {
        /// The pod that asks.
        pod: PodName,
        /// The resource that it asks for.
        resource: String,
        /// The resources that kubelet has allocated devices of.
        others: Vec<String>,
    },
    /// The pod has devices of the resource, and its other attachments hold them all.
    #[error("pod {pod} has {allocated} of resource {resource:?}, and its other interfaces have all of them")]
    AllTaken {
        /// The pod that asks.
        pod: PodName,
        /// The resource that it asks for.
        resource: String,
        /// How many devices of the resource the pod has.
        allocated: usize,
    },
}

fn resources_text(others: &[String]) -> String {
    match others {
        [] => "kubelet has given it no device at all".to_owned(),
        others => format!("kubelet has given it devices of {}", others.join(", ")),
    }
}

/// The first of the pod's devices of `resource` that none of its attachments holds.
///
/// # Errors
/// When there is none.
pub fn next_device(
    pod: &PodName,
    allocated: &ResourcesOfPod,
    resource: &str,
    held: impl Fn(&str) -> bool,
) -> Result<String, NoDevice> {
    let mut ids: Vec<&str> = Vec::new();
    for container in &allocated.containers {
        let of_resource = container.devices.iter().filter(|devices| devices.resource == resource);
        let mut of_container: Vec<&str> =
            of_resource.flat_map(|devices| &devices.ids).map(String::as_str).collect();
        of_container.sort_unstable();
        ids.extend(of_container);
    }
    if let Some(id) = ids.iter().find(|id| !held(id)) {
        return Ok((*id).to_owned());
    }
    let (pod, resource) = (pod.clone(), resource.to_owned());
    if !ids.is_empty() {
        return Err(NoDevice::AllTaken { pod, resource, allocated: ids.len() });
    }
    let mut others: Vec<String> = allocated
        .containers
        .iter()
        .flat_map(|c| &c.devices)
        .map(|devices| devices.resource.clone())
        .collect();
    // Kubelet lists a resource once for each NUMA node: the message names it once.
    others.sort_unstable();
    others.dedup();
    Err(NoDevice::NotAllocated { pod, resource, others })
}

#[cfg(test)]
mod tests {
    use super::super::pod_resources::{ContainerResources, ResourceDevices};
    use super::*;

    fn devices(resource: &str, ids: &[&str]) -> ResourceDevices {
        ResourceDevices {
            resource: resource.to_owned(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..ResourceDevices::default()
        }
    }

    fn pod(containers: &[&[ResourceDevices]]) -> ResourcesOfPod {
        let containers = containers
            .iter()
            .map(|devices| ContainerResources { devices: devices.to_vec(), ..ContainerResources::default() });
        ResourcesOfPod { containers: containers.collect(), ..ResourcesOfPod::default() }
    }

    fn name() -> PodName {
        PodName { namespace: "ran".into(), name: "du-0".into() }
    }

    /// The devices that one ADD after the other gets, until none is left.
    fn in_turn(pod: &ResourcesOfPod, resource: &str) -> Vec<String> {
        let mut held: Vec<String> = Vec::new();
        while let Ok(id) = next_device(&name(), pod, resource, |id| held.iter().any(|h| h == id)) {
            held.push(id);
        }
        held
    }

    #[test]
    fn x10_every_attachment_gets_the_next_device_container_by_container_and_sorted_in_each() {
        let pod = pod(&[
            &[
                devices("intel.com/radio", &["0000:3b:02.1", "0000:3b:02.0"]),
                devices("intel.com/core", &["0000:af:10.0"]),
            ],
            &[devices("intel.com/radio", &["0000:3b:01.7"])],
        ]);
        assert_eq!(in_turn(&pod, "intel.com/radio"), ["0000:3b:02.0", "0000:3b:02.1", "0000:3b:01.7"]);
        assert_eq!(in_turn(&pod, "intel.com/core"), ["0000:af:10.0"]);
    }

    #[test]
    fn x10_devices_that_kubelet_lists_by_node_are_one_resource() {
        let pod = pod(&[&[devices("a/r", &["0000:3b:02.5"]), devices("a/r", &["0000:3b:02.1"])]]);
        assert_eq!(in_turn(&pod, "a/r"), ["0000:3b:02.1", "0000:3b:02.5"]);
    }

    #[test]
    fn x10_a_device_that_came_back_is_the_next_one_again() {
        let pod = pod(&[&[devices("a/r", &["0000:3b:02.0", "0000:3b:02.1"])]]);
        let second = next_device(&name(), &pod, "a/r", |id| id == "0000:3b:02.0");
        assert_eq!(second.as_deref(), Ok("0000:3b:02.1"));
        let again = next_device(&name(), &pod, "a/r", |id| id == "0000:3b:02.1");
        assert_eq!(again.as_deref(), Ok("0000:3b:02.0"));
    }

    #[test]
    fn d23_a_pod_without_the_resource_is_refused_with_what_it_has() {
        let pod = pod(&[&[devices("intel.com/core", &["0000:af:10.0"])]]);
        let text = next_device(&name(), &pod, "intel.com/radio", |_| false).unwrap_err().to_string();
        let wanted = "pod ran/du-0 has no device of resource \"intel.com/radio\": kubelet has given it devices of intel.com/core";
        assert_eq!(text, wanted);
        let none =
            next_device(&name(), &ResourcesOfPod::default(), "a/r", |_| false).unwrap_err().to_string();
        assert!(none.ends_with("kubelet has given it no device at all"), "{none}");
    }

    #[test]
    fn d23_more_attachments_than_devices_are_refused() {
        let pod = pod(&[&[devices("a/r", &["0000:af:10.0"])]]);
        let text = next_device(&name(), &pod, "a/r", |_| true).unwrap_err().to_string();
        assert_eq!(text, "pod ran/du-0 has 1 of resource \"a/r\", and its other interfaces have all of them");
    }
}
