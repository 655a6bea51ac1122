//! Finds the programs that are attached to a link, and takes them off.
//!
//! Indexes are those of the namespace that the calling thread is in. Nothing is taken off another link: a `bpf_link` of XDP tells an
//! index but no namespace, so one is parted from its link only when no other could be the one.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use nix::errno::Errno;

use super::bpf::{self, TcxSide};
use super::netlink::decode::Body;
use super::netlink::encode;
use super::netlink::socket::{Failure, Socket};
use super::netlink::xdp;
use crate::seam::{AttachedProgram, ProgramHook};

/// So many `bpf_link`s of a machine are looked at: one that has more has lost some.
const MOST_LINKS: usize = 65_536;

/// The programs of a link. `socket` reads messages as they are ([`Socket::open_raw`]).
pub(super) fn attached(socket: &mut Socket, index: u32) -> Result<Vec<AttachedProgram>, Failure> {
    let mut found = Vec::new();
    socket.exchange(encode::get_link(index), &mut |body| {
        if let Body::Generic(payload) = body {
            found = xdp::programs(&payload);
        }
    })?;
    for (side, hook) in
        [(TcxSide::Ingress, ProgramHook::TcxIngress), (TcxSide::Egress, ProgramHook::TcxEgress)]
    {
        let programs = match bpf::query_tcx(index, side) {
            Ok(programs) => programs,
            // A kernel before 6.6 has no TCX, and one without bpf(2) no programs at all.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::ENOENT | Errno::EOPNOTSUPP) => Vec::new(),
            Err(errno) => return Err(Failure::Refused { errno, extack: None }),
        };
        let with_link =
            |(id, link): (u32, u32)| AttachedProgram { id, hook, link: Some(link).filter(|n| *n != 0) };
        found.extend(programs.into_iter().map(with_link));
    }
    Ok(found)
}

/// Takes all programs off a link; answers, in words, those that are still there.
pub(super) fn detach(socket: &mut Socket, index: u32) -> Result<Vec<String>, Failure> {
    let mut refusals = Vec::new();
    for program in attached(socket, index)? {
        match take_off(socket, index, program) {
            Ok(()) => {}
            Err(Failure::Refused { errno, extack }) => {
                refusals.push((program, extack.unwrap_or_else(|| errno.desc().to_owned())));
            }
            Err(failure) => return Err(failure),
        }
    }
    let left = attached(socket, index)?.into_iter();
    Ok(left
        .map(|program| {
            let refusal = refusals.iter().find(|(refused, _)| *refused == program);
            let why = refusal.map_or("it was attached again", |(_, why)| why.as_str());
            format!("{program} on link {index}: {why}")
        })
        .collect())
}

fn take_off(socket: &mut Socket, index: u32, program: AttachedProgram) -> Result<(), Failure> {
    let refused = |errno| Failure::Refused { errno, extack: None };
    let taken = match (program.hook, program.link) {
        (ProgramHook::TcxIngress | ProgramHook::TcxEgress, Some(link)) => match bpf::open_link(link) {
            Ok(Some(link)) => bpf::detach_link(&link),
            Ok(None) => Ok(()),
            Err(errno) => Err(errno),
        },
        (ProgramHook::TcxIngress, None) => bpf::detach_tcx(index, TcxSide::Ingress, program.id),
        (ProgramHook::TcxEgress, None) => bpf::detach_tcx(index, TcxSide::Egress, program.id),
        (hook, _) => match socket.acknowledged(xdp::detach(index, hook)) {
            // A `bpf_link` holds it there, and only by that it can be taken off.
            Err(Failure::Refused { errno: Errno::EBUSY, .. }) => return take_off_by_link(index, program.id),
            other => return other,
        },
    };
    match taken {
        // Gone since it was listed.
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(refused(errno)),
    }
}

fn take_off_by_link(index: u32, program: u32) -> Result<(), Failure> {
    let mut candidates = Vec::new();
    let failed = |errno| Failure::Refused { errno, extack: None };
    let mut id = 0;
    for _ in 0..MOST_LINKS {
        let Some(next) = bpf::next_link(id).map_err(failed)? else { break };
        id = next;
        candidates.extend(xdp_link(id, index, program).map_err(failed)?);
    }
    match candidates.as_slice() {
        [link] => bpf::detach_link(link).map_err(failed),
        [] => Err(told("no bpf_link of the machine says that it holds it")),
        _ => {
            Err(told("more than one bpf_link holds it on a link of this index, and which one cannot be told"))
        }
    }
}

fn told(why: &str) -> Failure {
    Failure::Refused { errno: Errno::EBUSY, extack: Some(why.to_owned()) }
}

/// A `bpf_link` that holds this XDP program on a link of this index, in whatever namespace.
fn xdp_link(id: u32, index: u32, program: u32) -> Result<Option<OwnedFd>, Errno> {
    let Some(link) = bpf::open_link(id)? else { return Ok(None) };
    let info = bpf::link_info(&link)?;
    let holds = info.kind == bpf::LINK_TYPE_XDP && info.ifindex == index && info.program == program;
    Ok(Some(link).filter(|_| holds))
}

/// Attaches a program of XDP to a link, for tests.
pub(crate) fn attach_xdp(index: u32, program: RawFd, hook: ProgramHook) -> io::Result<()> {
    match Socket::open()?.acknowledged(xdp::attach(index, program, hook)) {
        Ok(()) => Ok(()),
        Err(Failure::Refused { errno, .. }) => Err(errno.into()),
        Err(Failure::Socket(error)) => Err(error),
        Err(Failure::Answer(text)) => Err(io::Error::other(text)),
    }
}
