//! The only crate of Fairlead that touches the kernel.
//!
//! Everything above it speaks to the kernel through two small traits, [`Kernel`] and [`Net`], so that the same
//! code runs against the real kernel ([`real::RealKernel`]) and against a double that records every call and
//! fails at the one it is told to ([`double::FakeKernel`]).
//!
//! It knows nothing of CNI: no configuration, no result, no error code.

pub mod announce;
pub mod backoff;
pub mod devlink;
pub mod disk_space;
pub mod double;
pub mod exec;
pub mod failpoint;
pub mod file_watch;
pub mod files;
pub mod host_root;
pub mod mac;
pub mod process;
pub mod real;
pub mod scratch;
pub mod seam;
pub mod shortage;
pub mod topology;
pub mod unix_http;
pub mod vf;
pub mod watch;

pub use devlink::{DevlinkDevice, DevlinkEnd, DevlinkPort};
pub use host_root::HostRoot;
pub use mac::Mac;
pub use seam::{
    Address, AddressFlags, Answers, IommuGroup, IpvlanFlag, IpvlanMode, Kernel, Kind, Link, MacvlanMode, Net,
    NetError, NetnsError, NetnsId, NewLink, Nsid, Op, OpError, Override, Parent, Route, Rule, SetLink,
};
pub use vf::{Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};
