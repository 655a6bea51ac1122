//! The parent of a made link, looked up where its configuration says.

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kernel, Link, Net, NetError};

use super::link_inputs::ParentRef;
use crate::engine::errors;

/// The parent that a configuration names.
pub(super) fn parent(kernel: &dyn Kernel, pod: &mut dyn Net, wanted: &ParentRef) -> Result<Link, CniError> {
    let mut host;
    let net: &mut dyn Net = if wanted.in_container {
        pod
    } else {
        host = kernel.host().map_err(|e| errors::kernel("", "opening the host's namespace", &e))?;
        host.as_mut()
    };
    let place = if wanted.in_container { "the pod's namespace" } else { "the host" };
    let told = |e: NetError| errors::kernel("", "looking for the master interface", &e);
    match &wanted.name {
        Some(name) => net.link_by_name(name).map_err(told)?.ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                format!("master {name:?}: {place} has no interface of that name"),
            )
            .with("correct `master` in the network's configuration, or create the interface")
        }),
        None => default_route(net).map_err(told)?.ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                format!("no `master` is given and {place} has no default route"),
            )
            .with("name the interface in `master`")
        }),
    }
}

fn default_route(net: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let index = net.routes()?.iter().find(|r| r.dst.prefix_len() == 0).map(|r| r.index);
    index.map_or(Ok(None), |index| net.link_by_index(index))
}
