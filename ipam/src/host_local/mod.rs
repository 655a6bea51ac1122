//! host-local: an address is a file, a network a directory of such files.
//!
//! Shared by all threads; calls about one network follow each other, calls about different ones do not meet.

mod attempt;
mod background_thread;
mod boot_label;
mod collection;
mod dir_path;
mod file_creation;
mod file_format;
mod file_index;
mod file_turns;
mod kill_steps;
mod lock_wait;
mod network_dirs;
mod open_dir;
mod round_robin;
mod tmpfile_pool;
mod unused_dirs;
mod used_dirs;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fairlead_cni::config::{HostLocal as Config, resolv_conf};
use fairlead_cni::result::{Dns, IpConfig};
use fairlead_host::host_root::HostRoot;

use self::attempt::Attempt;
use self::background_thread::Background;
use self::file_format::MAX_CONTENT;
use self::lock_wait::Waiter;
use self::network_dirs::NetworkDirs;
use self::open_dir::{KnownFiles, LockedDir, OpenDir};
use self::unused_dirs::Looks;
use self::used_dirs::UsedDirs;
use crate::{IpamError, Lease, LeaseRequest, PendingRemovals};

pub use self::collection::{Allocation, Removed};
pub use self::dir_path::NetworkDir;
pub use self::file_format::Owner;

/// A longer `resolvConf` is none, in bytes.
const RESOLV_CONF_LIMIT: u64 = 1 << 20;

/// So many removals are hurried for one ADD at most: each takes 16 to 30 ms.
const MOST_HURRIED: usize = 64;

/// Whether a directory that is not there is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Make {
    Never,
    /// Unless its namespace has as many as it may.
    IfThereIsRoom,
    Always,
}

/// The allocations of all networks of this node.
#[derive(Debug)]
pub struct HostLocal {
    root: HostRoot,
    boot_id: Arc<str>,
    used_dirs: UsedDirs,
    used_dirs_path: PathBuf,
    looks: Looks,
    directories: Arc<NetworkDirs>,
    background: Background,
}

impl HostLocal {
    /// `host_root`: the host's root as the daemon sees it. `state_dir`: where the list of directories is kept, over
    /// reboots. Fails when that list is there and can't be read.
    pub fn new(host_root: PathBuf, state_dir: &Path, boot_id: &str) -> io::Result<HostLocal> {
        let used_dirs_path = state_dir.join("ipam-dirs");
        let directories = Arc::new(NetworkDirs::default());
        // Not the directories themselves: they hold the thread's sender, and it would never end.
        let idle = Arc::downgrade(&directories);
        Ok(HostLocal {
            root: HostRoot::new(host_root),
            boot_id: boot_id.trim().into(),
            used_dirs: UsedDirs::open(used_dirs_path.clone())?,
            used_dirs_path,
            looks: Looks::default(),
            background: Background::start(Box::new(move || idle.upgrade().is_some_and(|all| all.tidy())))?,
            directories,
        })
    }

    /// Gives one address of every range set, or none at all. `pending` is asked to hurry for as long as an address
    /// can't be had and it has removals: what one gives back another ADD may take.
    pub fn allocate(
        &self,
        config: &Config,
        request: &LeaseRequest<'_>,
        pending: &dyn PendingRemovals,
    ) -> Result<Lease, IpamError> {
        let directory = request.directory.checked()?;
        refuse_what_no_file_holds(&directory, request)?;
        let dns = self.dns(config, &directory)?;
        let mut hurried = 0;
        let ips = loop {
            match self.attempt(&directory, config, request) {
                // Asked without a turn at any directory: it takes those of others.
                Err(IpamError::TooManyDirs { .. }) if self.make_room(&directory) => {}
                // Asked after the lock is released: to finish a removal takes this same lock.
                Err(e) if hurried < MOST_HURRIED && e.may_come_free() => {
                    // Where none is left, the last one may have ended since the attempt: one more.
                    hurried =
                        if pending.hurry(&directory, e.requested()) { hurried + 1 } else { MOST_HURRIED };
                }
                done => break done?,
            }
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
        self.with(directory, Make::IfThereIsRoom, |locked| Attempt::new(locked, request).all_or_none(config))?
            .unwrap_or_else(|| Err(store(directory, io::ErrorKind::NotFound.into())))
    }

    /// Gives back everything that this interface of this container has in a network, and, where that is nothing,
    /// what older versions of host-local wrote for the container. Answers how many files went: none of a directory that cannot be.
    pub fn release(
        &self,
        directory: &NetworkDir,
        container_id: &str,
        ifname: &str,
    ) -> Result<usize, IpamError> {
        let Ok(directory) = directory.checked() else { return Ok(0) };
        self.with(&directory, Make::Never, |locked| {
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

    /// Puts what this interface of this container holds in one network's directory on file in another's, too, so that it is given
    /// to nobody there. Answers how many addresses those are; one that somebody else has there is told in the log.
    pub fn copy_held(
        &self,
        from: &NetworkDir,
        to: &NetworkDir,
        container_id: &str,
        ifname: &str,
    ) -> Result<usize, IpamError> {
        let (from, to) = (from.checked()?, to.checked()?);
        let contents = contents(container_id, ifname);
        let held = self.with(&from, Make::Never, |locked| {
            locked.reread()?;
            let held =
                contents.iter().map(|content| locked.index().held_by(content).collect::<Vec<IpAddr>>());
            Ok(held.into_iter().find(|held| !held.is_empty()).unwrap_or_default())
        })?;
        let held = held.unwrap_or_else(|| Ok(Vec::new())).map_err(|e| store(&from, e))?;
        if held.is_empty() {
            return Ok(0);
        }
        let content = file_format::content_of(container_id, ifname);
        // What it keeps is of pods that live: it is bounded by those.
        let taken = self.with(&to, Make::Always, |locked| {
            for ip in &held {
                let holder = |locked: &LockedDir<'_>| locked.index().get(*ip).map(|entry| entry.content.clone());
                if !locked.take(*ip, &content)? && holder(locked).is_none_or(|of| !contents.contains(&of)) {
                    let network = &to.network;
                    tracing::warn!(%ip, network, container_id, holder = ?holder(locked), "an address is held twice, by pods of two kinds");
                }
            }
            Ok(())
        })?;
        taken.unwrap_or(Ok(())).map_err(|e| store(&to, e))?;
        Ok(held.len())
    }

    /// Gives back these addresses, as far as they belong to this interface of this container, or, as older versions of host-local
    /// wrote it, to this container.
    pub fn release_ips(
        &self,
        directory: &NetworkDir,
        container_id: &str,
        ifname: &str,
        ips: &[IpAddr],
    ) -> Result<usize, IpamError> {
        let directory = directory.checked()?;
        self.with(&directory, Make::Never, |locked| {
            let contents = contents(container_id, ifname);
            let mut released = 0;
            for ip in ips.iter().map(IpAddr::to_canonical) {
                for content in &contents {
                    if locked.remove(ip, content).map_err(|e| store(&directory, e))? {
                        released += 1;
                        break;
                    }
                }
            }
            Ok(released)
        })?
        .unwrap_or(Ok(0))
    }

    /// CHECK: this interface of this container has an address, whichever.
    pub fn check(&self, directory: &NetworkDir, container_id: &str, ifname: &str) -> Result<(), IpamError> {
        let directory = directory.checked()?;
        let found = self.with(&directory, Make::Never, |locked| {
            let contents = contents(container_id, ifname);
            let has = |locked: &mut LockedDir<'_>| -> io::Result<bool> {
                contents.iter().try_fold(false, |has, content| Ok(has || locked.holds(content)?))
            };
            let told = |e| store(&directory, e);
            if has(locked).map_err(told)? {
                return Ok(true);
            }
            // The directory's time misses what others changed within one tick of the kernel's clock.
            locked.reread().map_err(told)?;
            has(locked).map_err(told)
        })?;
        match found.transpose()? {
            Some(true) => Ok(()),
            _ => Err(IpamError::Unallocated {
                network: directory.network.clone(),
                container_id: container_id.to_owned(),
            }),
        }
    }

    /// Directories in which a call has been at work on files for longer than this, and for how long.
    pub fn hanging(&self, longer_than: Duration) -> Vec<(NetworkDir, Duration)> {
        self.directories.hanging(longer_than)
    }

    /// STATUS: whether addresses can be taken in this directory. Never creates it.
    ///
    /// # Errors
    /// What the kernel says; kind `TimedOut` where the directory hangs.
    pub fn writable(&self, directory: &NetworkDir) -> io::Result<()> {
        let shared = self.directories.get(directory);
        let path = directory.path();
        let _turn = shared.files.take().map_err(|hangs| hangs.into_io(&path))?;
        directory.trusted(&self.root).writable(&path)
    }

    /// The directory of a network in which Fairlead has allocated, with what it was trusted by then.
    pub fn place(&self, data_dir: &str, network: &str) -> Option<NetworkDir> {
        let wanted = NetworkDir::of_administrator(data_dir, network);
        let wanted = wanted.checked().ok()?;
        self.used_dirs.at_place_of(&wanted)
    }

    /// Every directory that Fairlead has allocated in.
    pub fn places(&self) -> Vec<NetworkDir> {
        self.used_dirs.all()
    }

    fn dns(&self, config: &Config, directory: &NetworkDir) -> Result<Dns, IpamError> {
        let Some(path) = config.resolv_conf.as_deref().filter(|path| !path.is_empty()) else {
            return Ok(Dns::default());
        };
        let path = Path::new(path);
        let shared = self.directories.get(directory);
        // The file may lie on a file system that hangs: what waits for it counts as waiting for its network.
        let turn = shared.files.take().map_err(|hangs| store(directory, hangs.into_io(path)))?;
        let text = self.root.read(path, RESOLV_CONF_LIMIT);
        drop(turn);
        let unreadable = |source| IpamError::ResolvConf {
            network: directory.network.clone(),
            path: path.to_owned(),
            source,
        };
        Ok(resolv_conf::parse(&text.map_err(unreadable)?))
    }

    /// Runs `work` under the network's lock. `None`: there is no such directory, and it was not to be made.
    fn with<T>(
        &self,
        directory: &NetworkDir,
        make: Make,
        work: impl FnOnce(&mut LockedDir<'_>) -> T,
    ) -> Result<Option<T>, IpamError> {
        let shared = self.directories.get(directory);
        let mut waiting: Option<Waiter<'_>> = None;
        let mut work = Some(work);
        loop {
            let mut files =
                shared.files.take().map_err(|hangs| store(directory, hangs.into_io(&directory.path())))?;
            // The directory may have been removed: nobody would see the files that are made in the open one.
            if files.open.as_ref().is_none_or(|open| !open.exists()) {
                if make == Make::IfThereIsRoom {
                    self.must_have_room(directory)?;
                }
                let known = files.close();
                files.open = self.open(directory, make != Make::Never, known)?;
            }
            let Some(open) = files.open.as_mut() else { return Ok(None) };
            if make != Make::Never && !open.is_listed {
                self.note(directory)?;
                open.is_listed = true;
            }
            let locked = open.locked().map_err(|e| store(directory, e))?;
            let done = locked.and_then(|mut locked| {
                shared.wait.acquired();
                work.take().map(|work| work(&mut locked))
            });
            if done.is_some() {
                self.directories.account(files);
                return Ok(done);
            }
            // Other threads of ours shall not wait behind this one's pause, but count themselves.
            drop(files);
            let waiter = waiting.get_or_insert_with(|| shared.wait.begin());
            waiter.pause().map_err(|timeout| store(directory, timeout.into_io(&directory.path())))?;
        }
    }

    fn open(
        &self,
        directory: &NetworkDir,
        make: bool,
        known: KnownFiles,
    ) -> Result<Option<OpenDir>, IpamError> {
        let root = directory.trusted(&self.root);
        if make {
            directory.lies_in_no_network(&root).map_err(|e| store(directory, e))?;
        }
        let boot_id = Arc::clone(&self.boot_id);
        OpenDir::open(&root, &directory.path(), boot_id, &self.background, make, known)
            .map_err(|e| store(directory, e))
    }

    /// Puts a directory on the list. It is open by now, as what can be none must not stay there, and has no address of ours yet: after a
    /// reboot none may be in a directory that we do not know.
    fn note(&self, directory: &NetworkDir) -> Result<(), IpamError> {
        self.used_dirs.add(directory).map_err(|source| IpamError::UsedDirs {
            network: directory.network.clone(),
            path: self.used_dirs_path.clone(),
            source,
        })
    }
}

/// A file that is longer than an allocation would never be read again, nor its address be released.
fn refuse_what_no_file_holds(directory: &NetworkDir, request: &LeaseRequest<'_>) -> Result<(), IpamError> {
    let length = file_format::content_of(request.container_id, request.ifname).len() as u64;
    if length <= MAX_CONTENT {
        return Ok(());
    }
    let text = format!("the container's id is too long: {length} bytes, a file has at most {MAX_CONTENT}");
    Err(store(directory, io::Error::new(io::ErrorKind::InvalidInput, text)))
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
    for ip in locked.index().held_by(content).collect::<Vec<IpAddr>>() {
        removed += usize::from(locked.remove(ip, content)?);
    }
    Ok(removed)
}

fn store(directory: &NetworkDir, source: io::Error) -> IpamError {
    IpamError::Store { network: directory.network.clone(), path: directory.path(), source }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod test_config;
#[cfg(test)]
mod tests;
