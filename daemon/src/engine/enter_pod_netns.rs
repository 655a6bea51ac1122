//! The pod's namespace, as a request means it.

use fairlead_cni::CniError;
use fairlead_cni::wire::Inode;
use fairlead_host::{Kernel, Net, NetnsId};

use super::attachment_request::AttachmentRequest;
use super::errors;

/// Enters the pod's namespace, if it is what the caller meant: the daemon may see other mounts, or run beside another host.
pub(crate) fn enter<'k>(
    kernel: &'k dyn Kernel,
    host_id: &NetnsId,
    request: &AttachmentRequest<'_>,
) -> Result<Box<dyn Net + 'k>, CniError> {
    let pod = kernel.pod(request.netns()).map_err(|e| errors::netns(&e))?;
    let id = pod.id();
    let here = Inode { dev: id.dev, ino: id.ino };
    if request.sandbox.netns_inode.is_some_and(|seen| seen != here) {
        return Err(errors::other_namespace(request.netns()));
    }
    // A rootless or nested runtime has a network of its own, in which this daemon can make no interface.
    let own = Inode { dev: host_id.dev, ino: host_id.ino };
    let by_inode = request.sandbox.callers_netns.is_some_and(|callers| callers != own);
    let cookies = request.sandbox.callers_cookie.zip(host_id.cookie);
    if by_inode || cookies.is_some_and(|(callers, own)| callers != own) {
        return Err(errors::other_host());
    }
    Ok(pod)
}
