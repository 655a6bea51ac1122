//! How the namespace of a record can be reached now: by its path and identity, else by its number.

use fairlead_host::{Kernel, Net, NetError, NetnsError, Nsid};

use crate::store::Namespace;

/// The way to a namespace that is on record.
pub(crate) enum Reach<'k> {
    /// By its path: the thread is in it.
    Inside(Box<dyn Net + 'k>),
    /// Its path is gone or leads elsewhere, but it lives.
    ByNumber(Nsid),
    /// It is dead, and its links with it.
    Dead,
    /// Its path is gone and nothing else is known of it.
    Unknown,
}

/// Finds the namespace of a record.
pub(crate) fn reach<'k>(kernel: &'k dyn Kernel, netns: &Namespace) -> Result<Reach<'k>, NetError> {
    let mut another = None;
    if !netns.path.is_empty() {
        match kernel.pod(netns.path.as_ref()) {
            Ok(view) if view.id().same(&netns.id) => return Ok(Reach::Inside(view)),
            // A newer namespace. The number may still lead to the right one.
            Ok(view) => another = Some(view),
            Err(NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. }) => {}
            // A want of descriptors or memory says nothing about the namespace: it must not be taken for dead.
            Err(NetnsError::Net { source, .. }) => return Err(source),
            Err(NetnsError::Io { source, .. }) => return Err(NetError::Socket(source)),
        }
    }
    // The kernel gives a number back only when its namespace has died.
    let Some(nsid) = netns.nsid else { return Ok(Reach::Unknown) };
    if !kernel.nsids()?.contains(&nsid) {
        return Ok(Reach::Dead);
    }
    // After the look at all numbers: one that is free may be given to this namespace now.
    match another.map(|mut view| view.nsid()).transpose()?.flatten() {
        Some(of_another) if of_another == nsid => Ok(Reach::Dead),
        _ => Ok(Reach::ByNumber(nsid)),
    }
}
