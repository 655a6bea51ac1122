//! The first bytes of a frame: addresses, tags, and where the payload begins. Every byte of it is the guest's.

use fairlead_host::Mac;

/// How many bytes of a frame the switch looks at, at most: Ethernet header, two tags, IPv6 header and the options of a neighbour
/// solicitation.
pub const HEAD_BYTES: usize = 128;

/// Two addresses and the EtherType.
pub(super) const ETHERNET_BYTES: usize = 14;
/// A tag of 802.1Q.
pub(super) const TAG_BYTES: usize = 4;

const CUSTOMER_TAG: u16 = 0x8100;
const SERVICE_TAG: u16 = 0x88a8;

/// A 48-bit address as a number, its first byte highest.
pub(super) type Address = u64;

/// The bit that marks a group address.
const GROUP: Address = 1 << 40;
/// 01:80:c2:00:00:00 to :0f, which no bridge forwards (802.1Q-2022, 8.6.3, table 8-1).
const RESERVED: Address = 0x0180_c200_0000;

/// The tags of a frame. A guest that nests more than two has none of its frames forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tags {
    /// None.
    None,
    /// One of 802.1Q, with this VLAN identifier (0 to 4095).
    One(u16),
    /// One of 802.1Q with this VLAN identifier, and another behind it.
    Two(u16),
    /// A service tag (802.1ad) before all others, or more than two tags.
    Foreign,
}

impl Tags {
    /// How many bytes the tags add to the frame.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        match self {
            Tags::None => 0,
            Tags::One(_) => TAG_BYTES,
            Tags::Two(_) | Tags::Foreign => 2 * TAG_BYTES,
        }
    }
}

/// What the head of a frame says.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead<'a> {
    pub(super) destination: Address,
    pub(super) source: Address,
    pub(super) tags: Tags,
    /// The type of what follows the tags.
    pub(super) ethertype: u16,
    /// What follows the tags, as far as the head goes.
    pub(super) payload: &'a [u8],
}

impl FrameHead<'_> {
    /// Reads a head. `None`: it ends inside the Ethernet header or a tag.
    #[inline]
    pub(super) fn read(head: &[u8]) -> Option<FrameHead<'_>> {
        let (addresses, rest) = head.split_first_chunk::<12>()?;
        let (mut ethertype, mut payload) = two_bytes(rest)?;
        let mut tags = Tags::None;
        if ethertype == CUSTOMER_TAG || ethertype == SERVICE_TAG {
            (tags, ethertype, payload) = read_tags(ethertype, payload)?;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *addresses;
        Some(FrameHead {
            destination: number([a, b, c, d, e, f]),
            source: number([g, h, i, j, k, l]),
            tags,
            ethertype,
            payload,
        })
    }

    /// True for 01:80:c2:00:00:00 to :0f.
    #[inline]
    pub(super) fn is_reserved(&self) -> bool {
        self.destination & !0xf == RESERVED
    }
}

/// Both addresses and the EtherType as numbers, to compare them with another frame's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowStart(u64, u64);

impl FlowStart {
    /// No frame that has a note begins so: an address of zeroes is no source, and no type of a frame is 0.
    pub(super) const NONE: FlowStart = FlowStart(0, 0);

    /// `None`: the head ends inside the Ethernet header.
    #[inline(always)]
    pub(super) fn of(head: &[u8]) -> Option<FlowStart> {
        let (first, last) = (head.first_chunk::<8>()?, head.get(6..)?.first_chunk::<8>()?);
        Some(FlowStart(u64::from_ne_bytes(*first), u64::from_ne_bytes(*last)))
    }
}

/// The EtherType behind the tags of a frame, and where in the frame the header begins that it is of. `None`: the head ends before.
pub(crate) fn network_header(head: &[u8]) -> Option<(u16, usize)> {
    let frame = FrameHead::read(head)?;
    Some((frame.ethertype, head.len() - frame.payload.len()))
}

/// Reads the tags behind a first tag type; answers them, the EtherType behind them and the payload.
fn read_tags(outer: u16, behind: &[u8]) -> Option<(Tags, u16, &[u8])> {
    let (control, rest) = two_bytes(behind)?;
    let (inner, rest) = two_bytes(rest)?;
    let vlan = control & 0xfff;
    let tags = |known| if outer == CUSTOMER_TAG { known } else { Tags::Foreign };
    if inner != CUSTOMER_TAG && inner != SERVICE_TAG {
        return Some((tags(Tags::One(vlan)), inner, rest));
    }
    let (_, rest) = two_bytes(rest)?;
    let (ethertype, rest) = two_bytes(rest)?;
    let third = ethertype == CUSTOMER_TAG || ethertype == SERVICE_TAG;
    Some((if third { Tags::Foreign } else { tags(Tags::Two(vlan)) }, ethertype, rest))
}

/// The first two bytes as a number, and what follows.
#[inline]
pub(super) fn two_bytes(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (first, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*first), rest))
}

/// An address as a number.
#[inline]
pub(super) fn number([a, b, c, d, e, f]: [u8; 6]) -> Address {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The address of a number's lower 48 bits.
pub(super) fn mac(address: Address) -> Mac {
    let [_, _, a, b, c, d, e, f] = address.to_be_bytes();
    Mac([a, b, c, d, e, f])
}

/// True for a broadcast or multicast address.
#[inline]
pub(super) fn is_group(address: Address) -> bool {
    address & GROUP != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(behind_addresses: &[u8]) -> Vec<u8> {
        [&[0xff; 6], &[2, 0, 0, 0, 0, 9], behind_addresses].concat()
    }

    #[test]
    fn tags_are_told_apart_and_what_follows_them_is_the_payload() {
        let cases: [(&[u8], Tags); 6] = [
            (&[0x08, 0x06, 7], Tags::None),
            (&[0x81, 0, 0x20, 5, 0x08, 0x06, 7], Tags::One(5)),
            (&[0x81, 0, 0xf0, 0, 0x08, 0x06, 7], Tags::One(0)),
            (&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x08, 0x06, 7], Tags::Two(5)),
            (&[0x88, 0xa8, 0, 5, 0x08, 0x06, 7], Tags::Foreign),
            (&[0x81, 0, 0, 5, 0x88, 0xa8, 0, 6, 0x81, 0, 7], Tags::Foreign),
        ];
        for (bytes, tags) in cases {
            let bytes = frame(bytes);
            let head = FrameHead::read(&bytes).unwrap();
            assert_eq!((head.tags, head.payload), (tags, [7].as_slice()), "{bytes:x?}");
            assert_eq!((mac(head.source), head.destination), (Mac([2, 0, 0, 0, 0, 9]), 0xffff_ffff_ffff));
        }
    }

    #[test]
    fn a_head_that_ends_in_its_header_is_none() {
        let whole = frame(&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x08, 0x00]);
        for end in 0..whole.len() {
            assert!(FrameHead::read(&whole[..end]).is_none(), "{end} bytes");
        }
        assert!(FrameHead::read(&whole).is_some());
    }

    #[test]
    fn sixteen_group_addresses_are_reserved() {
        let to = |last: u8, group: u8| {
            let bytes = [&[1, 0x80, 0xc2, 0, group, last][..], &[2, 0, 0, 0, 0, 9, 8, 0][..]].concat();
            FrameHead::read(&bytes).unwrap().is_reserved()
        };
        assert!((0..16).all(|last| to(last, 0)));
        assert!(!to(16, 0) && !to(0, 1));
    }
}
