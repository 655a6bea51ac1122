//! Which kinds of links the kernel knows, found out by making one in a network namespace that nobody sees and that ends with the
//! attempt.
//!
//! The kernel looks for a kind before it looks at anything else of a new link, and loads the kind's module if there
//! is one: as it would at the first ADD.

use std::io;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::RealKernel;
use crate::seam::{Kind, NetError, NetKernel, NewLink, Op, Parent};

/// Whether the kernel has links of this kind (`IFLA_INFO_KIND`).
pub(super) fn knows(kind: &str) -> Result<bool, NetError> {
    let kind = kind.to_owned();
    let thread = thread::Builder::new().name("link-kind".to_owned());
    // A thread of its own: unshare(2) takes its caller out of the daemon's namespace for good.
    let probe = thread.spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| NetError::Socket(errno.into()))?;
        try_to_make(&RealKernel::new()?, kind)
    });
    let probe = probe.map_err(NetError::Socket)?;
    probe
        .join()
        .unwrap_or_else(|_| Err(NetError::Socket(io::Error::other("the probe of a link kind panicked"))))
}

fn try_to_make(kernel: &RealKernel, kind: String) -> Result<bool, NetError> {
    let link = NewLink {
        name: "probe".to_owned(),
        index: None,
        kind: Kind::Other { name: kind },
        parent: Parent::None,
        mac: None,
        mtu: None,
        up: false,
    };
    match kernel.host()?.batch(&[Op::CreateLink(link)]) {
        // The kernel's answer to a kind that no module registers.
        Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => Ok(false),
        // These say nothing of the kind: the daemon may make no links, or no answer came.
        Err(error) if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES) | None) => Err(error),
        // The kernel knows it. Mostly the link is refused for want of a parent; a kind that needs none is made, and gone with the namespace.
        Ok(()) | Err(_) => Ok(true),
    }
}
