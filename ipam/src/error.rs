//! Why addresses could not be allocated, released or checked: the text, the CNI code and the remedy of each reason.
//!
//! The texts of refusals are the reference plugin's where it has one, because runtimes and people know them. No text may contain
//! the words that containerd takes for success; the conversion to [`CniError`] sees to that.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use fairlead_cni::{CniError, Code, avoid_containerd_phrases};
use fairlead_host::shortage;
use fairlead_host::strict_path::leads_elsewhere;
use rustix::io::Errno;

/// Why addresses could not be had, given back or looked at.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// Every address of a range set is in use.
    #[error(
        "network {network:?}: failed to allocate for range {set}: no IP addresses available in range set: {ranges} ({in_use} of {size} in use)"
    )]
    Exhausted {
        /// The network's name.
        network: String,
        /// Position of the range set.
        set: usize,
        /// Its ranges, as text.
        ranges: String,
        /// Addresses of them that are had.
        in_use: usize,
        /// Addresses in them.
        size: u128,
    },
    /// The container's interface has an address of this range set already.
    #[error(
        "network {network:?}: failed to allocate for range {set}: {ip} has been allocated to {container_id}, duplicate allocation is not allowed"
    )]
    Duplicate {
        /// The network's name.
        network: String,
        /// Position of the range set.
        set: usize,
        /// The address that it has.
        ip: IpAddr,
        /// The container's id.
        container_id: String,
    },
    /// An address that was asked for is another's.
    #[error("network {network:?}: failed to allocate for range {set}: requested IP address {ip} is not available in range set {ranges}{}", holder.as_ref().map(|h| format!(" (it belongs to {h})")).unwrap_or_default())]
    RequestedTaken {
        /// The network's name.
        network: String,
        /// Position of the range set.
        set: usize,
        /// The address that was asked for.
        ip: IpAddr,
        /// The set's ranges.
        ranges: String,
        /// Whose it is: the content of its file.
        holder: Option<String>,
    },
    /// An address that was asked for is the gateway.
    #[error("network {network:?}: failed to allocate for range {set}: requested ip {ip} is subnet's gateway")]
    RequestedGateway {
        /// The network's name.
        network: String,
        /// Position of the range set.
        set: usize,
        /// The address that was asked for.
        ip: IpAddr,
    },
    /// Addresses were asked for that are in no range set, or two of one range set.
    #[error("network {network:?}: failed to allocate all requested IPs: {}", .ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))]
    RequestedOutside {
        /// The network's name.
        network: String,
        /// Those that could not be had.
        ips: Vec<IpAddr>,
    },
    /// CHECK: the container's interface has no address.
    #[error("network {network:?}: host-local: Failed to find address added by container {container_id}")]
    Unallocated {
        /// The network's name.
        network: String,
        /// The container's id.
        container_id: String,
    },
    /// CHECK of `static`: an address has another gateway than configured.
    #[error("static: Failed to match addr {ip} on interface {ifname}")]
    Mismatch {
        /// The address whose gateway differs.
        ip: IpAddr,
        /// The name of the interface.
        ifname: String,
    },
    /// The name of a network or `dataDir` can't be that of a directory.
    #[error("{field} {value:?} cannot be used as a directory's name")]
    BadDirectory {
        /// Which of the two it is.
        field: &'static str,
        /// The name that was refused.
        value: String,
    },
    /// `resolvConf` could not be read.
    #[error("network {network:?}: resolvConf {path}: {source}", path = path.display())]
    ResolvConf {
        /// The network's name.
        network: String,
        /// The file's path on the host.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// The network's directory, or a file in it, could not be read or changed.
    #[error("network {network:?}: allocations in {path}: {source}", path = path.display())]
    Store {
        /// The network's name.
        network: String,
        /// The directory's path on the host.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A tenant's definitions have addresses in as many directories as they may.
    #[error(
        "network {network:?}: namespace {namespace:?} has addresses in {most} directories of this node, the most that one may have"
    )]
    TooManyDirs {
        /// The network's name.
        network: String,
        /// The tenant's namespace.
        namespace: String,
        /// So many directories one may have.
        most: usize,
    },
    /// The list of directories in the state directory could not be written.
    #[error("network {network:?}: the record of its directory cannot be written to {path}: {source}", path = path.display())]
    UsedDirs {
        /// The network's name.
        network: String,
        /// The list's path.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
}

impl IpamError {
    /// True when a pending removal may hold what was asked for.
    pub(crate) fn may_come_free(&self) -> bool {
        matches!(self, IpamError::Exhausted { .. } | IpamError::RequestedTaken { .. })
    }

    /// The address that was asked for, and is another's.
    pub(crate) fn requested(&self) -> Option<IpAddr> {
        match self {
            IpamError::RequestedTaken { ip, .. } => Some(*ip),
            _ => None,
        }
    }

    /// True when the directory was not even opened because the way to it leads elsewhere: nothing was taken in it, and nothing can be
    /// given back there.
    pub fn leads_elsewhere(&self) -> bool {
        matches!(self, IpamError::Store { source, .. } if leads_elsewhere(source))
    }

    /// Of an ADD: true when no address was taken, and none can be: what the configuration names, or has there, must be corrected first.
    pub fn gives_nothing(&self) -> bool {
        self.leads_elsewhere() || self.is_unfit()
    }

    /// True when the directory, or something in it, is not what host-local can work with: a mistake of the configuration, or
    /// somebody's who may write there. It says nothing of the disk, nor of this daemon.
    fn is_unfit(&self) -> bool {
        let IpamError::Store { source, .. } = self else { return false };
        match source.raw_os_error() {
            // The kernel says this of paths that lead nowhere, and of much else where it has no code of its own for us.
            Some(code) => {
                [Errno::NOTDIR, Errno::LOOP, Errno::NAMETOOLONG].contains(&Errno::from_raw_os_error(code))
            }
            None => source.kind() == io::ErrorKind::InvalidInput,
        }
    }

    /// What to do, where a file could not be had for want of something that comes back.
    fn shortage(&self) -> Option<String> {
        match self {
            IpamError::Store { source, .. }
            | IpamError::UsedDirs { source, .. }
            | IpamError::ResolvConf { source, .. } => shortage::remedy_of(source),
            _ => None,
        }
    }

    /// The code of the CNI error that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            // Open files and memory come back: the runtime shall try again.
            _ if self.shortage().is_some() => Code::TryAgain,
            IpamError::Exhausted { .. } | IpamError::TooManyDirs { .. } => Code::TryAgain,
            IpamError::Store { source, .. } if source.kind() == io::ErrorKind::TimedOut => Code::TryAgain,
            IpamError::RequestedGateway { .. }
            | IpamError::RequestedOutside { .. }
            | IpamError::BadDirectory { .. }
            | IpamError::ResolvConf { .. } => Code::InvalidConfig,
            _ if self.is_unfit() => Code::InvalidConfig,
            IpamError::Store { .. } | IpamError::UsedDirs { .. } => Code::Io,
            IpamError::Duplicate { .. } => Code::AlreadyThere,
            IpamError::RequestedTaken { .. } => Code::TryAgain,
            IpamError::Unallocated { .. } | IpamError::Mismatch { .. } => Code::Changed,
        }
    }

    /// What a person can do about it.
    pub fn remedy(&self) -> String {
        self.shortage().unwrap_or_else(|| self.lasting_remedy().to_owned())
    }

    fn lasting_remedy(&self) -> &'static str {
        match self {
            IpamError::Exhausted { .. } => {
                "widen the ranges, or delete pods of this network; `fairleadd doctor` lists addresses whose container is \
                 unknown, and `fairleadd gc --orphans` frees them"
            }
            IpamError::TooManyDirs { .. } => {
                "delete pods of networks of this namespace: a directory without an address makes room. Definitions that share a name \
                 and a `dataDir` share a directory"
            }
            IpamError::Duplicate { .. } => "the interface must be deleted (DEL) before it is added again",
            IpamError::RequestedTaken { .. } => {
                "ask for another address, or delete the pod that has this one"
            }
            IpamError::RequestedGateway { .. } | IpamError::RequestedOutside { .. } => {
                "ask for addresses inside the network's ranges, at most one of each range set, and not the gateway"
            }
            IpamError::Unallocated { .. } | IpamError::Mismatch { .. } => "delete the pod and make it anew",
            IpamError::BadDirectory { .. } => "correct the network's configuration",
            IpamError::ResolvConf { .. } => {
                "correct `resolvConf` in the network's configuration, or the file"
            }
            IpamError::Store { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
                "find the process that holds the lock (lslocks), or the file system that does not answer, and end it; other \
                 networks are not held up"
            }
            _ if self.leads_elsewhere() => {
                "make it a plain directory, or name the directory that is meant in `policy.dataDirRoots` of the node's configuration"
            }
            _ if self.is_unfit() => {
                "remove what is not host-local's, and give `dataDir` a directory that root alone can write"
            }
            IpamError::Store { .. } | IpamError::UsedDirs { .. } => {
                "look after the disk: is it full, read-only or failing?"
            }
        }
    }
}

impl From<IpamError> for CniError {
    fn from(error: IpamError) -> CniError {
        // It may be the answer to a DEL, in whose text containerd looks for its phrases.
        CniError::new(error.code(), avoid_containerd_phrases(&error.to_string())).with(error.remedy())
    }
}
