//! The answer to `Allocate`: a container's environment, device nodes and mounts. For PCI devices it is the one that the SR-IOV network
//! device plugin gives (its `pkg/resources/pool_stub.go` and `pkg/infoprovider`). Pure.

use std::collections::{BTreeMap, HashMap};

use fairlead_host::Mac;

use super::super::proto::deviceplugin as wire;

const VFIO: &str = "/dev/vfio/vfio";
const VHOST_NET: &str = "/dev/vhost-net";
const TUN: &str = "/dev/net/tun";

/// How a pod reaches a device, beside its network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceAccess {
    /// The IOMMU group of a device that is bound to vfio-pci.
    pub vfio: Option<VfioGroup>,
    /// The RDMA devices and nodes, where the pod is to have them.
    pub rdma: Option<RdmaAccess>,
    /// Whether the pod gets the nodes of vhost-net and tun, for an application that makes its own interface to the kernel.
    pub vhost_net: bool,
    /// The socket, of a device that is a port of a switch in user space and no PCI device.
    pub vhost_user: Option<VhostUserSocket>,
    /// Further facts for the pod's environment, from the configuration.
    pub extra: BTreeMap<String, String>,
}

/// An IOMMU group's node under `/dev/vfio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfioGroup {
    /// The number in the node's name.
    pub number: u32,
    /// The node's IOMMU is off, so that this is no real group. Its node on the host then has another name.
    pub no_iommu: bool,
}

/// The RDMA devices behind a device, and their nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RdmaAccess {
    /// The names of the RDMA devices (`mlx5_2`).
    pub devices: Vec<String>,
    /// The names of their nodes in `/dev/infiniband` (`issm2`, `umad2`, `uverbs2`), and `rdma_cm`, which all devices share.
    pub nodes: Vec<String>,
}

/// The socket of a port, in a directory that the container gets mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUserSocket {
    /// `client` or `server`: the container's side.
    pub mode: &'static str,
    /// The directory on the host.
    pub host_directory: String,
    /// The directory as the container sees it.
    pub directory: String,
    /// The socket's name in it.
    pub name: &'static str,
    /// The container may make nothing in the directory.
    pub read_only: bool,
    /// The MAC address of the container's side, unless its pod asks for another.
    pub mac: Mac,
}

impl VhostUserSocket {
    /// The socket's path as the container sees it.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.directory, self.name)
    }
}

impl VfioGroup {
    fn on_host(self) -> String {
        let prefix = if self.no_iommu { "noiommu-" } else { "" };
        format!("/dev/vfio/{prefix}{}", self.number)
    }

    fn in_container(self) -> String {
        format!("/dev/vfio/{}", self.number)
    }
}

/// The facts of a device by kind of access (`generic`, `vfio`, …).
type Facts = BTreeMap<&'static str, BTreeMap<String, String>>;

/// The answer for one container, which has been allocated these devices.
pub(super) fn answer(
    resource: &str,
    allocated: &[(String, DeviceAccess)],
) -> wire::ContainerAllocateResponse {
    let info: BTreeMap<&str, Facts> =
        allocated.iter().map(|(id, access)| (id.as_str(), access.facts(id))).collect();
    let sockets: Vec<&VhostUserSocket> =
        allocated.iter().filter_map(|(_, access)| access.vhost_user.as_ref()).collect();
    let (variable, values): (String, Vec<String>) = match sockets.is_empty() {
        true => (variable("PCIDEVICE", resource), allocated.iter().map(|(id, _)| id.clone()).collect()),
        false => (variable("VHOSTUSER", resource), sockets.iter().map(|socket| socket.path()).collect()),
    };
    let mut envs = HashMap::from([(format!("{variable}_INFO"), serde_json::json!(info).to_string())]);
    if !sockets.is_empty() {
        let addresses: Vec<String> = sockets.iter().map(|socket| socket.mac.to_string()).collect();
        envs.insert(format!("{variable}_MAC"), addresses.join(","));
    }
    envs.insert(variable, values.join(","));
    let mounts = sockets.iter().map(|socket| wire::Mount {
        container_path: socket.directory.clone(),
        host_path: socket.host_directory.clone(),
        read_only: socket.read_only,
    });
    let mounts = mounts.collect();
    let mut devices: Vec<wire::DeviceSpec> = Vec::new();
    for node in allocated.iter().flat_map(|(_, access)| access.nodes()) {
        // `/dev/vfio/vfio` comes with every device under vfio-pci, and a container has a node once.
        if devices.iter().all(|there| there.host_path != node.host_path) {
            devices.push(node);
        }
    }
    wire::ContainerAllocateResponse { envs, mounts, devices }
}

/// The environment variable of a resource: `PCIDEVICE_INTEL_COM_RADIO` for `intel.com/radio`. A hyphen stays, as it does in the
/// SR-IOV network device plugin.
fn variable(kind: &str, resource: &str) -> String {
    format!("{kind}_{}", resource.replace(['.', '/'], "_")).to_uppercase()
}

fn node(host_path: String, container_path: String) -> wire::DeviceSpec {
    wire::DeviceSpec { container_path, host_path, permissions: "rw".to_owned() }
}

fn same_path(path: &str) -> wire::DeviceSpec {
    node(path.to_owned(), path.to_owned())
}

impl DeviceAccess {
    fn nodes(&self) -> Vec<wire::DeviceSpec> {
        let mut nodes = Vec::new();
        if let Some(group) = self.vfio {
            nodes.extend([same_path(VFIO), node(group.on_host(), group.in_container())]);
        }
        nodes.extend(self.rdma.iter().flat_map(rdma_paths).map(|path| same_path(&path)));
        if self.vhost_net {
            nodes.extend([same_path(VHOST_NET), same_path(TUN)]);
        }
        nodes
    }

    fn facts(&self, id: &str) -> Facts {
        let mut facts = Facts::from([("generic", of_kind([("deviceID", id)]))]);
        if let Some(group) = self.vfio {
            facts.insert("vfio", of_kind([("mount", VFIO), ("dev-mount", &group.in_container())]));
        }
        if let Some(rdma) = &self.rdma {
            facts.insert("rdma", rdma_facts(rdma));
        }
        if self.vhost_net {
            facts.insert("vhost", of_kind([("net-mount", VHOST_NET), ("tun-mount", TUN)]));
        }
        if let Some(socket) = &self.vhost_user {
            facts.insert("vhost-user", of_kind([("mode", socket.mode), ("path", &socket.path())]));
            facts.insert("fairlead", of_kind([("mac", &socket.mac.to_string())]));
        }
        if !self.extra.is_empty() {
            facts.insert("extra", self.extra.clone());
        }
        facts
    }
}

fn of_kind<const N: usize>(facts: [(&str, &str); N]) -> BTreeMap<String, String> {
    facts.into_iter().map(|(name, fact)| (name.to_owned(), fact.to_owned())).collect()
}

fn rdma_paths(rdma: &RdmaAccess) -> impl Iterator<Item = String> {
    rdma.nodes.iter().map(|node| format!("/dev/infiniband/{node}"))
}

/// The path of a node by its kind; where a kind has several nodes, the last one, as in the SR-IOV network device plugin. Of
/// several RDMA devices (switchdev) it is the first.
fn rdma_facts(rdma: &RdmaAccess) -> BTreeMap<String, String> {
    let kinds = ["uverbs", "umad", "issm", "rdma_cm"];
    let kind_and_path =
        |path: String| Some(((*kinds.iter().find(|kind| path.contains(*kind))?).to_owned(), path));
    let mut facts: BTreeMap<String, String> = rdma_paths(rdma).filter_map(kind_and_path).collect();
    facts.extend(rdma.devices.first().map(|device| ("rdma_dev".to_owned(), device.clone())));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vfio(number: u32, no_iommu: bool) -> DeviceAccess {
        DeviceAccess { vfio: Some(VfioGroup { number, no_iommu }), ..DeviceAccess::default() }
    }

    fn paths(answer: &wire::ContainerAllocateResponse) -> Vec<(&str, &str, &str)> {
        answer
            .devices
            .iter()
            .map(|d| (d.host_path.as_str(), d.container_path.as_str(), d.permissions.as_str()))
            .collect()
    }

    #[test]
    fn the_environment_is_that_of_the_sriov_network_device_plugin() {
        let allocated = [
            ("0000:3b:02.1".to_owned(), DeviceAccess::default()),
            ("0000:3b:02.0".to_owned(), vfio(17, false)),
        ];
        let answer = answer("intel.com/radio-a", &allocated);
        assert_eq!(
            answer.envs["PCIDEVICE_INTEL_COM_RADIO-A"], "0000:3b:02.1,0000:3b:02.0",
            "kubelet's order"
        );
        assert_eq!(
            answer.envs["PCIDEVICE_INTEL_COM_RADIO-A_INFO"],
            r#"{"0000:3b:02.0":{"generic":{"deviceID":"0000:3b:02.0"},"vfio":{"dev-mount":"/dev/vfio/17","mount":"/dev/vfio/vfio"}},"0000:3b:02.1":{"generic":{"deviceID":"0000:3b:02.1"}}}"#
        );
        assert_eq!(answer.envs.len(), 2);
    }

    #[test]
    fn a_vfio_device_comes_with_the_container_node_and_its_group_each_once() {
        let allocated = [("a".to_owned(), vfio(17, false)), ("b".to_owned(), vfio(18, false))];
        let answer = answer("a/b", &allocated);
        let wanted = ["/dev/vfio/vfio", "/dev/vfio/17", "/dev/vfio/18"].map(|path| (path, path, "rw"));
        assert_eq!(paths(&answer), wanted);
    }

    #[test]
    fn without_an_iommu_the_group_has_its_usual_name_in_the_container() {
        let answer = answer("a/b", &[("a".to_owned(), vfio(0, true))]);
        assert_eq!(paths(&answer)[1], ("/dev/vfio/noiommu-0", "/dev/vfio/0", "rw"));
        assert!(answer.envs["PCIDEVICE_A_B_INFO"].contains(r#""dev-mount":"/dev/vfio/0""#));
    }

    #[test]
    fn a_device_of_the_kernel_comes_with_nothing_but_its_environment() {
        let answer = answer("a/b", &[("0000:3b:02.0".to_owned(), DeviceAccess::default())]);
        assert_eq!((answer.devices.len(), answer.mounts.len()), (0, 0));
    }

    #[test]
    fn vhost_net_rdma_and_what_the_configuration_adds_come_too() {
        let rdma =
            RdmaAccess { devices: vec!["mlx5_2".into()], nodes: vec!["uverbs2".into(), "rdma_cm".into()] };
        let extra = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
        let answer = answer(
            "a/b",
            &[(
                "x".to_owned(),
                DeviceAccess { rdma: Some(rdma), vhost_net: true, extra, ..DeviceAccess::default() },
            )],
        );
        let wanted = ["/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm", VHOST_NET, TUN];
        assert_eq!(paths(&answer), wanted.map(|path| (path, path, "rw")));
        assert_eq!(
            answer.envs["PCIDEVICE_A_B_INFO"],
            r#"{"x":{"extra":{"rack":"7"},"generic":{"deviceID":"x"},"rdma":{"rdma_cm":"/dev/infiniband/rdma_cm","rdma_dev":"mlx5_2","uverbs":"/dev/infiniband/uverbs2"},"vhost":{"net-mount":"/dev/vhost-net","tun-mount":"/dev/net/tun"}}}"#
        );
    }

    #[test]
    fn ports_come_with_their_directories_and_the_paths_of_their_sockets() {
        let port = |id: &str, mode, read_only, mac| {
            let socket = VhostUserSocket {
                mode,
                host_directory: format!("/run/fairlead/vhost-user/{id}"),
                directory: format!("/run/vhost-user/{id}"),
                name: "vhost-user.sock",
                read_only,
                mac: Mac::local(mac),
            };
            (id.to_owned(), DeviceAccess { vhost_user: Some(socket), ..DeviceAccess::default() })
        };
        let answer = answer(
            "example.com/blue",
            &[port("blue-07", "client", true, 0x100), port("blue-00", "server", false, 0x200)],
        );
        let (first, second) = ("/run/vhost-user/blue-07", "/run/vhost-user/blue-00");
        let sockets = format!("{first}/vhost-user.sock,{second}/vhost-user.sock");
        assert_eq!(answer.envs["VHOSTUSER_EXAMPLE_COM_BLUE"], sockets);
        assert_eq!(answer.envs["VHOSTUSER_EXAMPLE_COM_BLUE_MAC"], "02:01:00:00:00:00,02:02:00:00:00:00");
        assert_eq!(
            answer.envs["VHOSTUSER_EXAMPLE_COM_BLUE_INFO"],
            r#"{"blue-00":{"fairlead":{"mac":"02:02:00:00:00:00"},"generic":{"deviceID":"blue-00"},"vhost-user":{"mode":"server","path":"/run/vhost-user/blue-00/vhost-user.sock"}},"blue-07":{"fairlead":{"mac":"02:01:00:00:00:00"},"generic":{"deviceID":"blue-07"},"vhost-user":{"mode":"client","path":"/run/vhost-user/blue-07/vhost-user.sock"}}}"#
        );
        let mounts =
            answer.mounts.iter().map(|m| (m.host_path.as_str(), m.container_path.as_str(), m.read_only));
        let wanted = [
            ("/run/fairlead/vhost-user/blue-07", first, true),
            ("/run/fairlead/vhost-user/blue-00", second, false),
        ];
        assert_eq!(mounts.collect::<Vec<_>>(), wanted);
        assert_eq!((answer.envs.len(), answer.devices.len()), (3, 0));
    }
}
