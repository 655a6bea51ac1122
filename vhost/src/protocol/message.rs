//! The messages: from bytes and file descriptors to a [`Request`], and from a [`Reply`] to bytes.
//!
//! Invariant: a request has exactly the bytes and file descriptors that its kind has. What the values mean is the session's business.

use vhost::vhost_user::message::{
    FrontendReq, VhostUserMemory, VhostUserMemoryRegion, VhostUserMsgValidator, VhostUserSingleMemoryRegion,
    VhostUserU64, VhostUserVringAddr, VhostUserVringState,
};
use vm_memory::ByteValued;

use super::Refusal;
use crate::memory::{GuestFile, RegionPlace};

/// The bytes of a header: number, flags, payload's length, four bytes each.
pub(crate) const HEADER_BYTES: usize = 12;
/// The most bytes of a payload.
pub(crate) const MAX_PAYLOAD: usize = 4096;

/// In the flags: the protocol's version, which is 1.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// In the payload of SET_VRING_KICK, CALL and ERR: no file descriptor comes with it.
const NO_FD: u64 = 1 << 8;

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The message's number.
    pub(crate) message: u32,
    /// The frontend asks for an acknowledgement (if REPLY_ACK was agreed on).
    pub(crate) need_reply: bool,
    /// The bytes that follow.
    pub(crate) payload: usize,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`Refusal::Version`], or [`Refusal::Size`] if more than [`MAX_PAYLOAD`] bytes follow.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Refusal> {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (message, flags, payload) = (word(0), word(4), word(8) as usize);
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(Refusal::Version(flags));
        }
        if payload > MAX_PAYLOAD {
            return Err(Refusal::Size { message, bytes: payload });
        }
        Ok(Header { message, need_reply: flags & NEED_REPLY != 0, payload })
    }
}

/// A message of the frontend.
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    /// RESET_OWNER and RESET_DEVICE: everything is as after the connection was made.
    Reset,
    SetMemTable(Vec<(RegionPlace, GuestFile)>),
    AddMemReg(RegionPlace, GuestFile),
    RemMemReg(RegionPlace),
    GetMaxMemSlots,
    SetVringNum(VhostUserVringState),
    SetVringAddr(VhostUserVringAddr),
    SetVringBase(VhostUserVringState),
    GetVringBase(VhostUserVringState),
    SetVringEnable(VhostUserVringState),
    /// A ring's index, and the eventfd unless the ring has none.
    SetVringKick(u32, Option<GuestFile>),
    SetVringCall(u32, Option<GuestFile>),
    /// The eventfd that comes with it is not kept: a guest is told of errors by the end of its connection.
    SetVringErr(u32),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    NetSetMtu(u64),
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A number; an acknowledgement is 0.
    Number(u64),
    /// A ring's index and position.
    Ring(u32, u32),
}

impl Reply {
    /// The bytes of the reply to `message`, header included.
    pub(crate) fn bytes(self, message: u32) -> Vec<u8> {
        let payload = match self {
            Reply::Number(number) => number.to_ne_bytes(),
            Reply::Ring(index, position) => {
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&index.to_ne_bytes());
                bytes[4..].copy_from_slice(&position.to_ne_bytes());
                bytes
            }
        };
        let header = [message, VERSION | REPLY, 8].map(u32::to_ne_bytes).concat();
        [header.as_slice(), payload.as_slice()].concat()
    }
}

impl Request {
    /// Makes a request of what came.
    ///
    /// # Errors
    /// [`Refusal`]: an unknown message, or a payload or file descriptors that it cannot have.
    pub(crate) fn parse(message: u32, payload: &[u8], fds: Vec<GuestFile>) -> Result<Request, Refusal> {
        let kind = FrontendReq::try_from(message).map_err(|_| Refusal::UnknownMessage(message))?;
        let parts = Parts { message, payload, fds };
        match kind {
            FrontendReq::SET_MEM_TABLE => return parts.memory_table(),
            FrontendReq::ADD_MEM_REG => return parts.added_region(),
            FrontendReq::SET_VRING_KICK => return parts.event(Request::SetVringKick),
            FrontendReq::SET_VRING_CALL => return parts.event(Request::SetVringCall),
            FrontendReq::SET_VRING_ERR => return parts.event(|ring, _| Request::SetVringErr(ring)),
            // QEMU may send the file descriptor of the region along; it says nothing.
            FrontendReq::REM_MEM_REG => return parts.single_region().map(Request::RemMemReg),
            _ => parts.no_fds()?,
        }
        match kind {
            FrontendReq::GET_FEATURES => parts.empty(Request::GetFeatures),
            FrontendReq::SET_OWNER => parts.empty(Request::SetOwner),
            FrontendReq::RESET_OWNER | FrontendReq::RESET_DEVICE => parts.empty(Request::Reset),
            FrontendReq::GET_MAX_MEM_SLOTS => parts.empty(Request::GetMaxMemSlots),
            FrontendReq::GET_PROTOCOL_FEATURES => parts.empty(Request::GetProtocolFeatures),
            FrontendReq::GET_QUEUE_NUM => parts.empty(Request::GetQueueNum),
            FrontendReq::SET_FEATURES => parts.number().map(Request::SetFeatures),
            FrontendReq::SET_PROTOCOL_FEATURES => parts.number().map(Request::SetProtocolFeatures),
            FrontendReq::NET_SET_MTU => parts.number().map(Request::NetSetMtu),
            FrontendReq::SET_VRING_NUM => parts.value().map(Request::SetVringNum),
            FrontendReq::SET_VRING_ADDR => parts.value().map(Request::SetVringAddr),
            FrontendReq::SET_VRING_BASE => parts.value().map(Request::SetVringBase),
            FrontendReq::GET_VRING_BASE => parts.value().map(Request::GetVringBase),
            FrontendReq::SET_VRING_ENABLE => parts.value().map(Request::SetVringEnable),
            _ => Err(Refusal::UnknownMessage(message)),
        }
    }
}

/// What came, not yet understood.
struct Parts<'p> {
    message: u32,
    payload: &'p [u8],
    fds: Vec<GuestFile>,
}

impl Parts<'_> {
    fn size(&self) -> Refusal {
        Refusal::Size { message: self.message, bytes: self.payload.len() }
    }

    fn descriptors(&self) -> Refusal {
        Refusal::Descriptors { message: self.message, count: self.fds.len() }
    }

    fn no_fds(&self) -> Result<(), Refusal> {
        if self.fds.is_empty() { Ok(()) } else { Err(self.descriptors()) }
    }

    fn empty(&self, request: Request) -> Result<Request, Refusal> {
        if self.payload.is_empty() { Ok(request) } else { Err(self.size()) }
    }

    /// The payload as a `T`, which it has to be exactly.
    fn value<T: ByteValued + Default + VhostUserMsgValidator>(&self) -> Result<T, Refusal> {
        self.value_of(self.payload)
    }

    fn value_of<T: ByteValued + Default + VhostUserMsgValidator>(&self, bytes: &[u8]) -> Result<T, Refusal> {
        let mut value = T::default();
        if bytes.len() != size_of::<T>() {
            return Err(self.size());
        }
        value.as_mut_slice().copy_from_slice(bytes);
        if value.is_valid() { Ok(value) } else { Err(Refusal::Payload(self.message)) }
    }

    fn number(&self) -> Result<u64, Refusal> {
        self.value::<VhostUserU64>().map(|number| number.value)
    }

    fn memory_table(self) -> Result<Request, Refusal> {
        let head = size_of::<VhostUserMemory>();
        let (head, places) = self.payload.split_at_checked(head).ok_or_else(|| self.size())?;
        let table: VhostUserMemory = self.value_of(head)?;
        let one = size_of::<VhostUserMemoryRegion>();
        let count = table.num_regions as usize;
        if places.len() != count * one {
            return Err(self.size());
        }
        if self.fds.len() != count {
            return Err(self.descriptors());
        }
        let places = places.chunks_exact(one).map(|bytes| self.value_of(bytes).map(|region| place(&region)));
        let places: Vec<RegionPlace> = places.collect::<Result<_, _>>()?;
        Ok(Request::SetMemTable(places.into_iter().zip(self.fds).collect()))
    }

    fn single_region(&self) -> Result<RegionPlace, Refusal> {
        self.value::<VhostUserSingleMemoryRegion>().map(|region| place(&region))
    }

    fn added_region(mut self) -> Result<Request, Refusal> {
        let place = self.single_region()?;
        match (self.fds.pop(), self.fds.is_empty()) {
            (Some(fd), true) => Ok(Request::AddMemReg(place, fd)),
            _ => Err(self.descriptors()),
        }
    }

    fn event(mut self, request: fn(u32, Option<GuestFile>) -> Request) -> Result<Request, Refusal> {
        let number = self.number()?;
        if number & !(NO_FD | 0xff) != 0 {
            return Err(Refusal::Payload(self.message));
        }
        let fd = self.fds.pop();
        if !self.fds.is_empty() || fd.is_some() == (number & NO_FD != 0) {
            return Err(self.descriptors());
        }
        Ok(request(u32::from(number.to_le_bytes()[0]), fd))
    }
}

fn place(region: &VhostUserMemoryRegion) -> RegionPlace {
    RegionPlace {
        guest: region.guest_phys_addr,
        user: region.user_addr,
        bytes: region.memory_size,
        offset: region.mmap_offset,
    }
}
