//! VFs under vfio-pci: the pod's process drives one by the node of its IOMMU group, which is not ours to put into the pod. Here it
//! is seen to that nobody else has the group, and what was set for the pod is restored.
//!
//! The group is tried before anything is changed, so that "in use" is reported instead of done to a running pod; the settings
//! are restored only when no process has it any more: until then it stays on its VLAN. Nothing here binds or resets a device.

mod attach;
mod detach;
mod inspect;

pub(crate) use attach::{Change, apply, plan};
pub(crate) use detach::undo;
pub(crate) use inspect::check;
