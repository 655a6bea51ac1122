//! A pod that needs no processor while its frames are forwarded: all that it sends is in its queue before, and so are buffers for all that
//! it gets. So two poll threads can have two processors to themselves.
//!
//! Its memory is a file that is written and read and not mapped: a few system calls for thousands of frames. The queues have as many
//! entries as virtio has for them, which share a few buffers, so that those stay in the processor's cache as those of a pod do.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Entries of a queue.
pub(crate) const ENTRIES: u16 = 1 << 15;
/// The buffers that a queue's entries share, and the bytes of each.
const BUFFERS: u16 = 256;
const BUFFER_BYTES: u32 = 2_048;
/// The bytes before a frame (`struct virtio_net_hdr_mrg_rxbuf`).
const HEADER: usize = 12;

/// The guest's address of its memory, of both kinds.
const BASE: u64 = 1 << 32;
/// The bytes of a queue, and where in it its available and its used ring are.
const QUEUE_BYTES: u64 = 1 << 20;
const AVAILABLE: u64 = 0x8_0000;
const USED: u64 = 0xa_0000;
/// Where the buffers of both queues are.
const BUFFERS_AT: u64 = 2 * QUEUE_BYTES;
const MEMORY_BYTES: u64 = BUFFERS_AT + 2 * BUFFERS as u64 * BUFFER_BYTES as u64;

/// VERSION_1, MRG_RXBUF, IN_ORDER, INDIRECT_DESC, PROTOCOL_FEATURES: what testpmd agrees on.
const FEATURES: u64 = 1 << 32 | 1 << 15 | 1 << 35 | 1 << 28 | 1 << 30;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`: it looks for itself.
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`: the switch writes into it.
const WRITE: u16 = 2;

/// The queues, by the numbers that vhost-user has for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Received,
    Sent,
}

/// A connected pod.
pub(crate) struct FilledPod {
    /// The connection, which is the port's guest as long as it lives.
    _frontend: Frontend,
    memory: File,
    /// The index up to which frames are sent.
    sent: u16,
    /// The index up to which frames were received at the last look.
    received: u16,
}

impl FilledPod {
    /// Connects to a port of the switch. Each frame is this.
    pub(crate) fn connect(socket: &Path, frame: &[u8]) -> io::Result<FilledPod> {
        let memory = File::from(memfd_create(c"pod", MFdFlags::MFD_CLOEXEC)?);
        // Written, so that no page is missing later.
        memory.write_all_at(&vec![0; usize::try_from(MEMORY_BYTES).map_err(io::Error::other)?], 0)?;
        let bytes = u32::try_from(HEADER + frame.len()).map_err(io::Error::other)?;
        fill(&memory, Queue::Received, (BUFFER_BYTES, WRITE))?;
        fill(&memory, Queue::Sent, (bytes, 0))?;
        let sent = [&[0; HEADER], frame].concat();
        (0..BUFFERS).try_for_each(|n| memory.write_all_at(&sent, buffer(Queue::Sent, n)))?;
        let frontend = Frontend::connect(socket, 2).map_err(io::Error::other)?;
        let mut pod = FilledPod { _frontend: frontend.clone(), memory, sent: 0, received: 0 };
        pod.offer_buffers()?;
        // Nobody waits for it: the switch polls, and so does the pod.
        let event = EventFd::new(0)?;
        agree(frontend, &pod.memory, &event).map_err(io::Error::other)?;
        Ok(pod)
    }

    /// Sends as many frames as the queue has entries for. All that were sent before are through.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        self.sent = self.sent.wrapping_add(ENTRIES);
        self.set_available(Queue::Sent, self.sent)
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

    /// Has a buffer ready for each frame of a whole queue.
    pub(crate) fn offer_buffers(&mut self) -> io::Result<()> {
        let used = self.used(Queue::Received)?;
        self.set_available(Queue::Received, used.wrapping_add(ENTRIES))
    }

    fn set_available(&self, queue: Queue, index: u16) -> io::Result<()> {
        self.memory.write_all_at(&index.to_le_bytes(), start(queue) + AVAILABLE + 2)
    }

    fn used(&self, queue: Queue) -> io::Result<u16> {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, start(queue) + USED + 2)?;
        Ok(u16::from_le_bytes(index))
    }
}

/// Where a queue begins.
fn start(queue: Queue) -> u64 {
    QUEUE_BYTES * queue as u64
}

fn buffer(queue: Queue, number: u16) -> u64 {
    BUFFERS_AT + (u64::from(BUFFERS) * queue as u64 + u64::from(number)) * u64::from(BUFFER_BYTES)
}

/// Writes a queue's descriptors, which have this length and flags, and its available ring, without telling of any.
fn fill(memory: &File, queue: Queue, (length, flags): (u32, u16)) -> io::Result<()> {
    let (mut descriptors, mut ring) = (Vec::new(), [NO_INTERRUPT.to_le_bytes(), [0; 2]].concat());
    for entry in 0..ENTRIES {
        descriptors.extend((BASE + buffer(queue, entry % BUFFERS)).to_le_bytes());
        descriptors.extend(length.to_le_bytes());
        descriptors.extend(flags.to_le_bytes());
        descriptors.extend([0; 2]);
        ring.extend(entry.to_le_bytes());
    }
    memory.write_all_at(&descriptors, start(queue))?;
    memory.write_all_at(&ring, start(queue) + AVAILABLE)
}

/// Everything that a driver says before the first frame; each message is waited for.
fn agree(mut frontend: Frontend, memory: &File, event: &EventFd) -> vhost::Result<()> {
    frontend.get_features()?;
    frontend.set_owner()?;
    let protocol = frontend.get_protocol_features()? & VhostUserProtocolFeatures::REPLY_ACK;
    frontend.set_protocol_features(protocol)?;
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend.set_features(FEATURES)?;
    frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
        guest_phys_addr: BASE,
        memory_size: MEMORY_BYTES,
        userspace_addr: BASE,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    }])?;
    for queue in [Queue::Received, Queue::Sent] {
        let (number, start) = (queue as usize, BASE + start(queue));
        frontend.set_vring_num(number, ENTRIES)?;
        frontend.set_vring_base(number, 0)?;
        frontend.set_vring_addr(
            number,
            &VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: start,
                used_ring_addr: start + USED,
                avail_ring_addr: start + AVAILABLE,
                log_addr: None,
            },
        )?;
        frontend.set_vring_call(number, event)?;
        frontend.set_vring_kick(number, event)?;
        frontend.set_vring_enable(number, true)?;
    }
    Ok(())
}
