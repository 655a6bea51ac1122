//! The annotation network-status, by which a pod's users learn what it got (NPWG 1.3, section 5).
//!
//! The text is, key by key, what Multus writes by its client library (`CreateNetworkStatuses` and `SetNetworkStatus` in
//! network-attachment-definition-client, pkg/utils/net-attach-def.go): an entry for each interface in the pod, four spaces
//! deep, `dns` even if it is empty, everything else only where there is something. It differs where that library is wrong: a
//! result without an interface in the pod has an entry all the same (section 5.1.1), a default route without a next hop tells the
//! gateway that it uses, and a route to 0.0.0.0/1 is none. Addresses have no prefix length there, and so not here.
//! Behind all of these keys stands one of our own, `fairlead`, at an interface whose network names several paths.

use fairlead_cni::CniResult;
use fairlead_cni::result::{Dns, Interface, IpConfig, RouteConfig};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer as JsonSerializer};

use super::TakenPath;

/// The annotation.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// One attachment of a pod, as far as network-status tells it.
#[derive(Debug, Clone, Copy)]
pub struct Attached<'a> {
    /// `namespace/name` of the definition, or the name of the cluster's network.
    pub network: &'a str,
    /// Whether it is the pod's default network.
    pub is_default: bool,
    /// What the plugins answered.
    pub result: &'a CniResult,
    /// What the plugin wrote into the file of device information.
    pub device_info: Option<&'a Value>,
    /// The path by which it was made; `None` where its network names no paths.
    pub path: Option<&'a TakenPath>,
}

/// An entry of network-status. The order of the fields is that of the text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetworkStatus {
    /// `namespace/name` of the definition, or the name of the cluster's network.
    pub name: String,
    /// The interface in the pod; empty when the result tells none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// The addresses of the interface, without prefix length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// The MAC address of the interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU of the interface in bytes; 0 when it is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Whether it is the interface of the pod's default network; of one entry at most.
    #[serde(skip_serializing_if = "is_false")]
    pub default: bool,
    /// The name resolution of the result.
    pub dns: Dns,
    /// What the plugin wrote into the file of device information.
    #[serde(rename = "device-info", skip_serializing_if = "Option::is_none", serialize_with = "device_info")]
    pub device_info: Option<Value>,
    /// The gateways of the result's default routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<String>,
    /// The path by which the interface was made. The NPWG has no such key; what reads network-status skips a key that it does not know.
    #[serde(rename = "fairlead", skip_serializing_if = "Option::is_none")]
    pub path: Option<TakenPath>,
}

/// The text of the annotation for a pod's attachments: the default network first, the others in their order.
pub fn network_status(attachments: &[Attached<'_>]) -> String {
    let (default, further): (Vec<_>, Vec<_>) = attachments.iter().partition(|attached| attached.is_default);
    let statuses: Vec<NetworkStatus> = default.into_iter().chain(further).flat_map(statuses).collect();
    let entries: Vec<String> = statuses.iter().map(indented).collect();
    format!("[{}]", entries.join(","))
}

fn indented(status: &NetworkStatus) -> String {
    let mut text = Vec::new();
    let mut json = JsonSerializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    // A map with keys that are texts, written into memory, cannot fail.
    let _ = status.serialize(&mut json);
    String::from_utf8(text).unwrap_or_default()
}

/// The entries of one attachment: one for each interface in the pod, or one without an interface.
fn statuses(attached: &Attached<'_>) -> Vec<NetworkStatus> {
    let result = attached.result;
    let in_pod: Vec<(usize, &Interface)> =
        result.interfaces.iter().enumerate().filter(|(_, interface)| !interface.sandbox.is_empty()).collect();
    let base = NetworkStatus {
        name: attached.network.to_owned(),
        interface: String::new(),
        ips: Vec::new(),
        mac: String::new(),
        mtu: 0,
        default: attached.is_default,
        dns: result.dns.clone(),
        device_info: attached.device_info.cloned(),
        gateway: result.routes.iter().filter_map(|route| gateway(route, &result.ips)).collect(),
        path: attached.path.cloned(),
    };
    let Some((last, _)) = in_pod.last() else {
        return vec![NetworkStatus { ips: addresses(&result.ips, |_| true), ..base }];
    };
    let default = default_interface(&in_pod, &result.ips);
    let of_interface = |(index, interface): &(usize, &Interface)| NetworkStatus {
        interface: interface.name.clone(),
        // With one interface in all there is nothing to tell apart. An address of no interface is the last one's.
        ips: addresses(&result.ips, |ip| {
            result.interfaces.len() == 1 || ip.interface.unwrap_or(*last) == *index
        }),
        mac: interface.mac.clone(),
        mtu: interface.mtu,
        default: attached.is_default && default == Some(*index),
        ..base.clone()
    };
    in_pod.iter().map(of_interface).collect()
}

/// The interface that the pod's default network is told of: the first that has a gateway, else the first.
fn default_interface(in_pod: &[(usize, &Interface)], ips: &[IpConfig]) -> Option<usize> {
    let with_gateway = ips.iter().filter(|ip| ip.gateway.is_some()).find_map(|ip| ip.interface);
    let with_gateway = with_gateway.filter(|index| in_pod.iter().any(|(at, _)| at == index));
    with_gateway.or_else(|| in_pod.first().map(|(index, _)| *index))
}

fn addresses(ips: &[IpConfig], of_this: impl Fn(&IpConfig) -> bool) -> Vec<String> {
    ips.iter().filter(|ip| of_this(ip)).map(|ip| ip.address.addr().to_string()).collect()
}

/// The next hop of a default route, or the gateway of the address of its family, which it uses without one.
fn gateway(route: &RouteConfig, ips: &[IpConfig]) -> Option<String> {
    if route.dst.prefix_len() != 0 {
        return None;
    }
    let is_v4 = route.dst.addr().is_ipv4();
    let of_address = || ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == is_v4);
    route.gw.or_else(of_address).map(|gateway| gateway.to_string())
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_false(b: &bool) -> bool {
    !*b
}

/// Writes device information with the keys in the order of the reference's structs, and then those that they do not have.
fn device_info<S: Serializer>(info: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    InOrder { value: info.as_ref().unwrap_or(&Value::Null), key: "" }.serialize(serializer)
}

struct InOrder<'a> {
    value: &'a Value,
    key: &'a str,
}

impl InOrder<'_> {
    fn keys(&self) -> &'static [&'static str] {
        match self.key {
            "" => &["type", "version", "pci", "vdpa", "vhost-user", "memif"],
            "pci" => &["pci-address", "vhost-net", "rdma-device", "pf-pci-address", "representor-device"],
            "vdpa" => {
                &["parent-device", "driver", "path", "pci-address", "pf-pci-address", "representor-device"]
            }
            "vhost-user" => &["mode", "path"],
            "memif" => &["role", "path", "mode"],
            _ => &[],
        }
    }

    fn rank(&self, key: &str) -> usize {
        let keys = self.keys();
        keys.iter().position(|known| *known == key).unwrap_or(keys.len())
    }
}

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Object(map) = self.value else { return self.value.serialize(serializer) };
        let mut pairs: Vec<(&String, &Value)> = map.iter().collect();
        pairs.sort_by_key(|(key, _)| self.rank(key));
        let mut written = serializer.serialize_map(Some(pairs.len()))?;
        for (key, value) in pairs {
            written.serialize_entry(key, &InOrder { value, key })?;
        }
        written.end()
    }
}
