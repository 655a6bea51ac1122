//! What the daemon's process is doing, for a STATUS that it does not answer: one that is at work is waited for, one
//! that does nothing hangs, and is told as it was seen.
//!
//! Looks in `/proc`; sends nothing to the process and waits for nothing.

use std::fmt;
use std::fs;
use std::path::Path;

use fairlead_cni::wire::LOCK_FILE;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::conduct::Unserved;
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::invocation::{STATUS_LOOK, STATUS_PATIENCE, STATUS_UNWATCHED};

/// The process that listens, or should.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(i32);

impl Peer {
    /// Who listens at the other end. The kernel gives 0 for a process that this one's pid namespace does not have.
    pub(crate) fn of(connection: &Connection) -> Peer {
        Peer(getsockopt(connection, PeerCredentials).map_or(0, |peer| peer.pid()))
    }

    /// Who says that it serves this socket, for want of a connection.
    pub(crate) fn beside(socket: &Path) -> Option<Peer> {
        fs::read_to_string(socket.with_file_name(LOCK_FILE)).ok()?.trim().parse().ok().map(Peer)
    }

    /// The most that one of its threads does.
    fn doing(self) -> Doing {
        if self.0 <= 0 {
            return Doing::Unseen;
        }
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten().flatten();
        tasks.map(|task| state(&task.path().join("stat"))).max().unwrap_or(Doing::Nothing)
    }
}

/// The state of a thread (proc(5), `/proc/pid/stat`, the field after the name in parentheses).
fn state(stat: &Path) -> Doing {
    let stat = fs::read(stat).unwrap_or_default();
    let name_end = stat.iter().rposition(|byte| *byte == b')').unwrap_or_default();
    match stat.get(name_end + 2) {
        Some(b'R') => Doing::Work,
        Some(b'T' | b't') => Doing::Stopped,
        Some(b'D') => Doing::Blocked,
        Some(b'S' | b'I') => Doing::Sleep,
        _ => Doing::Nothing,
    }
}

/// What a process does, the later the more alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    /// In another pid namespace.
    Unseen,
    /// It has ended, and something else holds its socket.
    Nothing,
    /// Each thread waits for something.
    Sleep,
    /// A thread waits in the kernel and can't be interrupted.
    Blocked,
    /// By a signal, or by a debugger.
    Stopped,
    /// A thread runs, or would if it had a processor.
    Work,
}

/// A daemon that answers nothing and does nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standstill {
    peer: Peer,
    doing: Doing,
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.peer.0;
        match self.doing {
            Doing::Unseen => f.write_str(
                "fairleadd does not answer, and its process can't be seen from this pid namespace",
            ),
            Doing::Nothing => {
                write!(f, "fairleadd (pid {pid}) has ended, and another process holds its socket")
            }
            Doing::Sleep | Doing::Work => {
                write!(f, "fairleadd (pid {pid}) does not answer, and no thread of it is at work")
            }
            Doing::Blocked => write!(f, "fairleadd (pid {pid}) does not answer: it waits in the kernel"),
            Doing::Stopped => write!(f, "fairleadd (pid {pid}) is stopped"),
        }
    }
}

impl Standstill {
    /// What to do about it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self.doing {
            Doing::Stopped => {
                "let it go on (kill -CONT and its pid), or restart it (systemctl restart fairleadd)"
            }
            Doing::Blocked => {
                "see the kernel's log for a disk or a network driver that hangs, then try again"
            }
            _ => "see its log, then restart it (systemctl restart fairleadd)",
        }
    }
}

/// How long STATUS waits: shortly, and longer only while the daemon is seen at work.
///
/// A daemon that works sleeps now and then, so it is looked at several times before it is given up.
#[derive(Debug)]
pub(crate) struct Patience {
    whole: Deadline,
    end: Deadline,
    given_up: Option<Standstill>,
    /// Until when to wait next.
    pub(crate) until: Deadline,
}

impl Patience {
    /// Begins now; `whole` is the end of it in any case.
    pub(crate) fn new(whole: Deadline) -> Patience {
        let end = whole.at_most(STATUS_PATIENCE);
        Patience { whole, end, given_up: None, until: end.at_most(STATUS_UNWATCHED) }
    }

    /// Nothing came until then: looks at the daemon, and decides whether to wait on. What it did just before it was
    /// looked at must still be noticed, so one that is given up is listened to once more. `late` is the error when
    /// it is at work and no time is left.
    pub(crate) fn goes_on(&mut self, peer: Peer, late: Unserved) -> Result<(), Unserved> {
        if let Some(standstill) = self.given_up {
            return Err(Unserved::Standstill(standstill));
        }
        match peer.doing() {
            Doing::Work if self.whole.passed() => return Err(late),
            Doing::Work => {
                self.end = self.whole.at_most(STATUS_PATIENCE);
                self.until = self.end.at_most(STATUS_UNWATCHED);
            }
            doing if self.end.passed() => self.given_up = Some(Standstill { peer, doing }),
            _ => self.until = self.end.at_most(STATUS_LOOK),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn x04_what_a_process_is_doing_is_seen() {
        assert_eq!(Peer(std::process::id().cast_signed()).doing(), Doing::Work);
        assert_eq!(Peer(0).doing(), Doing::Unseen);
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let peer = Peer(sleeper.id().cast_signed());
        let comes_to = |wanted| {
            (0..2000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                peer.doing() == wanted
            })
        };
        assert!(comes_to(Doing::Sleep));
        let signal = |name| {
            assert!(
                Command::new("kill")
                    .args(["-s", name, &sleeper.id().to_string()])
                    .status()
                    .unwrap()
                    .success()
            )
        };
        signal("STOP");
        assert!(comes_to(Doing::Stopped));
        signal("KILL");
        assert!(comes_to(Doing::Nothing), "a zombie");
        sleeper.wait().unwrap();
        assert_eq!(peer.doing(), Doing::Nothing, "gone");
    }
}
