//! CNI results. There is one model, that of the newest version. It is read from and written in every version, as libcni converts
//! them.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

mod kernel_refusals;
mod read;
mod write;

pub(crate) use kernel_refusals::must_be_assignable;

#[cfg(test)]
mod tests;

/// The result of an ADD (SPEC.md 1.1.0, "ADD Success").
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CniResult {
    /// The interfaces that the attachment made, those on the host included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// The addresses of the interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    /// The routes in the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteConfig>,
    /// The name resolution of the pod.
    #[serde(default)]
    pub dns: Dns,
}

/// An interface of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The MAC address; empty when the interface has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU in bytes (from 1.1.0); 0 when it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The path of the network namespace; empty for an interface on the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The path of the vhost-user socket (from 1.1.0).
    #[serde(default, rename = "socketPath", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI address of the device (from 1.1.0).
    #[serde(default, rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An address of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// The address with its prefix length.
    pub address: IpNet,
    /// The gateway of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The interface that has the address, as an index into `interfaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// A route of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteConfig {
    /// The destination of the route.
    pub dst: IpNet,
    /// The next hop; `None` for the gateway of the address of the same family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The MTU of the route in bytes (from 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The advertised MSS in bytes (from 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// The metric of the route (from 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The number of the routing table (from 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope of the route (from 1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

/// Name resolution of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dns {
    /// The addresses of the name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The domains in which short names are looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// The options of the resolver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}
