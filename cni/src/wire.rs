//! The protocol between the executable and the daemon: one HTTP/1.1 POST with a JSON body over a unix socket.
//!
//! The configuration travels as the text that the runtime wrote, never re-serialised, so that delegates get the
//! same bytes. An executable and a daemon of different ages understand each other: unknown fields are ignored,
//! new ones have defaults, and a request of a later major wire version is refused with a sentence ([`WIRE`]).

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// The version of this format. Raised only for a change that an older daemon would get wrong.
pub const WIRE: u32 = 1;

/// The largest CNI configuration that is accepted, in bytes (SPECIFICATION.md, "Limits").
pub const MAX_CONFIG: usize = 1 << 20;

/// The largest request body that the daemon reads, in bytes: a configuration whose every byte is escaped, and the environment.
pub const MAX_BODY: usize = 8 << 20;

/// The response header that says what became of a request that was not answered with a result or an error:
/// `not-begun` means that nothing was done and the same request may be sent again.
pub const OUTCOME_HEADER: &str = "fairlead-outcome";

/// The value of [`OUTCOME_HEADER`] that says: the daemon is stopping and did not begin this request.
pub const NOT_BEGUN: &str = "not-begun";

/// The bytes that the executable sends on the same connection when the runtime has an ADD's answer. Without it, a closed connection means
/// that the answer may not have arrived, and the identical ADD is answered again.
pub const RECEIVED: &[u8] = b"\x06";

/// The file beside the daemon's socket in which the daemon that serves it has written its process id. Its lock is that daemon's.
pub const LOCK_FILE: &str = "lock";

/// The file beside the daemon's socket by which a daemon announces that it stops and comes back. Its time of modification counts.
pub const STOPPING_FILE: &str = "stopping";

/// For how long a daemon's announcement that it stops and comes back is believed.
const STOPPING_HOLDS: Duration = Duration::from_secs(10);

/// Whether what a daemon announced at a time by [`STOPPING_FILE`] is still believed. Until then STATUS is success without a daemon that
/// serves: an ADD would wait and be served, so a node whose daemon restarts is ready.
pub fn announced_stop_holds(announced: SystemTime, now: SystemTime) -> bool {
    now.duration_since(announced).is_ok_and(|age| age < STOPPING_HOLDS)
}

/// The commands that reach the daemon; VERSION is answered by the executable itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    /// Attaches a container to a network.
    Add,
    /// Removes an attachment.
    Del,
    /// Checks that an attachment is as ADD left it.
    Check,
    /// Removes every attachment of a network that is not listed.
    Gc,
    /// Says whether an ADD would be served.
    Status,
}

impl Command {
    /// All commands.
    pub const ALL: [Command; 5] = [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status];

    /// The path that the command is posted to.
    pub fn path(self) -> &'static str {
        match self {
            Command::Add => "/addNetwork",
            Command::Del => "/delNetwork",
            Command::Check => "/checkNetwork",
            Command::Gc => "/gcNetworks",
            Command::Status => "/status",
        }
    }

    /// The command's name in `CNI_COMMAND`.
    pub fn name(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
        }
    }
}

/// The head of the executable's POST of `command`, before a body of `length` bytes.
pub fn head(command: Command, length: usize) -> String {
    let (before, after) = head_around_length(command);
    format!("{before}{length}{after}")
}

/// The body of a call that the executable has sent, where `received` is just that: its own head and the whole body. `None` for
/// everything else, which may be HTTP still.
pub fn whole_call(received: &[u8]) -> Option<(Command, &[u8])> {
    let command = Command::ALL.into_iter().find(|command| {
        let path =
            received.strip_prefix(b"POST ").and_then(|rest| rest.strip_prefix(command.path().as_bytes()));
        path.is_some_and(|rest| rest.starts_with(b" "))
    })?;
    let (before, after) = head_around_length(command);
    let rest = received.strip_prefix(before.as_bytes())?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (length, rest) = rest.split_at_checked(digits)?;
    let body = rest.strip_prefix(after.as_bytes())?;
    let length: usize = str::from_utf8(length).ok()?.parse().ok()?;
    (length == body.len()).then_some((command, body))
}

fn head_around_length(command: Command) -> (String, &'static str) {
    let before = format!(
        "POST {} HTTP/1.1\r\nHost: fairlead\r\nContent-Type: application/json\r\nContent-Length: ",
        command.path()
    );
    (before, "\r\nConnection: close\r\n\r\n")
}

/// An inode, by which the daemon proves that it opens what the executable saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// The device that the inode is on, `st_dev`.
    pub dev: u64,
    /// The inode's number, `st_ino`.
    pub ino: u64,
}

/// One CNI call, as the executable sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The [`WIRE`] of the sender.
    pub wire: u32,
    /// The command of the call.
    pub command: Command,
    /// The variable `CNI_CONTAINERID`.
    #[serde(default)]
    pub container_id: String,
    /// The variable `CNI_NETNS`; empty when it is not set.
    #[serde(default)]
    pub netns: String,
    /// The inode behind `netns` as the executable sees it; `None` when it can't be opened.
    #[serde(default)]
    pub netns_inode: Option<Inode>,
    /// The inode of the executable's own network namespace, where it could not read its cookie.
    #[serde(default)]
    pub own_netns: Option<Inode>,
    /// The `SO_NETNS_COOKIE` of the executable's own network namespace (Linux 5.14).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_netns_cookie: Option<u64>,
    /// The variable `CNI_IFNAME`.
    #[serde(default)]
    pub ifname: String,
    /// The variable `CNI_ARGS`.
    #[serde(default)]
    pub args: String,
    /// The variable `CNI_PATH`.
    #[serde(default)]
    pub path: String,
    /// The caller's environment for plugins that are executed; only the variables that are valid UTF-8.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// The configuration as it was on standard input.
    pub config: String,
    /// The milliseconds for which the caller will still wait; 0 when that is not known.
    #[serde(default)]
    pub deadline_ms: u64,
    /// When the executable was started: the time of `CLOCK_MONOTONIC` in nanoseconds, which means nothing in another boot. With a GC,
    /// whose list is older than that, with a STATUS, whose caller has waited since then, and with all that is spooled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_ns: Option<u64>,
    /// Set on a request that was spooled while the daemon was down.
    #[serde(default)]
    pub spooled: Option<Spooled>,
}

/// What a spooled request has besides, so that it is understood after a restart or a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spooled {
    /// The text of `/proc/sys/kernel/random/boot_id` when the request was spooled.
    pub boot_id: String,
    /// When the executable was started, in seconds since the epoch. For daemons that do not know [`Request::issued_ns`].
    pub at: u64,
    /// The `SO_NETNS_COOKIE` of the namespace, where the executable could read it.
    #[serde(default)]
    pub cookie: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_whole_with_its_own_head_and_as_many_bytes_as_it_says() {
        for command in Command::ALL {
            for body in ["", "{}", "\r\n\r\n"] {
                let sent = head(command, body.len()) + body;
                assert_eq!(whole_call(sent.as_bytes()), Some((command, body.as_bytes())));
                for end in 0..sent.len() {
                    assert_eq!(whole_call(&sent.as_bytes()[..end]), None, "{sent} cut at {end}");
                }
                assert_eq!(whole_call((sent + "x").as_bytes()), None);
            }
        }
    }

    #[test]
    fn what_is_not_just_the_executable_s_own_head_is_no_whole_call() {
        let sent = head(Command::Add, 2) + "{}";
        for (part, other) in [
            ("POST", "GET"),
            ("addNetwork", "addNetwork2"),
            ("addNetwork", ""),
            ("Host: fairlead", "Host: f"),
            ("Length: 2", "Length: +2"),
            ("Length: 2", "Length: 99999999999999999999999"),
            ("Length: 2", "Length: "),
            ("Connection: close", "Transfer-Encoding: chunked\r\nConnection: close"),
        ] {
            assert_eq!(whole_call(sent.replacen(part, other, 1).as_bytes()), None, "{other}");
        }
    }
}
