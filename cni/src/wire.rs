//! What the executable and the daemon say to each other: one HTTP/1.1 POST with a JSON body over a unix socket.
//!
//! The configuration travels as the text that the runtime wrote, never re-serialised, so that delegates get the
//! same bytes. An executable and a daemon of different ages understand each other: unknown fields are ignored,
//! new ones have defaults, and a request of a later major wire version is refused with a sentence ([`WIRE`]).

use serde::{Deserialize, Serialize};

/// Version of this format. Raised only for a change that an older daemon would get wrong.
pub const WIRE: u32 = 1;

/// Largest CNI configuration that is taken, in bytes (SPECIFICATION.md, "Limits").
pub const MAX_CONFIG: usize = 1 << 20;

/// Largest request body that the daemon reads: a configuration whose every byte is escaped, and the environment.
pub const MAX_BODY: usize = 8 << 20;

/// Response header that says what became of a request that was not answered with a result or an error:
/// `not-begun` means that nothing was done and the same request may be sent again.
pub const OUTCOME_HEADER: &str = "fairlead-outcome";

/// Value of [`OUTCOME_HEADER`]: the daemon is stopping and did not begin this request.
pub const NOT_BEGUN: &str = "not-begun";

/// Sent by the executable on the same connection when the runtime has an ADD's answer. Without it, a closed connection means
/// that the answer may not have arrived, and the identical ADD is answered again.
pub const RECEIVED: &[u8] = b"\x06";

/// The file beside the daemon's socket in which the daemon that serves it has written its process id. Its lock is that daemon's.
pub const LOCK_FILE: &str = "lock";

/// The file beside the daemon's socket by which a daemon announces that it stops and comes back. Its time of modification counts.
pub const STOPPING_FILE: &str = "stopping";

/// The commands that reach the daemon; VERSION is answered by the executable itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    /// `ADD`
    Add,
    /// `DEL`
    Del,
    /// `CHECK`
    Check,
    /// `GC`
    Gc,
    /// `STATUS`
    Status,
}

impl Command {
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

    /// Its name in `CNI_COMMAND`.
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

/// An inode, by which the daemon proves that it opens what the executable saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// `st_dev`
    pub dev: u64,
    /// `st_ino`
    pub ino: u64,
}

/// One CNI call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`WIRE`] of the sender.
    pub wire: u32,
    /// What is asked.
    pub command: Command,
    /// `CNI_CONTAINERID`
    #[serde(default)]
    pub container_id: String,
    /// `CNI_NETNS` as given; empty when there was none.
    #[serde(default)]
    pub netns: String,
    /// The inode behind `netns` as the executable sees it; `None` when it could not be opened.
    #[serde(default)]
    pub netns_inode: Option<Inode>,
    /// The executable's own network namespace.
    #[serde(default)]
    pub own_netns: Option<Inode>,
    /// `CNI_IFNAME`
    #[serde(default)]
    pub ifname: String,
    /// `CNI_ARGS`
    #[serde(default)]
    pub args: String,
    /// `CNI_PATH`
    #[serde(default)]
    pub path: String,
    /// The caller's whole environment, for plugins that are executed. Only what is valid UTF-8.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// The configuration as it stood on stdin.
    pub config: String,
    /// Milliseconds that the caller will go on waiting; 0 = not told.
    #[serde(default)]
    pub deadline_ms: u64,
    /// Set on a request that was spooled while the daemon was down.
    #[serde(default)]
    pub spooled: Option<Spooled>,
}

/// What a spooled request adds, to be known again after a restart or a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spooled {
    /// `/proc/sys/kernel/random/boot_id` at that time.
    pub boot_id: String,
    /// Seconds since the epoch, for a person; nothing is decided by it.
    pub at: u64,
    /// `SO_NETNS_COOKIE` of the namespace, where the executable could learn it.
    #[serde(default)]
    pub cookie: Option<u64>,
}
