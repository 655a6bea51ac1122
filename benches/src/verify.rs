//! Checks in the kernel, never by the answer alone, whether a subject did what it was asked for.

use std::collections::BTreeSet;

use fairlead_host::{Link, Net, NetError, NetKernel, NetnsError};
use ipnet::IpNet;
use serde::Deserialize;

use crate::network_config::IFNAME;
use crate::node::{Node, Pod};
use crate::subject::Removal;

/// What is wrong with an interface.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Wrong {
    /// ADD's answer is no CNI result.
    #[error("the answer of ADD is no CNI result: {0}")]
    Answer(#[from] serde_json::Error),
    /// The namespace cannot be read.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused a question.
    #[error(transparent)]
    Net(#[from] NetError),
    /// There is no such interface.
    #[error("{0} was answered for and is not there")]
    NoLink(String),
    /// The interface is not up.
    #[error("{0} is there and is not up")]
    Down(String),
    /// The interface has no address.
    #[error("the answer has no address")]
    NoAddress,
    /// An address of the answer is not on the interface.
    #[error("the interface does not have the address {0} of the answer")]
    Address(IpNet),
    /// An interface has no address of its network.
    #[error("{0} has no address in {1}")]
    NotIn(String, &'static str),
    /// A route is missing.
    #[error("the interface has no route to {0}")]
    Route(IpNet),
    /// DEL left the name taken.
    #[error("{0} is still there after DEL")]
    NameTaken(String),
    /// DEL left a link.
    #[error("the link {0} is still there after DEL")]
    LinkLeft(String),
    /// DEL left an address.
    #[error("{link} still has the address {address} after DEL")]
    AddressLeft {
        /// The name of the link.
        link: String,
        /// The address that is left.
        address: IpNet,
    },
}

/// What an ADD must have made.
#[derive(Debug)]
pub(crate) struct Expected {
    addresses: Vec<IpNet>,
    routes: BTreeSet<IpNet>,
}

#[derive(Deserialize)]
struct CniResult {
    #[serde(default)]
    ips: Vec<CniIp>,
    #[serde(default)]
    routes: Vec<CniRoute>,
}

#[derive(Deserialize)]
struct CniIp {
    address: IpNet,
}

#[derive(Deserialize)]
struct CniRoute {
    dst: IpNet,
}

impl Expected {
    /// Reads what an answer promises.
    pub(crate) fn of_result(answer: &[u8]) -> Result<Expected, Wrong> {
        let result: CniResult = serde_json::from_slice(answer)?;
        Ok(Expected {
            addresses: result.ips.iter().map(|ip| ip.address).collect(),
            routes: result.routes.iter().map(|route| route.dst.trunc()).collect(),
        })
    }

    /// Expects one address and nothing else.
    pub(crate) fn of_address(address: IpNet) -> Expected {
        Expected { addresses: vec![address], routes: BTreeSet::new() }
    }

    /// Expects a default route too, whether the answer has it or not.
    pub(crate) fn with_default_route(mut self) -> Expected {
        self.routes.insert(IpNet::V4(ipnet::Ipv4Net::default()));
        self
    }
}

/// Verifies that the interface exists, is up, and has all the addresses and routes.
pub(crate) fn attached(node: &Node, pod: &Pod, expected: &Expected) -> Result<(), Wrong> {
    if expected.addresses.is_empty() {
        return Err(Wrong::NoAddress);
    }
    let mut net = node.kernel.pod(&pod.path)?;
    let link = link_that_is_up(net.as_mut(), IFNAME)?;
    let addresses = net.addresses(link.index)?;
    if let Some(&missing) =
        expected.addresses.iter().find(|want| !addresses.iter().any(|has| has.net == **want))
    {
        return Err(Wrong::Address(missing));
    }
    let routes = net.routes()?;
    let has = |want: &IpNet| routes.iter().any(|route| route.index == link.index && route.dst == *want);
    match expected.routes.iter().find(|want| !has(want)) {
        Some(&missing) => Err(Wrong::Route(missing)),
        None => Ok(()),
    }
}

/// Verifies that the interface exists, is up, and has an address of this subnet: of what a pod asks for beside its default network the
/// answer says nothing.
pub(crate) fn attached_in(node: &Node, pod: &Pod, ifname: &str, subnet: &'static str) -> Result<(), Wrong> {
    let mut net = node.kernel.pod(&pod.path)?;
    let link = link_that_is_up(net.as_mut(), ifname)?;
    let addresses = net.addresses(link.index)?;
    let wanted = subnet.parse::<IpNet>().ok();
    match addresses.iter().any(|has| wanted.is_some_and(|wanted| wanted.contains(&has.net.addr()))) {
        true => Ok(()),
        false => Err(Wrong::NotIn(ifname.to_owned(), subnet)),
    }
}

fn link_that_is_up(net: &mut dyn Net, ifname: &str) -> Result<Link, Wrong> {
    match net.link_by_name(ifname)? {
        Some(link) if link.up => Ok(link),
        Some(_) => Err(Wrong::Down(ifname.to_owned())),
        None => Err(Wrong::NoLink(ifname.to_owned())),
    }
}

/// Verifies that the names are free, and that what `removal` promises holds for every link that the empty pod did
/// not have.
pub(crate) fn detached(node: &Node, pod: &Pod, names: &[&str], removal: Removal) -> Result<(), Wrong> {
    let mut net = node.kernel.pod(&pod.path)?;
    for link in net.links()? {
        if names.contains(&link.name.as_str()) {
            return Err(Wrong::NameTaken(link.name));
        }
        if node.born_with.contains(&link.name) || removal == Removal::NameFree {
            continue;
        }
        if removal == Removal::LinkGone {
            return Err(Wrong::LinkLeft(link.name));
        }
        if let Some(address) = net.addresses(link.index)?.first() {
            return Err(Wrong::AddressLeft { link: link.name, address: address.net });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_for_its_addresses_and_routes() {
        let expected = Expected::of_result(
            br#"{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.7/16","gateway":"10.88.0.1"}],"routes":[{"dst":"10.1.2.3/8"}]}"#,
        )
        .unwrap()
        .with_default_route();
        assert_eq!(expected.addresses, ["10.88.0.7/16".parse().unwrap()]);
        let want: Vec<IpNet> = vec!["0.0.0.0/0".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
        assert_eq!(expected.routes.into_iter().collect::<Vec<_>>(), want);
    }

    #[test]
    fn an_answer_that_is_no_json_is_wrong() {
        assert!(matches!(Expected::of_result(b"hello"), Err(Wrong::Answer(_))));
    }
}
