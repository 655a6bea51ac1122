//! What kubelet does when a pod with devices comes: it asks their plugin, and lists them as the pod's from then on.

use serde_json::{Value, json};

use super::{Announced, RecordedKubelet, on_node, plugin, pod, wire};

impl RecordedKubelet {
    /// Gives devices to a pod's container, as soon as their plugin has told that all of them are healthy. What the plugin
    /// answered, by the names of the interface.
    ///
    /// # Errors
    /// The plugin's refusal.
    pub fn give(
        &self,
        (namespace, name): (&str, &str),
        resource: &str,
        ids: &[&str],
    ) -> Result<Value, String> {
        let list = self.list_with(resource, ids);
        let answered = self.allocate(resource, &[ids]);
        let answer = answered.map_err(|refused| refused.message().to_owned())?.remove(0);
        let given = list.into_iter().filter(|(id, ..)| ids.contains(&id.as_str()));
        let devices = given.map(|(id, _, node)| wire::ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: vec![id],
            topology: node.map(on_node),
        });
        let mut has_them = pod(namespace, name, &[("app", &[])]);
        has_them.containers[0].devices = devices.collect();
        self.answers.lock().unwrap().pods = vec![has_them];
        Ok(told(&answer))
    }

    /// The first list of a resource that has all of these as healthy.
    fn list_with(&self, resource: &str, ids: &[&str]) -> Vec<Announced> {
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

fn told(answer: &plugin::ContainerAllocateResponse) -> Value {
    let node = |node: &plugin::DeviceSpec| json!({"host_path": node.host_path, "container_path": node.container_path, "permissions": node.permissions});
    let mount = |mount: &plugin::Mount| json!({"host_path": mount.host_path, "container_path": mount.container_path, "read_only": mount.read_only});
    let devices: Vec<Value> = answer.devices.iter().map(node).collect();
    let mounts: Vec<Value> = answer.mounts.iter().map(mount).collect();
    json!({"envs": answer.envs, "devices": devices, "mounts": mounts})
}
