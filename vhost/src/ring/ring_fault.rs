//! What a guest did wrong in a ring.

/// The most descriptors that one frame may have. Linux' driver uses up to 19, DPDK's fewer than 64.
pub(crate) const MAX_CHAIN: usize = 256;

/// A ring that breaks the rules. Its guest is disconnected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingFault {
    /// The available index moved by more than the ring has entries.
    #[error("the available index {index} is {ahead} ahead of {taken} in a ring of {size}")]
    IndexJump {
        /// The guest's index.
        index: u16,
        /// How far it is ahead.
        ahead: u16,
        /// The index up to which entries were taken.
        taken: u16,
        /// The ring's entries.
        size: u16,
    },
    /// An index names no descriptor.
    #[error("descriptor {index} in a table of {size}")]
    NoSuchDescriptor {
        /// The index.
        index: u16,
        /// The table's entries.
        size: usize,
    },
    /// A chain, or the chains for one frame, have too many descriptors. A loop ends here.
    #[error("more than {MAX_CHAIN} descriptors for one frame")]
    LongChain,
    /// A buffer, or a part of it, is outside the memory that the guest shared.
    #[error("a buffer of {length} bytes at {address:#x} is outside the shared memory")]
    Outside {
        /// The guest's address.
        address: u64,
        /// The length in bytes.
        length: u32,
    },
    /// An indirect table inside an indirect table, with a chain behind it, or without the feature.
    #[error("an indirect table where none may be")]
    MisplacedIndirect,
    /// An indirect table with a part of a descriptor.
    #[error("an indirect table of {0} bytes")]
    IndirectLength(u32),
    /// A buffer to write among those to read, or the other way round.
    #[error("a buffer for the wrong direction")]
    Direction,
    /// A chain for a frame to the guest has no byte.
    #[error("a chain without a byte")]
    NoBytes,
    /// The eventfd by which the guest is called blocks its writer.
    #[error("the call eventfd blocks whoever writes to it")]
    CallBlocks,
    /// Writes to the eventfd by which the guest is called take the processor for long.
    #[error("calling it takes too long: too many wait for its call eventfd")]
    CallsTakeLong,
    /// The guest took pages of its memory away.
    #[error("pages of the shared memory are gone")]
    LostPages,
    /// Pages that nobody had used before cost more than the port, or all ports, may.
    #[error(
        "its memory has pages that nobody has used yet, and the switch would be charged for more of them than it allows: give the \
         application memory that is allocated beforehand (huge pages; QEMU: prealloc=on) and not given back (QEMU's balloon: \
         free-page-reporting=off, or none), or raise the limits --port-memory and --guest-memory"
    )]
    TooMuchMemory,
}
