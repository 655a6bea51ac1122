//! The only crate of Fairlead that touches the kernel.
//!
//! Everything above it speaks to the kernel through small traits: [`Kernel`], which is [`NetKernel`] and [`PciKernel`], and
//! [`Net`]. So the same code runs against the real kernel ([`real::RealKernel`]) and against a double that records every call
//! and fails at the one that a test names ([`double::FakeKernel`]).
//!
//! Beside the seam stand files below the host's root ([`host_root`], [`files`], [`trusted_file`], [`strict_path`], [`socket_file`],
//! [`renewed_directory`], [`security_label`], [`group_access`], [`bind_mount`]), watches ([`file_watch`],
//! [`watch`]), child processes ([`exec`]) and the mounts that they see ([`runtime_mounts`]), this process itself ([`process`],
//! [`scheduling`], [`memory`], [`capabilities`], and the order of its work in [`after_answer`]), NUMA nodes ([`topology`]), the
//! kernel's messages ([`kernel_console`]) and what every crate above needs once ([`backoff`], [`blocking_threads`], [`failpoint`],
//! [`pid_lock`], [`record_content`], [`record_version`], [`shortage`], [`spoken_duration`], [`stable_hash`], [`time_limit`],
//! [`vital_thread`]).
//!
//! It knows nothing of CNI: no configuration, no result, no error code.

pub mod after_answer;
pub mod announce;
pub mod backoff;
pub mod bind_mount;
pub mod blocking_threads;
pub mod capabilities;
pub mod devlink;
pub mod disk_space;
pub mod double;
pub mod exec;
pub mod failpoint;
pub mod file_watch;
pub mod files;
pub mod group_access;
mod hexadecimal;
pub mod host_root;
pub mod kernel_console;
pub mod mac;
pub mod memory;
mod netdev_identity;
pub mod pid_lock;
pub mod process;
mod program_pages;
pub mod real;
pub mod record_content;
pub mod record_version;
pub mod renewed_directory;
pub mod runtime_mounts;
pub mod scheduling;
pub mod scratch_mounts;
pub mod scratch_netns;
pub mod scratch_program;
pub mod seam;
pub mod security_label;
pub mod shortage;
pub mod socket_file;
pub mod spoken_duration;
pub mod stable_hash;
pub mod strict_path;
pub mod time_limit;
pub mod topology;
pub mod trusted_file;
pub mod unix_http;
pub mod vf_settings;
pub mod vital_thread;
pub mod volume_file;
pub mod watch;

pub use bind_mount::BindMounts;
pub use devlink::{DevlinkDevice, DevlinkEnd, DevlinkPort};
pub use host_root::HostRoot;
pub use mac::Mac;
pub use netdev_identity::{LookedForIn, Lower, NetdevIdentity};
pub use seam::{
    Address, AddressFlags, Answers, AttachedProgram, Channels, IommuGroup, IpvlanFlag, IpvlanMode, Kernel,
    Kind, Link, LinkName, LinkSettings, MacvlanMode, Net, NetError, NetKernel, NetdevSettings, NetnsError,
    NetnsId, NewLink, Nsid, Numbers, Op, OpError, Override, Parent, ParentLink, PciKernel, ProgramHook,
    Route, SetLink, Uplink, UplinkQueue, VFIO_PCI, uplink,
};
pub use vf_settings::{Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};
