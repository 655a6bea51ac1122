//! The only crate of Fairlead that touches the kernel.
//!
//! Everything above it speaks to the kernel through small traits: [`Kernel`], which is [`NetKernel`] and [`PciKernel`], and
//! [`Net`]. So the same code runs against the real kernel ([`real::RealKernel`]) and against a double that records every call
//! and fails at the one that a test names ([`double::FakeKernel`]).
//!
//! Beside the seam stand files below the host's root ([`host_root`], [`files`]), watches ([`file_watch`], [`watch`]), child processes
//! ([`exec`]), this process itself ([`process`], [`scheduling`], [`memory`], [`capabilities`]), NUMA nodes ([`topology`]) and what every
//! crate above needs once ([`backoff`], [`failpoint`], [`pid_lock`], [`shortage`]).
//!
//! It knows nothing of CNI: no configuration, no result, no error code.

pub mod announce;
pub mod backoff;
pub mod capabilities;
pub mod devlink;
pub mod disk_space;
pub mod double;
pub mod exec;
pub mod failpoint;
pub mod file_watch;
pub mod files;
pub mod host_root;
pub mod mac;
pub mod memory;
pub mod pid_lock;
pub mod process;
pub mod real;
pub mod scheduling;
pub mod scratch_netns;
pub mod seam;
pub mod shortage;
pub mod topology;
pub mod unix_http;
pub mod vf_settings;
pub mod watch;

pub use devlink::{DevlinkDevice, DevlinkEnd, DevlinkPort};
pub use host_root::HostRoot;
pub use mac::Mac;
pub use seam::{
    Address, AddressFlags, Answers, IommuGroup, IpvlanFlag, IpvlanMode, Kernel, Kind, Link, MacvlanMode, Net,
    NetError, NetKernel, NetnsError, NetnsId, NewLink, Nsid, Op, OpError, Override, Parent, PciKernel, Route,
    SetLink, VFIO_PCI,
};
pub use vf_settings::{Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};
