//! Which directory a network's addresses are in, and how far the way to it is trusted.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_host::host_root::HostRoot;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::file_format::LOCK;
use crate::IpamError;

/// The longest path and the longest name that the kernel takes, in bytes (`PATH_MAX`, `NAME_MAX`).
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;

/// So many characters of a refused name are repeated.
const SHOWN: usize = 64;

/// A network's directory by the names in its configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkDir {
    /// The directory of all networks (`dataDir`); empty: the reference plugin's default.
    pub data_dir: String,
    /// The network's name.
    pub network: String,
    /// The directory of the administrator's below which it has to lie, with neither a symbolic link nor a mount on the way. `None`: the
    /// administrator wrote `dataDir` itself, and it is followed wherever it leads.
    pub root: Option<String>,
}

impl NetworkDir {
    /// The directory of a network whose configuration is the administrator's.
    pub fn of_administrator(data_dir: &str, network: &str) -> NetworkDir {
        NetworkDir { data_dir: data_dir.to_owned(), network: network.to_owned(), root: None }
    }

    /// Whether there can be such a directory at all: to be asked before an allocation in it goes on record.
    ///
    /// # Errors
    /// [`IpamError::BadDirectory`] where the kernel would refuse the name, or it would lead elsewhere.
    pub fn must_be_possible(&self) -> Result<(), IpamError> {
        self.checked().map(drop)
    }

    /// The same with its default, if it can be a directory's name.
    pub(super) fn checked(&self) -> Result<Cow<'_, NetworkDir>, IpamError> {
        let bad = |field, value: &str| {
            Err(IpamError::BadDirectory { field, value: value.chars().take(SHOWN).collect() })
        };
        let (data_dir, network) = (&self.data_dir, self.network.as_str());
        // What the kernel would refuse must not get into the list of directories first.
        if data_dir.len() > LONGEST_PATH || data_dir.contains(|c: char| c.is_control()) {
            return bad("dataDir", data_dir);
        }
        let elsewhere =
            matches!(network, "" | "." | "..") || network.contains(|c: char| c == '/' || c.is_control());
        if elsewhere || network.len() > LONGEST_NAME {
            return bad("network name", network);
        }
        Ok(match data_dir.as_str() {
            "" => Cow::Owned(NetworkDir { data_dir: DEFAULT_DATA_DIR.to_owned(), ..self.clone() }),
            _ => Cow::Borrowed(self),
        })
    }

    /// The namespace of the tenant whose it is, by its network's name (`name@namespace`); `None` for the administrator's, and for that of
    /// another plugin, which has the network's own name.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.root.as_ref()?;
        self.network.rsplit_once('@').map(|(_, namespace)| namespace)
    }

    /// Its path on the host.
    pub(super) fn path(&self) -> PathBuf {
        Path::new(&self.data_dir).join(&self.network)
    }

    /// The host's files as the way to this directory is trusted.
    pub(super) fn trusted<'r>(&self, host: &'r HostRoot) -> Cow<'r, HostRoot> {
        match &self.root {
            Some(root) => Cow::Owned(host.strict_below(Path::new(root))),
            None => Cow::Borrowed(host),
        }
    }

    /// Of a tenant's: no directory on the way to it is a network's own, whose files are that network's addresses.
    pub(super) fn lies_in_no_network(&self, root: &HostRoot) -> io::Result<()> {
        let Some(trusted) = &self.root else { return Ok(()) };
        for way in Path::new(&self.data_dir).ancestors().take_while(|way| *way != Path::new(trusted)) {
            let dir = match root.directory(way) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                dir => dir?,
            };
            match statat(&dir, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => {
                    let text = format!("{way:?} is the directory of another network's addresses");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
            }
        }
        Ok(())
    }
}
