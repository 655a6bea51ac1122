//! The directory of a port's socket: a volume of the pod, or one that the administrator names.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fairlead_cni::config::vhost_user::Place;
use fairlead_cni::{CniError, Code};
use fairlead_kube::PodRef;

use super::services::VhostUserServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;

/// Where a socket is to be, as it goes on record.
pub(super) struct SocketPlace {
    /// The directory's path on the host.
    pub(super) directory: String,
    /// The socket's name in it.
    pub(super) socket: String,
}

impl VhostUserServices {
    /// The place of the socket that a request asks for. The directory is there already.
    pub(super) fn place(
        &self,
        place: &Place,
        request: &AttachmentRequest<'_>,
    ) -> Result<SocketPlace, CniError> {
        let ifname = &request.key.ifname;
        let (directory, socket) = match place {
            Place::Volume(volume) => (self.volume(volume, request)?, format!("{ifname}.sock")),
            // Pods share it: the container's name keeps their sockets apart.
            Place::Directory(directory) => {
                let container: String = request.key.container.chars().take(13).collect();
                (PathBuf::from(directory), format!("{container}-{ifname}.sock"))
            }
        };
        self.open(&directory).map_err(|e| match (place, e.kind()) {
            (Place::Volume(volume), io::ErrorKind::NotFound) => {
                let msg =
                    format!("the pod has no volume {volume:?} of type emptyDir ({})", directory.display());
                CniError::new(Code::InvalidConfig, msg)
                    .with("add it to the pod and mount it, or name another one by \"volume\"")
            }
            _ => unusable(&directory, &e),
        })?;
        Ok(SocketPlace { directory: directory.to_string_lossy().into_owned(), socket })
    }

    /// Kubelet has made a pod's volumes before it has the runtime make the sandbox. All of the path is root's.
    fn volume(&self, volume: &str, request: &AttachmentRequest<'_>) -> Result<PathBuf, CniError> {
        let uid = PodRef::of_args(request.args).and_then(|pod| pod.uid);
        let is_plain = |uid: &String| {
            !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let uid = uid.filter(is_plain).ok_or_else(|| {
            let msg =
                format!("the pod of volume {volume:?} is not known: the runtime tells no uid (K8S_POD_UID)");
            CniError::new(Code::InvalidConfig, msg).with(
                "outside Kubernetes give \"directory\", a directory of the host that the container mounts",
            )
        })?;
        let volumes = self.kubelet.join("pods").join(uid).join("volumes/kubernetes.io~empty-dir");
        Ok(volumes.join(volume))
    }

    /// Opens a directory of the host.
    pub(super) fn open(&self, directory: &Path) -> io::Result<OwnedFd> {
        self.root.directory(directory)
    }
}

/// The error of a directory that cannot be opened, or has no socket made in it.
pub(super) fn unusable(directory: &Path, error: &io::Error) -> CniError {
    let what = format!("the socket's directory {}", directory.display());
    errors::file(what, error, Code::Io, "make it a directory in which root may make a socket")
}
