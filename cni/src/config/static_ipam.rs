//! IPAM `static`: the addresses are in the configuration, or come with the call.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::NetConf;
use super::host_local::more_than_one;
use crate::addr;
use crate::args::Args;
use crate::error::{CniError, Code};
use crate::go_json::{Fields, Item};
use crate::names::shown;
use crate::result::{Dns, RouteConfig, must_be_assignable};
use crate::version::CniVersion;

/// The configuration of IPAM `static`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticIpam {
    /// The addresses to assign, in order. `runtimeConfig.ips` replace all others, `args.cni.ips` those of the
    /// configuration and of `CNI_ARGS`; `CNI_ARGS` `IP` are added to those of the configuration.
    pub addresses: Vec<StaticAddress>,
    /// The routes of the key `routes`.
    pub routes: Vec<RouteConfig>,
    /// The name resolution of the key `dns`.
    pub dns: Dns,
}

/// An address that the pod's interface gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticAddress {
    /// The key `address`, with its prefix length.
    pub address: IpNet,
    /// The key `gateway`.
    pub gateway: Option<IpAddr>,
}

impl StaticIpam {
    /// Reads `ipam`, and what the runtime and `CNI_ARGS` add.
    ///
    /// # Errors
    /// Code 6 for a wrong type, 7 for a wrong value, 4 for wrong arguments.
    pub fn parse(conf: &NetConf, args: &Args) -> Result<StaticIpam, CniError> {
        let fields = conf.fields()?;
        let ipam =
            fields.object("ipam")?.ok_or_else(|| fields.missing("ipam", "static needs its configuration"))?;
        let from_args = from_args(args)?;
        let addresses = if !conf.runtime.ips.is_empty() {
            replaced(&conf.runtime.ips, "runtimeConfig.ips")?
        } else if !conf.args_cni_ips.is_empty() {
            replaced(&conf.args_cni_ips, "args.cni.ips")?
        } else {
            let mut addresses = ipam.each("addresses", |item| configured(&item))?;
            addresses.extend(from_args);
            addresses
        };
        check_families(&addresses, conf.version)?;
        check_duplicates(&addresses)?;
        addresses.iter().try_for_each(|one| must_be_assignable(&one.address))?;
        Ok(StaticIpam {
            addresses,
            routes: ipam.each("routes", |item| RouteConfig::read_configured(&item))?,
            dns: dns(&ipam)?,
        })
    }
}

fn configured(item: &Item<'_>) -> Result<StaticAddress, CniError> {
    let fields = item.object()?;
    let address =
        fields.cidr("address")?.ok_or_else(|| fields.missing("address", "an address with prefix length"))?;
    Ok(StaticAddress { address, gateway: fields.ip("gateway")? })
}

/// `IP=10.1.2.3/24,…` and `GATEWAY=…`, each gateway for the addresses whose subnet holds it.
fn from_args(args: &Args) -> Result<Vec<StaticAddress>, CniError> {
    args.only(&["IP", "GATEWAY"])?;
    let mut addresses = Vec::new();
    for text in args.ip() {
        addresses
            .push(StaticAddress { address: cidr(text, "CNI_ARGS IP", Code::BadEnvironment)?, gateway: None });
    }
    for text in
        args.get("GATEWAY").filter(|list| !list.is_empty()).into_iter().flat_map(|list| list.split(','))
    {
        let gateway = addr::ip(text.trim()).ok_or_else(|| {
            CniError::new(
                Code::BadEnvironment,
                format!("\"CNI_ARGS GATEWAY\" is {}, expected an IP address", shown(text)),
            )
        })?;
        for address in addresses.iter_mut().filter(|a| a.address.contains(&gateway)) {
            address.gateway = Some(gateway);
        }
    }
    Ok(addresses)
}

fn replaced(texts: &[String], key: &str) -> Result<Vec<StaticAddress>, CniError> {
    let each = texts.iter().map(|text| cidr(text, key, Code::InvalidConfig));
    each.map(|address| Ok(StaticAddress { address: address?, gateway: None })).collect()
}

fn cidr(text: &str, key: &str, code: Code) -> Result<IpNet, CniError> {
    addr::cidr(text).ok_or_else(|| {
        CniError::new(
            code,
            format!(
                "\"{key}\" is {}, expected an address with prefix length, as in 10.1.2.3/24",
                shown(text)
            ),
        )
    })
}

fn check_families(addresses: &[StaticAddress], version: CniVersion) -> Result<(), CniError> {
    let v4 = addresses.iter().filter(|a| matches!(a.address, IpNet::V4(_))).count();
    if version < CniVersion::V0_3_0 && (v4 > 1 || addresses.len() - v4 > 1) {
        return Err(more_than_one(version));
    }
    Ok(())
}

/// An interface has an IPv4 address once with each prefix length, and an IPv6 address once: a second one is refused by the kernel.
fn check_duplicates(addresses: &[StaticAddress]) -> Result<(), CniError> {
    let mut seen = HashSet::new();
    let key = |net: &IpNet| (net.addr(), if net.addr().is_ipv4() { net.prefix_len() } else { 0 });
    match addresses.iter().find(|one| !seen.insert(key(&one.address))) {
        None => Ok(()),
        Some(twice) => {
            let msg = format!("static: the address {} is there twice", twice.address);
            Err(CniError::new(Code::InvalidConfig, msg)
                .with("name each address once: in \"addresses\", in CNI_ARGS or by the runtime"))
        }
    }
}

fn dns(ipam: &Fields<'_>) -> Result<Dns, CniError> {
    ipam.object("dns")?.map_or_else(|| Ok(Dns::default()), |dns| Dns::read(&dns))
}
