//! A netdev of the host that is moved into the pod and back, as it was: `host-device`.
//!
//! What it was is on record before it is moved. A device that a driver for user space has is left where it is: its pod has it by
//! other means, and there is no netdev to move.

mod attach;
mod config;
mod detach;
mod inspect;
mod moved_by_another;
mod sysfs;

pub(crate) use config::{HostDevice, TYPES};

pub(crate) use attach::{apply, plan};
pub(crate) use detach::{find, undo};
