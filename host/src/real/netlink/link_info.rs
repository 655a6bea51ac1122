//! The kinds of links in `IFLA_LINKINFO`, written and read.

use super::attributes::{attributes, text, u16_at, u32_at};
use super::message::Message;
use crate::seam::{IpvlanFlag, IpvlanMode, Kind, MacvlanMode};

// `linux/if_link.h`, the attributes of IFLA_INFO_DATA by kind.
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_FLAGS: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;

/// Writes the attributes of `IFLA_LINKINFO`: the kind's name, and its settings where it has any.
pub(in crate::real) fn write(info: &mut Message, kind: &Kind) {
    info.attribute(libc::IFLA_INFO_KIND, kind.name().as_bytes());
    match *kind {
        Kind::Macvlan { mode, bc_queue_len } => info.nest(libc::IFLA_INFO_DATA, |data| {
            data.u32(IFLA_MACVLAN_MODE, macvlan_mode_number(mode));
            if let Some(length) = bc_queue_len {
                data.u32(IFLA_MACVLAN_BC_QUEUE_LEN, length);
            }
        }),
        Kind::Ipvlan { mode, flag } => info.nest(libc::IFLA_INFO_DATA, |data| {
            data.u16(IFLA_IPVLAN_MODE, ipvlan_mode_number(mode));
            if let Some(flag) = flag {
                data.u16(IFLA_IPVLAN_FLAGS, ipvlan_flag_number(flag));
            }
        }),
        Kind::Vlan { id } => info.nest(libc::IFLA_INFO_DATA, |data| data.u16(IFLA_VLAN_ID, id)),
        Kind::Dummy | Kind::Other { .. } => {}
    }
}

/// The kernel's number of a macvlan's mode (`MACVLAN_MODE_*`).
fn macvlan_mode_number(mode: MacvlanMode) -> u32 {
    match mode {
        MacvlanMode::Private => 1,
        MacvlanMode::Vepa => 2,
        MacvlanMode::Bridge => 4,
        MacvlanMode::Passthru => 8,
    }
}

/// The kernel's number of an ipvlan's mode (`IPVLAN_MODE_*`).
fn ipvlan_mode_number(mode: IpvlanMode) -> u16 {
    match mode {
        IpvlanMode::L2 => 0,
        IpvlanMode::L3 => 1,
        IpvlanMode::L3s => 2,
    }
}

/// The kernel's number of an ipvlan's flag (`IPVLAN_F_*`).
fn ipvlan_flag_number(flag: IpvlanFlag) -> u16 {
    match flag {
        IpvlanFlag::Bridge => 0,
        IpvlanFlag::Private => 1,
        IpvlanFlag::Vepa => 2,
    }
}

/// Reads the value of `IFLA_LINKINFO`. A kind whose settings cannot be read is known by its name alone.
pub(in crate::real) fn read(info: &[u8]) -> Kind {
    let mut name = String::new();
    let mut data: &[u8] = &[];
    for (kind, value) in attributes(info) {
        match kind {
            libc::IFLA_INFO_KIND => name = text(value),
            libc::IFLA_INFO_DATA => data = value,
            _ => {}
        }
    }
    let number = |wanted: u16| attributes(data).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let short = |wanted: u16| number(wanted).and_then(|value| u16_at(value, 0));
    let long = |wanted: u16| number(wanted).and_then(|value| u32_at(value, 0));
    let known = match name.as_str() {
        "macvlan" => long(IFLA_MACVLAN_MODE)
            .and_then(macvlan_mode)
            .map(|mode| Kind::Macvlan { mode, bc_queue_len: long(IFLA_MACVLAN_BC_QUEUE_LEN) }),
        "ipvlan" => short(IFLA_IPVLAN_MODE)
            .and_then(ipvlan_mode)
            .map(|mode| Kind::Ipvlan { mode, flag: short(IFLA_IPVLAN_FLAGS).and_then(ipvlan_flag) }),
        "vlan" => short(IFLA_VLAN_ID).map(|id| Kind::Vlan { id }),
        "dummy" => Some(Kind::Dummy),
        _ => None,
    };
    known.unwrap_or(Kind::Other { name })
}

fn macvlan_mode(mode: u32) -> Option<MacvlanMode> {
    match mode {
        1 => Some(MacvlanMode::Private),
        2 => Some(MacvlanMode::Vepa),
        4 => Some(MacvlanMode::Bridge),
        8 => Some(MacvlanMode::Passthru),
        _ => None,
    }
}

fn ipvlan_mode(mode: u16) -> Option<IpvlanMode> {
    match mode {
        0 => Some(IpvlanMode::L2),
        1 => Some(IpvlanMode::L3),
        2 => Some(IpvlanMode::L3s),
        _ => None,
    }
}

fn ipvlan_flag(flag: u16) -> Option<IpvlanFlag> {
    match flag {
        0 => Some(IpvlanFlag::Bridge),
        1 => Some(IpvlanFlag::Private),
        2 => Some(IpvlanFlag::Vepa),
        _ => None,
    }
}
