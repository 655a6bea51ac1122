//! Configurations of type `sriov`, and what both of their kinds need ([`super::vf`], [`super::vfio`]): which VF, whose it is, how
//! it is set up, where it lies, and the pool that it comes from.
//!
//! Which of the two kinds an attachment becomes is decided by the driver that has the VF, once the VF is reserved.

mod broken_attachments;
mod config;
mod device_given_by_kubelet;
mod device_info;
mod iommu_group;
mod kubelet_devices;
mod numa;
mod pools;
mod quarantine;
mod reserve;
mod restore;
mod services;
mod snapshot;

pub(crate) use config::{Sriov, TYPES};

pub(crate) use device_given_by_kubelet::AnnouncedDevices;
pub(crate) use quarantine::{Restored, quarantined};
pub(crate) use reserve::{ReservedVf, reserve_alone, unusable, vf_not_to_be_had};
pub(crate) use restore::still_away;
pub(crate) use services::SriovServices;
pub(crate) use snapshot::Snapshot;
