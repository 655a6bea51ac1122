//! Writes results in every version, as libcni v1.3.0 converts and marshals them.
//!
//! Key by key what Go prints: up to 0.4.0 in the order of its structs with `dns` always there; from 1.0.0 in
//! alphabetical order with an empty `dns` left out, because that type is marshalled through a map. The 1.1.0
//! fields of an interface end at 1.0.0 (libcni does not take them away there) and those of a route at 0.3.0.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use super::{CniResult, Dns, Interface, IpConfig, RouteConfig};
use crate::error::{CniError, Code};
use crate::version::CniVersion;

impl CniResult {
    /// The result as JSON of a version.
    ///
    /// # Errors
    /// Code 7 where the version can't express the result: 0.1.0 and 0.2.0 need an address.
    pub fn to_json(&self, version: CniVersion) -> Result<String, CniError> {
        match version {
            CniVersion::V0_1_0 | CniVersion::V0_2_0 => json(&V02::of(self, version)?),
            CniVersion::V0_3_0 | CniVersion::V0_3_1 | CniVersion::V0_4_0 => json(&V04::of(self, version)),
            CniVersion::V1_0_0 | CniVersion::V1_1_0 => json(&V1::of(self, version)),
        }
    }
}

fn json(form: &impl Serialize) -> Result<String, CniError> {
    serde_json::to_string(form)
        .map_err(|e| CniError::new(Code::Internal, format!("the result cannot be written: {e}")))
}

#[derive(Serialize)]
struct V1<'a> {
    #[serde(rename = "cniVersion")]
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<Dns1<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface1<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip1>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route1>,
}

impl<'a> V1<'a> {
    fn of(result: &'a CniResult, version: CniVersion) -> V1<'a> {
        V1 {
            version: version.as_str(),
            dns: (!result.dns.is_empty()).then(|| Dns1::of(&result.dns)),
            interfaces: result.interfaces.iter().map(Interface1::of).collect(),
            ips: result.ips.iter().map(Ip1::of).collect(),
            routes: result.routes.iter().map(Route1::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct Dns1<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    domain: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    nameservers: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    options: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    search: &'a [String],
}

impl<'a> Dns1<'a> {
    fn of(dns: &'a Dns) -> Dns1<'a> {
        let Dns { nameservers, domain, search, options } = dns;
        Dns1 { domain, nameservers, options, search }
    }
}

#[derive(Serialize)]
struct Interface1<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "super::is_zero")]
    mtu: u32,
    name: &'a str,
    #[serde(rename = "pciID", skip_serializing_if = "str::is_empty")]
    pci_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
    #[serde(rename = "socketPath", skip_serializing_if = "str::is_empty")]
    socket_path: &'a str,
}

impl<'a> Interface1<'a> {
    fn of(interface: &'a Interface) -> Interface1<'a> {
        let Interface { name, mac, mtu, sandbox, socket_path, pci_id } = interface;
        Interface1 { mac, mtu: *mtu, name, pci_id, sandbox, socket_path }
    }
}

#[derive(Serialize)]
struct Ip1 {
    address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<usize>,
}

impl Ip1 {
    fn of(ip: &IpConfig) -> Ip1 {
        Ip1 { address: ip.address, gateway: ip.gateway, interface: ip.interface }
    }
}

#[derive(Serialize)]
struct Route1 {
    #[serde(skip_serializing_if = "Option::is_none")]
    advmss: Option<u32>,
    dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
}

impl Route1 {
    fn of(route: &RouteConfig) -> Route1 {
        let RouteConfig { dst, gw, mtu, advmss, priority, table, scope } = *route;
        Route1 { advmss, dst, gw, mtu, priority, scope, table }
    }
}

#[derive(Serialize)]
struct V04<'a> {
    #[serde(rename = "cniVersion")]
    version: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface04<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip04>,
    // The model's own order is that of libcni's struct.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    routes: &'a [RouteConfig],
    dns: &'a Dns,
}

#[derive(Serialize)]
struct Interface04<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
}

#[derive(Serialize)]
struct Ip04 {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<usize>,
    address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

impl<'a> V04<'a> {
    fn of(result: &'a CniResult, version: CniVersion) -> V04<'a> {
        let interface = |i: &'a Interface| Interface04 { name: &i.name, mac: &i.mac, sandbox: &i.sandbox };
        let ip = |ip: &IpConfig| Ip04 {
            version: if is_v4(&ip.address) { "4" } else { "6" },
            interface: ip.interface,
            address: ip.address,
            gateway: ip.gateway,
        };
        V04 {
            version: version.as_str(),
            interfaces: result.interfaces.iter().map(interface).collect(),
            ips: result.ips.iter().map(ip).collect(),
            routes: &result.routes,
            dns: &result.dns,
        }
    }
}

#[derive(Serialize)]
struct V02<'a> {
    #[serde(rename = "cniVersion")]
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Ip02>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Ip02>,
    dns: &'a Dns,
}

#[derive(Serialize)]
struct Ip02 {
    ip: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route02>,
}

#[derive(Serialize)]
struct Route02 {
    dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
}

impl<'a> V02<'a> {
    fn of(result: &'a CniResult, version: CniVersion) -> Result<V02<'a>, CniError> {
        let (ip4, ip6) = (Ip02::of(result, true), Ip02::of(result, false));
        if ip4.is_none() && ip6.is_none() {
            let msg = format!("cannot convert the result to CNI version {version}: no valid IP addresses");
            return Err(CniError::new(Code::InvalidConfig, msg).with(
                "a network without addresses needs \"cniVersion\" 0.3.0 or later in its configuration",
            ));
        }
        Ok(V02 { version: version.as_str(), ip4, ip6, dns: &result.dns })
    }
}

impl Ip02 {
    /// The first address of a family with all routes of that family.
    fn of(result: &CniResult, v4: bool) -> Option<Ip02> {
        let ip = result.ips.iter().find(|ip| is_v4(&ip.address) == v4)?;
        let routes = result.routes.iter().filter(|route| is_v4(&route.dst) == v4);
        Some(Ip02 {
            ip: ip.address,
            gateway: ip.gateway,
            routes: routes.map(|route| Route02 { dst: route.dst, gw: route.gw }).collect(),
        })
    }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}
