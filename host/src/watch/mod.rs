//! News of the daemon's own namespace: links that come and go, namespaces that die; and of the machine's devices.
//!
//! The kernel drops news when nobody reads them in time. That is an event too ([`Event::Overflow`]): whoever gets it has to read
//! the state itself, because what was lost is lost.

mod device_events;
mod news_socket;

use std::collections::VecDeque;
use std::io;

use crate::real::{Body, decode, netlink_news, only_of_type};
use crate::seam::{Link, Nsid};
use news_socket::{Heard, Listener};

pub use device_events::{Action, DeviceEvent, DeviceEvents};

const RTNLGRP_LINK: libc::c_int = 1;
const RTNLGRP_NSID: libc::c_int = 28;
const RTM_DELNSID: u16 = 89;

/// One piece of news of a link or a namespace.
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
    /// News were lost: the state itself has to be read.
    Overflow,
}

/// The stream of news of links and namespaces.
#[derive(Debug)]
pub struct NetnsEvents {
    listener: Listener,
    waiting: VecDeque<Event>,
}

impl NetnsEvents {
    /// Begins to listen to everything, in the calling thread's namespace. Needs a tokio runtime with I/O.
    pub fn open() -> io::Result<NetnsEvents> {
        Ok(NetnsEvents::listen(Listener::new(netlink_news(&[RTNLGRP_LINK, RTNLGRP_NSID])?)?))
    }

    /// Begins to listen to deaths of namespaces alone: whoever only wants those is not woken by every link that is made.
    pub fn open_deaths() -> io::Result<NetnsEvents> {
        let socket = netlink_news(&[RTNLGRP_NSID])?;
        only_of_type(&socket, RTM_DELNSID)?;
        Ok(NetnsEvents::listen(Listener::new(socket)?))
    }

    fn listen(listener: Listener) -> NetnsEvents {
        NetnsEvents { listener, waiting: VecDeque::new() }
    }

    /// The next piece of news. Nothing is lost when this is dropped before it is ready.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return event;
            }
            self.waiting.extend(events(self.listener.next().await));
        }
    }
}

/// The news in a datagram; one that cannot be read counts as a loss.
fn events(heard: Heard<'_>) -> Vec<Event> {
    let Heard::Datagram(datagram) = heard else { return vec![Event::Overflow] };
    let Ok(answers) = decode(datagram) else { return vec![Event::Overflow] };
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
