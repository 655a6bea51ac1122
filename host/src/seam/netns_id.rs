//! How a network namespace is identified: by its cookie or inode for as long as it lives, and by the number that the daemon's
//! own namespace has for it (nsid).

use serde::{Deserialize, Serialize};

/// The number by which the daemon's namespace knows another one (`RTM_GETNSID`); the kernel frees it when that
/// namespace dies and may then give it to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nsid(pub i32);

/// What a namespace is known by. Two namespaces are the same when their cookies are; where the kernel has none
/// (before 5.14), inode numbers say only that two may be the same, because the kernel reuses them at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsId {
    /// Device of the nsfs inode.
    pub dev: u64,
    /// Number of the nsfs inode.
    pub ino: u64,
    /// `SO_NETNS_COOKIE`: never reused in a boot. `None` before kernel 5.14.
    pub cookie: Option<u64>,
}

impl NetnsId {
    /// True when both are provably the same namespace: by cookie, or, without cookies, by inode alone.
    pub fn same(&self, other: &NetnsId) -> bool {
        match (self.cookie, other.cookie) {
            (Some(a), Some(b)) => a == b,
            _ => self.dev == other.dev && self.ino == other.ino,
        }
    }
}
