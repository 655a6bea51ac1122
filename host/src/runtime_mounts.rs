//! The mount namespace in which kubelet and the runtime live.
//!
//! As a rule that is the one of the host's first process. Where their mounts are encapsulated (OpenShift's kubens.service) it is a
//! namespace beside it, which gets every mount of the first process's and passes none of its own back: a pod's network namespace
//! that the runtime mounts is seen there alone, and in the runtime's containers.
//!
//! Such a namespace is bound to a file in a fixed place. It is looked for each time, since the service may come and go.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::host_root::HostRoot;
use crate::real::kind_of_namespace;

/// Where kubens.service binds the namespace, and container-mount-namespace.service, which came before it.
const BOUND_AT: [&str; 2] = ["/run/kubens/mnt", "/run/container-mount-namespace/mnt"];

/// A mount namespace of kubelet and the runtime, which the host's first process is not in.
#[derive(Debug)]
pub struct EncapsulatedMounts {
    /// Where it is bound, as the host's first process has it.
    pub path: &'static Path,
    /// The namespace, to be entered.
    pub namespace: File,
}

impl EncapsulatedMounts {
    /// Whether a process that this one sees is in it.
    ///
    /// # Errors
    /// The kernel's; also where there is no such process.
    pub fn has(&self, pid: u32) -> io::Result<bool> {
        let (own, other) = (self.namespace.metadata()?, fs::metadata(format!("/proc/{pid}/ns/mnt"))?);
        Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
    }
}

/// Why a mount namespace of the host cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be opened: {source}")]
pub struct UnopenedMounts {
    /// Its path as this process sees it.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The mount namespace of kubelet and the runtime, where it is not that of the host's first process. `host_root`: where this process
/// sees the root of the host; for one at `/` that is itself in such a namespace there is none.
///
/// # Errors
/// One may be there, and it cannot be opened.
pub fn encapsulated(host_root: &Path) -> Result<Option<EncapsulatedMounts>, UnopenedMounts> {
    // It is bound in the first process's namespace alone: a container of the runtime that has /run mounted sees an empty file there.
    bound_below(&HostRoot::whole(host_root))
}

/// Whether this process is in such a namespace. From within it is seen by way of the host's first process alone.
pub(crate) fn have_this_process() -> bool {
    let bound = bound_below(&HostRoot::new(PathBuf::from("/proc/1/root")));
    bound.is_ok_and(|mounts| mounts.is_some_and(|mounts| mounts.has(process::id()).unwrap_or(false)))
}

fn bound_below(root: &HostRoot) -> Result<Option<EncapsulatedMounts>, UnopenedMounts> {
    for path in BOUND_AT.map(Path::new) {
        let unopened = |source| UnopenedMounts { path: root.seen_at(path), source };
        let namespace = match root.open(path) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(e) => return Err(unopened(e)),
        };
        // The file stays when the service stops.
        if kind_of_namespace(namespace.as_fd()).map_err(|e| unopened(e.into()))? == Some(libc::CLONE_NEWNS) {
            return Ok(Some(EncapsulatedMounts { path, namespace }));
        }
    }
    Ok(None)
}

/// The mount namespace of kubelet and the runtime, for a process in a container that sees the root of the host at `host_root`.
pub(crate) fn of_runtime(host_root: &Path) -> Result<File, UnopenedMounts> {
    if let Some(mounts) = encapsulated(host_root)? {
        return Ok(mounts.namespace);
    }
    of_first_process(host_root)
}

/// The mount namespace of the host's first process.
pub(crate) fn of_first_process(host_root: &Path) -> Result<File, UnopenedMounts> {
    let path = host_root.join("proc/1/ns/mnt");
    File::open(&path).map_err(|source| UnopenedMounts { path, source })
}
