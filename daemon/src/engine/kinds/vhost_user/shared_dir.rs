//! The directory of a socket as userspace-cni has it: the pod's volume `shared-dir`, else a directory of the container's own in the one
//! that the configuration names (`sharedDir`).

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fairlead_cni::config::VhostUser as Config;
use fairlead_cni::config::userspace::SharedDir;
use fairlead_cni::config::vhost_user::{Mode, Place, Switch};
use fairlead_cni::{CniError, Code};
use fairlead_kube::{PodRef, SharedDirVolume, Wait};

use super::config::VhostUser;
use super::services::VhostUserServices;
use super::socket_dir::{SocketPlace, unusable};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::{Kinds, NotAttached};
use crate::store::{Attachment, VhostUserRecord};

/// The volume's name.
const VOLUME: &str = "shared-dir";
/// So long a pod that the API has not told of is waited for.
const POD_SEEN: Duration = Duration::from_secs(2);
/// The rights of a container's own directory, as userspace-cni makes it.
const OWN: u16 = 0o750;

/// The beginning of a container's id, by which userspace-cni calls its files.
pub(super) fn container_begin(container: &str) -> String {
    container.chars().take(12).collect()
}

/// The configuration with the place of its socket. Not from within a pod's namespace: the pod may be waited for.
pub(crate) fn find(
    kinds: &Kinds,
    wanted: &VhostUser,
    request: &AttachmentRequest<'_>,
) -> Result<VhostUser, NotAttached> {
    let Place::SharedDir(shared) = &wanted.config.place else { return Ok(wanted.clone()) };
    if let (Switch::OvsDpdk(_), Some(group)) = (&wanted.config.switch, &shared.group) {
        kinds.vhost_user.ovs.must_be_of(group).map_err(NotAttached::by_code)?;
    }
    let found = kinds.vhost_user.shared_dir(shared, &wanted.config, request);
    Ok(VhostUser { found: Some(found.map_err(NotAttached::by_code)?), ..wanted.clone() })
}

impl VhostUserServices {
    fn shared_dir(
        &self,
        shared: &SharedDir,
        config: &Config,
        request: &AttachmentRequest<'_>,
    ) -> Result<SocketPlace, CniError> {
        let (container, ifname) = (&request.key.container, &request.key.ifname);
        let begin = container_begin(container);
        let socket = shared.socket.clone().unwrap_or_else(|| format!("{begin}-{ifname}"));
        if let Some(volume) = self.volume(VOLUME, request).ok().filter(|volume| self.open(volume).is_ok()) {
            // An annotation tells where the pod has mounted it, and stays as it was written.
            let is_told = config.container_side.as_ref().is_some_and(|side| side.by_annotation);
            let known = self.volume_of_pod(request, if is_told { POD_SEEN } else { Duration::ZERO });
            let mount_path = known.and_then(|known| known.mount_path);
            return Ok(SocketPlace { mount_path, ..SocketPlace::new(&volume, socket, true) });
        }
        let known = self.volume_of_pod(request, POD_SEEN);
        if let Some(SharedDirVolume { host_path: Some(directory), mount_path }) = known {
            let place = self.host_path(&directory, socket, config.mode)?;
            return Ok(SocketPlace { mount_path, ..place });
        }
        let Some(base) = &shared.base else { return Err(nowhere()) };
        let own = PathBuf::from(base).join(begin);
        let place = SocketPlace::new(&own, socket, false);
        Ok(SocketPlace { own_directory_in: Some(base.trim_end_matches('/').to_owned()), ..place })
    }

    /// A directory of the host that the pod names: it can make its socket there by itself, and nothing of ours is put there.
    fn host_path(&self, directory: &str, socket: String, mode: Mode) -> Result<SocketPlace, CniError> {
        let refused = |why: &str, remedy: &str| {
            let msg = format!("the pod's volume {VOLUME:?} is the host's directory {directory:?}, {why}");
            Err(CniError::new(Code::InvalidConfig, msg).with(remedy))
        };
        if !directory.starts_with('/') || directory.split('/').any(|part| part == "..") {
            return refused("which is no absolute path without \"..\"", "correct it, or make it an emptyDir");
        }
        if mode == Mode::Client {
            return refused("in which no socket is made for a pod", "make the volume an emptyDir");
        }
        let directory = Path::new(directory.trim_end_matches('/'));
        match self.open(directory) {
            Ok(_) => Ok(SocketPlace::new(directory, socket, false)),
            // The runtime would make it with the container, which comes after the sandbox.
            Err(error) if error.kind() == io::ErrorKind::NotFound => refused(
                "which is not there",
                "give the volume `type: DirectoryOrCreate`, so that kubelet makes it first, or make it on each boot",
            ),
            Err(error) => Err(unusable(directory, &error)),
        }
    }

    fn volume_of_pod(&self, request: &AttachmentRequest<'_>, wait: Duration) -> Option<SharedDirVolume> {
        let (cluster, pod) = (self.cluster.as_ref()?, PodRef::of_args(request.args)?);
        let deadline = request.waiting.deadline.min(Instant::now() + wait);
        let gone = || request.waiting.gone.get();
        cluster.pod(&pod, &Wait { deadline, gone: &gone }).ok()?.shared_dir.clone()
    }

    /// Makes the directory of the container's own that a port is to have. It is on record.
    pub(super) fn make_own_directory(&self, record: &VhostUserRecord) -> Result<(), CniError> {
        let Some(base) = &record.own_directory_in else { return Ok(()) };
        let (root, directory) = (&self.places.root, Path::new(&record.directory));
        let own = root
            .make_directory(Path::new(base))
            .and_then(|_| root.make_one_directory(directory, OWN.into()))
            .and_then(|()| self.open_of(record))
            .map_err(|e| unusable(directory, &e))?;
        if record.ovs.is_some() { self.ovs.let_in(&own, directory, OWN) } else { Ok(()) }
    }

    /// Removes it, unless another interface of the container has it, too, or somebody has put something there.
    pub(super) fn remove_own_directory(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
    ) -> Result<(), CniError> {
        if record.own_directory_in.is_none() {
            return Ok(());
        }
        let directory = Path::new(&record.directory);
        match self.places.root.remove_empty_directory(directory) {
            Ok(true) => {}
            Ok(false) => {
                tracing::debug!(container = %attachment.key.container, directory = %record.directory,
                "the directory is not empty and stays")
            }
            Err(e) => return Err(unusable(directory, &e)),
        }
        Ok(())
    }
}

fn nowhere() -> CniError {
    let msg = format!("the pod has no volume {VOLUME:?}, and the configuration no \"sharedDir\"");
    CniError::new(Code::InvalidConfig, msg).with(format!(
        "give the pod an emptyDir {VOLUME:?}, mounted where the application looks for its socket; the daemon sees the volumes of pods with deploy/overlays/ovs-dpdk or vhost-user"
    ))
}
