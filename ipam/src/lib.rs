//! IP addresses of attachments: the IPAM plugins `host-local` and `static`, built in. Any other IPAM plugin is executed, which is
//! the daemon's business.
//!
//! [`HostLocal`] works on the reference plugin's own files under the reference plugin's own lock, so that both can serve one
//! network at once and a roll-back loses nothing. What it promises: no address is given to two attachments, an attachment gets
//! an address of every range set or none, and a kill at any point leaves nothing that a release by container id and interface
//! name does not remove. It never decides anything by the age of a file. [`static_ipam`] allocates nothing: its addresses stand
//! in the configuration.
//!
//! Both answer with a [`Lease`]; [`IpamError`] says why there is none, with its CNI code and what to do about it. Nothing in this
//! crate knows interfaces, namespaces or the daemon's records. [`PendingRemovals`] is the one question that it asks of its caller.

#![forbid(unsafe_code)]

mod error;
mod host_local;
pub mod static_ipam;

use std::net::IpAddr;

use fairlead_cni::result::{Dns, IpConfig, RouteConfig};

pub use error::IpamError;
pub use host_local::{Allocation, HostLocal, NetworkDir, Owner, Removed};

/// What an IPAM answers to an ADD, before any interface has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    /// Addresses, in the order of the range sets; none has an interface yet.
    pub ips: Vec<IpConfig>,
    /// Routes of the network, as its configuration lists them.
    pub routes: Vec<RouteConfig>,
    /// Name servers and search domains for the pod.
    pub dns: Dns,
}

/// Which attachment asks for addresses, and of which network.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    /// The network's directory: that of the record, not of a configuration that may have changed.
    pub directory: &'a NetworkDir,
    /// The container's id (`CNI_CONTAINERID`).
    pub container_id: &'a str,
    /// The interface's name in the container (`CNI_IFNAME`).
    pub ifname: &'a str,
    /// Addresses that somebody outside the directory has: none of them is chosen. Whether one that is asked for by its number may be had
    /// is the caller's to say.
    pub reserved: &'a [IpAddr],
}

/// Attachments that are on their way out: their addresses are free only when their links are really gone.
pub trait PendingRemovals {
    /// Called without any lock when an address could not be had: finishes a removal that holds addresses of this network, or `wanted`,
    /// where that one was asked for. True when one has given back an address, so that it is worth another attempt.
    fn hurry(&self, directory: &NetworkDir, wanted: Option<IpAddr>) -> bool;
}

/// The answer of a caller that has no removals under way.
#[derive(Debug, Clone, Copy)]
pub struct NothingPending;

impl PendingRemovals for NothingPending {
    fn hurry(&self, _directory: &NetworkDir, _wanted: Option<IpAddr>) -> bool {
        false
    }
}
