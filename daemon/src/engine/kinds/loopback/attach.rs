//! `lo` is set up, and the answer tells what the kernel has given it.

use fairlead_cni::result::{Interface, IpConfig};
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::{Address, Mac, Net, Op, SetLink};

use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::{Applied, Plan, Work};
use crate::store::LinkRecord;

/// Nothing has to be looked at.
pub(crate) fn plan() -> Plan {
    Plan { record: LinkRecord::Loopback, work: Work::Loopback }
}

/// Sets `lo` up. In a chain the result of the plugin before it is the answer.
pub(crate) fn apply(request: &AttachmentRequest<'_>, pod: &mut dyn Net) -> Result<Applied, CniError> {
    let told = |e| errors::kernel(&request.key.network, "setting up \"lo\"", &e);
    let lo = pod
        .link_by_name("lo")
        .map_err(told)?
        .ok_or_else(|| CniError::new(Code::Internal, "the namespace has no interface \"lo\""))?;
    // The kernel gives `lo` its addresses when it comes up, so they are read after this.
    pod.batch(&[Op::SetLink(SetLink { index: lo.index, up: Some(true), ..SetLink::default() })])
        .map_err(told)?;
    // A chained plugin has to pass on the result of those before it (CNI spec).
    if let Some(prev) = &request.conf.prev_result {
        return Ok(Applied { result: Some(prev.clone()), ..Applied::default() });
    }
    let addresses = pod.addresses(lo.index).map_err(told)?;
    // The reference plugin refuses such an address too.
    if let Some(stranger) = addresses.iter().find(|a| !a.net.addr().is_loopback()) {
        let msg = format!("\"lo\" has the address {}, which is no loopback address", stranger.net);
        return Err(CniError::new(Code::Internal, msg));
    }
    Ok(Applied { result: Some(answer(request, &addresses)), ..Applied::default() })
}

/// The first address of each family, as the reference plugin answers it.
fn answer(request: &AttachmentRequest<'_>, addresses: &[Address]) -> CniResult {
    let first = |v6: bool| addresses.iter().find(move |a| a.net.addr().is_ipv6() == v6);
    let ips = [first(false), first(true)].into_iter().flatten().map(|a| IpConfig {
        address: a.net,
        gateway: None,
        interface: Some(0),
    });
    let lo = Interface {
        name: "lo".into(),
        mac: Mac([0; 6]).to_string(),
        sandbox: request.sandbox.netns.to_owned(),
        ..Interface::default()
    };
    CniResult { interfaces: vec![lo], ips: ips.collect(), ..CniResult::default() }
}
