//! `IFLA_XDP`: the XDP programs of a link, read and taken off.

use super::attributes::{attributes, u32_at};
use super::message::Message;
use crate::real::bpf::{XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE};
use crate::seam::{AttachedProgram, ProgramHook};

const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const XDP_FLAGS_HW_MODE: u32 = 8;
const NLA_F_NESTED: u16 = 1 << 15;
/// Length of `struct ifinfomsg`.
const IFINFOMSG: usize = 16;

/// The programs in an answer to `RTM_GETLINK`.
pub(in crate::real) fn programs(payload: &[u8]) -> Vec<AttachedProgram> {
    let all = attributes(payload.get(IFINFOMSG..).unwrap_or(&[]));
    let xdp = all.filter(|(kind, _)| *kind == IFLA_XDP).flat_map(|(_, value)| attributes(value));
    let program = |(kind, value): (u16, &[u8])| {
        let hook = match kind {
            IFLA_XDP_DRV_PROG_ID => ProgramHook::XdpDriver,
            IFLA_XDP_SKB_PROG_ID => ProgramHook::XdpGeneric,
            IFLA_XDP_HW_PROG_ID => ProgramHook::XdpOffloaded,
            _ => return None,
        };
        Some(AttachedProgram { id: u32_at(value, 0)?, hook, link: None })
    };
    xdp.filter_map(program).collect()
}

/// Takes the program off that runs at `hook`.
pub(in crate::real) fn detach(index: u32, hook: ProgramHook) -> Message {
    set(index, -1, mode_of(hook))
}

/// Attaches a program at `hook`.
pub(in crate::real) fn attach(index: u32, program: i32, hook: ProgramHook) -> Message {
    set(index, program, mode_of(hook))
}

fn mode_of(hook: ProgramHook) -> u32 {
    match hook {
        ProgramHook::XdpGeneric => XDP_FLAGS_SKB_MODE,
        ProgramHook::XdpOffloaded => XDP_FLAGS_HW_MODE,
        _ => XDP_FLAGS_DRV_MODE,
    }
}

fn set(index: u32, program: i32, mode: u32) -> Message {
    let mut message = super::encode::change_link(index);
    message.nest(IFLA_XDP | NLA_F_NESTED, |xdp| {
        xdp.i32(IFLA_XDP_FD, program);
        xdp.u32(IFLA_XDP_FLAGS, mode);
    });
    message
}
