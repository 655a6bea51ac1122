//! What was asked of the kernel in memory, call by call.

use std::path::PathBuf;

use crate::seam::{Nsid, Op, Override};

/// Where a call went: to the daemon's own namespace, or to the one that was made with this cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The daemon's own.
    Host,
    /// The namespace with this cookie.
    Pod(u64),
    /// No one namespace.
    Kernel,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// `NetKernel::pod`
    Open(PathBuf),
    /// `Net::nsid`
    Nsid,
    /// One operation of a `Net::batch`
    Op(Op),
    /// `Net::link_by_name`
    LinkByName(String),
    /// `Net::link_by_index`
    LinkByIndex(u32),
    /// `Net::links`
    Links,
    /// `Net::vfs`
    Vfs(u32),
    /// `Net::addresses`
    Addresses(u32),
    /// `Net::routes`
    Routes,
    /// `Net::sysctl`
    Sysctl(String),
    /// `Net::set_sysctl`
    SetSysctl(String, String),
    /// `NetKernel::link_at`
    LinkAt(Nsid, u32),
    /// `NetKernel::delete_at`
    DeleteAt(Nsid, u32),
    /// `NetKernel::nsids`
    Nsids,
    /// `PciKernel::unbind`
    Unbind(String),
    /// `PciKernel::bind`, to which driver
    Bind(String, String, Override),
    /// `PciKernel::fixed_driver`
    FixedDriver(String),
    /// `PciKernel::reset`
    Reset(String),
    /// `PciKernel::create_vfs`; whoever tests it has them appear by [`FakeKernel::add_vf`](super::FakeKernel::add_vf).
    CreateVfs(String, u32),
    /// `PciKernel::iommu_group`
    IommuGroup(u32),
    /// `PciKernel::answers`
    Answers(String),
    /// `PciKernel::devlink`
    Devlink,
    /// `NetKernel::knows`
    Knows(String),
}

/// One recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Where it went.
    pub place: Place,
    /// What was asked.
    pub asked: Asked,
}
