//! The pod's namespace, as a request means it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fairlead_cni::CniError;
use fairlead_cni::wire::Inode;
use fairlead_host::{Kernel, Net, NetnsError, NetnsId};

use super::attachment_request::AttachmentRequest;
use super::errors;

/// Enters the pod's namespace, if it is what the caller meant: the daemon may see other mounts, or run beside another host.
pub(crate) fn enter<'k>(
    kernel: &'k dyn Kernel,
    host_id: &NetnsId,
    request: &AttachmentRequest<'_>,
) -> Result<Box<dyn Net + 'k>, CniError> {
    let seen = request.sandbox.netns_inode;
    let pod = kernel.pod(request.netns()).map_err(|error| refused(&error, request.netns(), seen))?;
    let id = pod.id();
    let here = Inode { dev: id.dev, ino: id.ino };
    if seen.is_some_and(|seen| seen != here) {
        return Err(errors::other_mounts(request.netns(), "another one"));
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

/// What a path is told as where the daemon finds no namespace. `seen`: what the executable saw there.
fn refused(error: &NetnsError, path: &Path, seen: Option<Inode>) -> CniError {
    match (error, seen) {
        (NetnsError::Missing { .. }, Some(_)) => errors::other_mounts(path, "nothing"),
        // A runtime makes a file, and mounts the namespace on it: where that mount is not seen, the file is.
        (NetnsError::NotANetns { .. }, Some(seen)) if is_another(path, seen) => {
            errors::other_mounts(path, "an ordinary file")
        }
        _ => errors::netns(error),
    }
}

/// Whether the daemon finds another file at a path than the executable saw there.
fn is_another(path: &Path, seen: Inode) -> bool {
    fs::metadata(path).is_ok_and(|here| Inode { dev: here.dev(), ino: here.ino() } != seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_on_which_the_daemon_does_not_see_the_runtimes_namespace_is_told_as_other_mounts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let told = |seen: &Path| {
            let seen = fs::metadata(seen).unwrap();
            let error = NetnsError::NotANetns { path: path.to_owned() };
            refused(&error, path, Some(Inode { dev: seen.dev(), ino: seen.ino() }))
        };
        let other = told(Path::new("/proc/self/ns/net"));
        assert!(
            other.code.number() == 8 && other.msg.contains("the daemon sees an ordinary file"),
            "{other}"
        );
        assert_eq!(told(path).code.number(), 4, "the runtime names no namespace");
    }
}
