//! TCP and UDP packets as a guest sends them, and as they are on a wire. Sums are made here the slow and obvious way: nothing of the crate's
//! own is used.

/// VIRTIO_NET_HDR_F_NEEDS_CSUM
pub(crate) const NEEDS_CHECKSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6 and VIRTIO_NET_HDR_GSO_ECN
pub(crate) const TCP_V4: u8 = 1;
pub(crate) const TCP_V6: u8 = 4;
pub(crate) const ECN: u8 = 0x80;

/// Flags of TCP.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const PUSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const WINDOW_REDUCED: u8 = 0x80;

/// A TCP packet in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tcp {
    pub(crate) to: [u8; 6],
    pub(crate) from: [u8; 6],
    /// VLANs of its tags, outermost first.
    pub(crate) tags: Vec<u16>,
    pub(crate) is_v6: bool,
    /// The last byte of its addresses: source, destination.
    pub(crate) hosts: [u8; 2],
    pub(crate) ports: [u16; 2],
    /// IPv4's alone.
    pub(crate) id: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
    /// Options of TCP, a multiple of four bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Tcp {
    pub(crate) fn new(to: [u8; 6], from: [u8; 6], bytes: usize) -> Tcp {
        Tcp {
            to,
            from,
            tags: Vec::new(),
            is_v6: false,
            hosts: [7, 1],
            ports: [40_000, 80],
            id: 0xfffe,
            sequence: 0xffff_fc00,
            acknowledged: 77,
            flags: ACK,
            options: Vec::new(),
            data: (0..bytes).map(|n| (n * 7 + n / 251).to_le_bytes()[0]).collect(),
        }
    }

    fn addresses(&self) -> Vec<u8> {
        let long = |last: u8| [&[0xfd, 0x10, 9][..], &[0; 12], &[last]].concat();
        let address = |last: u8| if self.is_v6 { long(last) } else { vec![10, 9, 0, last] };
        self.hosts.into_iter().flat_map(address).collect()
    }

    fn pseudo_header(&self) -> Vec<u8> {
        let length = u32::try_from(20 + self.options.len() + self.data.len()).unwrap();
        [self.addresses(), vec![0, 6], length.to_be_bytes().to_vec()].concat()
    }

    /// Ethernet header and tags.
    fn link(&self) -> Vec<u8> {
        let tags: Vec<u8> =
            self.tags.iter().flat_map(|vlan| [[0x81, 0], vlan.to_be_bytes()].concat()).collect();
        let kind: [u8; 2] = if self.is_v6 { [0x86, 0xdd] } else { [8, 0] };
        [&self.to[..], &self.from, &tags, &kind].concat()
    }

    fn ip(&self) -> Vec<u8> {
        let bytes = 20 + self.options.len() + self.data.len();
        if self.is_v6 {
            let length = u16::try_from(bytes).unwrap().to_be_bytes();
            return [&[0x60, 0, 0, 0][..], &length, &[6, 64], &self.addresses()].concat();
        }
        let length = u16::try_from(20 + bytes).unwrap().to_be_bytes();
        let mut header = [&[0x45, 0][..], &length, &self.id.to_be_bytes(), &[0x40, 0, 64, 6, 0, 0]].concat();
        header.extend(self.addresses());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum);
        header
    }

    fn tcp(&self, sum: [u8; 2]) -> Vec<u8> {
        let ports = self.ports.map(u16::to_be_bytes).concat();
        let words = u8::try_from(5 + self.options.len() / 4).unwrap();
        let (sequence, acknowledged) = (self.sequence.to_be_bytes(), self.acknowledged.to_be_bytes());
        let rest = [words << 4, self.flags, 0xff, 0xff, sum[0], sum[1], 0, 0];
        [&ports[..], &sequence, &acknowledged, &rest, &self.options, &self.data].concat()
    }

    /// The frame as a wire has it.
    pub(crate) fn whole(&self) -> Vec<u8> {
        let sum = checksum(&[self.pseudo_header(), self.tcp([0; 2])].concat());
        [self.link(), self.ip(), self.tcp(sum)].concat()
    }

    /// The frame as a driver leaves it: with the sum of the pseudo-header alone.
    pub(crate) fn partial(&self) -> Vec<u8> {
        let [high, low] = checksum(&self.pseudo_header());
        [self.link(), self.ip(), self.tcp([!high, !low])].concat()
    }

    /// Where TCP's header begins, and where its data.
    pub(crate) fn places(&self) -> (u16, u16) {
        let tcp = self.link().len() + self.ip().len();
        (u16::try_from(tcp).unwrap(), u16::try_from(tcp + 20 + self.options.len()).unwrap())
    }

    /// The virtio header that asks for its sum alone.
    pub(crate) fn checksum_header(&self) -> [u8; 10] {
        header(NEEDS_CHECKSUM, 0, 0, 0, self.places().0, 16)
    }

    /// The virtio header that has it cut into segments of `size` bytes of data.
    pub(crate) fn segments_header(&self, size: u16) -> [u8; 10] {
        let kind = if self.is_v6 { TCP_V6 } else { TCP_V4 };
        let (tcp, data) = self.places();
        header(NEEDS_CHECKSUM, kind, data, size, tcp, 16)
    }

    /// The segments as a wire has them, by the definition of TCP and of ECN (RFC 9293, RFC 3168).
    pub(crate) fn segments(&self, size: usize) -> Vec<Vec<u8>> {
        let count = self.data.len().div_ceil(size);
        let segment = |(n, data): (usize, &[u8])| {
            let mut flags = self.flags;
            if n > 0 {
                flags &= !WINDOW_REDUCED;
            }
            if n + 1 < count {
                flags &= !(FIN | PUSH);
            }
            let segment = Tcp {
                id: self.id.wrapping_add(u16::try_from(n).unwrap()),
                sequence: self.sequence.wrapping_add(u32::try_from(n * size).unwrap()),
                flags,
                data: data.to_vec(),
                ..self.clone()
            };
            segment.whole()
        };
        self.data.chunks(size).enumerate().map(segment).collect()
    }
}

/// A virtio header.
pub(crate) fn header(flags: u8, kind: u8, headers: u16, size: u16, start: u16, offset: u16) -> [u8; 10] {
    let numbers = [headers, size, start, offset].map(u16::to_le_bytes).concat();
    [&[flags, kind][..], &numbers].concat().try_into().unwrap()
}

/// A UDP packet over IPv4, whole or with the sum of its pseudo-header alone.
pub(crate) fn udp(to: [u8; 6], from: [u8; 6], data: &[u8], is_whole: bool) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).unwrap();
    let total = (20 + length).to_be_bytes();
    let mut ip = [&[0x45, 0][..], &total, &[0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 7, 10, 9, 0, 1]].concat();
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let udp = |sum: [u8; 2]| [&[0x9c, 0x40, 0, 53][..], &length.to_be_bytes(), &sum, data].concat();
    let pseudo = [&ip[12..20], &[0, 17], &length.to_be_bytes()].concat();
    let [high, low] = checksum(&pseudo);
    let whole = checksum(&[pseudo, udp([0; 2])].concat());
    let whole = if whole == [0; 2] { [0xff; 2] } else { whole };
    [&to[..], &from, &[8, 0], &ip, &udp(if is_whole { whole } else { [!high, !low] })].concat()
}

/// The Internet checksum (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}
