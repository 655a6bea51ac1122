//! The attributes of a netlink message, and the numbers and texts in them, read without ever panicking.

use crate::seam::LinkName;

/// Without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// The attributes of a row of them, up to the first that does not fit.
pub(in crate::real) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & NLA_TYPE_MASK;
        // A length below 4 ends the row here: with a length of 0 it would never end.
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The text of an attribute, up to its NUL; what is no UTF-8 in it is replaced.
pub(in crate::real) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(until_nul(value)).into_owned()
}

/// The name in an attribute, up to its NUL.
pub(in crate::real) fn name(value: &[u8]) -> LinkName {
    LinkName::from_bytes(until_nul(value))
}

fn until_nul(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == 0).next().unwrap_or(value)
}

/// The 16-bit number at a position, in the machine's byte order; `None` where the bytes end before.
pub(in crate::real) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes)
}

/// The 32-bit number at a position, in the machine's byte order; `None` where the bytes end before.
pub(in crate::real) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes)
}

/// The signed 32-bit number at a position, in the machine's byte order; `None` where the bytes end before.
pub(in crate::real) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes)
}
