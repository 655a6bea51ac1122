//! BPF programs that are attached to a link, as data.
//!
//! Only what a link takes along into another namespace: XDP and TCX. The kernel drops classifiers with the link's queueing disciplines
//! when it moves.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where on a link's way a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProgramHook {
    /// XDP in the driver.
    XdpDriver,
    /// XDP in the kernel's own path, for any link.
    XdpGeneric,
    /// XDP on the card itself.
    XdpOffloaded,
    /// TCX, on what comes in.
    TcxIngress,
    /// TCX, on what goes out.
    TcxEgress,
}

/// A program on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachedProgram {
    /// The kernel's number of the program.
    pub id: u32,
    /// Where it runs.
    pub hook: ProgramHook,
    /// The `bpf_link` that holds it there, where the kernel says so (TCX).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
}

impl fmt::Display for ProgramHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramHook::XdpDriver => "XDP (driver)",
            ProgramHook::XdpGeneric => "XDP (generic)",
            ProgramHook::XdpOffloaded => "XDP (offloaded)",
            ProgramHook::TcxIngress => "TCX ingress",
            ProgramHook::TcxEgress => "TCX egress",
        })
    }
}

impl fmt::Display for AttachedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} program {}", self.hook, self.id)
    }
}
