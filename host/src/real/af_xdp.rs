//! AF_XDP (`Documentation/networking/af_xdp.rst`): sockets that get the frames of an interface, and the program that sends them there.
//!
//! The calling thread is in the namespace of the interface. Whoever has the sockets later needs no privilege: the memory is registered
//! here, the rings are mapped there, and what is privileged of binding is done here again.
//!
//! The program is six instructions, written out below: a compiler for BPF, and a library that loads its objects, would be far more code
//! than what they would spare.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::bpf;
use crate::seam::uplink::{CHUNK_BYTES, MEMORY_BYTES, RING_ENTRIES, Uplink, UplinkQueue};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;

/// The kernel lets go of a queue a moment after the end of the socket that had it. So long that is waited for.
const LET_GO: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// The beginning of what BPF_MAP_CREATE reads.
#[derive(Debug, Default)]
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Opens a socket for each of the first `queues` receive queues of an interface, and attaches the program that sends all of its frames to
/// them: in the driver, where that has it and `may_be_native`, else in the kernel's own path. Frames are dropped until [`bind`] has bound the
/// sockets.
pub(super) fn open(index: u32, queues: u32, may_be_native: bool) -> io::Result<Uplink> {
    let opened: io::Result<Vec<UplinkQueue>> = (0..queues).map(|_| open_queue()).collect();
    let opened = opened?;
    let map = map_of(&opened)?;
    let program = load(&map)?;
    let in_driver = match may_be_native {
        true => attach(&program, index, bpf::XDP_FLAGS_DRV_MODE),
        false => Err(Errno::EOPNOTSUPP),
    };
    let (native, attachment) = match in_driver {
        Ok(link) => (true, link),
        // Another program is there: it is not replaced, nor is one of ours put behind it.
        Err(Errno::EBUSY | Errno::EEXIST) => return Err(Errno::EBUSY.into()),
        Err(_) => (false, attach(&program, index, bpf::XDP_FLAGS_SKB_MODE)?),
    };
    Ok(Uplink { native, attachment, queues: opened })
}

/// Binds the sockets to their queues, once their rings are mapped: frames come and go from then on. Without copies where the driver can.
pub(super) fn bind(uplink: &Uplink, index: u32) -> io::Result<()> {
    let until = Instant::now() + LET_GO;
    for (number, queue) in (0..).zip(&uplink.queues) {
        while let Err(errno) = bind_queue(&queue.socket, index, number, uplink.native) {
            if errno != Errno::EBUSY || Instant::now() > until {
                return Err(errno.into());
            }
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn bind_queue(socket: &OwnedFd, index: u32, number: u32, native: bool) -> Result<(), Errno> {
    // Beside a program in the kernel's own path a driver without copies would give the socket nothing.
    let copies = if native { 0 } else { libc::XDP_COPY };
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(0),
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | copies,
        sxdp_ifindex: index,
        sxdp_queue_id: number,
        sxdp_shared_umem_fd: 0,
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: the address is a valid `sockaddr_xdp` of the length that is told.
    Errno::result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

fn open_queue() -> io::Result<UplinkQueue> {
    // SAFETY: the call has no pointer.
    let raw = Errno::result(unsafe {
        libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    })?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    let memory = memory()?;
    register(&socket, &memory)?;
    let rings =
        [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
    for ring in rings {
        set(&socket, ring, &RING_ENTRIES)?;
    }
    Ok(UplinkQueue { socket, memory })
}

/// Memory that another process can map, and that nobody can take away from it.
fn memory() -> io::Result<OwnedFd> {
    let memory = memfd_create(c"fairlead-uplink", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    nix::unistd::ftruncate(&memory, i64::try_from(MEMORY_BYTES).unwrap_or(i64::MAX))?;
    fcntl(
        &memory,
        FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL),
    )?;
    Ok(memory)
}

/// Makes the memory the socket's: the kernel keeps its pages, so this mapping of them can end.
fn register(socket: &OwnedFd, memory: &OwnedFd) -> io::Result<()> {
    let bytes = usize::try_from(MEMORY_BYTES).map_err(io::Error::other)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memory.as_fd(), 0) }?;
    let region = libc::xdp_umem_reg {
        addr: u64::try_from(start.addr()).unwrap_or(0),
        len: MEMORY_BYTES,
        chunk_size: CHUNK_BYTES,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let registered = set(socket, libc::XDP_UMEM_REG, &region);
    // SAFETY: the mapping that was just made; nothing points into it.
    unsafe { munmap(start, bytes) }?;
    registered
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the value is readable memory of the length that is told; the kernel keeps no pointer to it.
    Errno::result(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw const *value).cast(), length)
    })?;
    Ok(())
}

/// A map from the numbers of queues to their sockets.
fn map_of(queues: &[UplinkQueue]) -> io::Result<OwnedFd> {
    let entries = u32::try_from(queues.len()).unwrap_or(0);
    let mut create = CreateMap {
        kind: BPF_MAP_TYPE_XSKMAP,
        key_bytes: 4,
        value_bytes: 4,
        entries,
        ..CreateMap::default()
    };
    // SAFETY: the attribute has no address in it; the command opens a descriptor of the map.
    let map = unsafe { bpf::open(BPF_MAP_CREATE, &mut create) }?;
    for (number, queue) in (0_u32..).zip(queues) {
        let socket = bpf::number(&queue.socket);
        let mut element = Element {
            map: bpf::number(&map),
            key: u64::try_from((&raw const number).addr()).unwrap_or(0),
            value: u64::try_from((&raw const socket).addr()).unwrap_or(0),
            ..Element::default()
        };
        // SAFETY: key and value have the 4 bytes that the map was made for, and outlive the call.
        unsafe { bpf::call(BPF_MAP_UPDATE_ELEM, &mut element) }?;
    }
    Ok(map)
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`.
fn code(map: u32) -> [u64; 6] {
    [
        // r2 = *(u32 *)(r1 + 16): `rx_queue_index` of `struct xdp_md`
        0x0000_0000_0010_1261,
        // r1 = the map of this descriptor, in two instructions (BPF_PSEUDO_MAP_FD)
        u64::from(map) << 32 | 0x1118,
        0,
        // r3 = XDP_PASS: for a queue without a socket
        0x0000_0002_0000_03b7,
        // r0 = bpf_redirect_map(r1, r2, r3)
        0x0000_0033_0000_0085,
        // exit
        0x95,
    ]
}

fn load(map: &OwnedFd) -> Result<OwnedFd, Errno> {
    bpf::load(bpf::PROGRAM_TYPE_XDP, &code(bpf::number(map)), c"Apache-2.0", bpf::ATTACH_XDP)
}

fn attach(program: &OwnedFd, index: u32, flags: u32) -> Result<OwnedFd, Errno> {
    bpf::create_link(program, index, bpf::ATTACH_XDP, flags)
}
