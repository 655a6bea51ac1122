//! The network half of the seam: namespaces, and what can be read and changed in one.
//!
//! A [`Net`] is a view of one namespace that lives for one call and stays on the thread that opened it; dropping it gives back
//! every file descriptor and socket of that namespace, which would otherwise keep the namespace and its links alive.

use std::path::Path;

use super::addressing::{Address, Route};
use super::error::{NetError, NetnsError};
use super::link::Link;
use super::net_change::Op;
use super::netns_id::{NetnsId, Nsid};
use crate::vf_settings::Vf;

/// A view of one network namespace. Not `Send`: it may have put its thread into that namespace.
pub trait Net {
    /// The identity of the namespace.
    fn id(&self) -> &NetnsId;

    /// The number by which the daemon's namespace knows this one; it is assigned if there is none yet.
    /// `None` for the daemon's own.
    fn nsid(&mut self) -> Result<Option<Nsid>, NetError>;

    /// Carries out `ops` in order, in as few `send` calls as can be, and stops at the first that is refused:
    /// those before it stay done, those after it are not done.
    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError>;

    /// A link by name or alternative name; `None` when there is none.
    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError>;

    /// A link by index; `None` when there is none.
    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError>;

    /// All links of the namespace.
    fn links(&mut self) -> Result<Vec<Link>, NetError>;

    /// The settings of all VFs of the link `pf`; none when it has none or is gone. This is slow: the driver is queried for each
    /// VF, and 64 of them cost 157–866 ms.
    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError>;

    /// Addresses of one interface, both families, link-local ones included.
    fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetError>;

    /// All routes of all tables but the local one, both families.
    fn routes(&mut self) -> Result<Vec<Route>, NetError>;

    /// Reads a sysctl of this namespace: `net/ipv4/conf/eth0/arp_notify`, without `/proc/sys/`.
    fn sysctl(&mut self, key: &str) -> Result<String, NetError>;

    /// Writes a sysctl of this namespace.
    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError>;
}

/// The kernel's network namespaces: opening one, and what can be done to a link whose namespace is known by number alone.
pub trait NetKernel: Send + Sync {
    /// The daemon's own namespace.
    fn host(&self) -> Result<Box<dyn Net + '_>, NetError>;

    /// The namespace at `path`, opened for one call; the thread is in it until the view is dropped, and if it
    /// cannot come back the process ends (a thread in a stranger's namespace must not serve the next call).
    /// Refuses the daemon's own namespace and anything that is no network namespace.
    fn pod(&self, path: &Path) -> Result<Box<dyn Net + '_>, NetnsError>;

    /// A link of a namespace that is known by number alone, without holding anything of it (`IFLA_TARGET_NETNSID`);
    /// `None` when the namespace or the link is gone.
    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError>;

    /// Deletes a link of a namespace that is known by number alone. A link or namespace that is gone is success.
    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError>;

    /// The numbers of all namespaces that the daemon's own one knows.
    fn nsids(&self) -> Result<Vec<Nsid>, NetError>;

    /// True when the kernel has links of this kind (`IFLA_INFO_KIND`), built in or by a module that it loads
    /// now. The attempt leaves no trace in any namespace.
    fn knows(&self, kind: &str) -> Result<bool, NetError>;

    /// True when a link that is up can be renamed (kernel ≥ 6.2).
    fn renames_while_up(&self) -> bool;
}
