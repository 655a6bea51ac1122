//! What is allocated in a network as a whole: listed, and what belongs to nobody collected.

use std::net::IpAddr;

use serde::Serialize;

use super::file_format::Owner;
use super::open_dir::LockedDir;
use super::{HostLocal, Make, NetworkDir, file_index, store};
use crate::IpamError;

/// An address, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Name of the file.
    pub file: String,
    /// The address that the file is named after.
    pub ip: IpAddr,
    /// Whose it is.
    pub owner: Owner,
    /// The boot id at which Fairlead made it; `None`: made by the reference plugin, or the file system takes no
    /// extended attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// When its file was written, in seconds since the epoch.
    pub modified: u64,
}

/// What a collection removed, and what it could not.
#[derive(Debug, Default)]
pub struct Removed {
    /// What is gone.
    pub allocations: Vec<Allocation>,
    /// Every failure: a collection goes on past errors.
    pub errors: Vec<IpamError>,
}

impl HostLocal {
    /// Everything that is allocated in a network, in the order of the addresses.
    pub fn list(&self, directory: &NetworkDir) -> Result<Vec<Allocation>, IpamError> {
        let directory = directory.checked()?;
        let mut all = self.with(&directory, Make::Never, |locked| allocations(locked))?.unwrap_or_default();
        all.sort_by_key(|allocation| allocation.ip);
        Ok(all)
    }

    /// The allocations whose owner is not `known`: the reference plugin's leftovers, or files without a content.
    pub fn orphans(
        &self,
        directory: &NetworkDir,
        known: &dyn Fn(&Owner) -> bool,
    ) -> Result<Vec<Allocation>, IpamError> {
        Ok(self.list(directory)?.into_iter().filter(|allocation| !known(&allocation.owner)).collect())
    }

    /// Removes the allocations that are not `spared`; for the operator's order only. `spared` is asked under the
    /// network's lock, so that an ADD that is on record before it allocates is never touched.
    pub fn release_orphans(&self, directory: &NetworkDir, spared: &dyn Fn(&Allocation) -> bool) -> Removed {
        self.remove_where(directory, &|allocation| !spared(allocation))
    }

    /// The specification's GC: removes the allocations whose owner is not `valid`. A file without an owner stays.
    pub fn gc(&self, directory: &NetworkDir, valid: &dyn Fn(&Owner) -> bool) -> Removed {
        self.remove_where(directory, &|allocation| {
            allocation.owner != Owner::Nobody && !valid(&allocation.owner)
        })
    }

    /// Removes what Fairlead allocated in this directory before the last reboot (X24). Goes by the boot id on the files alone:
    /// what has none is left as it is.
    pub fn release_orphaned_by_reboot(&self, directory: &NetworkDir) -> Removed {
        let earlier =
            |allocation: &Allocation| allocation.boot_id.as_deref().is_some_and(|id| *id != *self.boot_id);
        self.remove_where(directory, &earlier)
    }

    fn remove_where(&self, directory: &NetworkDir, meant: &dyn Fn(&Allocation) -> bool) -> Removed {
        let mut removed = Removed::default();
        // Nothing can be in a directory that cannot be.
        if directory.must_be_possible().is_err() {
            return removed;
        }
        let done = directory.checked().and_then(|directory| {
            self.with(&directory, Make::Never, |locked| {
                locked.reread().map_err(|e| store(&directory, e))?;
                for allocation in allocations(locked).into_iter().filter(|allocation| meant(allocation)) {
                    match remove(locked, allocation.ip) {
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
}

fn remove(locked: &mut LockedDir<'_>, ip: IpAddr) -> std::io::Result<bool> {
    match locked.index().get(ip).map(|entry| entry.content.clone()) {
        Some(content) => locked.remove(ip, &content),
        None => Ok(false),
    }
}

fn allocations(locked: &LockedDir<'_>) -> Vec<Allocation> {
    let one = |(ip, entry): (IpAddr, &file_index::Entry)| Allocation {
        file: ip.to_string(),
        ip,
        owner: Owner::parse(&entry.content),
        boot_id: locked.label(ip),
        modified: u64::try_from(entry.version.modified.0).unwrap_or(0),
    };
    locked.index().iter().map(one).collect()
}
