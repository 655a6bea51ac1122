//! What a pod has got, as messages.

use fairlead_cni::{CniResult, result};
use fairlead_proto::v1;

use crate::call::PodNetwork;

/// What a pod has of one network.
pub(super) fn of_network(network: PodNetwork) -> v1::NetworkResult {
    let CniResult { interfaces, ips, routes, dns } = network.result;
    v1::NetworkResult {
        network: network.network,
        namespace: network.namespace.as_deref().unwrap_or_default().to_owned(),
        interface: network.ifname,
        is_default: network.is_default,
        interfaces: interfaces.into_iter().map(interface).collect(),
        addresses: ips.iter().map(address).collect(),
        routes: routes.iter().map(route).collect(),
        dns: Some(v1::Dns {
            nameservers: dns.nameservers,
            domain: dns.domain,
            search: dns.search,
            options: dns.options,
        }),
    }
}

fn interface(interface: result::Interface) -> v1::Interface {
    let result::Interface { name, mac, mtu, sandbox, socket_path, pci_id } = interface;
    v1::Interface { name, mac, mtu, netns: sandbox, socket_path, pci_id }
}

fn address(ip: &result::IpConfig) -> v1::Address {
    v1::Address {
        address: ip.address.to_string(),
        gateway: ip.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
        interface: ip.interface.and_then(|index| u32::try_from(index).ok()),
    }
}

fn route(route: &result::RouteConfig) -> v1::Route {
    v1::Route {
        destination: route.dst.to_string(),
        gateway: route.gw.map(|gateway| gateway.to_string()).unwrap_or_default(),
    }
}
