//! The namespace's own `lo`: set up at ADD, down again at DEL. Its addresses come from the kernel, so that no IPAM is asked.

mod attach;
mod detach;
mod inspect;

pub(crate) use attach::{apply, plan};
pub(crate) use detach::undo;
pub(crate) use inspect::check;

/// The types of configurations that are served here. Any configuration of it is taken, as the reference plugin does.
pub(crate) const TYPES: [&str; 1] = ["loopback"];
