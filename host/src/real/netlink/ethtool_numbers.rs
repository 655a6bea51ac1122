//! Those settings of ethtool that are plain numbers, each an attribute of its own: rings, coalescing, pause. They are read and set alike.

use libc::NLM_F_ACK;

use super::attributes::{attributes, u32_at};
use super::ethtool::{ask, find, header, refusal, tolerant};
use super::generic::request;
use super::message::Message;
use super::socket::{Failure, Socket};
use crate::seam::Numbers;

/// One sort of settings.
pub(super) struct Group {
    /// For a person.
    what: &'static str,
    get: u8,
    set: u8,
    /// Those of its attributes that can be set.
    settable: &'static [u16],
}

/// Sizes of rings and what belongs to them (`ETHTOOL_A_RINGS_RX` and those after it); the others are limits.
pub(super) const RINGS: Group =
    Group { what: "rings", get: 15, set: 16, settable: &[6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17] };
/// When it interrupts (`ETHTOOL_A_COALESCE_RX_USECS` to `…_TX_AGGR_TIME_USECS`).
pub(super) const COALESCING: Group = Group {
    what: "coalescing",
    get: 19,
    set: 20,
    settable: &[
        2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    ],
};
/// Flow control (`ETHTOOL_A_PAUSE_AUTONEG`, `…_RX`, `…_TX`).
pub(super) const PAUSE: Group = Group { what: "pause", get: 21, set: 22, settable: &[2, 3, 4] };

/// The numbers as they are; `None` where the driver does not tell them.
pub(super) fn read(
    socket: &mut Socket,
    family: u16,
    index: u32,
    group: &Group,
) -> Result<Option<Numbers>, Failure> {
    let answer = tolerant(ask(socket, family, group.get, index, 0))?;
    Ok(answer.map(|answer| numbers(&answer, group)))
}

/// Makes them what they were `before`, in one message of what differs; what cannot be is answered in words.
pub(super) fn restore(
    socket: &mut Socket,
    family: u16,
    index: u32,
    group: &Group,
    before: &Numbers,
) -> Result<Option<String>, Failure> {
    let now = tolerant(ask(socket, family, group.get, index, 0))?.unwrap_or_default();
    let changes: Numbers = {
        let now = numbers(&now, group);
        before
            .iter()
            .filter(|(kind, was)| now.get(kind) != Some(*was))
            .map(|(kind, was)| (*kind, *was))
            .collect()
    };
    if changes.is_empty() {
        return Ok(None);
    }
    let mut message = request(family, group.set, NLM_F_ACK);
    header(&mut message, index, 0);
    write(&mut message, &now, &changes);
    let told = || {
        let words: Vec<String> = changes.iter().map(|(kind, was)| format!("{kind}={was}")).collect();
        format!("the {} of link {index} ({})", group.what, words.join(", "))
    };
    if let Some(refusal) = refusal(socket.acknowledged(message), told)? {
        return Ok(Some(refusal));
    }
    // A driver may take a number near to the one that it is given.
    let now = read(socket, family, index, group)?.unwrap_or_default();
    let is_left = changes.iter().any(|(kind, was)| now.get(kind) != Some(was));
    Ok(is_left.then(|| format!("{}: the driver has others now", told())))
}

/// Each in the width in which the kernel tells it.
fn write(message: &mut Message, now: &[u8], changes: &Numbers) {
    for (kind, was) in changes {
        match (find(now, *kind), u8::try_from(*was)) {
            (Some([_]), Ok(byte)) => message.attribute(*kind, &[byte]),
            _ => message.u32(*kind, *was),
        }
    }
}

fn numbers(answer: &[u8], group: &Group) -> Numbers {
    let number = |value: &[u8]| match value {
        [byte] => Some(u32::from(*byte)),
        value => u32_at(value, 0),
    };
    let settable = attributes(answer).filter(|(kind, _)| group.settable.contains(kind));
    settable.filter_map(|(kind, value)| Some((kind, number(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_set_is_read_and_each_number_is_written_in_its_own_width() {
        let mut answer = Message::new(0, 0, &[]);
        // The most that can be had for receiving, then what is, then a switch.
        answer.u32(2, 4096);
        answer.u32(6, 512);
        answer.attribute(13, &[1]);
        let all = answer.with_sequence(1)[16..].to_vec();
        assert_eq!(numbers(&all, &RINGS), Numbers::from([(6, 512), (13, 1)]));
        let mut message = Message::new(0, 0, &[]);
        write(&mut message, &all, &Numbers::from([(6, 256), (13, 0)]));
        let written = message.with_sequence(1)[16..].to_vec();
        assert_eq!(numbers(&written, &RINGS), Numbers::from([(6, 256), (13, 0)]));
        assert_eq!(find(&written, 13), Some(&[0][..]));
    }
}
