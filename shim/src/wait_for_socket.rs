//! Waits for a daemon that does not run yet. The kernel wakes this process when the socket appears.
//!
//! The nearest existing directory above the socket is watched. After every new watch there is another attempt to connect,
//! so nothing that happened before the watch is missed. `listen(2)` makes no event: a daemon that binds in place is reached
//! by a few attempts right after the event. One that renames a listening socket into place needs none of them.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::connection::{ConnectError, Connection};
use crate::deadline::{Deadline, Pause};
use crate::errno_text::ErrnoText;

/// For how long after an event a socket on which nobody listens yet is tried again.
const LISTENS_WITHIN: Duration = Duration::from_millis(100);

/// Connects to the daemon, and waits for one until the deadline.
pub(crate) fn connect(socket: &Path, deadline: Deadline) -> Result<Connection, ConnectError> {
    let mut last = match Connection::open(socket, deadline) {
        Err(down @ ConnectError::Down(_)) => down,
        other => return other,
    };
    let mut pause = Pause::new();
    while !deadline.passed() {
        let watched = match Watch::nearest(socket) {
            Ok(watch) => watch.attempts(socket, deadline),
            // Mostly no inotify instance is left for this user. What remains is to try now and then.
            Err(_) => {
                pause.sleep(deadline);
                Connection::open(socket, deadline)
            }
        };
        match watched {
            Err(down @ ConnectError::Down(_)) => last = down,
            other => return other,
        }
    }
    Err(last)
}

/// An inotify watch on one directory.
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
                // It was created between the two calls, so the watch belongs further down.
                Ok(_) if fs::metadata(below).is_ok() => below = socket,
                // A symbolic link to nowhere: from here its target can't be seen to appear.
                Ok(_) => return Err(Errno::ELOOP),
            }
        }
    }

    /// Tries to connect. Returns when that gives something other than [`ConnectError::Down`], when the watch has reported a
    /// change, after which another directory may have to be watched, or when the deadline has passed.
    fn attempts(&self, socket: &Path, deadline: Deadline) -> Result<Connection, ConnectError> {
        let listens_by = deadline.at_most(LISTENS_WITHIN);
        let mut step = Duration::from_millis(1);
        loop {
            let attempt = Connection::open(socket, deadline);
            let Err(ConnectError::Down(reason)) = attempt else { return attempt };
            let may_listen_soon = reason == ErrnoText(Errno::ECONNREFUSED) && !listens_by.passed();
            let until = if may_listen_soon { listens_by.at_most(step) } else { deadline };
            if until.wait(self.0.as_fd(), PollFlags::POLLIN) || deadline.passed() {
                return attempt;
            }
            step *= 2;
        }
    }
}
