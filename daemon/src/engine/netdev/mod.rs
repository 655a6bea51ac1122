//! What every netdev of a pod has in common, whatever its kind: its addresses and routes, its CHECK, its silence.
//!
//! Each is the other's undo, and each may be begun again.

pub(crate) mod driver_state;
pub(crate) mod leave_pod;
pub(crate) mod setup;

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_host::{Address, Link, Mac, Net, NetError, Op, OpError, SetLink};
use ipnet::IpNet;
use nix::errno::Errno;

use super::attachment_request::AttachmentRequest;
use super::errors;
use super::random_ids::RandomIds;
use setup::{Must, Setup};

/// How long an address may be under the kernel's duplicate address detection (the reference plugins' limit).
const SETTLE: Duration = Duration::from_secs(5);
/// How often it is looked whether what is waited for has come.
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// So many addresses of an interface are deleted one by one. One that a pod has given more is set down instead, and answers for none:
/// with 50,000 addresses that takes 10 ms, and a message for each would take minutes.
const FEW_ADDRESSES: usize = 64;

/// What CHECK compares next, once the kind has compared what it knows.
pub(crate) enum Checked {
    /// Everything is as it should be; there is nothing more to compare.
    Whole,
    /// The netdev in the pod, whose MAC address, addresses and routes are still to be compared.
    Netdev(Box<Link>),
    /// Something is not what ADD made it: why.
    Changed(String),
}

/// CHECK of a netdev in the pod: it is there, it `fits` its configuration, and it is up where it `must_be_up`.
pub(crate) fn check(
    request: &AttachmentRequest<'_>,
    pod: &mut dyn Net,
    must_be_up: bool,
    fits: impl FnOnce(&Link) -> Result<(), String>,
) -> Result<Checked, CniError> {
    let told = |e| errors::kernel(&request.key.network, &format!("looking at {:?}", request.key.ifname), &e);
    let Some(link) = pod.link_by_name(&request.key.ifname).map_err(told)? else {
        return Ok(Checked::Changed("the interface is gone".to_owned()));
    };
    Ok(match fits(&link) {
        Err(reason) => Checked::Changed(reason),
        Ok(()) if must_be_up && !link.up => Checked::Changed("the interface is down".to_owned()),
        Ok(()) => Checked::Netdev(Box::new(link)),
    })
}

/// Why an interface has not got its addresses and routes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotConfigured {
    /// The kernel refused one of them.
    #[error(transparent)]
    Refused(#[from] NetError),
    /// An address is another host's, as the kernel's duplicate address detection has found.
    #[error("{address} is in use by another host on the link")]
    InUse {
        /// The address.
        address: IpNet,
    },
    /// The kernel's duplicate address detection takes too long, though the link has a carrier.
    #[error("duplicate address detection did not end within {} s", SETTLE.as_secs())]
    Unsettled,
}

/// Writes sysctls, then `arp_notify`, addresses and routes.
pub(crate) fn configure(pod: &mut dyn Net, setup: &Setup, index: u32) -> Result<(), NotConfigured> {
    // Before the addresses: the kernel refuses an IPv6 address on an interface with disable_ipv6.
    for (key, value, must) in &setup.sysctls {
        let written = match must {
            Must::ClearIfSet => match pod.sysctl(key) {
                Ok(now) if now.trim() != *value => pod.set_sysctl(key, value),
                Ok(_) | Err(_) => Ok(()),
            },
            Must::Succeed | Must::Try => pod.set_sysctl(key, value),
        };
        if *must != Must::Try {
            written?;
        }
    }
    let mut ops: Vec<Op> = setup.arp_notify.iter().chain(&setup.addresses).cloned().collect();
    if setup.settle {
        carry_out(pod, &ops)?;
        settle(pod, index, SETTLE)?;
        ops.clear();
    }
    ops.extend_from_slice(&setup.routes);
    Ok(carry_out(pod, &ops)?)
}

/// All at once. What the kernel does behind a refusal goes with the interface, in the same undo as what it did before.
fn carry_out(pod: &mut dyn Net, ops: &[Op]) -> Result<(), NetError> {
    // An interface whose MTU is too small for IPv4 has no such setting; the reference plugins pass over that, too.
    let matters = |refused: &OpError| !matches!(ops.get(refused.at), Some(Op::SetArpNotify(_)));
    match pod.batch_past_refusals(ops)?.into_iter().find(matters) {
        Some(refused) => Err(NetError::Op(refused)),
        None => Ok(()),
    }
}

/// Waits for the end of the kernel's duplicate address detection. On a link without a carrier the kernel puts it off until there is
/// one: the pod starts before, as with the reference plugins.
fn settle(pod: &mut dyn Net, index: u32, limit: Duration) -> Result<(), NotConfigured> {
    let until = Instant::now() + limit;
    loop {
        let addresses = pod.addresses(index)?;
        // The kernel keeps such an address but does not use it: the pod would start with one that does not work.
        if let Some(double) = addresses.iter().find(|a| a.flags.dad_failed) {
            return Err(NotConfigured::InUse { address: double.net });
        }
        if !addresses.iter().any(|a| a.flags.tentative) {
            return Ok(());
        }
        if Instant::now() >= until {
            return match pod.link_by_index(index)? {
                Some(link) if !link.carrier => {
                    tracing::warn!(ifname = %link.name, "its IPv6 addresses are usable when it has a carrier");
                    Ok(())
                }
                _ => Err(NotConfigured::Unsettled),
            };
        }
        sleep(POLL);
    }
}

/// Makes an interface silent and frees its name: nobody answers for its addresses any more, link-local ones included.
/// What is gone already is no error. The name that it gets instead is drawn here: a pod that knew it could have taken it.
pub(crate) fn silence(pod: &mut dyn Net, link: &Link, ids: &RandomIds) -> Result<(), NetError> {
    let index = link.index;
    let mut ops: Vec<Op> = match pod.addresses_at_most(index, FEW_ADDRESSES)? {
        Some(all) => {
            if all.iter().any(is_routed_ipv6) {
                switch_ipv6_off(pod, &link.name);
            }
            all.into_iter().map(Op::DeleteAddress).collect()
        }
        None => vec![Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() })],
    };
    ops.push(Op::SetLink(SetLink { index, name: Some(ids.parked_name()), ..SetLink::default() }));
    // With a primary IPv4 address the kernel may have deleted its secondaries too, and the pod may have deleted any.
    let matters = |refused: &OpError| !ops.get(refused.at).is_some_and(|op| op.wants_gone(refused.errno));
    match pod.batch_past_refusals(&ops)?.into_iter().find(matters) {
        Some(refused) => gone_is_fine(Err(NetError::Op(refused))),
        None => Ok(()),
    }
}

fn is_routed_ipv6(address: &Address) -> bool {
    matches!(address.net, IpNet::V6(net) if !net.addr().is_unicast_link_local())
}

/// Unlike IPv4 routes, those of IPv6 do not go with the last address, and a router may give the interface another one. Both end here,
/// until the interface is gone or is the host's again: in another namespace the kernel begins anew.
fn switch_ipv6_off(pod: &mut dyn Net, ifname: &str) {
    // The pod may have renamed it, and a kernel or a `/proc/sys` that has no such sysctl keeps no DEL from its end.
    if let Err(error) = pod.set_sysctl(&format!("net/ipv6/conf/{ifname}/disable_ipv6"), "1") {
        tracing::warn!(ifname, %error, "an interface keeps its IPv6 routes until it is gone");
    }
}

/// What deleting a link came to, where a link that is gone already is success.
pub(crate) fn gone_is_fine(result: Result<(), NetError>) -> Result<(), NetError> {
    match result {
        Err(e) if e.errno() == Some(Errno::ENODEV) => Ok(()),
        other => other,
    }
}

/// The MAC address of a link that was just made, where it was not chosen.
pub(crate) fn mac_of(pod: &mut dyn Net, index: u32, chosen: Option<Mac>) -> Result<Option<Mac>, NetError> {
    match chosen {
        Some(mac) => Ok(Some(mac)),
        None => Ok(pod.link_by_index(index)?.and_then(|l| l.mac)),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_host::double::FakeKernel;
    use fairlead_host::{AddressFlags, NetKernel};

    use super::*;

    #[test]
    fn an_address_whose_double_is_still_looked_for_keeps_the_pod_only_where_the_link_has_a_carrier() {
        let kernel = FakeKernel::new();
        let index = kernel.add_host_link("net1");
        let mut net = kernel.host().unwrap();
        let flags = AddressFlags { tentative: true, ..AddressFlags::default() };
        let address = Address { index, net: "fd00::5/64".parse().unwrap(), broadcast: None, flags };
        net.batch(&[Op::AddAddress(address)]).unwrap();
        kernel.set_carrier("net1", false);
        settle(net.as_mut(), index, Duration::ZERO).unwrap();
        kernel.set_carrier("net1", true);
        let refused = settle(net.as_mut(), index, Duration::ZERO).unwrap_err();
        assert!(matches!(refused, NotConfigured::Unsettled), "{refused}");
    }
}
