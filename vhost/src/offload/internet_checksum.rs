//! The Internet checksum (RFC 1071), and the pseudo-header of TCP before it.
//!
//! Sums are made of the machine's own words: the sum of swapped words is the swapped sum (RFC 1071, 2(B)).

/// A sum of 16-bit words whose carries are not added yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds bytes; an odd one at the end counts as if a zero followed. All that is added before the last has an even number of bytes.
    ///
    /// A frame has some 65,000 bytes at most, so 64 bits never overflow.
    pub(super) fn add(self, bytes: &[u8]) -> Sum {
        let (fours, rest) = bytes.as_chunks::<4>();
        let sum = fours.iter().fold(self.0, |sum, four| sum + u64::from(u32::from_ne_bytes(*four)));
        let (twos, rest) = rest.as_chunks::<2>();
        let sum = twos.iter().fold(sum, |sum, two| sum + u64::from(u16::from_ne_bytes(*two)));
        Sum(rest.iter().fold(sum, |sum, last| sum + u64::from(u16::from_ne_bytes([*last, 0]))))
    }

    /// The bytes of the checksum: the complement of the sum.
    pub(super) fn checksum(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        (!u16::try_from(sum).unwrap_or(0)).to_ne_bytes()
    }

    /// The same as it is sent: 0 tells a receiver of UDP that there is none, and all ones mean the same number.
    pub(super) fn nonzero_checksum(self) -> [u8; 2] {
        let checksum = self.checksum();
        if checksum == [0; 2] { [0xff; 2] } else { checksum }
    }
}
