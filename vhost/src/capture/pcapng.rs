//! Captured frames as a file that tcpdump and Wireshark read: pcapng (draft-ietf-opsawg-pcapng), with one interface.
//!
//! Not the older pcap: it has no place for the direction of a frame, nor for how many were lost.

use std::io::{self, Write};
use std::time::Duration;

use super::{CaptureDirection, CapturedFrame};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// LINKTYPE_ETHERNET
const ETHERNET: u16 = 1;
/// Option `if_name`.
const NAME: u16 = 2;
/// Option `if_tsresol`, and nanoseconds.
const RESOLUTION: (u16, u8) = (9, 9);
/// Option `epb_flags`: inbound 1, outbound 2, as the guest sees it.
const FLAGS: u16 = 2;
/// Option `isb_ifdrop`.
const LOST: u16 = 5;

/// Writes a capture. Each frame is one write of a whole block.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    to: W,
}

impl<W: Write> PcapngWriter<W> {
    /// Begins the file: `port` is the name of its interface.
    ///
    /// # Errors
    /// It can't be written.
    pub fn new(to: W, port: &str, snaplen: u32) -> io::Result<PcapngWriter<W>> {
        let mut writer = PcapngWriter { to };
        let (byte_order, unknown_length) = (0x1a2b_3c4d_u32.to_ne_bytes(), u64::MAX.to_ne_bytes());
        let version = [1_u16, 0].map(u16::to_ne_bytes).concat();
        writer.block(SECTION_HEADER, &[&byte_order, &version, &unknown_length])?;
        let link = [ETHERNET.to_ne_bytes(), 0_u16.to_ne_bytes()].concat();
        let options = [option(NAME, port.as_bytes()), option(RESOLUTION.0, &[RESOLUTION.1]), option(0, &[])];
        writer.block(INTERFACE_DESCRIPTION, &[&link, &snaplen.to_ne_bytes(), &options.concat()])?;
        Ok(writer)
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// It can't be written.
    pub fn frame(&mut self, frame: &CapturedFrame) -> io::Result<()> {
        let captured = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
        let head = [&time(frame.time)[..], &[captured, frame.length]].concat();
        let head: Vec<u8> = std::iter::once(0).chain(head).flat_map(u32::to_ne_bytes).collect();
        let flags = if frame.direction == CaptureDirection::Received { 1_u32 } else { 2 };
        let options = [option(FLAGS, &flags.to_ne_bytes()), option(0, &[])].concat();
        self.block(ENHANCED_PACKET, &[&head, &frame.bytes, padding(frame.bytes.len()), &options])
    }

    /// Ends the file: `lost` frames were not captured.
    ///
    /// # Errors
    /// It can't be written.
    pub fn end(mut self, now: Duration, lost: u64) -> io::Result<()> {
        let head: Vec<u8> = std::iter::once(0).chain(time(now)).flat_map(u32::to_ne_bytes).collect();
        let options = [option(LOST, &lost.to_ne_bytes()), option(0, &[])].concat();
        self.block(INTERFACE_STATISTICS, &[&head, &options])?;
        self.to.flush()
    }

    /// Has what was written reach the file.
    ///
    /// # Errors
    /// It can't be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn block(&mut self, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
        let body = parts.concat();
        let length = u32::try_from(body.len() + 12).unwrap_or(u32::MAX).to_ne_bytes();
        self.to.write_all(&[&kind.to_ne_bytes(), &length, body.as_slice(), &length].concat())
    }
}

/// A time in nanoseconds, as a block has it: its upper half first.
fn time(since_epoch: Duration) -> [u32; 2] {
    let nanoseconds = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
    [half(nanoseconds >> 32), half(nanoseconds)]
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    [&code.to_ne_bytes(), &length.to_ne_bytes(), value, padding(value.len())].concat()
}

/// What fills up to a multiple of 4 bytes.
fn padding(bytes: usize) -> &'static [u8] {
    &[0; 3][..bytes.next_multiple_of(4) - bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_words_that_begin_and_end_with_their_length() {
        let mut file = Vec::new();
        let mut writer = PcapngWriter::new(&mut file, "c1/net1", 64).unwrap();
        let frame = CapturedFrame {
            time: Duration::new(1_700_000_000, 5),
            direction: CaptureDirection::Received,
            length: 60,
            bytes: vec![7; 13],
        };
        writer.frame(&frame).unwrap();
        writer.end(Duration::from_secs(1_700_000_001), 3).unwrap();
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < file.len() {
            let length = word(at + 4) as usize;
            assert!(length.is_multiple_of(4) && word(at + length - 4) as usize == length, "at {at}");
            kinds.push(word(at));
            at += length;
        }
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, INTERFACE_STATISTICS]);
        let packet = file.windows(13).position(|bytes| bytes == [7; 13]).unwrap();
        assert_eq!((word(packet - 8), word(packet - 4)), (13, 60));
        let nanoseconds = u64::from(word(packet - 16)) << 32 | u64::from(word(packet - 12));
        assert_eq!(nanoseconds, 1_700_000_000_000_000_005);
    }
}
