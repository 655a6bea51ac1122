//! VFs of SR-IOV devices, and pools of VFs that are ready before a pod asks for one.
//!
//! - where VFs are: [`Inventory`]; which of them a pool is made of: [`Selectors`]
//! - the settings that one is to have: [`VfProfile`]; what has to change for that: [`VfProfile::plan`] (pure)
//! - how that is done: [`Administrator`], [`KernelVf`], [`vf_netdev`]
//! - pools: [`pools`], kept up by events of devices ([`hotplug`])
//! - which VF is near a pod: [`numa`] (pure)
//!
//! The crate reads sysfs and udev's directory, whose places it is given, and changes the machine through the kernel's seam only. It knows nothing of
//! CNI, of kubelet or of the daemon. Outside [`pools`] it keeps no record: what is changed must be on its caller's before.

#![forbid(unsafe_code)]

mod address;
mod admin;
mod device_plugin_config;
pub mod hotplug;
mod inventory;
pub mod numa;
pub mod pools;
mod resource_name;
mod selector;
mod udev;
pub mod vf_netdev;
mod vf_netdev_mac;
mod vf_profile;
mod vfio_fitness;
pub mod wait_out_reset;

pub use address::{BadPciAddr, PciAddr};
pub use admin::{Administrator, SettingError};
pub use device_plugin_config::{
    BadResourcePrefix, DevicePluginConfig, DevicePluginConfigError, Refusal, RefusedResource, Resource,
    ResourcePrefix,
};
pub use fairlead_host::VFIO_PCI;
pub use inventory::{
    GroupMember, Interface, Inventory, InventoryError, LinkType, Model, Physical, Rdma, Scan, ScannedPf,
    ScannedVf, Unserved, VfDevice,
};
pub use resource_name::{BadResourceName, check_resource_name};
pub use selector::{Selector, Selectors};
pub use vf_netdev_mac::KernelVf;
pub use vf_profile::{Plan, VfProfile};
pub use vfio_fitness::{USER_SPACE_DRIVERS, UnfitForVfio, fit_for_vfio};
