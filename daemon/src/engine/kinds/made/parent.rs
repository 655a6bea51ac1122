//! The parent of a made link, looked up where its configuration says.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kernel, Link, Net, NetError, ParentLink, Route};
use fairlead_sriov::numa::Locality;

use super::link_inputs::ParentRef;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::sriov::SriovServices;
use crate::engine::netdev::setup::is_main;

/// The parent that a configuration names: of several the first that there is, where nobody asks which.
pub(super) fn parent(
    kernel: &dyn Kernel,
    pod: &mut dyn Net,
    wanted: &ParentRef,
) -> Result<ParentLink, CniError> {
    if wanted.in_container {
        return first(pod, wanted);
    }
    let mut host = kernel.host().map_err(|e| errors::kernel("", "opening the host's namespace", &e))?;
    first(host.as_mut(), wanted)
}

/// The same for a link that is about to be made: another one of the same pod may just have looked for it.
pub(super) fn shared(
    kernel: &dyn Kernel,
    request: &AttachmentRequest<'_>,
    pod: &mut dyn Net,
    wanted: &ParentRef,
) -> Result<ParentLink, CniError> {
    let (Some(visit), [name], false) = (request.visit, wanted.names.as_slice(), wanted.in_container) else {
        return parent(kernel, pod, wanted);
    };
    if let Some(known) = visit.parent(name) {
        return Ok(known);
    }
    let found = parent(kernel, pod, wanted)?;
    visit.parent_found(name, &found);
    Ok(found)
}

fn first(net: &mut dyn Net, wanted: &ParentRef) -> Result<ParentLink, CniError> {
    if let [name] = wanted.names.as_slice()
        && let Some(parent) = net.parent_by_name(name).map_err(|e| told(&e))?
    {
        return Ok(parent);
    }
    Ok(all_there(net, wanted)?.swap_remove(0).into())
}

fn told(e: &NetError) -> CniError {
    errors::kernel("", "looking for the master interface", e)
}

/// The parent in the host's namespace, of several the one that is nearest to the pod, and how that lies.
pub(super) fn nearest(
    sriov: &SriovServices,
    request: &AttachmentRequest<'_>,
    host: &mut dyn Net,
    wanted: &ParentRef,
) -> Result<(Link, Option<Locality>), CniError> {
    let mut there = all_there(host, wanted)?;
    if wanted.names.len() < 2 {
        return Ok((there.swap_remove(0), None));
    }
    let (at, locality) = sriov.nearest_interface(request, &there)?;
    Ok((there.swap_remove(at), Some(locality)))
}

/// Every one of the parents that is in the namespace; at least one.
fn all_there(net: &mut dyn Net, wanted: &ParentRef) -> Result<Vec<Link>, CniError> {
    let place = if wanted.in_container { "the pod's namespace" } else { "the host" };
    if wanted.names.is_empty() {
        let link = default_route(net).map_err(|e| told(&e))?.ok_or_else(|| {
            let msg = format!("no `master` is given and {place} has no default route");
            CniError::new(Code::InvalidConfig, msg).with("name the interface in `master`")
        })?;
        return Ok(vec![link]);
    }
    let mut there = Vec::new();
    for name in &wanted.names {
        there.extend(net.link_by_name(name).map_err(|e| told(&e))?);
    }
    if there.is_empty() {
        let msg = format!("master {}: {place} has no interface of that name", wanted.named());
        return Err(CniError::new(Code::InvalidConfig, msg)
            .with("correct `master` in the network's configuration, or create the interface"));
    }
    Ok(there)
}

/// The link by which the default route leads: that of the main table, as the reference plugins look for it. IPv4's goes before IPv6's, and
/// of one family the lowest metric counts: so the kernel lists them, and those plugins take the first.
fn default_route(net: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let routes = net.routes()?;
    let is_default = |route: &&Route| route.dst.prefix_len() == 0 && route.table.is_none_or(is_main);
    let rank = |route: &&Route| (route.dst.addr().is_ipv6(), route.priority.unwrap_or_default());
    match routes.iter().filter(is_default).min_by_key(rank) {
        Some(route) => net.link_by_index(route.index),
        None => Ok(None),
    }
}
