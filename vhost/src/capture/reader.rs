//! The operator's side of a capture: makes the memory, and takes the frames out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

use super::CaptureDirection;
use super::shared_ring::{HEAD_BYTES, RING_BYTES, RecordHead, SharedRing};

/// How long the ring is left alone while nothing is in it.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// A frame of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedFrame {
    /// When it was seen, since the epoch.
    pub time: Duration,
    /// [`CaptureDirection::Sent`] or [`CaptureDirection::Received`].
    pub direction: CaptureDirection,
    /// How long the frame is.
    pub length: u32,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// Why no more frames come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The port was removed.
    PortRemoved,
    /// The switch has ended, or has hung up.
    SwitchGone,
    /// What stands in the ring can't be.
    Broken,
}

/// What a look at the ring has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The next frame.
    Frame(CapturedFrame),
    /// Nothing for now; some milliseconds were waited.
    Nothing,
    /// No more frames come.
    Ended(Ended),
}

/// A capture under way. It ends when this is dropped.
#[derive(Debug)]
pub struct CaptureReader {
    ring: SharedRing,
    /// To the switch, which ends the capture with it.
    connection: OwnedFd,
    read: u64,
}

impl CaptureReader {
    /// The memory of a ring, all of it there and of a size that stays: whoever makes it pays for it.
    ///
    /// # Errors
    /// The kernel has none.
    pub fn memory() -> io::Result<OwnedFd> {
        let memory = memfd_create("fairlead-capture", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, RING_BYTES)?;
        fallocate(&memory, FallocateFlags::empty(), 0, RING_BYTES)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(memory)
    }

    /// Reads what is captured into `memory` for as long as `connection` is there.
    ///
    /// # Errors
    /// It can't be mapped.
    pub fn new(memory: BorrowedFd<'_>, connection: OwnedFd) -> io::Result<CaptureReader> {
        let file = File::from(memory.try_clone_to_owned()?);
        let ring = SharedRing::map(file).map_err(io::Error::other)?;
        Ok(CaptureReader { ring, connection, read: 0 })
    }

    /// The next frame; where there is none, it waits for some milliseconds.
    pub fn look(&mut self) -> Seen {
        // Before the look at the records: none comes after it.
        let ended = self.ring.has_ended();
        match self.ring.written().wrapping_sub(self.read) {
            0 if ended => Seen::Ended(Ended::PortRemoved),
            0 => self.pause(),
            unread => self.take(unread).map_or(Seen::Ended(Ended::Broken), Seen::Frame),
        }
    }

    /// How many frames were lost, because nobody read for a while.
    pub fn lost(&self) -> u64 {
        self.ring.lost()
    }

    fn take(&mut self, unread: u64) -> Option<CapturedFrame> {
        let mut head = [0; HEAD_BYTES];
        self.ring.pieces(self.read, HEAD_BYTES)?.read(&mut head);
        let head = RecordHead::parse(&head);
        if unread > RING_BYTES || head.in_ring() > unread || head.captured > head.length {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(head.captured).ok()?];
        if let Some(pieces) = self.ring.pieces(self.read + HEAD_BYTES as u64, bytes.len()) {
            pieces.read(&mut bytes);
        }
        self.read += head.in_ring();
        self.ring.set_read(self.read);
        let (time, direction) = (Duration::from_nanos(head.time_ns), head.direction);
        Some(CapturedFrame { time, direction, length: head.length, bytes })
    }

    /// The switch says nothing more on the connection: what can be read there is its end.
    fn pause(&self) -> Seen {
        let mut wait = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
        match poll(&mut wait, Some(&PAUSE)) {
            // It may have written something before it ended.
            Ok(1) if self.ring.written() == self.read => Seen::Ended(Ended::SwitchGone),
            _ => Seen::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::super::shared_ring::{PLACE, RECORDS};
    use super::super::{CaptureOptions, Tap};
    use super::*;
    use crate::memory::{GuestMemory, GuestSlice, MappedRegion};
    use crate::offload::NetHeader;
    use crate::ring::{Frame, HeadSpace};

    /// A frame that tells its number.
    fn bytes(number: u32) -> Vec<u8> {
        let mut bytes = vec![number.to_le_bytes()[0]; 20 + number as usize * 7 % 400];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    #[test]
    fn frames_come_out_as_they_were_captured_while_more_are_also_around_the_rings_end() {
        const COUNT: u32 = if cfg!(miri) { 120 } else { 60_000 };
        let memory = GuestMemory::default().with(MappedRegion::of_own_pages(PLACE)).unwrap();
        let memory = Arc::new(memory);
        let [taps, ring] = [(), ()].map(|()| SharedRing::of(&memory).unwrap());
        let begin = RECORDS as u64 - 6_000;
        ring.set_read(begin);
        ring.set_written(begin);
        let options = CaptureOptions { direction: CaptureDirection::Both, snaplen: 300 };
        let switch = thread::spawn(move || {
            let mut tap = Tap::into_ring(taps, options, begin);
            for number in 0..COUNT {
                let (mut own, mut space) = (bytes(number), HeadSpace::new());
                let slice = GuestSlice::of_bytes(&mut own).unwrap();
                tap.sent(&Frame::of_slice(slice, NetHeader::PLAIN, &mut space).unwrap());
                if number % 16 == 0 {
                    thread::yield_now();
                }
            }
        });
        let (connection, _kept_open) = io::pipe().unwrap();
        let mut reader = CaptureReader { ring, connection: connection.into(), read: begin };
        let (mut next, mut came) = (0, 0);
        loop {
            if reader.ring.written() == reader.read && !reader.ring.has_ended() {
                thread::yield_now();
                continue;
            }
            match reader.look() {
                Seen::Frame(frame) => {
                    let number = u32::from_le_bytes(*frame.bytes.first_chunk().unwrap());
                    assert!((next..COUNT).contains(&number), "{number} comes where {next} is next");
                    let sent = bytes(number);
                    assert_eq!(frame.length as usize, sent.len());
                    assert!(frame.bytes == sent[..sent.len().min(300)], "frame {number}");
                    (next, came) = (number + 1, came + 1);
                }
                Seen::Ended(ended) => {
                    assert_eq!(ended, Ended::PortRemoved);
                    break;
                }
                Seen::Nothing => {}
            }
        }
        switch.join().unwrap();
        assert_eq!(came + reader.lost(), u64::from(COUNT));
    }
}
