//! Pods that live through a change of the node from Multus to us, or back.
//!
//! Multus keeps a file for each container, with what it attached to it (`cniDir`). From that its pods get their DEL, and their
//! addresses are kept from pods of ours. When Multus gets the node back, our pods get such files: Multus' DEL then calls our
//! executable. The files are root's; a definition in one is a tenant's text, and is run as such.

mod addresses;
mod del;
mod handed_over;

use std::io;
use std::path::{Path, PathBuf};

use fairlead_cni::config::{AttachmentRef, ConfList};
use fairlead_cni::{CniError, Code, names};
use fairlead_host::host_root::HostRoot;
use fairlead_kube::multus::{CachedAttachment, cached_attachments};

pub(super) use self::addresses::MultusPods;
use super::cluster_network::Held;
use super::{Engine, errors};
use crate::call::ChangeOver;

/// The longest file that is read, in bytes: many times what the most networks of a pod need.
const MAX_FILE: u64 = 16 << 20;
/// The most containers of one node: kubelet's own limit is 110 pods, and nobody's is near this.
const MAX_CONTAINERS: usize = 4096;

/// The directory in which Multus keeps what it attached.
struct MultusFiles {
    root: HostRoot,
    dir: PathBuf,
}

impl MultusFiles {
    fn path(&self, container: &str) -> PathBuf {
        self.dir.join(container)
    }

    /// The text of a container's file; `None` where it has none.
    fn read(&self, container: &str) -> Result<Option<String>, CniError> {
        let path = self.path(container);
        match self.root.read_trusted(&path, MAX_FILE) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(&path, &error)),
        }
    }

    /// What Multus attached to a container, in its order; `None`: it knows nothing of it.
    fn attachments(
        &self,
        container: &str,
        default_interface: &str,
    ) -> Result<Option<Vec<CachedAttachment>>, CniError> {
        let Some(text) = self.read(container)? else { return Ok(None) };
        let read = cached_attachments(&text, container, default_interface);
        read.map(Some).map_err(|error| CniError {
            msg: format!("{}: {}", self.path(container).display(), error.msg),
            ..error
        })
    }

    /// The containers that have a file.
    fn containers(&self) -> Result<Vec<String>, CniError> {
        let names = match self.root.names_in(&self.dir, MAX_CONTAINERS) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unusable(&self.dir, &error)),
        };
        // Beside them lie a directory of libcni's, and what is being written.
        Ok(names.into_iter().filter(|name| name != "results" && names::container_id(name).is_ok()).collect())
    }
}

fn unusable(path: &Path, error: &io::Error) -> CniError {
    let what = format!("Multus' file {}", path.display());
    errors::file(
        what,
        error,
        Code::Io,
        "put it right or remove it; then what it names has to be removed by hand",
    )
}

impl Engine {
    fn multus_files(&self, dir: &str) -> MultusFiles {
        MultusFiles { root: HostRoot::new(self.host_root.clone()), dir: dir.into() }
    }

    /// What Multus has attached to each container that it keeps a file of.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(super) fn attachments_of_multus(&self, dir: &str) -> Result<Vec<Held>, CniError> {
        let files = self.multus_files(dir);
        let mut held = Vec::new();
        for container in files.containers()? {
            for attachment in files.attachments(&container, "eth0")?.unwrap_or_default() {
                let Ok(list) = ConfList::parse(&attachment.config) else { continue };
                let (container_id, ifname) = (container.clone(), attachment.interface);
                held.push((list.name, AttachmentRef { container_id, ifname }));
            }
        }
        Ok(held)
    }

    /// Does for the pods of the node what a change to or from Multus needs. May be done again at any time.
    pub(super) fn change_over(&self, change: ChangeOver, dir: &str) -> Result<(), CniError> {
        let files = self.multus_files(dir);
        let errors = match change {
            ChangeOver::FromMultus => {
                let mut errors = self.take_back(&files);
                errors.extend(self.keep_addresses_of_multus(&files));
                errors
            }
            ChangeOver::ToMultus => self.hand_over(&files),
            ChangeOver::StaysWithMultus => {
                let mut errors = self.hand_over(&files);
                errors.extend(self.give_up_addresses_of_multus(&files));
                errors
            }
        };
        CniError::all(errors)
    }
}
