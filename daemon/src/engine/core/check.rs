//! CHECK: whether the interface, its addresses and its routes still are what ADD answered. Really looks, and changes
//! nothing.

use fairlead_cni::result::CniResult;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Link, Net, NetError, Route};

use super::Core;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::{Addressing, Checked, Network};
use crate::engine::netdev::setup;
use crate::store::Attachment;

/// The kernel's own table (`RT_TABLE_LOCAL`), which [`Net::routes`] leaves out.
const LOCAL_TABLE: u32 = 255;
/// The main table (`RT_TABLE_MAIN`), into which the kernel puts a route that names none.
const MAIN_TABLE: u32 = 254;

impl Core {
    /// CHECK of an attachment of this network.
    pub(crate) fn check(
        &self,
        request: &mut AttachmentRequest<'_>,
        network: &Network,
    ) -> Result<(), CniError> {
        let _lock = self.lock_container(request)?;
        let attachment = self.store.find(request.key);
        let network = network.of_attachment(attachment.as_deref(), &request.key.ifname)?;
        let prev = request.conf.prev_result.clone().ok_or_else(|| {
            CniError::new(Code::InvalidConfig, "CHECK needs the result of ADD as prevResult")
        })?;
        // Before the namespace is entered: an IPAM plugin can run for seconds, and an entered namespace cannot die.
        if network.addressing() != Addressing::Never {
            self.ipam.check(request)?;
        }
        let mut pod = self.kernel().pod(request.netns()).map_err(|e| errors::netns(&e))?;
        request.timing.end("namespace");
        let done = self.compare(request, (&network, attachment.as_deref()), &prev, pod.as_mut());
        request.timing.end("compare");
        done
    }

    fn compare(
        &self,
        request: &AttachmentRequest<'_>,
        (network, attachment): (&Network, Option<&Attachment>),
        prev: &CniResult,
        pod: &mut dyn Net,
    ) -> Result<(), CniError> {
        let interfaces = &prev.interfaces;
        let (ifname, netns) = (&request.key.ifname, request.sandbox.netns);
        let at = match interfaces.iter().position(|i| i.name == *ifname && i.sandbox == netns) {
            Some(at) => at,
            // The reference plugin of `lo` passes on the result of the plugin before it, which need not name `lo`.
            None if network.addressing() == Addressing::Never => 0,
            None => {
                let reason = format!("prevResult has no interface of this name in {netns}");
                return Err(changed(request, &reason));
            }
        };
        match network.check(&self.kinds, request, attachment, (prev, at), pod)? {
            Checked::Whole => Ok(()),
            Checked::Changed(reason) => Err(changed(request, &reason)),
            Checked::Netdev(link) => {
                compare_mac(request, prev, at, &link, pod)?;
                compare_addresses(request, prev, at, &link, pod)
            }
        }
    }
}

fn compare_mac(
    request: &AttachmentRequest<'_>,
    prev: &CniResult,
    at: usize,
    link: &Link,
    pod: &mut dyn Net,
) -> Result<(), CniError> {
    let wanted = prev.interfaces.get(at).map(|i| i.mac.as_str()).unwrap_or_default();
    let Some(mac) =
        link.mac.filter(|mac| !wanted.is_empty() && !wanted.eq_ignore_ascii_case(&mac.to_string()))
    else {
        return Ok(());
    };
    // A bond that the pod, or a network after this one, has made gives all of its ports its own.
    if is_port_of_bond(link, pod).map_err(|e| looking(request, &e))? {
        return Ok(());
    }
    Err(changed(request, &format!("its MAC address is {mac} instead of {wanted}")))
}

fn is_port_of_bond(link: &Link, pod: &mut dyn Net) -> Result<bool, NetError> {
    let Some(master) = link.master else { return Ok(false) };
    Ok(pod.link_by_index(master)?.is_some_and(|master| master.kind.name() == "bond"))
}

fn compare_addresses(
    request: &AttachmentRequest<'_>,
    prev: &CniResult,
    at: usize,
    link: &Link,
    pod: &mut dyn Net,
) -> Result<(), CniError> {
    let told = |e: NetError| looking(request, &e);
    let present: Vec<_> = pod.addresses(link.index).map_err(told)?.into_iter().map(|a| a.net).collect();
    let lost = prev
        .ips
        .iter()
        .filter(|ip| ip.interface.is_none_or(|i| i == at))
        .find(|ip| !present.contains(&ip.address));
    if let Some(ip) = lost {
        return Err(changed(request, &format!("its address {} is gone", ip.address)));
    }
    let routes = pod.routes().map_err(told)?;
    let mut wanted = setup::routes(prev, link.index).filter(|route| route.table != Some(LOCAL_TABLE));
    match wanted.find(|wanted| !routes.iter().any(|r| serves(r, wanted))) {
        Some(lost) => Err(changed(request, &format!("the route to {} is gone", lost.dst))),
        None => Ok(()),
    }
}

fn serves(present: &Route, wanted: &Route) -> bool {
    let table = |r: &Route| r.table.filter(|t| *t != 0);
    let is_in = table(present).unwrap_or(MAIN_TABLE);
    let in_its_table = match table(wanted) {
        Some(table) => is_in == table,
        // A plugin after ours may have moved it out of the main table, as the reference plugin sbr does.
        None => is_in == MAIN_TABLE || present.index == wanted.index,
    };
    present.dst.trunc() == wanted.dst.trunc()
        && present.gateway == wanted.gateway
        && in_its_table
        && wanted.priority.is_none_or(|p| present.priority.unwrap_or(0) == p || present.dst.addr().is_ipv6())
}

fn looking(request: &AttachmentRequest<'_>, error: &NetError) -> CniError {
    errors::kernel(&request.key.network, &format!("looking at {:?}", request.key.ifname), error)
}

fn changed(request: &AttachmentRequest<'_>, reason: &str) -> CniError {
    // Named here, as the call's own edge names the pod's first network.
    CniError::new(Code::Changed, format!("container {}: {reason}", request.key.container))
        .with("delete the pod and make it anew")
        .of_interface(&request.key.network, &request.key.ifname)
}
