//! News of the daemon's own namespace: links that come and go, namespaces that die.
//!
//! The kernel drops news when nobody reads them in time. That is told too ([`Event::Overflow`]): whoever gets it
//! has to look for himself, because what was lost is lost.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use tokio::io::unix::AsyncFd;

use crate::real::{Body, decode, netlink_news, only_of_type};
use crate::seam::{Link, Nsid};

const RTNLGRP_LINK: libc::c_int = 1;
const RTNLGRP_NSID: libc::c_int = 28;
const RTM_DELNSID: u16 = 89;
/// Room for the news of some hundred links at once.
const RECEIVE_BUFFER: usize = 2 << 20;
const DATAGRAM: usize = 64 << 10;
/// Between two attempts to read from a socket that fails for a reason of its own.
const PAUSE: Duration = Duration::from_secs(1);

/// One piece of news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The namespace of this number is dead, and all that was in it; the number is free for the next.
    NsidGone(Nsid),
    /// A namespace was given this number.
    NsidNew(Nsid),
    /// A link of the daemon's own namespace came or changed.
    LinkNew(Box<Link>),
    /// The link of this index left the daemon's own namespace.
    LinkGone(u32),
    /// News were lost.
    Overflow,
}

/// The stream of news.
#[derive(Debug)]
pub struct NetnsEvents {
    socket: AsyncFd<OwnedFd>,
    waiting: VecDeque<Event>,
    buffer: Vec<u8>,
}

impl NetnsEvents {
    /// Begins to listen to everything, in the calling thread's namespace. Needs a tokio runtime with I/O.
    pub fn open() -> io::Result<NetnsEvents> {
        NetnsEvents::listen(netlink_news(&[RTNLGRP_LINK, RTNLGRP_NSID])?)
    }

    /// Begins to listen to deaths of namespaces alone: whoever only wants those is not woken by every link that is made.
    pub fn open_deaths() -> io::Result<NetnsEvents> {
        let socket = netlink_news(&[RTNLGRP_NSID])?;
        only_of_type(&socket, RTM_DELNSID)?;
        NetnsEvents::listen(socket)
    }

    fn listen(socket: OwnedFd) -> io::Result<NetnsEvents> {
        // Forcing it takes CAP_NET_ADMIN; without it the system's limit holds.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        // SAFETY: `OwnedFd` always answers the same open descriptor, and closes it only when it is dropped.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(NetnsEvents { socket, waiting: VecDeque::new(), buffer: vec![0; DATAGRAM] })
    }

    /// The next piece of news. Nothing is lost when this is dropped before it is ready.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return event;
            }
            if let Err(error) = self.fill().await {
                tracing::warn!(%error, "news of the network namespace cannot be read");
                tokio::time::sleep(PAUSE).await;
                return Event::Overflow;
            }
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        let mut ready = self.socket.readable().await?;
        let buffer = &mut self.buffer;
        let read = ready.try_io(|socket| Ok(recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC)?));
        match read {
            Err(_not_ready) => Ok(()),
            Ok(Ok(length)) => {
                self.waiting.extend(events(self.buffer.get(..length)));
                Ok(())
            }
            Ok(Err(error)) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EINTR) => Ok(()),
                Some(Errno::ENOBUFS) => {
                    self.waiting.push_back(Event::Overflow);
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }
}

/// What a datagram tells; one that was too long for the buffer, or cannot be read, is a loss.
fn events(datagram: Option<&[u8]>) -> Vec<Event> {
    let Some(Ok(answers)) = datagram.map(decode) else { return vec![Event::Overflow] };
    let news = answers.into_iter().filter_map(|answer| match answer.body {
        Body::NsidGone(nsid) => Some(Event::NsidGone(nsid)),
        Body::Nsid(nsid) => nsid.map(Event::NsidNew),
        Body::Link(link, _) => Some(Event::LinkNew(link)),
        Body::LinkGone(index) => Some(Event::LinkGone(index)),
        Body::Overrun => Some(Event::Overflow),
        _ => None,
    });
    news.collect()
}
