//! An AF_XDP uplink, as data: the sockets by which a process without privileges gets and sends the frames of an interface.
//!
//! All that the kernel holds for an uplink hangs on these descriptors: when the last process that has them ends, program, sockets and
//! memory are gone, and the interface is the kernel's own again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The bytes of a chunk of a queue's memory: one frame.
pub const CHUNK_BYTES: u32 = 4_096;
/// The entries of each of a queue's four rings.
pub const RING_ENTRIES: u32 = 2_048;
/// The chunks of a queue's memory: the first [`RING_ENTRIES`] are for frames that come, the others for frames that go.
pub const CHUNKS: u32 = 2 * RING_ENTRIES;
/// The bytes of a queue's memory.
pub const MEMORY_BYTES: u64 = CHUNK_BYTES as u64 * CHUNKS as u64;
/// The most receive queues of an interface that are served.
pub const MOST_QUEUES: u32 = 8;
/// The largest payload of a frame in bytes: the kernel keeps 256 bytes of a chunk, and a header with two tags has 22.
pub const MOST_MTU: u16 = 3_818;

/// An interface whose frames go to sockets.
#[derive(Debug)]
pub struct Uplink {
    /// The program that sends frames to the sockets runs in the driver; otherwise in the kernel's own path, as any interface can.
    pub native: bool,
    /// What keeps the program at the interface (`bpf_link`).
    pub attachment: OwnedFd,
    /// A socket for each receive queue of the interface, in their order.
    pub queues: Vec<UplinkQueue>,
}

/// The socket of one receive queue.
#[derive(Debug)]
pub struct UplinkQueue {
    /// The socket (AF_XDP). Its rings can be mapped until it is bound.
    pub socket: OwnedFd,
    /// Its memory: [`MEMORY_BYTES`] of a memfd that nobody can shorten.
    pub memory: OwnedFd,
}

impl Uplink {
    /// All descriptors, for whoever serves the uplink: the attachment, and socket and memory of each queue.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.attachment.as_fd()];
        for queue in &self.queues {
            all.extend([queue.socket.as_fd(), queue.memory.as_fd()]);
        }
        all
    }

    /// The other way round. `None`: they are not as many as an uplink has.
    pub fn of_descriptors(native: bool, descriptors: Vec<OwnedFd>) -> Option<Uplink> {
        let mut left = descriptors.into_iter();
        let attachment = left.next()?;
        let mut queues = Vec::new();
        while let Some(socket) = left.next() {
            queues.push(UplinkQueue { socket, memory: left.next()? });
        }
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        (1..=MOST_QUEUES).contains(&count).then_some(Uplink { native, attachment, queues })
    }
}
