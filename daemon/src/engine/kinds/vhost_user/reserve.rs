//! A port of a pool: which one kubelet has allocated to the pod, and that nobody else has it.

use fairlead_cni::config::vhost_user::Place;
use fairlead_cni::{CniError, Code};

use super::config::VhostUser;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::keyed_locks::KeyedLock;
use crate::engine::kinds::sriov::reserve_alone;
use crate::engine::kinds::{HolderRemovals, Kinds, NotAttached};
use crate::store::Attachment;

/// The configuration with the port that kubelet has allocated to the pod, and what keeps every other ADD from it until the intent is on
/// record. Code 11 while the attachment that had it before is not over. Not from within a pod's namespace: kubelet is asked.
pub(crate) fn reserve<'k>(
    kinds: &'k Kinds,
    removals: &dyn HolderRemovals,
    wanted: &VhostUser,
    request: &AttachmentRequest<'_>,
) -> Result<(VhostUser, KeyedLock<'k>), NotAttached> {
    let port = allocated_port(kinds, wanted, request).map_err(NotAttached::by_code)?;
    let Some((_, mode)) = kinds.vhost_user.pools.port(&port) else {
        return Err(NotAttached::by_code(unknown(&port)));
    };
    let mine = |a: &Attachment| a.pool_port() == Some(port.as_str());
    let limit = kinds.vf_deadline(request);
    let lock = reserve_alone(&kinds.sriov, removals, &port, &mine, limit, |why| taken(&port, why))?;
    let mut network = wanted.clone();
    (network.config.place, network.config.mode) = (Place::Port(port), mode.into());
    Ok((network, lock))
}

fn allocated_port(
    kinds: &Kinds,
    wanted: &VhostUser,
    request: &AttachmentRequest<'_>,
) -> Result<String, CniError> {
    match &wanted.config.place {
        Place::Port(port) => {
            let (resource, _) = kinds.vhost_user.pools.port(port).ok_or_else(|| unknown(port))?;
            kinds.sriov.must_be_given_of(request, port, &resource)?;
            Ok(port.clone())
        }
        Place::Resource(resource) => Ok(kinds.sriov.next_of_pod(request, resource)?.1),
        Place::Volume(_) | Place::Directory(_) | Place::SharedDir(_) => {
            Err(CniError::new(Code::Internal, "a port of no pool is not reserved"))
        }
    }
}

fn unknown(port: &str) -> CniError {
    CniError::new(Code::InvalidConfig, format!("{port:?} is no port of a pool of this node"))
        .with("type vhost-user takes resources of vhostUser.pools in the daemon's configuration")
}

fn taken(port: &str, why: &str) -> CniError {
    CniError::new(Code::TryAgain, format!("port {port} cannot be had: {why}"))
        .with("it is waited for again with the next try; `fairleadd pools` tells who has it")
}
