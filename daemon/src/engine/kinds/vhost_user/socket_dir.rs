//! The directory of a port's socket: a volume of the pod, or one that the administrator names.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fairlead_cni::config::vhost_user::Place;
use fairlead_cni::{CniError, Code};
use fairlead_host::strict_path::leads_elsewhere;
use fairlead_host::{socket_file, stable_hash};
use fairlead_kube::PodRef;

use super::services::VhostUserServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::port_pools::SOCKET;
use crate::store::VhostUserRecord;

/// Where a socket is to be, as it goes on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketPlace {
    /// The directory's path on the host.
    pub(super) directory: String,
    /// The socket's name in it.
    pub(super) socket: String,
    /// It is one pod's alone.
    pub(super) in_volume: bool,
    /// It is one of the container's own in this one, and made with the port.
    pub(super) own_directory_in: Option<String>,
    /// Where the pod sees it, where that is known otherwise than by the configuration.
    pub(super) mount_path: Option<String>,
}

impl SocketPlace {
    pub(super) fn new(directory: &Path, socket: String, in_volume: bool) -> SocketPlace {
        let directory = directory.to_string_lossy().into_owned();
        SocketPlace { directory, socket, in_volume, own_directory_in: None, mount_path: None }
    }
}

impl VhostUserServices {
    /// The place of the socket that a request asks for. The directory is there already.
    pub(super) fn place(
        &self,
        place: &Place,
        request: &AttachmentRequest<'_>,
    ) -> Result<SocketPlace, CniError> {
        let ifname = &request.key.ifname;
        if let Place::Port(port) = place {
            return Ok(SocketPlace::new(&self.pools.directory(port), SOCKET.to_owned(), true));
        }
        let (directory, socket) = match place {
            Place::Volume(volume) => (self.volume(volume, request)?, format!("{ifname}.sock")),
            // Pods share it: the container's name keeps their sockets apart.
            Place::Directory(directory) => {
                let container = short_id(&request.key.container);
                (PathBuf::from(directory), format!("{container}-{ifname}.sock"))
            }
            Place::Port(_) | Place::Resource(_) | Place::SharedDir(_) => {
                return Err(CniError::new(
                    Code::Internal,
                    "a port was not reserved before it was planned with",
                ));
            }
        };
        self.open(&directory).map_err(|e| match (place, e.kind()) {
            (Place::Volume(_), io::ErrorKind::NotFound) if !self.sees_volumes(&directory) => {
                let msg = format!("the daemon does not see the volumes of pods ({})", directory.display());
                CniError::new(Code::TryAgain, msg)
                    .with("install deploy/overlays/vhost-user (docs/vhost-user.md)")
            }
            (Place::Volume(volume), io::ErrorKind::NotFound) => {
                let msg =
                    format!("the pod has no volume {volume:?} of type emptyDir ({})", directory.display());
                CniError::new(Code::InvalidConfig, msg)
                    .with("add it to the pod and mount it, or name another one by \"volume\"")
            }
            _ => unusable(&directory, &e),
        })?;
        Ok(SocketPlace::new(&directory, socket, !matches!(place, Place::Directory(_))))
    }

    /// Kubelet has made a pod's volumes before it has the runtime make the sandbox. All of the path is root's.
    pub(super) fn volume(&self, volume: &str, request: &AttachmentRequest<'_>) -> Result<PathBuf, CniError> {
        let uid = PodRef::of_args(request.args).and_then(|pod| pod.uid);
        let is_plain = |uid: &String| {
            !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let unknown = |why: &str, remedy: &str| {
            let msg = format!("the pod of volume {volume:?} is not known: {why}");
            CniError::new(Code::InvalidConfig, msg).with(remedy)
        };
        let outside =
            "outside Kubernetes give \"directory\", a directory of the host that the container mounts";
        let uid = uid.ok_or_else(|| unknown("the runtime tells no uid (K8S_POD_UID)", outside))?;
        if !is_plain(&uid) {
            let why = format!("the uid that the runtime tells, {uid:?}, is no plain name (K8S_POD_UID)");
            return Err(unknown(&why, "have the runtime tell the pod's uid: letters, digits, - and _"));
        }
        let volumes = self.places.kubelet.join("pods").join(uid).join("volumes/kubernetes.io~empty-dir");
        Ok(volumes.join(volume))
    }

    /// Whether the pod's own directory of volumes is there: in a container it may be that nothing of kubelet's is.
    fn sees_volumes(&self, volume: &Path) -> bool {
        volume.ancestors().nth(3).is_some_and(|of_pod| self.open(of_pod).is_ok())
    }

    /// Opens a directory of the host.
    pub(super) fn open(&self, directory: &Path) -> io::Result<OwnedFd> {
        self.places.root.directory(directory)
    }

    /// Opens the directory of a port's socket.
    pub(super) fn open_of(&self, record: &VhostUserRecord) -> io::Result<OwnedFd> {
        match (&record.pool_port, &record.own_directory_in) {
            (Some(port), _) => self.pools.open(port),
            // Pods may write to the one above it.
            (None, Some(base)) => {
                self.places.root.strict_below(Path::new(base)).directory(Path::new(&record.directory))
            }
            (None, None) => self.open(Path::new(&record.directory)),
        }
    }
}

/// The most bytes of a container's id in the name of its port or socket: with an interface's name a port's has 64 at most.
const ID_BYTES: usize = 48;

/// A container's id where it is short enough, else its beginning and a number that no other id with that beginning has: runtimes' ids
/// may begin alike.
pub(super) fn short_id(container: &str) -> String {
    if container.len() <= ID_BYTES {
        return container.to_owned();
    }
    let hash = stable_hash::fnv1a(container);
    let begin: String = container.chars().take(ID_BYTES - 17).collect();
    format!("{begin}-{hash:016x}")
}

/// Whether the error says that a socket's directory is no more. What has its name by now, a link among others, has nothing of ours in it.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) || leads_elsewhere(error)
}

/// The error of a directory that cannot be opened, has no socket made in it, or something that is no socket in its place.
pub(super) fn unusable(directory: &Path, error: &io::Error) -> CniError {
    if socket_file::is_no_socket(error) {
        return CniError::new(Code::InvalidConfig, format!("{}: {error}", directory.display()));
    }
    let what = format!("the socket's directory {}", directory.display());
    errors::file(what, error, Code::Io, "make it a directory in which root may make a socket")
}
