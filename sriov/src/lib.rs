//! VFs of SR-IOV devices: where they are ([`Inventory`]), which of them a pool is made of ([`Selectors`]), how
//! one is to be set up ([`VfProfile`]), what has to change for that ([`VfProfile::plan`], pure), how that is done
//! ([`Administrator`], [`KernelVf`], [`interface`]), and pools of them that are ready before a pod asks ([`pools`]). Which one is near a pod:
//! [`numa`] (pure).
//!
//! It reads sysfs, whose root it is given, and changes things through the kernel's seam only. It keeps no record: what is
//! changed must be on its caller's before.

#![forbid(unsafe_code)]

mod address;
mod admin;
mod device_plugin;
pub mod interface;
mod inventory;
mod kernel_vf;
pub mod numa;
pub mod pools;
mod profile;
pub mod resetting;
mod resource_name;
mod selector;
mod vfio;

pub use address::{BadPciAddr, PciAddr};
pub use admin::{Administrator, SettingError};
pub use device_plugin::{DevicePluginConfig, DevicePluginConfigError, Refusal, RefusedResource, Resource};
pub use inventory::{
    GroupMember, Interface, Inventory, InventoryError, LinkType, Model, Physical, Rdma, Scan, ScannedPf,
    ScannedVf, Unserved, VfDevice,
};
pub use kernel_vf::KernelVf;
pub use profile::{Plan, VfProfile};
pub use resource_name::{BadResourceName, check_resource_name};
pub use selector::{Selector, Selectors};
pub use vfio::{USER_SPACE_DRIVERS, UnfitForVfio, VFIO_PCI, fit_for_vfio};

pub use pools::state as pool;
