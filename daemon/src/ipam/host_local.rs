//! host-local: one file an address, in a directory a network.
//!
//! Shared by all threads; calls about one network follow each other, calls about different ones do not meet.

mod taking;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::config::{HostLocal as Config, resolv_conf};
use fairlead_cni::result::{Dns, IpConfig};
use serde::Serialize;

use self::taking::Taking;
use super::blanks::Filler;
use super::directory::{Directory, Locked};
use super::draft::steps;
use super::foreign::{Foreign, Wait};
use super::owner::{self, Name, Owner};
use super::roster::{Place, Roster};
use super::{IpamError, Lease, LeaseRequest, PendingRemovals};
use fairlead_host::host_root::HostRoot;

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
    /// Gone.
    pub allocations: Vec<Allocation>,
    /// Every failure.
    pub errors: Vec<IpamError>,
}

/// One network's directory, once it was opened, and the other processes that hold its lock.
#[derive(Debug, Default)]
struct Shared {
    directory: Mutex<Option<Directory>>,
    foreign: Foreign,
}

/// A longer `resolvConf` is none, in bytes.
const RESOLV_CONF_LIMIT: u64 = 1 << 20;

/// The allocations of all networks of this node.
#[derive(Debug)]
pub struct HostLocal {
    root: HostRoot,
    boot_id: Arc<str>,
    roster: Roster,
    roster_path: PathBuf,
    filler: Filler,
    directories: Mutex<HashMap<Place, Arc<Shared>>>,
}

impl HostLocal {
    /// `host_root`: the host's root as the daemon sees it. `state_dir`: where the list of directories is kept, over
    /// reboots. Fails when that list is there and can't be read.
    pub fn new(host_root: PathBuf, state_dir: &Path, boot_id: &str) -> io::Result<HostLocal> {
        let roster_path = state_dir.join("ipam-dirs");
        Ok(HostLocal {
            root: HostRoot::new(host_root),
            boot_id: boot_id.trim().into(),
            roster: Roster::open(roster_path.clone())?,
            roster_path,
            filler: Filler::start()?,
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
        let place = place(&config.data_dir, request.network)?;
        let ips = match self.attempt(&place, config, request) {
            Err(e) if e.may_come_free() && pending.hurry(&place) => self.attempt(&place, config, request)?,
            done => done?,
        };
        steps::reach("given");
        Ok(Lease { ips, routes: config.routes.clone(), dns })
    }

    fn attempt(
        &self,
        place: &Place,
        config: &Config,
        request: &LeaseRequest<'_>,
    ) -> Result<Vec<IpConfig>, IpamError> {
        self.with(place, true, |locked| Taking::of(locked, request).all_or_none(config))?
            .unwrap_or_else(|| Err(store(place, io::ErrorKind::NotFound.into())))
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
        let place = place(data_dir, network)?;
        self.with(&place, false, |locked| {
            let contents = contents(container_id, ifname);
            let released = remove_first_of(locked, &contents).and_then(|released| match released {
                0 => locked.reread().and_then(|()| remove_first_of(locked, &contents)),
                released => Ok(released),
            });
            released.map_err(|e| store(&place, e))
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
        let place = place(data_dir, network)?;
        self.with(&place, false, |locked| {
            let content = owner::content(container_id, ifname);
            let mut released = 0;
            for ip in ips {
                let removed = locked.remove(&Name::Ip(ip.to_canonical()), &content);
                released += usize::from(removed.map_err(|e| store(&place, e))?);
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
        let place = place(data_dir, network)?;
        let found = self.with(&place, false, |locked| {
            let contents = contents(container_id, ifname);
            let has = |locked: &Locked<'_>| {
                contents.iter().any(|content| !locked.index().held_by(content).is_empty())
            };
            if !has(locked) {
                locked.reread().map_err(|e| store(&place, e))?;
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
        let place = place(data_dir, network)?;
        let mut all = self.with(&place, false, |locked| allocations(locked))?.unwrap_or_default();
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
        for place in self.roster.places() {
            let here = self.remove_where(&place.data_dir, &place.network, &earlier);
            removed.allocations.extend(here.allocations);
            removed.errors.extend(here.errors);
        }
        removed
    }

    /// Every directory that Fairlead has allocated in.
    pub fn places(&self) -> Vec<Place> {
        self.roster.places()
    }

    fn remove_where(&self, data_dir: &str, network: &str, meant: &dyn Fn(&Allocation) -> bool) -> Removed {
        let mut removed = Removed::default();
        let done = place(data_dir, network).and_then(|place| {
            self.with(&place, false, |locked| {
                locked.reread().map_err(|e| store(&place, e))?;
                for allocation in allocations(locked).into_iter().filter(|allocation| meant(allocation)) {
                    match remove(locked, &allocation) {
                        Ok(true) => removed.allocations.push(allocation),
                        Ok(false) => {}
                        Err(e) => removed.errors.push(store(&place, e)),
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
        let told =
            |source| IpamError::ResolvConf { network: network.to_owned(), path: path.to_owned(), source };
        Ok(resolv_conf::parse(&text.map_err(told)?))
    }

    /// Runs `work` under the network's lock. `None`: there is no such directory, and it was not to be made.
    fn with<T>(
        &self,
        place: &Place,
        make: bool,
        work: impl FnOnce(&mut Locked<'_>) -> T,
    ) -> Result<Option<T>, IpamError> {
        let shared = self.shared(place);
        let mut waiting: Option<Wait<'_>> = None;
        loop {
            let mut slot = shared.directory.lock().unwrap_or_else(PoisonError::into_inner);
            if slot.as_ref().is_none_or(|directory| !directory.exists()) {
                *slot = self.open(place, make)?;
            }
            let Some(directory) = slot.as_mut() else { return Ok(None) };
            if let Some(mut locked) = directory.locked().map_err(|e| store(place, e))? {
                shared.foreign.is_over();
                return Ok(Some(work(&mut locked)));
            }
            drop(slot);
            let wait = waiting.get_or_insert_with(|| shared.foreign.wait());
            wait.moment().map_err(|in_vain| store(place, in_vain.told(&path(place))))?;
        }
    }

    fn open(&self, place: &Place, make: bool) -> Result<Option<Directory>, IpamError> {
        if make {
            self.roster.add(place).map_err(|source| IpamError::Roster {
                network: place.network.clone(),
                path: self.roster_path.clone(),
                source,
            })?;
        }
        Directory::open(&self.root, &path(place), self.boot_id.clone(), &self.filler, make)
            .map_err(|e| store(place, e))
    }

    fn shared(&self, place: &Place) -> Arc<Shared> {
        let mut directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.entry(place.clone()).or_default().clone()
    }
}

/// What a file of this interface of this container holds: today, and before host-local 0.7.
fn contents(container_id: &str, ifname: &str) -> [String; 2] {
    [owner::content(container_id, ifname), container_id.trim().to_owned()]
}

/// Removes the files with the first of these contents that any file has.
fn remove_first_of(locked: &mut Locked<'_>, contents: &[String]) -> io::Result<usize> {
    for content in contents {
        let removed = remove_all(locked, content)?;
        if removed > 0 {
            return Ok(removed);
        }
    }
    Ok(0)
}

fn remove_all(locked: &mut Locked<'_>, content: &str) -> io::Result<usize> {
    let mut removed = 0;
    for name in locked.index().held_by(content).to_vec() {
        removed += usize::from(locked.remove(&name, content)?);
    }
    Ok(removed)
}

fn remove(locked: &mut Locked<'_>, allocation: &Allocation) -> io::Result<bool> {
    let Some(name) = Name::of(&allocation.file) else { return Ok(false) };
    let Some(content) = locked.index().get(&name).map(|entry| entry.content.clone()) else {
        return Ok(false);
    };
    locked.remove(&name, &content)
}

fn allocations(locked: &Locked<'_>) -> Vec<Allocation> {
    let one = |(name, entry): (&Name, &super::index::Entry)| Allocation {
        file: name.file(),
        ip: name.ip(),
        owner: Owner::parse(&entry.content),
        boot_id: locked.label(name),
    };
    locked.index().iter().map(one).collect()
}

fn place(data_dir: &str, network: &str) -> Result<Place, IpamError> {
    let data_dir = if data_dir.is_empty() { DEFAULT_DATA_DIR } else { data_dir };
    if data_dir.contains(|c: char| c.is_control()) {
        return Err(IpamError::BadPlace { field: "dataDir", value: data_dir.to_owned() });
    }
    if matches!(network, "" | "." | "..") || network.contains(|c: char| c == '/' || c.is_control()) {
        return Err(IpamError::BadPlace { field: "network name", value: network.to_owned() });
    }
    Ok(Place { data_dir: data_dir.to_owned(), network: network.to_owned() })
}

fn path(place: &Place) -> PathBuf {
    Path::new(&place.data_dir).join(&place.network)
}

fn store(place: &Place, source: io::Error) -> IpamError {
    IpamError::Store { network: place.network.clone(), path: path(place), source }
}

#[cfg(test)]
mod beside;
#[cfg(test)]
mod tests;
