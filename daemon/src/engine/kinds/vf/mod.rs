//! The netdev of a VF: set up through its PF, moved into the pod, and restored.
//!
//! It is found by its PCI address, in the pod or in the host's namespace. Its settings are restored only when the netdev has left
//! the pod: until then the pod stays on its VLAN. While it is on record nobody else gets it.

mod attach;
mod detach;
mod inspect;

pub(crate) use attach::{Change, apply, change, plan};
pub(crate) use detach::{find, undo};
pub(crate) use inspect::check;
