//! Writes netlink messages, byte by byte as the kernel reads them.
//!
//! A [`Message`] is a header, a fixed family header and attributes; its length fields are right at every moment,
//! so that none can be sent half made.

use crate::seam::bytes_of;

/// Length of `struct nlmsghdr`.
pub(in crate::real) const HEADER: usize = 16;

/// One netlink message under construction.
#[derive(Debug, Clone)]
pub(in crate::real) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// `kind` is the `nlmsg_type`, `flags` go with `NLM_F_REQUEST`, `family` is the fixed header of that type.
    pub(in crate::real) fn new(kind: u16, flags: i32, family: &[u8]) -> Message {
        let mut bytes = Vec::with_capacity(256);
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(family);
        let mut message = Message { bytes };
        message.pad();
        message
    }

    /// Appends one attribute. A value too long for its 16-bit length is cut, and refused by the kernel.
    pub(in crate::real) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&value[..usize::from(length) - 4]);
        self.pad();
    }

    /// Appends an attribute with a 16-bit number.
    pub(in crate::real) fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with a 32-bit number.
    pub(in crate::real) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with a signed 32-bit number (namespace numbers, file descriptors).
    pub(in crate::real) fn i32(&mut self, kind: u16, value: i32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with a text and the NUL that the kernel wants at its end.
    pub(in crate::real) fn text(&mut self, kind: u16, value: &str) {
        self.closed(kind, value.as_bytes());
    }

    /// Appends an attribute with the name of a link, from its text ([`LinkName::text`](crate::seam::LinkName)).
    pub(in crate::real) fn name(&mut self, kind: u16, text: &str) {
        self.closed(kind, &bytes_of(text));
    }

    /// Appends an attribute with these bytes and a NUL behind them.
    pub(in crate::real) fn closed(&mut self, kind: u16, value: &[u8]) {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value);
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    /// Appends an attribute that holds the attributes which `fill` writes.
    pub(in crate::real) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let start = self.bytes.len();
        self.attribute(kind, &[]);
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    /// The finished message with its sequence number.
    pub(in crate::real) fn with_sequence(&mut self, sequence: u32) -> &[u8] {
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }

    /// Whether the kernel acknowledges it (`NLM_F_ACK`).
    pub(in crate::real) fn wants_ack(&self) -> bool {
        let ack = u16::try_from(libc::NLM_F_ACK).unwrap_or(0);
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) & ack != 0
    }

    /// The finished message with its sequence number, to be acknowledged or not. A refusal comes in either case.
    pub(in crate::real) fn in_a_row(&mut self, sequence: u32, acknowledged: bool) -> &[u8] {
        let ack = u16::try_from(libc::NLM_F_ACK).unwrap_or(0);
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        let flags = if acknowledged { flags | ack } else { flags & !ack };
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.with_sequence(sequence)
    }

    fn pad(&mut self) {
        // The kernel looks for the next attribute at a multiple of 4; an attribute's own length excludes the padding.
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_padding_are_right_after_every_attribute() {
        let mut message = Message::new(16, 0, &[0; 16]);
        message.text(3, "net1");
        message.nest(18, |m| {
            m.text(1, "macvlan");
            m.nest(2, |m| m.u32(1, 4));
        });
        let bytes = message.with_sequence(7).to_vec();
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        assert_eq!(bytes.len(), 16 + 16 + 12 + (4 + 12 + 4 + 8));
        assert_eq!(&bytes[32..44], &[9, 0, 3, 0, b'n', b'e', b't', b'1', 0, 0, 0, 0]);
        assert_eq!(u32::from_ne_bytes(bytes[8..12].try_into().unwrap()), 7);
    }
}
