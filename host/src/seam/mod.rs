//! The seam between Fairlead and the kernel: what can be read and changed, as data and as traits.
//!
//! There are two halves, [`NetKernel`] (namespaces, links, addresses, routes) and [`PciKernel`] (drivers, resets, VFs, IOMMU
//! groups, devlink); [`Kernel`] is both. The real kernel and the double implement both, so that the same code runs against either.
//! Nothing in here waits for anything but the kernel.

mod addressing;
mod error;
mod link;
mod link_name;
mod link_programs;
mod link_settings;
mod net;
mod net_change;
mod netdev_settings;
mod netns_id;
mod pci;
pub mod uplink;

pub use addressing::{Address, AddressFlags, Route};
pub use error::{NetError, NetnsError, OpError};
pub use link::{IpvlanFlag, IpvlanMode, Kind, Link, MacvlanMode, NewLink, Parent, ParentLink, SetLink};
pub use link_name::LinkName;
pub(crate) use link_name::bytes_of;
pub use link_programs::{AttachedProgram, ProgramHook};
pub use link_settings::LinkSettings;
pub(crate) use net::one_by_one;
pub use net::{Net, NetKernel};
pub use net_change::Op;
pub use netdev_settings::{Channels, NetdevSettings, Numbers};
pub use netns_id::{NetnsId, Nsid};
pub use pci::{Answers, IommuGroup, Override, PciKernel, VFIO_PCI};
pub use uplink::{Uplink, UplinkQueue};

/// The whole kernel, as far as Fairlead uses it. Whatever has both halves is one.
pub trait Kernel: NetKernel + PciKernel {}

impl<K: NetKernel + PciKernel + ?Sized> Kernel for K {}
