//! What kubelet does when it admits a pod with devices: it calls their plugin, and lists them as the pod's from then on.

use serde_json::{Value, json};

use super::{AnnouncedDevice, FakeKubelet, on_node, plugin, pod, wire};

impl FakeKubelet {
    /// Allocates devices to a pod's container, as soon as their plugin announces all of them as healthy. Returns what the
    /// plugin answered, with the names of the interface.
    ///
    /// # Errors
    /// The plugin's refusal.
    pub fn allocate_to_pod(
        &self,
        (namespace, name): (&str, &str),
        resource: &str,
        ids: &[&str],
    ) -> Result<Value, String> {
        let list = self.list_with(resource, ids);
        let answer = self.allocate(resource, &[ids]);
        let answer = answer.map_err(|refused| refused.message().to_owned())?.remove(0);
        let allocated = list.into_iter().filter(|(id, ..)| ids.contains(&id.as_str()));
        let devices = allocated.map(|(id, _, node)| wire::ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: vec![id],
            topology: node.map(on_node),
        });
        let mut listed = pod(namespace, name, &[("app", &[])]);
        listed.containers[0].devices = devices.collect();
        self.answers.lock().unwrap().pods = vec![listed];
        Ok(answer_json(&answer))
    }

    /// Waits for the first list of a resource in which all of these are healthy.
    fn list_with(&self, resource: &str, ids: &[&str]) -> Vec<AnnouncedDevice> {
        loop {
            let (of, list) = self.next_list();
            let is_healthy =
                |id: &&str| list.iter().any(|(there, health, _)| there == id && health == "Healthy");
            if of == resource && ids.iter().all(is_healthy) {
                return list;
            }
        }
    }
}

fn answer_json(answer: &plugin::ContainerAllocateResponse) -> Value {
    let node = |node: &plugin::DeviceSpec| json!({"host_path": node.host_path, "container_path": node.container_path, "permissions": node.permissions});
    let mount = |mount: &plugin::Mount| json!({"host_path": mount.host_path, "container_path": mount.container_path, "read_only": mount.read_only});
    let devices: Vec<Value> = answer.devices.iter().map(node).collect();
    let mounts: Vec<Value> = answer.mounts.iter().map(mount).collect();
    json!({"envs": answer.envs, "devices": devices, "mounts": mounts})
}
