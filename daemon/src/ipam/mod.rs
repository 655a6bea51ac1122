//! Addresses: host-local and static, built in. Any other IPAM plugin is executed ([`crate::delegate`]).
//!
//! host-local works on the reference plugin's own files under the reference plugin's own lock, so that both can
//! serve one network at once and a roll-back loses nothing. What it promises: no address is given out twice, an
//! attachment gets an address of every range set or none, and a kill at any point leaves nothing that a release
//! by container id and interface name does not remove. It never decides anything by the age of a file.

mod blanks;
mod directory;
mod draft;
mod foreign;
mod host_local;
mod index;
mod owner;
mod ranges;
mod roster;
pub mod static_ipam;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use fairlead_cni::result::{Dns, IpConfig, RouteConfig};
use fairlead_cni::{CniError, Code};

use crate::delegate::avoid_containerd_phrases;
use fairlead_host::shortage;

pub use host_local::{Allocation, HostLocal, Removed};
pub use owner::Owner;
pub use roster::Place;

/// What an attachment is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    /// Addresses, in the order of the range sets; none has an interface yet.
    pub ips: Vec<IpConfig>,
    /// Routes.
    pub routes: Vec<RouteConfig>,
    /// Name resolution.
    pub dns: Dns,
}

/// Who asks, and for what.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    /// The network's name, which is the directory's.
    pub network: &'a str,
    /// `CNI_CONTAINERID`
    pub container_id: &'a str,
    /// `CNI_IFNAME`
    pub ifname: &'a str,
}

/// Attachments that are on their way out: their addresses are free only when their links are really gone.
pub trait PendingRemovals {
    /// Called without any lock when an address could not be had: finishes the removals that hold addresses of
    /// this network. True when one has given back an address, so that it is worth another attempt.
    fn hurry(&self, place: &Place) -> bool;
}

/// There are none.
#[derive(Debug, Clone, Copy)]
pub struct NothingPending;

impl PendingRemovals for NothingPending {
    fn hurry(&self, _place: &Place) -> bool {
        false
    }
}

/// Why addresses could not be had, given back or looked at.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// Every address of a range set is in use.
    #[error(
        "network {network:?}: failed to allocate for range {set}: no IP addresses available in range set: {ranges} ({in_use} of {size} in use)"
    )]
    Exhausted {
        /// The network.
        network: String,
        /// Position of the range set.
        set: usize,
        /// Its ranges.
        ranges: String,
        /// Allocations in them.
        in_use: usize,
        /// Addresses in them.
        size: u128,
    },
    /// The container's interface has an address of this range set already.
    #[error(
        "network {network:?}: failed to allocate for range {set}: {ip} has been allocated to {container_id}, duplicate allocation is not allowed"
    )]
    Duplicate {
        /// The network.
        network: String,
        /// Position of the range set.
        set: usize,
        /// The address that it has.
        ip: IpAddr,
        /// The container.
        container_id: String,
    },
    /// An address that was asked for is another's.
    #[error("network {network:?}: failed to allocate for range {set}: requested IP address {ip} is not available in range set {ranges}{}", holder.as_ref().map(|h| format!(" (it belongs to {h})")).unwrap_or_default())]
    RequestedTaken {
        /// The network.
        network: String,
        /// Position of the range set.
        set: usize,
        /// The address.
        ip: IpAddr,
        /// The set's ranges.
        ranges: String,
        /// Whose it is.
        holder: Option<String>,
    },
    /// An address that was asked for is the gateway.
    #[error("network {network:?}: failed to allocate for range {set}: requested ip {ip} is subnet's gateway")]
    RequestedGateway {
        /// The network.
        network: String,
        /// Position of the range set.
        set: usize,
        /// The address.
        ip: IpAddr,
    },
    /// Addresses were asked for that are in no range set, or two of one range set.
    #[error("network {network:?}: failed to allocate all requested IPs: {}", .ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))]
    RequestedOutside {
        /// The network.
        network: String,
        /// Those that could not be had.
        ips: Vec<IpAddr>,
    },
    /// CHECK: the container's interface has no address.
    #[error("network {network:?}: host-local: Failed to find address added by container {container_id}")]
    Unallocated {
        /// The network.
        network: String,
        /// The container.
        container_id: String,
    },
    /// CHECK of `static`: an address has another gateway than configured.
    #[error("static: Failed to match addr {ip} on interface {ifname}")]
    Mismatch {
        /// The address.
        ip: IpAddr,
        /// The interface.
        ifname: String,
    },
    /// The name of a network or `dataDir` can't be that of a directory.
    #[error("{field} {value:?} cannot be used as a directory's name")]
    BadPlace {
        /// Which of the two.
        field: &'static str,
        /// What it is.
        value: String,
    },
    /// `resolvConf` could not be read.
    #[error("network {network:?}: resolvConf {path}: {source}", path = path.display())]
    ResolvConf {
        /// The network.
        network: String,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The directory or a file in it.
    #[error("network {network:?}: allocations in {path}: {source}", path = path.display())]
    Store {
        /// The network.
        network: String,
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The list of directories in the state directory could not be written.
    #[error("network {network:?}: the record of its directory cannot be written to {path}: {source}", path = path.display())]
    Roster {
        /// The network.
        network: String,
        /// The list.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl IpamError {
    /// True when a pending removal may hold what was asked for.
    fn may_come_free(&self) -> bool {
        matches!(self, IpamError::Exhausted { .. } | IpamError::RequestedTaken { .. })
    }

    /// What to do, where a file could not be had for want of something that comes back.
    fn shortage(&self) -> Option<String> {
        match self {
            IpamError::Store { source, .. }
            | IpamError::Roster { source, .. }
            | IpamError::ResolvConf { source, .. } => shortage::remedy_of(source),
            _ => None,
        }
    }

    /// The code that a CNI caller is told.
    pub fn code(&self) -> Code {
        match self {
            _ if self.shortage().is_some() => Code::TryAgain,
            IpamError::Exhausted { .. } => Code::TryAgain,
            IpamError::Store { source, .. } if source.kind() == io::ErrorKind::TimedOut => Code::TryAgain,
            IpamError::RequestedGateway { .. }
            | IpamError::RequestedOutside { .. }
            | IpamError::BadPlace { .. }
            | IpamError::ResolvConf { .. } => Code::InvalidConfig,
            IpamError::Store { .. } | IpamError::Roster { .. } => Code::Io,
            IpamError::Duplicate { .. } => Code::AlreadyThere,
            IpamError::RequestedTaken { .. } => Code::TryAgain,
            IpamError::Unallocated { .. } | IpamError::Mismatch { .. } => Code::Changed,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        self.shortage().unwrap_or_else(|| self.lasting_remedy().to_owned())
    }

    fn lasting_remedy(&self) -> &'static str {
        match self {
            IpamError::Exhausted { .. } => {
                "widen the ranges, or delete pods of this network; `fairleadd doctor` lists addresses whose container is \
                 unknown, and `fairleadd gc --orphans` frees them"
            }
            IpamError::Duplicate { .. } => "the interface must be deleted (DEL) before it is added again",
            IpamError::RequestedTaken { .. } => {
                "ask for another address, or delete the pod that has this one"
            }
            IpamError::RequestedGateway { .. } | IpamError::RequestedOutside { .. } => {
                "ask for addresses inside the network's ranges, at most one of each range set, and not the gateway"
            }
            IpamError::Unallocated { .. } | IpamError::Mismatch { .. } => "delete the pod and make it anew",
            IpamError::BadPlace { .. } => "correct the network's configuration",
            IpamError::ResolvConf { .. } => {
                "correct `resolvConf` in the network's configuration, or the file"
            }
            IpamError::Store { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
                "find the process that holds it (lslocks) and end it; other networks are not held up"
            }
            IpamError::Store { .. } | IpamError::Roster { .. } => {
                "look after the disk: is it full, read-only or failing?"
            }
        }
    }
}

impl From<IpamError> for CniError {
    fn from(error: IpamError) -> CniError {
        // It may be the answer to a DEL, whose text containerd reads.
        CniError::new(error.code(), avoid_containerd_phrases(&error.to_string())).with(error.remedy())
    }
}

#[cfg(test)]
mod fixture;
