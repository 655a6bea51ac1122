//! The calls of bpf(2) that are needed to find what is attached to a link, to take it off, and to attach what is ours.
//!
//! Indexes of links are those of the namespace that the calling thread is in.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_DETACH: libc::c_int = 9;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;
const BPF_LINK_DETACH: libc::c_int = 34;
/// The type of a program of XDP (`BPF_PROG_TYPE_XDP`).
pub(crate) const PROGRAM_TYPE_XDP: u32 = 6;
/// `attach_type` of XDP.
pub(crate) const ATTACH_XDP: u32 = 37;
pub(crate) const XDP_FLAGS_SKB_MODE: u32 = 2;
pub(super) const XDP_FLAGS_DRV_MODE: u32 = 4;
/// The type of a link that attaches such a program (`BPF_LINK_TYPE_XDP`).
pub(super) const LINK_TYPE_XDP: u32 = 6;
/// The kernel lets no more than so many programs be at one place (`BPF_MPROG_MAX`).
const MOST_AT_ONE_PLACE: usize = 64;

/// `attach_type` of TCX (`enum bpf_attach_type`).
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum TcxSide {
    Ingress = 46,
    Egress = 47,
}

/// The part of `union bpf_attr` that BPF_PROG_QUERY reads and writes.
#[derive(Debug, Default)]
#[repr(C)]
struct Query {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct ProgramAt {
    target_ifindex: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: u32,
    relative_fd: u32,
    expected_revision: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    rest: [u32; 11],
    expected_attach_type: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
struct CreateLink {
    program: u32,
    index: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 2],
}

#[derive(Debug, Default)]
#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
struct InfoByFd {
    fd: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_link_info`; of XDP and TCX the first word of the rest is the link's index.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct LinkInfo {
    pub(super) kind: u32,
    id: u32,
    pub(super) program: u32,
    padding: u32,
    pub(super) ifindex: u32,
    rest: [u32; 11],
}

/// Calls bpf(2).
///
/// # Safety
/// `A` is plain data without padding in which every address, if it has any, is that of memory which the kernel may read or write for
/// this command, as long as the attribute says, until the call returns.
pub(crate) unsafe fn call<A>(command: libc::c_int, attribute: &mut A) -> Result<libc::c_long, Errno> {
    // SAFETY: the attribute is writable memory of this size; for what it points at the caller answers.
    Errno::result(unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attribute, size_of::<A>()) })
}

/// The same for a command that makes a descriptor.
///
/// # Safety
/// As for [`call`]; and the command answers a descriptor of the caller's own.
pub(crate) unsafe fn open<A>(command: libc::c_int, attribute: &mut A) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise.
    let raw = unsafe { call(command, attribute) }?;
    let raw = RawFd::try_from(raw).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// The number of a descriptor in the width of the kernel's structures.
pub(crate) fn number(fd: &impl AsRawFd) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

fn address<T>(memory: &mut T) -> u64 {
    u64::try_from((&raw mut *memory).addr()).unwrap_or(0)
}

/// Loads a program of this type.
pub(crate) fn load(kind: u32, code: &[u64], license: &CStr, attach_type: u32) -> Result<OwnedFd, Errno> {
    let mut load = Load {
        kind,
        instructions: u32::try_from(code.len()).unwrap_or(0),
        code: u64::try_from(code.as_ptr().addr()).unwrap_or(0),
        license: u64::try_from(license.as_ptr().addr()).unwrap_or(0),
        expected_attach_type: attach_type,
        ..Load::default()
    };
    // SAFETY: the code has as many instructions as are told, and the license is closed by a NUL; both outlive the call. The command
    // opens a descriptor of the program.
    unsafe { open(BPF_PROG_LOAD, &mut load) }
}

/// Attaches a program to a link by a `bpf_link`, which holds it as long as the answer is open.
pub(crate) fn create_link(
    program: &OwnedFd,
    index: u32,
    attach_type: u32,
    flags: u32,
) -> Result<OwnedFd, Errno> {
    let mut create =
        CreateLink { program: number(program), index, attach_type, flags, ..CreateLink::default() };
    // SAFETY: the attribute has no address in it; the command opens a descriptor of the new bpf_link.
    unsafe { open(BPF_LINK_CREATE, &mut create) }
}

/// The programs at one side of a link: the number of each, and of the `bpf_link` that holds it, 0 for none.
pub(super) fn query_tcx(index: u32, side: TcxSide) -> Result<Vec<(u32, u32)>, Errno> {
    let (mut programs, mut links) = ([0_u32; MOST_AT_ONE_PLACE], [0_u32; MOST_AT_ONE_PLACE]);
    let mut query = Query {
        target_ifindex: index,
        attach_type: side as u32,
        prog_ids: address(&mut programs),
        link_ids: address(&mut links),
        count: u32::try_from(MOST_AT_ONE_PLACE).unwrap_or(0),
        ..Query::default()
    };
    // SAFETY: both arrays outlive the call and have room for `count` numbers.
    unsafe { call(BPF_PROG_QUERY, &mut query) }?;
    let count = usize::try_from(query.count).unwrap_or(0);
    Ok(programs.into_iter().zip(links).take(count).collect())
}

/// Takes a program off one side of a link.
pub(super) fn detach_tcx(index: u32, side: TcxSide, program: u32) -> Result<(), Errno> {
    let mut by_id = ById { id: program, ..ById::default() };
    // SAFETY: the attribute has no address in it; the command opens a descriptor of the program.
    let program = unsafe { open(BPF_PROG_GET_FD_BY_ID, &mut by_id) }?;
    let mut at = ProgramAt {
        target_ifindex: index,
        attach_bpf_fd: number(&program),
        attach_type: side as u32,
        ..ProgramAt::default()
    };
    // SAFETY: the attribute has no address in it.
    unsafe { call(BPF_PROG_DETACH, &mut at) }.map(drop)
}

/// The number of the first `bpf_link` of this machine after number `after`; `None` when there is no more.
pub(super) fn next_link(after: u32) -> Result<Option<u32>, Errno> {
    let mut by_id = ById { id: after, ..ById::default() };
    // SAFETY: the attribute has no address in it.
    match unsafe { call(BPF_LINK_GET_NEXT_ID, &mut by_id) } {
        Ok(_) => Ok(Some(by_id.next_id)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens a `bpf_link`; `None` when it is gone.
pub(super) fn open_link(id: u32) -> Result<Option<OwnedFd>, Errno> {
    let mut by_id = ById { id, ..ById::default() };
    // SAFETY: the attribute has no address in it; the command opens a descriptor of the link.
    match unsafe { open(BPF_LINK_GET_FD_BY_ID, &mut by_id) } {
        Ok(link) => Ok(Some(link)),
        // EAGAIN: it is being made, and does nothing yet.
        Err(Errno::ENOENT | Errno::EAGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// What a `bpf_link` is.
pub(super) fn link_info(link: &OwnedFd) -> Result<LinkInfo, Errno> {
    let mut info = LinkInfo::default();
    let length = u32::try_from(size_of::<LinkInfo>()).unwrap_or(0);
    let mut by_fd = InfoByFd { fd: number(link), length, info: address(&mut info) };
    // SAFETY: `info` outlives the call and is as long as `length` says; to its type every bit pattern is a value.
    unsafe { call(BPF_OBJ_GET_INFO_BY_FD, &mut by_fd) }?;
    Ok(info)
}

/// Parts a `bpf_link` from what it is attached to, for good, whoever holds it.
pub(super) fn detach_link(link: &OwnedFd) -> Result<(), Errno> {
    let mut fd = number(link);
    // SAFETY: the attribute has no address in it.
    unsafe { call(BPF_LINK_DETACH, &mut fd) }.map(drop)
}
