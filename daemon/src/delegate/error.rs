//! Why a plugin did not do what it was called for: the text, the CNI code and the remedy of each reason. The plugin's own words are
//! repeated within a limit.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code, avoid_containerd_phrases};
use fairlead_host::exec::ExecError;
use fairlead_host::shortage;
use nix::errno::Errno;

use super::LONGEST_RESULT_OF_TENANT;

/// How much of a plugin's output an error repeats, in bytes.
pub(super) const SHOWN: usize = 2048;

/// The remedy for an error that the plugin itself answered.
const REFUSED: &str =
    "the plugin's own words say why: mend that, or correct the plugin's part of the network's configuration";

/// The remedy where the daemon itself may not start a plugin.
const NO_PRIVILEGE: &str = "to execute plugins the daemon needs CAP_SYS_ADMIN, and in a container CAP_SYS_CHROOT and CAP_SYS_PTRACE, by which it enters the host's mount namespace";

/// Whether what a plugin answered to a CHECK says that it has none: whereabouts' words, and those of the CNI library for a command that a
/// plugin does not know.
pub(crate) fn says_it_has_no_check(refusal: &CniError) -> bool {
    let told = refusal.to_string().to_ascii_lowercase();
    ["check method is not implemented", "check is not implemented", "unknown cni_command"]
        .iter()
        .any(|words| told.contains(words))
}

/// Why a plugin did not do what it was called for.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DelegateError {
    /// The `type` is a path, or is empty.
    #[error("{0}")]
    BadType(#[source] CniError),
    /// No directory of `CNI_PATH` has the plugin.
    #[error("plugin {plugin:?} is in no directory of CNI_PATH ({path:?})")]
    Absent {
        /// The plugin's `type`.
        plugin: String,
        /// The value of `CNI_PATH` in which it was looked for.
        path: String,
    },
    /// The plugin's file is there and no program.
    #[error("plugin {plugin:?}: {} is not executable", .program.display())]
    NotExecutable {
        /// The plugin's `type`.
        plugin: String,
        /// The path of its file.
        program: PathBuf,
    },
    /// No empty directory can be made for the plugin of a tenant's definition.
    #[error("plugin {plugin:?}: no directory to work in can be made in {}: {source}", .parent.display())]
    NoDirectory {
        /// The plugin's `type`.
        plugin: String,
        /// Where it is made.
        parent: PathBuf,
        /// Why it cannot be made.
        #[source]
        source: Arc<io::Error>,
    },
    /// The plugin could not be started, or did not end by itself.
    #[error("plugin {plugin:?}, {command}: {why}", command = command.name(), why = why(source))]
    Exec {
        /// The plugin's `type`.
        plugin: String,
        /// The command that it was called with.
        command: Command,
        /// Why the program did not run to its end.
        #[source]
        source: ExecError,
    },
    /// The plugin answered with an error.
    #[error("plugin {plugin:?}, {command}, failed with exit status {status}: {told}{stderr}", command = command.name())]
    Refused {
        /// The plugin's `type`.
        plugin: String,
        /// The command that it was called with.
        command: Command,
        /// The exit status of the plugin.
        status: i32,
        /// The code of its CNI error, where it printed one.
        code: Option<Code>,
        /// The message and details of its CNI error, or the beginning of what it printed instead.
        told: String,
        /// The end of its standard error, introduced for a message; empty when there is none.
        stderr: String,
    },
    /// The plugin ended with success, and what it printed is no result.
    #[error("plugin {plugin:?}, {command}: its answer is no CNI result ({why}): {told}{stderr}", command = command.name())]
    Garbage {
        /// The plugin's `type`.
        plugin: String,
        /// The command that it was called with.
        command: Command,
        /// What is wrong with its answer.
        why: String,
        /// The beginning of what it printed.
        told: String,
        /// The end of its standard error, introduced for a message; empty when there is none.
        stderr: String,
    },
    /// The plugin of a tenant's definition ended with success, and its result is longer than one may be.
    #[error(
        "plugin {plugin:?}, ADD: its result has {bytes} bytes, more than the {LONGEST_RESULT_OF_TENANT} that one of a definition may have"
    )]
    TooLong {
        /// The plugin's `type`.
        plugin: String,
        /// The length of what it printed, in bytes.
        bytes: usize,
    },
    /// The IPAM type is our own executable, which is no IPAM plugin.
    #[error("IPAM plugin {plugin:?} is Fairlead's own executable, which is none")]
    OursAsIpam {
        /// The plugin's `type`.
        plugin: String,
    },
}

impl DelegateError {
    /// Whether the plugin was never executed: it has made nothing that a DEL would have to undo.
    pub fn never_ran(&self) -> bool {
        match self {
            DelegateError::BadType(_)
            | DelegateError::Absent { .. }
            | DelegateError::NotExecutable { .. }
            | DelegateError::NoDirectory { .. }
            | DelegateError::OursAsIpam { .. } => true,
            DelegateError::Exec { source, .. } => source.never_ran(),
            DelegateError::Refused { .. } | DelegateError::Garbage { .. } | DelegateError::TooLong { .. } => {
                false
            }
        }
    }

    /// The error for the CNI caller. The plugin's own code is passed on. Code 999 is for what the daemon itself cannot do.
    pub fn to_cni_error(&self, command: Command) -> CniError {
        let told = |code, remedy: &'static str| (code, Cow::Borrowed(remedy));
        let (code, remedy) = match self {
            DelegateError::BadType(error) => told(error.code, ""),
            DelegateError::Absent { .. } => {
                told(Code::InvalidConfig, "install the plugin in a directory of CNI_PATH, or correct `type`")
            }
            DelegateError::NotExecutable { .. } => {
                told(Code::InvalidConfig, "make it executable (chmod +x), or correct `type`")
            }
            DelegateError::NoDirectory { .. } => told(
                Code::TryAgain,
                "make room on the run directory's file system, and the directory writable",
            ),
            DelegateError::Exec { source, .. } => code_and_remedy(source),
            DelegateError::Refused { code: Some(Code::Internal) | None, .. } => {
                told(Code::PluginFailed, REFUSED)
            }
            DelegateError::Refused { code: Some(code), .. } => told(*code, REFUSED),
            DelegateError::Garbage { .. } => told(
                Code::PluginFailed,
                "the plugin does not follow the CNI specification: its ADD must print a result, and nothing else, on standard output",
            ),
            DelegateError::TooLong { .. } => told(
                Code::PluginFailed,
                "have the definition ask for fewer addresses and routes: the result is in the node's memory while the pod lives",
            ),
            DelegateError::OursAsIpam { .. } => {
                told(Code::InvalidConfig, "put the original back with `fairleadd uninstall`")
            }
        };
        let text = self.to_string();
        CniError::new(code, if command == Command::Del { avoid_containerd_phrases(&text) } else { text })
            .with(remedy)
    }
}

/// The code for a plugin that did not run to its end, and what a person can do.
fn code_and_remedy(error: &ExecError) -> (Code, Cow<'static, str>) {
    let told = |code, remedy: &'static str| (code, Cow::Borrowed(remedy));
    match error {
        ExecError::TimedOut { .. } | ExecError::Cancelled { .. } => {
            told(Code::TryAgain, "its process group was killed")
        }
        _ if error.is_for_want_of_privilege() => told(Code::Internal, NO_PRIVILEGE),
        ExecError::Signalled { .. } => told(
            Code::PluginFailed,
            "the plugin crashed, or was killed; the kernel's log (dmesg) says whether it was for want of memory",
        ),
        ExecError::TooMuchOutput { .. } => {
            told(Code::PluginFailed, "the plugin must print its result, and nothing else, on standard output")
        }
        ExecError::Missing { .. } => told(
            Code::PluginFailed,
            "install the interpreter that the script's first line names, or the loader that the program was linked for",
        ),
        ExecError::NotExecutable { .. } | ExecError::NotStarted { errno: Errno::ELIBBAD, .. } => told(
            Code::PluginFailed,
            "is it a program for this machine, or a script that begins with #!, on a file system that is not mounted noexec?",
        ),
        ExecError::NotStarted { errno: Errno::ETXTBSY, .. } => {
            told(Code::TryAgain, "its file is being written: install a plugin by renaming it into its place")
        }
        ExecError::HostMounts { errno, .. }
        | ExecError::NotStarted { errno, .. }
        | ExecError::Directory { errno, .. }
        | ExecError::Failed { errno, .. } => match shortage::remedy(*errno) {
            Some(remedy) => (Code::TryAgain, Cow::Owned(remedy)),
            None => told(Code::Internal, "the daemon could not start it; its log and the kernel's say more"),
        },
    }
}

/// The reason why a program did not end by itself, with the end of its standard error.
pub(super) fn why(error: &ExecError) -> String {
    match error {
        ExecError::TimedOut { limit, stderr, .. } => {
            format!("killed after its time limit of {limit:?}{}", last_bytes(stderr))
        }
        ExecError::Cancelled { stderr, .. } => {
            format!("killed because the call was cancelled{}", last_bytes(stderr))
        }
        ExecError::Signalled { signal, stderr, .. } => {
            format!("killed by signal {signal}{}", last_bytes(stderr))
        }
        other => other.to_string(),
    }
}

/// The beginning of an output, quoted for an error.
pub(super) fn first_bytes(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().find(|(at, _)| *at >= SHOWN) {
        _ if text.is_empty() => "it printed nothing".to_owned(),
        Some((at, _)) => format!("{:?}…", text.get(..at).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// The end of standard error, for an error.
pub(super) fn last_bytes(stderr: &[u8]) -> String {
    let from = stderr.len().saturating_sub(SHOWN);
    let text = String::from_utf8_lossy(stderr.get(from..).unwrap_or_default());
    match text.trim() {
        "" => String::new(),
        text => format!("; its standard error: {}{text}", if from > 0 { "…" } else { "" }),
    }
}
