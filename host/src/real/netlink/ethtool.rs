//! Ethtool's settings of a netdev over generic netlink (`include/uapi/linux/ethtool_netlink_generated.h`): by the link's index, so that no
//! renaming leads to another link.

use std::sync::OnceLock;

use libc::NLM_F_ACK;
use nix::errno::Errno;

use super::attributes::{attributes, text, u32_at};
use super::decode::Body;
use super::ethtool_numbers::{self, COALESCING, PAUSE, RINGS};
use super::generic::{GENERIC_HEADER, family, request};
use super::message::Message;
use super::socket::{Failure, Socket};
use crate::hexadecimal;
use crate::seam::{Channels, NetdevSettings};

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_MSG_CHANNELS_SET: u8 = 18;
const ETHTOOL_MSG_RSS_GET: u8 = 38;
/// Hash function, table and key (`ETHTOOL_A_RSS_HFUNC`, `…_INDIR`, `…_HKEY`).
const RSS_PARTS: [u16; 3] = [3, 4, 5];
/// The header is the first attribute of each of these messages.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
const HEADER_FLAGS: u16 = 3;
const COMPACT_BITSETS: u32 = 1;
const OMIT_REPLY: u32 = 2;
const NLA_F_NESTED: u16 = 1 << 15;
/// Features that can be changed.
const FEATURES_HW: u16 = 2;
/// Features that somebody wants, of those that can be changed.
const FEATURES_WANTED: u16 = 3;
const BITSET_SIZE: u16 = 2;
const BITSET_BITS: u16 = 3;
const BITSET_VALUE: u16 = 4;
const BITSET_MASK: u16 = 5;
const BIT_INDEX: u16 = 1;
const BIT_NAME: u16 = 2;
const CHANNELS_RX: u16 = 6;
const CHANNELS_TX: u16 = 7;
const CHANNELS_OTHER: u16 = 8;
const CHANNELS_COMBINED: u16 = 9;

/// The features of a netdev, each a bit.
struct Features {
    bits: u32,
    changeable: Vec<u8>,
    wanted: Vec<u8>,
}

/// The number of the family. It is never given up: ethtool is no module. `None` where the kernel was built without it.
fn ethtool(socket: &mut Socket) -> Result<Option<u16>, Failure> {
    static NUMBER: OnceLock<u16> = OnceLock::new();
    if let Some(number) = NUMBER.get() {
        return Ok(Some(*number));
    }
    let number = family(socket, "ethtool")?;
    Ok(number.map(|number| *NUMBER.get_or_init(|| number)))
}

/// The settings of a netdev as they are.
pub(in crate::real) fn settings(socket: &mut Socket, index: u32) -> Result<NetdevSettings, Failure> {
    let Some(family) = ethtool(socket)? else { return Ok(NetdevSettings::default()) };
    Ok(NetdevSettings {
        features: features(socket, family, index)?.map(|features| hexadecimal::written(&features.wanted)),
        channels: channels(socket, family, index)?,
        rings: ethtool_numbers::read(socket, family, index, &RINGS)?,
        coalescing: ethtool_numbers::read(socket, family, index, &COALESCING)?,
        pause: ethtool_numbers::read(socket, family, index, &PAUSE)?,
        receive_hash: receive_hash(socket, family, index)?,
    })
}

/// Those of these features that are wanted and can be changed, by their names.
pub(in crate::real) fn features_on(
    socket: &mut Socket,
    index: u32,
    among: &[&str],
) -> Result<Vec<String>, Failure> {
    let Some(family) = ethtool(socket)? else { return Ok(Vec::new()) };
    let Some(now) = features(socket, family, index)? else { return Ok(Vec::new()) };
    let on = names(socket, family, index, &now.wanted)?;
    Ok(on.into_iter().filter(|name| among.contains(&name.as_str())).collect())
}

/// Switches those of these features that the netdev has, and that can be changed; what could not be is answered in words.
pub(in crate::real) fn switch_features(
    socket: &mut Socket,
    index: u32,
    wanted: &[String],
    on: bool,
) -> Result<Vec<String>, Failure> {
    let Some(family) = ethtool(socket)?.filter(|_| !wanted.is_empty()) else { return Ok(Vec::new()) };
    let Some(Features { wanted: mut all, .. }) = features(socket, family, index)? else {
        return Ok(Vec::new());
    };
    for (number, name) in changeable(socket, family, index)? {
        if wanted.contains(&name) {
            set_bit(&mut all, number, on);
        }
    }
    let left = restore_features(socket, family, index, &hexadecimal::written(&all))?;
    Ok(left.into_iter().collect())
}

/// How received packets are spread over queues. There was no netlink to set it before kernel 6.17, so it is only compared.
fn receive_hash(socket: &mut Socket, family: u16, index: u32) -> Result<Option<String>, Failure> {
    let answer = tolerant(ask(socket, family, ETHTOOL_MSG_RSS_GET, index, 0))?;
    let parts = |answer: Vec<u8>| {
        RSS_PARTS.iter().filter_map(|part| find(&answer, *part)).collect::<Vec<_>>().concat()
    };
    Ok(answer.map(parts).filter(|parts| !parts.is_empty()).map(|parts| hexadecimal::written(&parts)))
}

/// What a driver refuses to tell is not known: that keeps no netdev from being lent.
pub(super) fn tolerant(answer: Result<Option<Vec<u8>>, Failure>) -> Result<Option<Vec<u8>>, Failure> {
    match answer {
        Err(Failure::Refused { .. }) => Ok(None),
        other => other,
    }
}

/// Makes the settings of a netdev what they were; what cannot be is answered in words.
pub(in crate::real) fn restore(
    socket: &mut Socket,
    index: u32,
    before: &NetdevSettings,
) -> Result<Vec<String>, Failure> {
    let mut left = Vec::new();
    let Some(family) = ethtool(socket)? else { return Ok(left) };
    if let Some(before) = &before.channels {
        left.extend(restore_channels(socket, family, index, before)?);
    }
    if let Some(before) = &before.features {
        left.extend(restore_features(socket, family, index, before)?);
    }
    for (group, before) in
        [(&RINGS, &before.rings), (&COALESCING, &before.coalescing), (&PAUSE, &before.pause)]
    {
        if let Some(before) = before {
            left.extend(ethtool_numbers::restore(socket, family, index, group, before)?);
        }
    }
    // After the channels: the kernel makes a table of its own for another number of them.
    if before.receive_hash.is_some() && receive_hash(socket, family, index)? != before.receive_hash {
        left.push(format!("the receive hash (RSS) of link {index} is another than it was"));
    }
    Ok(left)
}

fn restore_channels(
    socket: &mut Socket,
    family: u16,
    index: u32,
    before: &Channels,
) -> Result<Option<String>, Failure> {
    let now = channels(socket, family, index)?.unwrap_or_default();
    let mut message = request(family, ETHTOOL_MSG_CHANNELS_SET, NLM_F_ACK);
    header(&mut message, index, 0);
    let mut changes = Vec::new();
    for (what, kind, before, now) in [
        ("receive", CHANNELS_RX, before.rx, now.rx),
        ("transmit", CHANNELS_TX, before.tx, now.tx),
        ("other", CHANNELS_OTHER, before.other, now.other),
        ("combined", CHANNELS_COMBINED, before.combined, now.combined),
    ] {
        if let Some(before) = before.filter(|before| now != Some(*before)) {
            message.u32(kind, before);
            changes.push(format!("{before} {what}"));
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    refusal(socket.acknowledged(message), || format!("the channels of link {index}: {}", changes.join(", ")))
}

fn restore_features(
    socket: &mut Socket,
    family: u16,
    index: u32,
    before: &str,
) -> Result<Option<String>, Failure> {
    let what = || format!("the features of link {index}");
    let Some(now) = features(socket, family, index)? else { return Ok(None) };
    let Some(before) = hexadecimal::read(before).filter(|before| before.len() == now.wanted.len()) else {
        return Ok(Some(format!("{}: this kernel numbers features otherwise", what())));
    };
    let mask = now.differing(&before);
    if mask.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let mut message = request(family, ETHTOOL_MSG_FEATURES_SET, NLM_F_ACK);
    header(&mut message, index, OMIT_REPLY);
    message.nest(FEATURES_WANTED | NLA_F_NESTED, |set| {
        set.u32(BITSET_SIZE, now.bits);
        let value: Vec<u8> = before.iter().zip(&mask).map(|(before, mask)| before & mask).collect();
        set.attribute(BITSET_VALUE, &value);
        set.attribute(BITSET_MASK, &mask);
    });
    if let Some(refusal) = refusal(socket.acknowledged(message), what)? {
        return Ok(Some(refusal));
    }
    // The kernel acknowledges what it does only in part.
    let Some(now) = features(socket, family, index)? else { return Ok(None) };
    let left = names(socket, family, index, &now.differing(&before))?;
    Ok(Some(left.join(", ")).filter(|left| !left.is_empty()).map(|left| format!("{}: {left}", what())))
}

impl Features {
    /// The changeable features that are not wanted as they were `before`.
    fn differing(&self, before: &[u8]) -> Vec<u8> {
        let all = self.wanted.iter().zip(before).zip(&self.changeable);
        all.map(|((now, before), changeable)| (now ^ before) & changeable).collect()
    }
}

/// What a refused change comes to; a socket that fails is an error.
pub(super) fn refusal(
    outcome: Result<(), Failure>,
    what: impl FnOnce() -> String,
) -> Result<Option<String>, Failure> {
    match outcome {
        Ok(()) => Ok(None),
        Err(Failure::Refused { errno, extack }) => {
            let words = extack.map(|words| format!(" ({words})")).unwrap_or_default();
            Ok(Some(format!("{}: {}{words}", what(), errno.desc())))
        }
        Err(failure) => Err(failure),
    }
}

pub(super) fn header(message: &mut Message, index: u32, flags: u32) {
    message.nest(HEADER | NLA_F_NESTED, |header| {
        header.u32(HEADER_DEV_INDEX, index);
        if flags != 0 {
            header.u32(HEADER_FLAGS, flags);
        }
    });
}

/// The attributes of an answer; `None` where the driver has no such thing.
pub(super) fn ask(
    socket: &mut Socket,
    family: u16,
    command: u8,
    index: u32,
    flags: u32,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut message = request(family, command, 0);
    header(&mut message, index, flags);
    let mut answer = None;
    let asked = socket.exchange(message, &mut |body| {
        if let Body::Generic(payload) = body {
            answer = payload.get(GENERIC_HEADER..).map(<[u8]>::to_vec);
        }
    });
    match asked {
        Ok(()) => Ok(answer),
        Err(Failure::Refused { errno: Errno::EOPNOTSUPP, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn channels(socket: &mut Socket, family: u16, index: u32) -> Result<Option<Channels>, Failure> {
    let answer = ask(socket, family, ETHTOOL_MSG_CHANNELS_GET, index, 0)?;
    Ok(answer.map(|answer| {
        let number = |wanted| find(&answer, wanted).and_then(|value| u32_at(value, 0));
        Channels {
            rx: number(CHANNELS_RX),
            tx: number(CHANNELS_TX),
            other: number(CHANNELS_OTHER),
            combined: number(CHANNELS_COMBINED),
        }
    }))
}

fn features(socket: &mut Socket, family: u16, index: u32) -> Result<Option<Features>, Failure> {
    let answer = ask(socket, family, ETHTOOL_MSG_FEATURES_GET, index, COMPACT_BITSETS)?;
    Ok(answer.and_then(|answer| {
        let (changeable, wanted) = (find(&answer, FEATURES_HW)?, find(&answer, FEATURES_WANTED)?);
        Some(Features {
            bits: u32_at(find(wanted, BITSET_SIZE)?, 0)?,
            changeable: find(changeable, BITSET_VALUE)?.to_vec(),
            wanted: find(wanted, BITSET_VALUE)?.to_vec(),
        })
    }))
}

/// The names of the features whose bits are set.
fn names(socket: &mut Socket, family: u16, index: u32, set: &[u8]) -> Result<Vec<String>, Failure> {
    if set.iter().all(|byte| *byte == 0) {
        return Ok(Vec::new());
    }
    let all = changeable(socket, family, index)?.into_iter();
    Ok(all.filter(|(number, _)| is_set(set, *number)).map(|(_, name)| name).collect())
}

/// The features that can be changed: the number and the name of each.
fn changeable(socket: &mut Socket, family: u16, index: u32) -> Result<Vec<(u32, String)>, Failure> {
    let answer = ask(socket, family, ETHTOOL_MSG_FEATURES_GET, index, 0)?.unwrap_or_default();
    let bits = find(&answer, FEATURES_HW).and_then(|all| find(all, BITSET_BITS)).unwrap_or(&[]);
    let named = attributes(bits)
        .filter_map(|(_, bit)| Some((u32_at(find(bit, BIT_INDEX)?, 0)?, text(find(bit, BIT_NAME)?))));
    Ok(named.collect())
}

/// Whether a bit is set in words of 32 bits of the machine's byte order.
fn is_set(set: &[u8], bit: u32) -> bool {
    let at = usize::try_from(bit / 32).ok().map(|word| word * 4);
    at.and_then(|at| u32_at(set, at)).is_some_and(|word| word >> (bit % 32) & 1 == 1)
}

/// Sets a bit, or clears it, in such words.
fn set_bit(words: &mut [u8], bit: u32, on: bool) {
    let Ok(at) = usize::try_from(bit / 32) else { return };
    if let Some(word) = words.chunks_exact_mut(4).nth(at) {
        let (now, mask) = (u32_at(word, 0).unwrap_or(0), 1 << (bit % 32));
        word.copy_from_slice(&(if on { now | mask } else { now & !mask }).to_ne_bytes());
    }
}

pub(super) fn find(all: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(all).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}
