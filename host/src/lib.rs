//! The only crate of Fairlead that touches the kernel.
//!
//! Everything above it speaks to the kernel through two small traits, [`Kernel`] and [`Net`], so that the same
//! code runs against the real kernel ([`real::RealKernel`]) and against a double that records every call and
//! fails at the one it is told to ([`double::FakeKernel`]).
//!
//! It knows nothing of CNI: no configuration, no result, no error code.

pub mod announce;
pub mod devlink;
pub mod double;
pub mod exec;
pub mod mac;
pub mod process;
pub mod real;
pub mod scratch;
pub mod seam;
pub mod topology;
pub mod vf;
pub mod watch;

pub use devlink::{DevlinkDevice, DevlinkEnd, DevlinkPort};
pub use mac::Mac;
pub use seam::{
    Address, AddressFlags, Answers, IommuGroup, IpvlanFlag, IpvlanMode, Kernel, Kind, Link, MacvlanMode, Net,
    NetError, NetnsError, NetnsId, NewLink, Nsid, Op, OpError, Override, Parent, Route, Rule, SetLink,
};
pub use vf::{Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};
