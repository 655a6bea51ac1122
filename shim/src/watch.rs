//! Waiting for a daemon that is not there, woken by the kernel when its socket appears.
//!
//! What is watched is the nearest directory above the socket that exists. Every watch is followed by another
//! attempt, so nothing that happens in between is missed. `listen(2)` makes no event: a daemon that binds in place
//! is met by a few attempts right after the event; one that renames a listening socket into place needs none.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::connection::{Connection, Unreached};
use crate::deadline::{Deadline, Pause};
use crate::reason::Reason;

/// How long after an event a socket on which nobody listens yet is tried again.
const SETTLING: Duration = Duration::from_millis(100);

/// Connects to the daemon, waiting for one until the deadline.
pub(crate) fn connect(socket: &Path, deadline: Deadline) -> Result<Connection, Unreached> {
    let mut last = match Connection::open(socket, deadline) {
        Err(down @ Unreached::Down(_)) => down,
        other => return other,
    };
    let mut without_watch = Pause::new();
    while !deadline.passed() {
        let watched = match Watch::nearest(socket) {
            Ok(watch) => watch.attempts(socket, deadline),
            // Mostly that no inotify instance is left for this user. Trying now and then is what remains.
            Err(_) => {
                without_watch.sleep(deadline);
                Connection::open(socket, deadline)
            }
        };
        match watched {
            Err(down @ Unreached::Down(_)) => last = down,
            other => return other,
        }
    }
    Err(last)
}

/// A watch on one directory.
struct Watch(Inotify);

impl Watch {
    fn nearest(socket: &Path) -> Result<Watch, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let mut below = socket;
        loop {
            let directory = match below.parent() {
                None => return Err(Errno::ENOENT),
                Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
                Some(parent) => parent,
            };
            match inotify.add_watch(directory, flags) {
                Err(Errno::ENOENT) => below = directory,
                Err(errno) => return Err(errno),
                Ok(_) if below == socket || fs::symlink_metadata(below).is_err() => {
                    return Ok(Watch(inotify));
                }
                // Made between the two calls: the watch belongs further down.
                Ok(_) if fs::metadata(below).is_ok() => below = socket,
                // A symlink to nowhere: what it waits for can't be seen from here.
                Ok(_) => return Err(Errno::ELOOP),
            }
        }
    }

    /// Tries, and after each event, until something other than [`Unreached::Down`] comes of it, the watch has
    /// done its duty, or the deadline has passed.
    fn attempts(&self, socket: &Path, deadline: Deadline) -> Result<Connection, Unreached> {
        let settled = deadline.at_most(SETTLING);
        let mut step = Duration::from_millis(1);
        loop {
            let attempt = Connection::open(socket, deadline);
            let Err(Unreached::Down(reason)) = attempt else { return attempt };
            let settling = reason == Reason(Errno::ECONNREFUSED) && !settled.passed();
            let until = if settling { settled.at_most(step) } else { deadline };
            if until.wait(self.0.as_fd(), PollFlags::POLLIN) || deadline.passed() {
                return attempt;
            }
            step *= 2;
        }
    }
}
