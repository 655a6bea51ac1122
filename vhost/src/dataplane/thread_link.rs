//! The link from one poll thread to another: a bounded ring of frames whose receivers the other one serves, and of addresses that were
//! learnt.
//!
//! The ring is rtrb's, of lines of the cache: a record is a head and the frame's bytes, in as many lines as they need. Its memory is on
//! the sender's NUMA node, since the sender is the first to touch it.
//!
//! Invariants: nobody waits for a link: what finds no room is not put in. A port has as many lines under way as are free, at most (the
//! dynamic threshold of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998): a
//! port that floods the link leaves room for the next one. A port is named by its key too: what is under way for a port that was removed
//! meanwhile comes to nobody.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rtrb::chunks::ReadChunk;
use rtrb::{Consumer, Producer, RingBuffer};

use super::command::PortKey;
use super::waker::Waker;
use crate::memory::GuestSlice;
use crate::offload::NetHeader;
use crate::ring::{Frame, HeadSpace, copy_with_head};
use crate::switch::{PortIndex, Sighting, TagChange};
use crate::wake_fence::Fenced;

/// The bytes of a line.
const LINE: usize = 64;
/// The bytes of a record before the frame's.
const HEAD: usize = 40;
/// The lines of a thread's links to all others together: 1 MiB.
const LINES: usize = 16_384;
/// The lines of one link, at least: those of 160 frames of 1,500 bytes, and more than the longest frame has.
const FEWEST_LINES: usize = 4_096;
/// The most addresses that wait for room. One that finds none is told again when it is seen again.
const WAITING: usize = 4_096;
/// No port's index: of a record that is an address.
const NO_PORT: u16 = u16::MAX;

const TO_ONE: u8 = 0;
const TO_ALL: u8 = 1;
const ADDRESS: u8 = 2;

/// A line of the ring. What a record does not fill stays as it was.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([MaybeUninit<u8>; LINE]);

/// A port by its index, which is the same in every thread's switch, and by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortAt {
    pub(super) index: PortIndex,
    pub(super) key: PortKey,
}

/// What a record says beside a frame's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// A frame of this port, which came from its queue pair `pair`, to one port or to all that a flooded frame is for. `header` is what its
    /// sender has left to be done.
    Frame { from: PortAt, to: Option<PortAt>, pair: u8, length: u32, header: NetHeader },
    /// An address that this port's guest has.
    Address { from: PortAt, address: u64 },
}

/// A new link to the thread that `waker` wakes, of a thread that has `count` of them.
pub(super) fn thread_link(waker: Arc<Waker>, count: usize) -> (LinkSender, LinkReceiver) {
    let capacity = (LINES / count.max(1)).max(FEWEST_LINES);
    let (producer, consumer) = RingBuffer::new(capacity);
    let sender = LinkSender {
        lines: producer,
        capacity,
        under_way: VecDeque::new(),
        taken: 0,
        by_port: Vec::new(),
        waiting: VecDeque::new(),
        has_news: false,
        waker,
    };
    (sender, LinkReceiver { lines: consumer })
}

/// The sending thread's side.
pub(super) struct LinkSender {
    lines: Producer<Line>,
    capacity: usize,
    /// The records that the other thread has not been seen to have taken, oldest first: whose, and how many lines.
    under_way: VecDeque<(u16, u16)>,
    /// All lines of those.
    taken: usize,
    /// The lines of those, by the sending port's index.
    by_port: Vec<usize>,
    /// Addresses that have found no room yet.
    waiting: VecDeque<(PortAt, u64)>,
    /// Something was put in that the other thread was not woken for.
    has_news: bool,
    waker: Arc<Waker>,
}

impl LinkSender {
    /// Puts a frame in; false if there is no room for it.
    #[inline]
    pub(super) fn put(
        &mut self,
        from: PortAt,
        to: Option<PortAt>,
        pair: usize,
        frame: &Frame<'_, '_>,
    ) -> bool {
        let (Ok(length), Ok(pair)) = (u32::try_from(frame.length()), u8::try_from(pair)) else {
            return false;
        };
        let lines = (HEAD + frame.length()).div_ceil(LINE);
        if !self.admits(from.index, lines) {
            self.see_what_was_taken();
            if !self.admits(from.index, lines) {
                return false;
            }
        }
        let head = Record::Frame { from, to, pair, length, header: frame.header() }.head();
        let Ok(mut chunk) = self.lines.write_chunk_uninit(lines) else { return false };
        let (first, second) = chunk.as_mut_slices();
        match (GuestSlice::of_own(bytes_of(first)), GuestSlice::of_own(bytes_of(second))) {
            (Some(first), None) => copy_with_head(&[first], &head, frame, TagChange::None),
            (Some(first), Some(second)) => copy_with_head(&[first, second], &head, frame, TagChange::None),
            _ => return false,
        }
        // SAFETY: every value of a line is valid.
        unsafe { chunk.commit_all() };
        self.count(from.index.0, lines);
        true
    }

    /// Has the other thread know where an address is, as soon as there is room.
    pub(super) fn tell(&mut self, from: PortAt, sighting: Sighting) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back((from, sighting.address));
        }
    }

    /// Puts in what waits for room.
    pub(super) fn put_waiting(&mut self) {
        while let Some((from, address)) = self.waiting.front().copied() {
            let Ok(mut chunk) = self.lines.write_chunk_uninit(1) else { break };
            let (line, _) = chunk.as_mut_slices();
            let head = Record::Address { from, address }.head();
            bytes_of(line)[..HEAD].write_copy_of_slice(&head);
            // SAFETY: every value of a line is valid.
            unsafe { chunk.commit_all() };
            self.count(NO_PORT, 1);
            self.waiting.pop_front();
        }
    }

    /// Wakes the other thread if it sleeps and there is something for it.
    pub(super) fn wake(&mut self, fenced: Fenced) {
        if std::mem::take(&mut self.has_news) {
            self.waker.wake(fenced);
            self.see_what_was_taken();
        }
    }

    /// True if an address waits for room.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True if something was put in since the last [`LinkSender::wake`].
    pub(super) fn has_news(&self) -> bool {
        self.has_news
    }

    #[inline]
    fn admits(&self, port: PortIndex, lines: usize) -> bool {
        let own = self.by_port.get(usize::from(port.0)).copied().unwrap_or(0);
        own + lines <= self.capacity - self.taken
    }

    #[inline]
    fn count(&mut self, port: u16, lines: usize) {
        self.has_news = true;
        self.taken += lines;
        self.under_way.push_back((port, u16::try_from(lines).unwrap_or(u16::MAX)));
        if port != NO_PORT {
            let port = usize::from(port);
            if self.by_port.len() <= port {
                self.by_port.resize(port + 1, 0);
            }
            self.by_port[port] += lines;
        }
    }

    /// Forgets the records that the other thread has taken: it takes them in order, and each whole.
    fn see_what_was_taken(&mut self) {
        let left = self.capacity - self.lines.slots();
        while self.taken > left {
            let Some((port, lines)) = self.under_way.pop_front() else { break };
            self.taken -= usize::from(lines);
            if let Some(own) = self.by_port.get_mut(usize::from(port)) {
                *own -= usize::from(lines);
            }
        }
    }
}

/// The receiving thread's side.
pub(super) struct LinkReceiver {
    lines: Consumer<Line>,
}

impl LinkReceiver {
    /// True if there is a record.
    pub(super) fn has_work(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The oldest record, which stays in the ring until it is [`Received::end`]ed.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Received<'_>> {
        let head = head_of(self.lines.peek().ok()?);
        let (record, lines) = Record::of_head(head)?;
        let chunk = self.lines.read_chunk(lines).ok()?;
        Some(Received { record, chunk })
    }
}

/// A record that was received.
pub(super) struct Received<'r> {
    pub(super) record: Record,
    chunk: ReadChunk<'r, Line>,
}

impl Received<'_> {
    /// Has `act` look at the frame, if the record has one.
    #[inline]
    pub(super) fn with_frame(&mut self, act: impl FnOnce(&Frame<'_, '_>)) {
        let Record::Frame { length, header, .. } = self.record else { return };
        let Ok(length) = usize::try_from(length) else { return };
        let mut space = HeadSpace::new();
        let (first, second) = self.chunk.as_mut_slices();
        let first = GuestSlice::of_own(bytes_of_lines(first)).and_then(|first| first.skip(HEAD));
        let Some(first) = first.and_then(|first| first.until(length)) else { return };
        let rest = GuestSlice::of_own(bytes_of_lines(second));
        let frame = match rest.and_then(|rest| rest.until(length - first.len())) {
            None => Frame::of_slice(first, header, &mut space),
            Some(rest) => return with_pieces((length, header), first, rest, space, act),
        };
        if let Some(frame) = frame {
            act(&frame);
        }
    }

    /// Gives the record's lines back to the sender.
    #[inline]
    pub(super) fn end(self) {
        self.chunk.commit_all();
    }
}

/// A frame of which a part is at the ring's end and the rest at its start.
fn with_pieces<'m>(
    (length, header): (usize, NetHeader),
    first: GuestSlice<'m>,
    rest: GuestSlice<'m>,
    mut space: HeadSpace,
    act: impl FnOnce(&Frame<'_, '_>),
) {
    if let Some(frame) = Frame::of_pieces(length, first, &[rest], header, &mut space) {
        act(&frame);
    }
}

impl Record {
    fn head(self) -> [u8; HEAD] {
        let none = PortAt { index: PortIndex(NO_PORT), key: PortKey(0) };
        let (kind, from, to, pair, length, header) = match self {
            Record::Frame { from, to, pair, length, header } => {
                (if to.is_some() { TO_ONE } else { TO_ALL }, from, to.unwrap_or(none), pair, length, header)
            }
            Record::Address { from, address } => {
                (ADDRESS, from, PortAt { key: PortKey(address), ..none }, 0, 0, NetHeader::PLAIN)
            }
        };
        let mut head = [0; HEAD];
        (head[0], head[1]) = (kind, pair);
        head[2..4].copy_from_slice(&from.index.0.to_ne_bytes());
        head[4..6].copy_from_slice(&to.index.0.to_ne_bytes());
        head[8..12].copy_from_slice(&length.to_ne_bytes());
        head[16..24].copy_from_slice(&from.key.0.to_ne_bytes());
        head[24..32].copy_from_slice(&to.key.0.to_ne_bytes());
        head[32..40].copy_from_slice(&header.number().to_ne_bytes());
        head
    }

    /// The record of a head, and how many lines it has.
    #[inline]
    fn of_head(head: [u8; HEAD]) -> Option<(Record, usize)> {
        let [kind, pair, f0, f1, t0, t1, _, _, l0, l1, l2, l3, _, _, _, _, keys @ ..] = head;
        let (from_key, behind) = keys.split_first_chunk::<8>()?;
        let (to_key, header) = behind.split_first_chunk::<8>()?;
        let index = |bytes| PortIndex(u16::from_ne_bytes(bytes));
        let from = PortAt { index: index([f0, f1]), key: PortKey(u64::from_ne_bytes(*from_key)) };
        let number = u64::from_ne_bytes(*to_key);
        if kind == ADDRESS {
            return Some((Record::Address { from, address: number }, 1));
        }
        let to = PortAt { index: index([t0, t1]), key: PortKey(number) };
        let length = u32::from_ne_bytes([l0, l1, l2, l3]);
        let lines = (HEAD + usize::try_from(length).ok()?).div_ceil(LINE);
        let header = NetHeader::of_number(u64::from_ne_bytes(*header.first_chunk()?));
        Some((Record::Frame { from, to: (kind == TO_ONE).then_some(to), pair, length, header }, lines))
    }
}

/// The head at the start of a record's first line.
#[inline]
fn head_of(line: &Line) -> [u8; HEAD] {
    let start: *const [MaybeUninit<u8>; LINE] = &raw const line.0;
    // SAFETY: a line has more than `HEAD` bytes; those of a record's first line were written before it was put in.
    unsafe { start.cast::<[u8; HEAD]>().read() }
}

/// Lines that hold nothing yet, as bytes.
#[inline]
fn bytes_of(lines: &mut [MaybeUninit<Line>]) -> &mut [MaybeUninit<u8>] {
    let (start, bytes) = (lines.as_mut_ptr().cast(), lines.len() * LINE);
    // SAFETY: the same memory for as long: a line has `LINE` bytes, of which every value is valid.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

/// Lines as bytes.
#[inline]
fn bytes_of_lines(lines: &mut [Line]) -> &mut [MaybeUninit<u8>] {
    let (start, bytes) = (lines.as_mut_ptr().cast(), lines.len() * LINE);
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

#[cfg(test)]
#[path = "thread_link_tests.rs"]
mod tests;
