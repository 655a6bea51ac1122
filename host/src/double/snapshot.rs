//! All that can be seen of the kernel in memory, to be compared with what it was.

use std::collections::{BTreeMap, BTreeSet};

use super::Place;
use crate::Vf;
use crate::seam::Link;

/// All that can be seen of one namespace, in an order that does not depend on how it came about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetnsSnapshot {
    /// Links by index.
    pub links: BTreeMap<u32, Link>,
    /// Addresses, as text in order.
    pub addresses: BTreeSet<String>,
    /// Routes that were added, as text in order.
    pub routes: BTreeSet<String>,
    /// Sysctls that were written.
    pub sysctls: BTreeMap<String, String>,
}

/// All living namespaces: for "the host is as before".
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// By place; numbers (nsid) are left out, because one that was assigned stays.
    pub namespaces: BTreeMap<Place, NetnsSnapshot>,
    /// Settings of VFs, by their PF's index.
    pub vfs: BTreeMap<u32, Vec<Vf>>,
    /// Who drives each VF, and the driver that is fixed for it, by PCI address.
    pub drivers: BTreeMap<String, (Option<String>, Option<String>)>,
}
