//! Frames of one port, copied for an operator who looks on.
//!
//! - what may be asked for: [`CaptureRequest`], [`CaptureOptions`]
//! - the memory that both sides share, and a record in it: [`shared_ring`]
//! - the switch's side, on the poll thread: [`Tap`]
//! - the operator's side: [`CaptureReader`]
//! - frames as a file of the form pcapng: [`PcapngWriter`]
//!
//! The operator makes the memory, so it is the operator's cgroup that pays for it. The switch writes a record if there is room, counts it
//! as lost if there is none, and tells nobody: the reader looks by itself. So a capture costs the poll thread a copy for each frame, no
//! system call, and never a wait.
//!
//! Neither side believes the other: every index that is read is checked against the ring's size.

mod pcapng;
mod reader;
mod shared_ring;
mod tap;

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

pub use pcapng::PcapngWriter;
pub use reader::{CaptureReader, CapturedFrame, Ended, Seen};
pub(crate) use tap::Tap;

/// Which frames of a port are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaptureDirection {
    /// Those that its guest sends, also those that the switch drops.
    Sent,
    /// Those that its guest gets, as it gets them.
    Received,
    /// All of them.
    #[default]
    Both,
}

/// What is to be captured of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureOptions {
    /// Which frames.
    pub direction: CaptureDirection,
    /// The most bytes of a frame that are kept.
    pub snaplen: u32,
}

/// A capture as the switch is asked for it.
#[derive(Debug)]
pub struct CaptureRequest {
    /// What is to be captured.
    pub options: CaptureOptions,
    /// The memory of the ring: a memfd that the operator has made.
    pub memory: OwnedFd,
}

/// The number of a capture, which no other capture of the process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaptureKey(pub u64);
