//! BPF programs for tests: two instructions that let every packet pass, attached in each way that a pod can.
//!
//! Indexes of links are those of the namespace that the calling thread is in. Nothing of the daemon uses this.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;

use crate::real::attach_xdp;
use crate::real::bpf::{self, TcxSide};
use crate::seam::ProgramHook;

const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// `r0 = 2` (XDP_PASS) or `r0 = 0` (TC_ACT_OK), and `exit`.
const PASS_XDP: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
const PASS_TCX: [u64; 2] = [0x0000_0000_0000_00b7, 0x95];

/// What BPF_PROG_ATTACH reads, as far as it is needed.
#[derive(Debug, Default)]
#[repr(C)]
struct Attach {
    index: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 2],
}

/// A program that is loaded.
#[derive(Debug)]
pub struct ScratchProgram {
    program: OwnedFd,
    hook: ProgramHook,
}

impl ScratchProgram {
    /// Loads a program that can run at `hook`.
    pub fn load(hook: ProgramHook) -> io::Result<ScratchProgram> {
        let (kind, code) = match hook {
            ProgramHook::TcxIngress | ProgramHook::TcxEgress => (BPF_PROG_TYPE_SCHED_CLS, &PASS_TCX),
            _ => (bpf::PROGRAM_TYPE_XDP, &PASS_XDP),
        };
        let program = bpf::load(kind, code, c"GPL", attach_type(hook))?;
        Ok(ScratchProgram { program, hook })
    }

    /// Attaches it to a link by itself: it stays when whoever has attached it is gone.
    pub fn attach(&self, index: u32) -> io::Result<()> {
        match self.hook {
            ProgramHook::TcxIngress | ProgramHook::TcxEgress => {
                let mut attach = Attach {
                    index,
                    program: bpf::number(&self.program),
                    attach_type: attach_type(self.hook),
                    ..Attach::default()
                };
                // SAFETY: the attribute has no address in it.
                unsafe { bpf::call(BPF_PROG_ATTACH, &mut attach) }?;
                Ok(())
            }
            hook => attach_xdp(index, self.program.as_raw_fd(), hook),
        }
    }

    /// Attaches it to a link by a `bpf_link`, which holds it as long as the answer is open.
    pub fn attach_by_link(&self, index: u32) -> Result<OwnedFd, Errno> {
        let flags = if self.hook == ProgramHook::XdpGeneric { bpf::XDP_FLAGS_SKB_MODE } else { 0 };
        bpf::create_link(&self.program, index, attach_type(self.hook), flags)
    }
}

fn attach_type(hook: ProgramHook) -> u32 {
    match hook {
        ProgramHook::TcxIngress => TcxSide::Ingress as u32,
        ProgramHook::TcxEgress => TcxSide::Egress as u32,
        _ => bpf::ATTACH_XDP,
    }
}
