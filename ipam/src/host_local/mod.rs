//! host-local: an address is a file, a network a directory of such files.
//!
//! Shared by all threads; calls about one network follow each other, calls about different ones do not meet.

mod attempt;
mod boot_label;
mod file_creation;
mod file_format;
mod file_index;
mod kill_steps;
mod lock_wait;
mod open_dir;
mod round_robin;
mod tmpfile_pool;
mod used_dirs;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::config::{HostLocal as Config, resolv_conf};
use fairlead_cni::result::{Dns, IpConfig};
use fairlead_host::host_root::HostRoot;
use parking_lot::Mutex;
use serde::Serialize;

use self::attempt::Attempt;
use self::file_format::FileName;
use self::lock_wait::{LockWait, Waiter};
use self::open_dir::{LockedDir, OpenDir};
use self::tmpfile_pool::PoolFiller;
use self::used_dirs::UsedDirs;
use crate::{IpamError, Lease, LeaseRequest, PendingRemovals};

pub use self::file_format::Owner;
pub use self::used_dirs::NetworkDir;

/// An address, or another file in a network's directory, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Name of the file.
    pub file: String,
    /// The address; `None` for a file that is named after none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// Whose it is.
    pub owner: Owner,
    /// The boot id at which Fairlead made it; `None`: made by the reference plugin, or the file system takes no
    /// extended attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// What a collection removed, and what it could not.
#[derive(Debug, Default)]
pub struct Removed {
    /// What is gone.
    pub allocations: Vec<Allocation>,
    /// Every failure: a collection goes on past errors.
    pub errors: Vec<IpamError>,
}

/// One network's directory, once it was opened, and the other processes that hold its lock.
#[derive(Debug, Default)]
struct SharedDir {
    open: Mutex<Option<OpenDir>>,
    wait: LockWait,
}

/// A longer `resolvConf` is none, in bytes.
const RESOLV_CONF_LIMIT: u64 = 1 << 20;

/// The allocations of all networks of this node.
#[derive(Debug)]
pub struct HostLocal {
    root: HostRoot,
    boot_id: Arc<str>,
    used_dirs: UsedDirs,
    used_dirs_path: PathBuf,
    filler: PoolFiller,
    directories: Mutex<HashMap<NetworkDir, Arc<SharedDir>>>,
}

impl HostLocal {
    /// `host_root`: the host's root as the daemon sees it. `state_dir`: where the list of directories is kept, over
    /// reboots. Fails when that list is there and can't be read.
    pub fn new(host_root: PathBuf, state_dir: &Path, boot_id: &str) -> io::Result<HostLocal> {
        let used_dirs_path = state_dir.join("ipam-dirs");
        Ok(HostLocal {
            root: HostRoot::new(host_root),
            boot_id: boot_id.trim().into(),
            used_dirs: UsedDirs::open(used_dirs_path.clone())?,
            used_dirs_path,
            filler: PoolFiller::start()?,
            directories: Mutex::default(),
        })
    }

    /// Gives one address of every range set, or none at all. `pending` is asked once to hurry when an address
    /// can't be had.
    pub fn allocate(
        &self,
        config: &Config,
        request: &LeaseRequest<'_>,
        pending: &dyn PendingRemovals,
    ) -> Result<Lease, IpamError> {
        let dns = self.dns(config, request.network)?;
        let directory = network_dir(&config.data_dir, request.network)?;
        let ips = match self.attempt(&directory, config, request) {
            // Asked after the lock is released: to finish a removal takes this same lock.
            Err(e) if e.may_come_free() && pending.hurry(&directory) => {
                self.attempt(&directory, config, request)?
            }
            done => done?,
        };
        kill_steps::reach("allocated");
        Ok(Lease { ips, routes: config.routes.clone(), dns })
    }

    fn attempt(
        &self,
        directory: &NetworkDir,
        config: &Config,
        request: &LeaseRequest<'_>,
    ) -> Result<Vec<IpConfig>, IpamError> {
        self.with(directory, true, |locked| Attempt::new(locked, request).all_or_none(config))?
            .unwrap_or_else(|| Err(store(directory, io::ErrorKind::NotFound.into())))
    }

    /// Gives back everything that this interface of this container has in a network, and, where that is nothing,
    /// what older versions of host-local wrote for the container. Answers how many files went.
    pub fn release(
        &self,
        data_dir: &str,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<usize, IpamError> {
        let directory = network_dir(data_dir, network)?;
        self.with(&directory, false, |locked| {
            let contents = contents(container_id, ifname);
            let released = remove_first_of(locked, &contents).and_then(|released| match released {
                // The directory's time misses what others changed within one tick of the kernel's clock.
                0 => locked.reread().and_then(|()| remove_first_of(locked, &contents)),
                released => Ok(released),
            });
            released.map_err(|e| store(&directory, e))
        })?
        .unwrap_or(Ok(0))
    }

    /// Gives back these addresses, as far as they belong to this interface of this container.
    pub fn release_ips(
        &self,
        data_dir: &str,
        network: &str,
        container_id: &str,
        ifname: &str,
        ips: &[IpAddr],
    ) -> Result<usize, IpamError> {
        let directory = network_dir(data_dir, network)?;
        self.with(&directory, false, |locked| {
            let content = file_format::content_of(container_id, ifname);
            let mut released = 0;
            for ip in ips {
                let removed = locked.remove(&FileName::Ip(ip.to_canonical()), &content);
                released += usize::from(removed.map_err(|e| store(&directory, e))?);
            }
            Ok(released)
        })?
        .unwrap_or(Ok(0))
    }

    /// CHECK: this interface of this container has an address, whichever.
    pub fn check(
        &self,
        data_dir: &str,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<(), IpamError> {
        let directory = network_dir(data_dir, network)?;
        let found = self.with(&directory, false, |locked| {
            let contents = contents(container_id, ifname);
            let has = |locked: &LockedDir<'_>| {
                contents.iter().any(|content| !locked.index().held_by(content).is_empty())
            };
            // The directory's time misses what others changed within one tick of the kernel's clock.
            if !has(locked) {
                locked.reread().map_err(|e| store(&directory, e))?;
            }
            Ok(has(locked))
        })?;
        match found.transpose()? {
            Some(true) => Ok(()),
            _ => Err(IpamError::Unallocated {
                network: network.to_owned(),
                container_id: container_id.to_owned(),
            }),
        }
    }

    /// Everything that is allocated in a network, in the order of the addresses.
    pub fn list(&self, data_dir: &str, network: &str) -> Result<Vec<Allocation>, IpamError> {
        let directory = network_dir(data_dir, network)?;
        let mut all = self.with(&directory, false, |locked| allocations(locked))?.unwrap_or_default();
        all.sort_by(|a, b| (a.ip, &a.file).cmp(&(b.ip, &b.file)));
        Ok(all)
    }

    /// The allocations whose owner is not `known`: the reference plugin's leftovers, or files without a content.
    pub fn orphans(
        &self,
        data_dir: &str,
        network: &str,
        known: &dyn Fn(&Owner) -> bool,
    ) -> Result<Vec<Allocation>, IpamError> {
        Ok(self.list(data_dir, network)?.into_iter().filter(|allocation| !known(&allocation.owner)).collect())
    }

    /// Removes the allocations whose owner is not `known`; for the operator's order only. `known` is asked under
    /// the network's lock, so that an ADD that is on record before it allocates is never touched.
    pub fn release_orphans(&self, data_dir: &str, network: &str, known: &dyn Fn(&Owner) -> bool) -> Removed {
        self.remove_where(data_dir, network, &|allocation| !known(&allocation.owner))
    }

    /// The specification's GC: removes the allocations whose owner is not `valid`. A file without an owner stays.
    pub fn gc(&self, data_dir: &str, network: &str, valid: &dyn Fn(&Owner) -> bool) -> Removed {
        self.remove_where(data_dir, network, &|allocation| {
            allocation.owner != Owner::Nobody && !valid(&allocation.owner)
        })
    }

    /// Removes what Fairlead allocated before the last reboot, in every directory that it has allocated in (X24).
    /// Goes by the boot id on the files alone: what has none is left as it is.
    pub fn release_orphaned_by_reboot(&self) -> Removed {
        let mut removed = Removed::default();
        let earlier =
            |allocation: &Allocation| allocation.boot_id.as_deref().is_some_and(|id| *id != *self.boot_id);
        for directory in self.used_dirs.all() {
            let here = self.remove_where(&directory.data_dir, &directory.network, &earlier);
            removed.allocations.extend(here.allocations);
            removed.errors.extend(here.errors);
        }
        removed
    }

    /// Every directory that Fairlead has allocated in.
    pub fn places(&self) -> Vec<NetworkDir> {
        self.used_dirs.all()
    }

    fn remove_where(&self, data_dir: &str, network: &str, meant: &dyn Fn(&Allocation) -> bool) -> Removed {
        let mut removed = Removed::default();
        let done = network_dir(data_dir, network).and_then(|directory| {
            self.with(&directory, false, |locked| {
                locked.reread().map_err(|e| store(&directory, e))?;
                for allocation in allocations(locked).into_iter().filter(|allocation| meant(allocation)) {
                    match remove(locked, &allocation) {
                        Ok(true) => removed.allocations.push(allocation),
                        Ok(false) => {}
                        Err(e) => removed.errors.push(store(&directory, e)),
                    }
                }
                Ok(())
            })?
            .unwrap_or(Ok(()))
        });
        removed.errors.extend(done.err());
        removed
    }

    fn dns(&self, config: &Config, network: &str) -> Result<Dns, IpamError> {
        let Some(path) = config.resolv_conf.as_deref().filter(|path| !path.is_empty()) else {
            return Ok(Dns::default());
        };
        let path = Path::new(path);
        let text = self.root.read(path, RESOLV_CONF_LIMIT);
        let unreadable =
            |source| IpamError::ResolvConf { network: network.to_owned(), path: path.to_owned(), source };
        Ok(resolv_conf::parse(&text.map_err(unreadable)?))
    }

    /// Runs `work` under the network's lock. `None`: there is no such directory, and it was not to be made.
    fn with<T>(
        &self,
        directory: &NetworkDir,
        make: bool,
        work: impl FnOnce(&mut LockedDir<'_>) -> T,
    ) -> Result<Option<T>, IpamError> {
        let shared = self.shared(directory);
        let mut waiting: Option<Waiter<'_>> = None;
        loop {
            let mut slot = shared.open.lock();
            // The directory may have been removed: nobody would see the files that are made in the open one.
            if slot.as_ref().is_none_or(|open| !open.exists()) {
                *slot = self.open(directory, make)?;
            }
            let Some(open) = slot.as_mut() else { return Ok(None) };
            if let Some(mut locked) = open.locked().map_err(|e| store(directory, e))? {
                shared.wait.acquired();
                return Ok(Some(work(&mut locked)));
            }
            // Other threads of ours shall not wait behind this one's pause, but count themselves.
            drop(slot);
            let waiter = waiting.get_or_insert_with(|| shared.wait.begin());
            waiter.pause().map_err(|timeout| store(directory, timeout.into_io(&path(directory))))?;
        }
    }

    fn open(&self, directory: &NetworkDir, make: bool) -> Result<Option<OpenDir>, IpamError> {
        if make {
            // On the list before its first file: after a reboot no address of ours may be in a directory we do not know.
            self.used_dirs.add(directory).map_err(|source| IpamError::UsedDirs {
                network: directory.network.clone(),
                path: self.used_dirs_path.clone(),
                source,
            })?;
        }
        OpenDir::open(&self.root, &path(directory), self.boot_id.clone(), &self.filler, make)
            .map_err(|e| store(directory, e))
    }

    fn shared(&self, directory: &NetworkDir) -> Arc<SharedDir> {
        let mut directories = self.directories.lock();
        directories.entry(directory.clone()).or_default().clone()
    }
}

/// What a file of this interface of this container holds: today, and before host-local 0.7.
fn contents(container_id: &str, ifname: &str) -> [String; 2] {
    [file_format::content_of(container_id, ifname), container_id.trim().to_owned()]
}

/// Removes the files with the first of these contents that any file has.
fn remove_first_of(locked: &mut LockedDir<'_>, contents: &[String]) -> io::Result<usize> {
    for content in contents {
        let removed = remove_all(locked, content)?;
        if removed > 0 {
            return Ok(removed);
        }
    }
    Ok(0)
}

fn remove_all(locked: &mut LockedDir<'_>, content: &str) -> io::Result<usize> {
    let mut removed = 0;
    for name in locked.index().held_by(content).to_vec() {
        removed += usize::from(locked.remove(&name, content)?);
    }
    Ok(removed)
}

fn remove(locked: &mut LockedDir<'_>, allocation: &Allocation) -> io::Result<bool> {
    let Some(name) = FileName::of(&allocation.file) else { return Ok(false) };
    let Some(content) = locked.index().get(&name).map(|entry| entry.content.clone()) else {
        return Ok(false);
    };
    locked.remove(&name, &content)
}

fn allocations(locked: &LockedDir<'_>) -> Vec<Allocation> {
    let one = |(name, entry): (&FileName, &file_index::Entry)| Allocation {
        file: name.file(),
        ip: name.ip(),
        owner: Owner::parse(&entry.content),
        boot_id: locked.label(name),
    };
    locked.index().iter().map(one).collect()
}

fn network_dir(data_dir: &str, network: &str) -> Result<NetworkDir, IpamError> {
    let data_dir = if data_dir.is_empty() { DEFAULT_DATA_DIR } else { data_dir };
    if data_dir.contains(|c: char| c.is_control()) {
        return Err(IpamError::BadDirectory { field: "dataDir", value: data_dir.to_owned() });
    }
    if matches!(network, "" | "." | "..") || network.contains(|c: char| c == '/' || c.is_control()) {
        return Err(IpamError::BadDirectory { field: "network name", value: network.to_owned() });
    }
    Ok(NetworkDir { data_dir: data_dir.to_owned(), network: network.to_owned() })
}

fn path(directory: &NetworkDir) -> PathBuf {
    Path::new(&directory.data_dir).join(&directory.network)
}

fn store(directory: &NetworkDir, source: io::Error) -> IpamError {
    IpamError::Store { network: directory.network.clone(), path: path(directory), source }
}

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod test_config;
#[cfg(test)]
mod tests;
