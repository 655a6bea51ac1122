//! Links, addresses and routes of a namespace, read by a socket in it.

use std::collections::HashSet;

use nix::errno::Errno;

use super::netlink::Message;
use super::netlink::decode::Body;
use super::netlink::encode;
use super::netlink::socket::{Failure, Socket};
use crate::seam::{Address, Link, LinkName, NetError, Route, bytes_of};
use crate::vf_settings::Vf;

pub(super) fn by_name(
    name: &str,
    send: impl FnOnce(Message) -> Result<Link, Failure>,
) -> Result<Option<Link>, NetError> {
    let bytes = bytes_of(name);
    // What cannot be a name (ALTIFNAMSIZ is 128) is no link's name; the kernel would answer EINVAL instead of ENODEV.
    if bytes.is_empty() || bytes.len() >= 128 || bytes.contains(&0) {
        return Ok(None);
    }
    present(send(encode::get_link_by_name(&bytes)), || format!("look for link {:?}", LinkName::from(name)))
}

pub(super) fn by_index(
    index: u32,
    send: impl FnOnce(Message) -> Result<Link, Failure>,
) -> Result<Option<Link>, NetError> {
    // The kernel answers EINVAL to both: to it an index is a positive int.
    if index == 0 || i32::try_from(index).is_err() {
        return Ok(None);
    }
    present(send(encode::get_link(index)), || format!("look for link {index}"))
}

fn present(answer: Result<Link, Failure>, what: impl FnOnce() -> String) -> Result<Option<Link>, NetError> {
    match answer {
        Ok(link) => Ok(Some(link)),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(None),
        Err(failure) => Err(failure.into_net(0, what)),
    }
}

/// All links. The kernel makes a dump's datagrams as large as the largest link is when the dump begins. At one that has grown
/// since, it ends the dump, and mostly with success: so its end proves nothing, and the indexes are listed too.
pub(super) fn links(socket: &mut Socket) -> Result<Vec<Link>, Failure> {
    let mut found = Vec::new();
    let dumped = socket.dump(encode::dump_links, &mut |body| {
        if let Body::Link(link, _) = body {
            found.push(*link);
        }
    });
    match dumped {
        Ok(()) | Err(Failure::Refused { errno: Errno::EMSGSIZE, .. }) => {}
        Err(failure) => return Err(failure),
    }
    let mut hidden = Vec::new();
    let listed: HashSet<u32> = found.iter().map(|link| link.index).collect();
    socket.dump(encode::dump_indexes, &mut |body| {
        if let Body::StatsOf(index) = body {
            hidden.extend(Some(index).filter(|index| !listed.contains(index)));
        }
    })?;
    for index in hidden {
        found.extend(link_for_a_list(socket, index)?);
    }
    Ok(found)
}

/// The one link that `is` wanted. That a dump has not shown it proves nothing, as above: then the whole list is read.
pub(super) fn find(socket: &mut Socket, is: &dyn Fn(&Link) -> bool) -> Result<Option<Link>, Failure> {
    let shown = socket.find(encode::dump_links, |body| match body {
        Body::Link(link, _) if is(&link) => Some(*link),
        _ => None,
    });
    match shown {
        Ok(None) | Err(Failure::Refused { errno: Errno::EMSGSIZE, .. }) => {
            Ok(links(socket)?.into_iter().find(is))
        }
        found => found,
    }
}

/// A link that a dump has not shown; `None` when it is gone.
fn link_for_a_list(socket: &mut Socket, index: u32) -> Result<Option<Link>, Failure> {
    match socket.link(encode::get_link(index)) {
        Ok(link) => Ok(Some(link)),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(None),
        // Whoever wants this very link asks for it by index, and is told. The others are not to go without a list for it.
        Err(Failure::Refused { errno: Errno::EMSGSIZE, .. }) => {
            tracing::warn!(
                index,
                "the kernel cannot describe this link in one message: it is left out of a list"
            );
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// The VFs of one link; none when the link is gone.
pub(super) fn vfs(socket: &mut Socket, pf: u32) -> Result<Vec<Vf>, Failure> {
    let mut found = Vec::new();
    let outcome = socket.exchange(encode::get_vfs(pf), &mut |body| {
        if let Body::Link(_, vfs) = body {
            found = vfs;
        }
    });
    match outcome {
        Ok(()) => Ok(found),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

/// The addresses of one link; none when the link is gone, and `None` when there are more than `most`.
pub(super) fn addresses(
    socket: &mut Socket,
    index: u32,
    most: usize,
) -> Result<Option<Vec<Address>>, Failure> {
    let mut found = Vec::new();
    let outcome = socket.dump_at_most(most, || encode::dump_addresses(index), &mut |body| match body {
        // A kernel without strict checking (before 4.20) sends those of all links.
        Body::Address(address) if address.index == index => found.push(address),
        _ => {}
    });
    match outcome {
        Ok(all) => Ok(Some(found).filter(|_| all)),
        Err(Failure::Refused { errno: Errno::ENODEV, .. }) => Ok(Some(Vec::new())),
        Err(failure) => Err(failure),
    }
}

pub(super) fn routes(socket: &mut Socket) -> Result<Vec<Route>, Failure> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut keep = |body| {
            if let Body::Routes(routes) = body {
                found.extend(routes);
            }
        };
        match socket.dump(|| encode::dump_routes(family), &mut keep) {
            // No IPv6 in this kernel.
            Ok(()) | Err(Failure::Refused { errno: Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}
