//! A pod whose queues are filled before: all that it sends is in its queue, and so are buffers for all that it gets. So it needs a processor
//! only to say how much of it may be taken, one frame or thousands.
//!
//! Its memory is a file, mapped here and by the switch. The entries of its queues share a few buffers, so that those stay in the
//! processor's cache as those of a pod do. A receiver that wants another frame than the next one has its number to tell them apart.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};
use vmm_sys_util::eventfd::EventFd;

use super::generator::Connects;

/// The most entries that virtio has for a queue.
pub(crate) const MOST_ENTRIES: u16 = 1 << 15;
/// Where a numbered frame has its number, from its first byte on: behind the headers of Ethernet, IPv4 and UDP.
pub(crate) const NUMBER_AT: usize = 42;
/// The buffers that a queue's entries share, and the bytes of each.
const BUFFERS: u16 = 256;
const BUFFER_BYTES: u32 = 2_048;
/// The bytes before a frame (`struct virtio_net_hdr_mrg_rxbuf`).
const HEADER: usize = 12;
/// A switch connects, or answers a message, within this time, or it is gone.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// The guest's address of its memory, of both kinds.
const BASE: u64 = 1 << 32;
/// The bytes of a queue, and where in it its available and its used ring are.
const QUEUE_BYTES: usize = 1 << 20;
const AVAILABLE: usize = 0x8_0000;
const USED: usize = 0xa_0000;
/// Where the buffers of both queues are.
const BUFFERS_AT: usize = 2 * QUEUE_BYTES;
/// Where the table of a frame in pieces is.
const TABLE_AT: usize = BUFFERS_AT + 2 * BUFFERS as usize * BUFFER_BYTES as usize;
/// The most descriptors of a frame that the switch follows, and the bytes of one.
const PIECES: u16 = 256;
const DESCRIPTOR_BYTES: u16 = 16;
const MEMORY_BYTES: usize = TABLE_AT + PIECES as usize * DESCRIPTOR_BYTES as usize;

/// VERSION_1, MRG_RXBUF, IN_ORDER, INDIRECT_DESC, PROTOCOL_FEATURES: what testpmd agrees on.
const FEATURES: u64 = 1 << 32 | 1 << 15 | 1 << 35 | 1 << 28 | 1 << 30;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`: it looks for itself.
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`: the switch looks for itself.
const NO_NOTIFY: u16 = 1;
/// `VIRTQ_DESC_F_NEXT`: another descriptor belongs to it.
const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`: the switch writes into it.
const WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`: it is a table of descriptors.
const INDIRECT: u16 = 4;

/// The queues, by the numbers that vhost-user has for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Received,
    Sent,
}

/// How the descriptors of a frame that is sent hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    /// One for a frame.
    Single,
    /// As many as the switch follows, for each frame. There is one frame only.
    Pieces,
    /// Each has itself as the next, which breaks the rules.
    Loop,
}

/// What a pod's queues are filled with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filling<'a> {
    /// The entries of each queue: a power of two, [`MOST_ENTRIES`] at most.
    pub(crate) entries: u16,
    /// What is sent, in turn: 1 to 256 frames.
    pub(crate) frames: &'a [Vec<u8>],
    pub(crate) chain: Chain,
}

/// A connected pod.
pub(crate) struct FilledPod {
    /// The connection, which is the port's guest as long as it lives.
    _frontend: Frontend,
    connection: UnixStream,
    memory: MmapRegion,
    /// Where the switch is told of frames if it sleeps.
    kick: EventFd,
    entries: u16,
    /// The index up to which frames are sent.
    sent: u16,
    /// The index up to which frames were received at the last look.
    received: u16,
}

impl FilledPod {
    /// Becomes the guest of a port of the switch. No frame is sent yet.
    pub(crate) fn connect(socket: &Path, connects: Connects, filling: &Filling<'_>) -> io::Result<FilledPod> {
        let file = File::from(memfd_create(c"pod", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(MEMORY_BYTES as u64)?;
        let memory =
            MmapRegion::from_file(FileOffset::new(file, 0), MEMORY_BYTES).map_err(io::Error::other)?;
        let connection = match connects {
            Connects::ToTheSwitch => UnixStream::connect(socket)?,
            Connects::FromTheSwitch => accepted(socket)?,
        };
        connection.set_read_timeout(Some(ANSWERS_WITHIN))?;
        let frontend = Frontend::from_stream(connection.try_clone()?, 2);
        let (kick, entries) = (EventFd::new(0)?, filling.entries);
        let pod = FilledPod {
            _frontend: frontend.clone(),
            connection,
            memory,
            kick,
            entries,
            sent: 0,
            received: 0,
        };
        // Written, so that no page is missing later.
        pod.write(0, &vec![0; MEMORY_BYTES])?;
        pod.fill(filling)?;
        pod.offer_buffers()?;
        pod.agree(frontend).map_err(io::Error::other)?;
        Ok(pod)
    }

    /// Has as many frames to be taken as the queue has entries for, and answers how many it had fewer.
    pub(crate) fn send(&mut self) -> io::Result<u16> {
        let before = self.sent;
        self.sent = self.used(Queue::Sent)?.wrapping_add(self.entries);
        self.set_available(Queue::Sent, self.sent)?;
        Ok(self.sent.wrapping_sub(before))
    }

    /// Gives the next frame this number. All that were sent before are through.
    pub(crate) fn number_next(&mut self, number: u64) -> io::Result<()> {
        let at = buffer(Queue::Sent, self.sent % self.entries % BUFFERS) + HEADER + NUMBER_AT;
        self.write(at, &number.to_le_bytes())
    }

    /// Has one more frame to be taken, and tells a switch that sleeps.
    pub(crate) fn send_one(&mut self) -> io::Result<()> {
        self.sent = self.sent.wrapping_add(1);
        self.set_available(Queue::Sent, self.sent)?;
        // The switch says that it sleeps, and then looks for frames (2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.is_awaited()? {
            self.kick.write(1)?;
        }
        Ok(())
    }

    /// True if the switch sleeps, and wants to be told of frames.
    pub(crate) fn is_awaited(&self) -> io::Result<bool> {
        Ok(self.load(start(Queue::Sent) + USED)? & NO_NOTIFY == 0)
    }

    /// True if the switch has taken all frames that were sent.
    pub(crate) fn is_through(&self) -> io::Result<bool> {
        Ok(self.used(Queue::Sent)? == self.sent)
    }

    /// How many frames have come since the last look. Their buffers are taken until [`FilledPod::offer_buffers`].
    pub(crate) fn look(&mut self) -> io::Result<u16> {
        let before = self.received;
        self.received = self.used(Queue::Received)?;
        Ok(self.received.wrapping_sub(before))
    }

    /// The number of the next frame that has come, if one has. Its buffer is offered again.
    pub(crate) fn take(&mut self) -> io::Result<Option<u64>> {
        if self.used(Queue::Received)? == self.received {
            return Ok(None);
        }
        let element = usize::from(self.received % self.entries) * 8;
        let entry = self.load(start(Queue::Received) + USED + 4 + element)?;
        let mut number = [0; 8];
        let at = buffer(Queue::Received, entry % BUFFERS) + HEADER + NUMBER_AT;
        self.memory.as_volatile_slice().read_slice(&mut number, at).map_err(io::Error::other)?;
        self.received = self.received.wrapping_add(1);
        self.set_available(Queue::Received, self.received.wrapping_add(self.entries))?;
        Ok(Some(u64::from_le_bytes(number)))
    }

    /// Has a buffer ready for each frame of a whole queue.
    pub(crate) fn offer_buffers(&self) -> io::Result<()> {
        let used = self.used(Queue::Received)?;
        self.set_available(Queue::Received, used.wrapping_add(self.entries))
    }

    /// Takes the buffers back that no frame has come into yet. Nobody sends to it meanwhile.
    pub(crate) fn offer_no_buffers(&self) -> io::Result<()> {
        self.set_available(Queue::Received, self.used(Queue::Received)?)
    }

    /// Waits until the switch has ended the connection.
    pub(crate) fn until_disconnected(&mut self) -> io::Result<()> {
        // No message is on its way: what can be read is the end.
        let read = self.connection.read(&mut [0])?;
        if read == 0 { Ok(()) } else { Err(io::Error::other("the switch says more than was asked")) }
    }

    /// Whether the switch has ended the connection.
    pub(crate) fn is_disconnected(&mut self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(self.connection.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? {
            0 => Ok(false),
            _ => self.until_disconnected().map(|()| true),
        }
    }

    fn set_available(&self, queue: Queue, index: u16) -> io::Result<()> {
        let at = start(queue) + AVAILABLE + 2;
        self.memory.as_volatile_slice().store(index, at, Ordering::Release).map_err(io::Error::other)
    }

    fn used(&self, queue: Queue) -> io::Result<u16> {
        self.load(start(queue) + USED + 2)
    }

    fn load(&self, at: usize) -> io::Result<u16> {
        self.memory.as_volatile_slice().load(at, Ordering::Acquire).map_err(io::Error::other)
    }

    fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.memory.as_volatile_slice().write_slice(bytes, at).map_err(io::Error::other)
    }

    /// Writes the frames, and the descriptors and available rings of both queues, without telling of any.
    fn fill(&self, filling: &Filling<'_>) -> io::Result<()> {
        let frames: Vec<Vec<u8>> =
            filling.frames.iter().map(|frame| [&[0; HEADER], frame.as_slice()].concat()).collect();
        let frame = |entry: u16| &frames[usize::from(entry % BUFFERS) % frames.len()];
        (0..BUFFERS).try_for_each(|n| self.write(buffer(Queue::Sent, n), frame(n)))?;
        let bytes = |entry: u16| u32::try_from(frame(entry).len()).unwrap_or(BUFFER_BYTES);
        let received = |entry| descriptor(buffer(Queue::Received, entry % BUFFERS), BUFFER_BYTES, (WRITE, 0));
        let at = |entry: u16| buffer(Queue::Sent, entry % BUFFERS);
        self.fill_queue(Queue::Received, received)?;
        match filling.chain {
            Chain::Single => {
                self.fill_queue(Queue::Sent, |entry| descriptor(at(entry), bytes(entry), (0, 0)))
            }
            Chain::Loop => {
                self.fill_queue(Queue::Sent, |entry| descriptor(at(entry), bytes(entry), (NEXT, entry)))
            }
            Chain::Pieces => {
                self.write(TABLE_AT, &in_pieces(frames[0].len()))?;
                let table = descriptor(TABLE_AT, u32::from(PIECES * DESCRIPTOR_BYTES), (INDIRECT, 0));
                self.fill_queue(Queue::Sent, |_| table)
            }
        }
    }

    fn fill_queue(&self, queue: Queue, of: impl Fn(u16) -> [u8; 16]) -> io::Result<()> {
        let descriptors: Vec<u8> = (0..self.entries).flat_map(of).collect();
        let entries = (0..self.entries).flat_map(u16::to_le_bytes);
        let ring: Vec<u8> = NO_INTERRUPT.to_le_bytes().into_iter().chain([0; 2]).chain(entries).collect();
        self.write(start(queue), &descriptors)?;
        self.write(start(queue) + AVAILABLE, &ring)
    }

    /// Everything that a driver says before the first frame; each message is waited for.
    fn agree(&self, mut frontend: Frontend) -> vhost::Result<()> {
        let offered = frontend.get_features()?;
        frontend.set_owner()?;
        let protocol = frontend.get_protocol_features()? & VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(protocol)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(FEATURES & offered)?;
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: MEMORY_BYTES as u64,
            userspace_addr: BASE,
            mmap_offset: 0,
            mmap_handle: self.memory.file_offset().map_or(-1, |file| file.file().as_raw_fd()),
        }])?;
        for queue in [Queue::Received, Queue::Sent] {
            let (number, start) = (queue as usize, address(start(queue)));
            frontend.set_vring_num(number, self.entries)?;
            frontend.set_vring_base(number, 0)?;
            frontend.set_vring_addr(
                number,
                &VringConfigData {
                    queue_max_size: self.entries,
                    queue_size: self.entries,
                    flags: 0,
                    desc_table_addr: start,
                    used_ring_addr: start + USED as u64,
                    avail_ring_addr: start + AVAILABLE as u64,
                    log_addr: None,
                },
            )?;
            // Nobody waits for calls: the pod polls.
            frontend.set_vring_call(number, &self.kick)?;
            frontend.set_vring_kick(number, &self.kick)?;
            frontend.set_vring_enable(number, true)?;
        }
        Ok(())
    }
}

/// The connection that a switch makes to a socket of ours.
fn accepted(socket: &Path) -> io::Result<UnixStream> {
    let listener = UnixListener::bind(socket)?;
    let waited = PollTimeout::try_from(ANSWERS_WITHIN).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], waited)? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "the switch does not connect to its port's socket")),
        _ => Ok(listener.accept()?.0),
    }
}

/// The guest's address of a place in its memory.
fn address(at: usize) -> u64 {
    BASE + at as u64
}

/// Where a queue begins.
fn start(queue: Queue) -> usize {
    QUEUE_BYTES * queue as usize
}

fn buffer(queue: Queue, number: u16) -> usize {
    BUFFERS_AT + (usize::from(BUFFERS) * queue as usize + usize::from(number)) * BUFFER_BYTES as usize
}

/// A descriptor of this buffer, with its flags and the descriptor behind it.
fn descriptor(at: usize, length: u32, (flags, next): (u16, u16)) -> [u8; 16] {
    let words = u128::from(address(at))
        | u128::from(length) << 64
        | u128::from(flags) << 96
        | u128::from(next) << 112;
    words.to_le_bytes()
}

/// The table of the first frame that is sent, of so many bytes: one descriptor for its header, and pieces of the same length.
fn in_pieces(bytes: usize) -> Vec<u8> {
    let last = PIECES - 1;
    let end = |piece: u16| HEADER + (bytes - HEADER) * usize::from(piece) / usize::from(last);
    let piece = |n: u16| {
        let begin = n.checked_sub(1).map_or(0, end);
        let length = u32::try_from(end(n) - begin).unwrap_or(BUFFER_BYTES);
        let behind = if n < last { (NEXT, n + 1) } else { (0, 0) };
        descriptor(buffer(Queue::Sent, 0) + begin, length, behind)
    };
    (0..PIECES).flat_map(piece).collect()
}
