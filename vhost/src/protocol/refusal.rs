//! Why a frontend is refused: each ends its connection, unless it says otherwise.

use crate::memory::RegionError;
use crate::ring::RingFault;

/// What a frontend did wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The frontend closed its end.
    #[error("the application closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the vhost-user socket failed")]
    Socket(#[source] nix::Error),
    /// A header of another protocol or version.
    #[error("a message header with the flags {0:#x}: not version 1 of vhost-user")]
    Version(u32),
    /// A message that we do not know, or that belongs to a feature that was not agreed on.
    #[error("the message {0} is not known, or its feature was not agreed on")]
    UnknownMessage(u32),
    /// A payload that is longer or shorter than the message has it.
    #[error("the message {message} has a payload of {bytes} bytes")]
    Size {
        /// The message's number.
        message: u32,
        /// The payload's length.
        bytes: usize,
    },
    /// Too few or too many file descriptors.
    #[error("the message {message} came with {count} file descriptors")]
    Descriptors {
        /// The message's number.
        message: u32,
        /// How many came.
        count: usize,
    },
    /// A file that a guest may serve itself.
    #[error("a file descriptor that is neither an eventfd nor memory of memfd, tmpfs or hugetlbfs")]
    ForeignFile,
    /// A payload with values that cannot be.
    #[error("the message {0} has a payload that is not valid")]
    Payload(u32),
    /// Features that were not offered.
    #[error("the features {0:#x} were not offered")]
    Features(u64),
    /// A ring that the port has not.
    #[error("ring {index} of a port with {count}")]
    NoSuchRing {
        /// The ring's index.
        index: u32,
        /// How many rings the port has.
        count: usize,
    },
    /// A ring of a size that virtio does not know.
    #[error("a ring of {0} entries (a power of two up to 32,768 is allowed)")]
    RingSize(u32),
    /// A ring whose areas are outside the shared memory, or not aligned.
    #[error("ring {0} is outside the shared memory, or not aligned")]
    RingPlace(usize),
    /// A file descriptor for kicks or calls that is no eventfd.
    #[error("the file descriptor of message {0} is no eventfd")]
    NoEventFd(u32),
    /// A ring without kicks: this data plane sleeps when there is nothing to do.
    #[error("ring {0} has no kick eventfd")]
    NoKick(usize),
    /// A memory region that cannot be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Rings in pages that nobody had used, one too many.
    #[error(transparent)]
    Ring(#[from] RingFault),
    /// A region to be removed that is not there.
    #[error("a memory region that is not there cannot be removed")]
    NoSuchRegion,
    /// An MTU that Ethernet does not know.
    #[error("an MTU of {0}")]
    Mtu(u64),
    /// An MTU that is above the port's. The connection goes on.
    #[error("an MTU of {mtu}, and the port's is {most}")]
    LongMtu {
        /// What the guest was to be told.
        mtu: u64,
        /// The port's.
        most: u16,
    },
    /// The frontend does not read our replies.
    #[error("the application does not read the replies")]
    RepliesUnread,
    /// The poll thread did not answer in time.
    #[error("the poll thread did not answer")]
    NoAnswer,
}
