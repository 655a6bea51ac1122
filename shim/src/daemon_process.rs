//! What the daemon's process is doing, for a STATUS that it does not answer. A daemon that is at work is waited for. One that
//! does nothing hangs, and the error says in which state it was seen.
//!
//! This reads `/proc`. It sends nothing to the process.

use std::fmt;
use std::fs;
use std::path::Path;

use fairlead_cni::wire::LOCK_FILE;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::connection::Connection;

/// The process that listens on the daemon's socket, or should; by its pid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DaemonProcess(i32);

impl DaemonProcess {
    /// The process at the other end. The kernel says 0 for a process that this one's pid namespace does not have.
    pub(crate) fn of_connection(connection: &Connection) -> DaemonProcess {
        DaemonProcess(getsockopt(connection, PeerCredentials).map_or(0, |peer| peer.pid()))
    }

    /// The process that wrote its pid beside the socket. For use where there is no connection.
    pub(crate) fn of_lock_file(socket: &Path) -> Option<DaemonProcess> {
        fs::read_to_string(socket.with_file_name(LOCK_FILE)).ok()?.trim().parse().ok().map(DaemonProcess)
    }

    /// What the most active of its threads does.
    pub(crate) fn activity(self) -> Activity {
        if self.0 <= 0 {
            return Activity::Unknown;
        }
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten().flatten();
        tasks.map(|task| thread_activity(&task.path().join("stat"))).max().unwrap_or(Activity::Ended)
    }
}

/// What a thread does: proc(5), `/proc/pid/stat`, the field after the name in parentheses. The name itself may contain
/// parentheses, so the last one counts.
fn thread_activity(stat: &Path) -> Activity {
    let stat = fs::read(stat).unwrap_or_default();
    let name_end = stat.iter().rposition(|byte| *byte == b')').unwrap_or_default();
    match stat.get(name_end + 2) {
        Some(b'R') => Activity::Working,
        Some(b'T' | b't') => Activity::Stopped,
        Some(b'D') => Activity::Blocked,
        Some(b'S' | b'I') => Activity::Sleeping,
        _ => Activity::Ended,
    }
}

/// What a process does. A later variant is more alive than an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activity {
    /// Unknown: the process is in another pid namespace.
    Unknown,
    /// It has ended, and another process holds its socket.
    Ended,
    /// Every thread waits for something.
    Sleeping,
    /// A thread waits in the kernel and can't be interrupted.
    Blocked,
    /// It was stopped by a signal or by a debugger.
    Stopped,
    /// A thread runs, or would if it had a processor.
    Working,
}

/// A daemon that does not answer, and what its process did instead of working.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HungDaemon {
    pub(crate) process: DaemonProcess,
    pub(crate) activity: Activity,
}

impl fmt::Display for HungDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.process.0;
        match self.activity {
            Activity::Unknown => f.write_str(
                "fairleadd does not answer, and its process can't be seen from this pid namespace",
            ),
            Activity::Ended => {
                write!(f, "fairleadd (pid {pid}) has ended, and another process holds its socket")
            }
            Activity::Sleeping | Activity::Working => {
                write!(f, "fairleadd (pid {pid}) does not answer, and no thread of it is at work")
            }
            Activity::Blocked => write!(f, "fairleadd (pid {pid}) does not answer: it waits in the kernel"),
            Activity::Stopped => write!(f, "fairleadd (pid {pid}) is stopped"),
        }
    }
}

impl HungDaemon {
    /// What the administrator can do about it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self.activity {
            Activity::Stopped => {
                "let it go on (kill -CONT and its pid), or restart it (systemctl restart fairleadd)"
            }
            Activity::Blocked => {
                "see the kernel's log for a disk or a network driver that hangs, then try again"
            }
            _ => "see its log, then restart it (systemctl restart fairleadd)",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn x04_what_a_process_is_doing_is_seen() {
        assert_eq!(DaemonProcess(std::process::id().cast_signed()).activity(), Activity::Working);
        assert_eq!(DaemonProcess(0).activity(), Activity::Unknown);
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let process = DaemonProcess(sleeper.id().cast_signed());
        let comes_to = |wanted| {
            (0..2000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                process.activity() == wanted
            })
        };
        assert!(comes_to(Activity::Sleeping));
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
        assert!(comes_to(Activity::Stopped));
        signal("KILL");
        assert!(comes_to(Activity::Ended), "a zombie");
        sleeper.wait().unwrap();
        assert_eq!(process.activity(), Activity::Ended, "gone");
    }
}
