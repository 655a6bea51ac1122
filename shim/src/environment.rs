//! The call as the environment variables describe it (CNI SPEC.md, "Parameters"). Everything in it is checked here, before the
//! daemon is contacted.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::wire::{Command, Request, WIRE};
use fairlead_cni::{CniError, names};

/// The time limit of ADD, CHECK, DEL and GC.
pub(crate) const WORK_LIMIT: Duration = Duration::from_secs(30);

/// The time limit of STATUS and VERSION, for which runtimes wait without a limit of their own. STATUS takes so long only while
/// a daemon is seen at work that has not answered within [`STATUS_PATIENCE`].
pub(crate) const STATUS_LIMIT: Duration = Duration::from_secs(1);

/// How long STATUS waits for a daemon that is not seen at work: with the rest of the call, STATUS is answered within
/// 100 ms whatever is broken.
pub(crate) const STATUS_PATIENCE: Duration = Duration::from_millis(95);

/// The first part of [`STATUS_PATIENCE`], in which the daemon's process is not observed.
pub(crate) const STATUS_UNOBSERVED: Duration = Duration::from_millis(60);

/// How often the daemon's process is observed after that.
pub(crate) const STATUS_OBSERVE_EVERY: Duration = Duration::from_millis(8);

/// Longest path of a unix socket, in bytes (unix(7), `sun_path` less its terminator).
const MAX_SOCKET_PATH: usize = 107;

const DEFAULT_SOCKET: &str = "/run/fairlead/fairlead.sock";
const DEFAULT_STATE_DIR: &str = "/var/lib/fairlead";

/// Names of IPAM plugins, under which a plugin is called by another plugin and not by a runtime.
const IPAM_PLUGINS: [&str; 4] = ["host-local", "static", "dhcp", "whereabouts"];

/// Why a call can't be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvironmentError {
    /// There is no command.
    #[error("required env variables [CNI_COMMAND] missing")]
    NoCommand,
    /// A command that the specification does not have.
    #[error("unknown CNI_COMMAND: {0:?}")]
    UnknownCommand(String),
    /// Variables that the command needs are not set.
    #[error("required env variables [{0}] missing")]
    Missing(String),
    /// A variable is not UTF-8.
    #[error("the environment variable {0} is not UTF-8")]
    NotText(&'static str),
    /// A variable is outside the specification's grammar.
    #[error("{0}")]
    Grammar(CniError),
    /// The time limit is no number of seconds that can be used.
    #[error("FAIRLEAD_TIMEOUT is {0:?}, which is no number of seconds between 0.001 and 86400")]
    Timeout(String),
    /// The socket's path is too long.
    #[error("FAIRLEAD_SOCKET is a path of {0} bytes, and a unix socket's path has at most {MAX_SOCKET_PATH}")]
    SocketPath(usize),
    /// The program was called under the name of an IPAM plugin.
    #[error(
        "Fairlead was called under the name of the IPAM plugin {name}, and it serves IPAM inside its daemon only"
    )]
    Ipam {
        /// The name of the IPAM plugin.
        name: String,
        /// The path under which the program was called.
        path: String,
    },
}

/// What the runtime wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// The versions of the specification that are supported: answered without the daemon.
    Version,
    /// A command for the daemon.
    Daemon(Command),
}

/// A call whose variables have been checked. Its configuration is read later.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The request, still without configuration, namespaces and deadline.
    pub(crate) request: Request,
    /// The path of the daemon's socket.
    pub(crate) socket: PathBuf,
    /// The directory with the spool.
    pub(crate) state_dir: PathBuf,
}

/// Returns what the runtime wants, and within which time.
pub(crate) fn operation() -> Result<(Operation, Duration), EnvironmentError> {
    let command = text("CNI_COMMAND")?;
    let operation = match command.as_str() {
        "ADD" => Operation::Daemon(Command::Add),
        "DEL" => Operation::Daemon(Command::Del),
        "CHECK" => Operation::Daemon(Command::Check),
        "GC" => Operation::Daemon(Command::Gc),
        "STATUS" => Operation::Daemon(Command::Status),
        "VERSION" => Operation::Version,
        "" => return Err(EnvironmentError::NoCommand),
        _ => return Err(EnvironmentError::UnknownCommand(command)),
    };
    let wanted = time_limit()?;
    let limit = match operation {
        Operation::Version | Operation::Daemon(Command::Status) => {
            // The runtime has no limit of its own for these: a longer one would hold it up.
            wanted.unwrap_or(STATUS_LIMIT).min(STATUS_LIMIT)
        }
        Operation::Daemon(_) => wanted.unwrap_or(WORK_LIMIT),
    };
    Ok((operation, limit))
}

impl Invocation {
    /// Reads and checks the environment of a command for the daemon.
    pub(crate) fn read(command: Command, program: &[u8]) -> Result<Invocation, EnvironmentError> {
        refuse_ipam_name(program)?;
        let request = Request {
            wire: WIRE,
            command,
            container_id: text("CNI_CONTAINERID")?,
            netns: text("CNI_NETNS")?,
            netns_inode: None,
            own_netns: None,
            own_netns_cookie: None,
            ifname: text("CNI_IFNAME")?,
            args: text("CNI_ARGS")?,
            path: text("CNI_PATH")?,
            env: whole_environment(),
            config: String::new(),
            deadline_ms: 0,
            issued_ns: None,
            spooled: None,
        };
        check(&request)?;
        let socket = path("FAIRLEAD_SOCKET", DEFAULT_SOCKET);
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(EnvironmentError::SocketPath(socket.as_os_str().len()));
        }
        Ok(Invocation { request, socket, state_dir: path("FAIRLEAD_STATE_DIR", DEFAULT_STATE_DIR) })
    }
}

/// Checks what the specification demands of the command's variables. `CNI_PATH` may be missing, as the specification
/// (not the reference plugins) has it.
fn check(request: &Request) -> Result<(), EnvironmentError> {
    let (container, netns) = match request.command {
        Command::Add | Command::Check => (true, true),
        Command::Del => (true, false),
        Command::Gc | Command::Status => (false, false),
    };
    let missing: Vec<&str> = [
        ("CNI_CONTAINERID", container && request.container_id.is_empty()),
        ("CNI_NETNS", netns && request.netns.is_empty()),
        ("CNI_IFNAME", container && request.ifname.is_empty()),
    ]
    .into_iter()
    .filter_map(|(name, missing)| missing.then_some(name))
    .collect();
    if !missing.is_empty() {
        return Err(EnvironmentError::Missing(missing.join(",")));
    }
    if container {
        names::container_id(&request.container_id).map_err(EnvironmentError::Grammar)?;
        names::ifname(&request.ifname).map_err(EnvironmentError::Grammar)?;
    }
    Ok(())
}

fn refuse_ipam_name(program: &[u8]) -> Result<(), EnvironmentError> {
    let path = Path::new(OsStr::from_bytes(program));
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if IPAM_PLUGINS.contains(&name) {
        return Err(EnvironmentError::Ipam {
            name: name.to_owned(),
            path: path.to_string_lossy().into_owned(),
        });
    }
    Ok(())
}

fn text(name: &'static str) -> Result<String, EnvironmentError> {
    env::var_os(name).unwrap_or_default().into_string().map_err(|_| EnvironmentError::NotText(name))
}

fn path(name: &str, default: &str) -> PathBuf {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    PathBuf::from(value.unwrap_or_else(|| OsString::from(default)))
}

fn whole_environment() -> Vec<(String, String)> {
    // JSON cannot carry a variable that is not UTF-8.
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn time_limit() -> Result<Option<Duration>, EnvironmentError> {
    let value = text("FAIRLEAD_TIMEOUT")?;
    if value.is_empty() {
        return Ok(None);
    }
    match seconds(&value) {
        Some(limit) => Ok(Some(limit)),
        None => Err(EnvironmentError::Timeout(value)),
    }
}

/// Reads decimal seconds, down to the millisecond.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| (1..=5).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let millis: u64 = format!("{fraction:0<3.3}").parse().ok()?;
    let limit = Duration::from_secs(whole.parse().ok()?) + Duration::from_millis(millis);
    (!limit.is_zero() && limit <= Duration::from_secs(86_400)).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_to_the_millisecond() {
        for (given, millis) in
            [("30", 30_000), ("0.25", 250), ("1.5", 1_500), ("0.0019", 1), ("86400", 86_400_000)]
        {
            assert_eq!(seconds(given), Some(Duration::from_millis(millis)), "{given}");
        }
        for given in ["", "0", "-1", "1s", ".5", "1.", "1e3", "86401", "0.0001", "999999999999", "1.2.3", "٣"]
        {
            assert_eq!(seconds(given), None, "{given}");
        }
    }
}
