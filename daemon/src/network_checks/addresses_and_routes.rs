//! What every ADD says of a network's ranges and routes. Nothing is told where the call may bring what makes them possible.

use fairlead_cni::CniResult;
use fairlead_cni::args::Args;
use fairlead_cni::config::host_local::RangeSet;
use fairlead_cni::config::{HostLocal, NetConf, StaticIpam};
use fairlead_cni::result::IpConfig;
use fairlead_ipam::static_ipam;
use serde_json::Value;

use super::{ABOUT, Given, refused};
use crate::engine::kinds::{made, moved, sriov};
use crate::finding::{Finding, less};

/// What is wrong with host-local's ranges, or with the addresses that are requested of them.
pub(super) fn of_ranges(ipam: &HostLocal, given: Given, place: &str) -> Option<Finding> {
    let error = ipam.must_be_possible().err().filter(|_| !given.ranges)?;
    Some(refused(&format!("{place}: ipam"), &error))
}

/// What is wrong with the routes, or with IPv6 beside the MTU, where the kernel has the interface.
pub(super) fn of_routes(conf: &NetConf, given: Given, place: &str) -> Option<Finding> {
    let kind = conf.plugin_type.as_str();
    let is_made = made::TYPES.contains(&kind);
    if !is_made && !moved::TYPES.contains(&kind) && !sriov::TYPES.contains(&kind) {
        return None;
    }
    let result = every_answer(conf, given)?;
    let mtu = mtu(conf).filter(|_| is_made);
    let fits = || mtu.map_or(Ok(()), |mtu| result.must_have_room_for_ipv6(mtu));
    let error = result.routes_must_be_possible().and_then(|()| fits()).err()?;
    let place = format!("{place}: ipam");
    if is_made {
        return Some(refused(&place, &error));
    }
    let seen = format!(
        "{place}: every ADD is refused, unless a driver for user space has the device: {}",
        error.msg
    );
    Some(less(ABOUT, seen, error.details))
}

/// The MTU that a configuration names, in bytes.
fn mtu(conf: &NetConf) -> Option<u32> {
    let mtu = conf.value.get("mtu").and_then(Value::as_u64)?;
    u32::try_from(mtu).ok().filter(|mtu| *mtu != 0)
}

/// The addresses and routes of every ADD, of host-local but for the very address. `None`: the configuration does not tell all of them.
fn every_answer(conf: &NetConf, given: Given) -> Option<CniResult> {
    let args = Args::default();
    let (ips, routes) = match conf.ipam_type.as_deref()? {
        "host-local" if !given.ranges => {
            let ipam = HostLocal::parse(conf, &args).ok()?;
            let ips: Option<Vec<IpConfig>> = ipam.ranges.iter().map(address_of).collect();
            (ips?, ipam.routes)
        }
        "static" if !given.addresses => {
            let lease = static_ipam::allocate(&StaticIpam::parse(conf, &args).ok()?);
            (lease.ips, lease.routes)
        }
        _ => return None,
    };
    // Without an address every ADD is refused for that.
    (!ips.is_empty()).then(|| CniResult { ips, routes, ..CniResult::default() })
}

/// An address of a range set, with the gateway. `None`: which of several ranges gives it shows at the call.
fn address_of(set: &RangeSet) -> Option<IpConfig> {
    let [range] = set.0.as_slice() else { return None };
    Some(IpConfig { address: range.with_prefix(range.start)?, gateway: Some(range.gateway), interface: None })
}
