//! The record of a test: every call to the kernel in memory, in order.

use std::path::PathBuf;

use crate::seam::{NetdevSettings, Nsid, Op, Override};

/// Where a call went: to the daemon's own namespace, or to the one that was made with this cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The daemon's own namespace.
    Host,
    /// The namespace with this cookie.
    Pod(u64),
    /// The kernel as a whole, no one namespace.
    Kernel,
}

/// One call of the seam, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelRequest {
    /// A call of `NetKernel::pod`.
    Open(PathBuf),
    /// A call of `Net::nsid`.
    Nsid,
    /// One operation of a `Net::batch`.
    Op(Op),
    /// A call of `Net::link_by_name`.
    LinkByName(String),
    /// A call of `Net::link_by_index`.
    LinkByIndex(u32),
    /// A call of `Net::links`.
    Links,
    /// A call of `Net::vfs`.
    Vfs(u32),
    /// A call of `Net::addresses`.
    Addresses(u32),
    /// A call of `Net::routes`.
    Routes,
    /// A call of `Net::attached_programs`.
    AttachedPrograms(u32),
    /// A call of `Net::detach_programs`.
    DetachPrograms(u32),
    /// A call of `Net::netdev_settings`.
    NetdevSettings(u32),
    /// A call of `Net::restore_netdev_settings`.
    RestoreNetdevSettings(u32, NetdevSettings),
    /// A call of `Net::features_on`.
    FeaturesOn(u32),
    /// A call of `Net::switch_features`: the link, the features, and whether they are to be on.
    SwitchFeatures(u32, Vec<String>, bool),
    /// A call of `Net::sysctl`.
    Sysctl(String),
    /// A call of `Net::set_sysctl`.
    SetSysctl(String, String),
    /// A call of `NetKernel::link_at`.
    LinkAt(Nsid, u32),
    /// A call of `NetKernel::delete_at`.
    DeleteAt(Nsid, u32),
    /// A call of `NetKernel::nsids`.
    Nsids,
    /// A call of `PciKernel::unbind`.
    Unbind(String),
    /// A call of `PciKernel::bind`: the device, the driver, and what becomes of its override.
    Bind(String, String, Override),
    /// A call of `PciKernel::fixed_driver`.
    FixedDriver(String),
    /// A call of `PciKernel::reset`.
    Reset(String),
    /// `PciKernel::create_vfs`; whoever tests it has them appear by [`FakeKernel::add_vf`](super::FakeKernel::add_vf).
    CreateVfs(String, u32),
    /// A call of `PciKernel::iommu_group`.
    IommuGroup(u32),
    /// A call of `PciKernel::answers`.
    Answers(String),
    /// A call of `PciKernel::devlink`.
    Devlink,
    /// A call of `NetKernel::open_uplink`: the link, how many queues, and the NUMA node.
    OpenUplink(u32, u32, Option<u32>),
    /// A call of `NetKernel::bind_uplink`: the link, and the NUMA node.
    BindUplink(u32, Option<u32>),
    /// A call of `NetKernel::knows`.
    Knows(String),
}

/// One recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Where it went.
    pub place: Place,
    /// Which call it was.
    pub request: KernelRequest,
}
