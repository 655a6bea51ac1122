//! The one table from what can go wrong here to CNI error codes and remedies.

use std::path::Path;

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};

use crate::call_error::CallError;
use crate::connection::ConnectError;
use crate::environment::EnvironmentError;
use crate::spool_writer::SpoolError;
use crate::stdin_config::ConfigError;

impl From<EnvironmentError> for CniError {
    fn from(bad: EnvironmentError) -> CniError {
        let remedy = match &bad {
            EnvironmentError::Grammar(error) => return error.clone(),
            EnvironmentError::NoCommand => "this is a CNI plugin, which a container runtime calls".to_owned(),
            EnvironmentError::UnknownCommand(_) => {
                "known are ADD, DEL, CHECK, GC, STATUS and VERSION".to_owned()
            }
            EnvironmentError::Missing(_) | EnvironmentError::NotText(_) => {
                "the container runtime must set it".to_owned()
            }
            EnvironmentError::Timeout(_) => "set it to seconds, as in 30 or 0.5, or leave it out".to_owned(),
            EnvironmentError::SocketPath(_) => "give a shorter path, to fairleadd (--run-dir) too".to_owned(),
            EnvironmentError::Ipam { path, .. } => format!(
                "put the plugin's own file back at {path} (\"fairleadd uninstall\" does, where \"install\" put Fairlead there); networks of Fairlead's own types need no IPAM executable"
            ),
        };
        let code = if matches!(bad, EnvironmentError::Ipam { .. }) {
            Code::InvalidConfig
        } else {
            Code::BadEnvironment
        };
        CniError::new(code, bad.to_string()).with(remedy)
    }
}

impl From<ConfigError> for CniError {
    fn from(bad: ConfigError) -> CniError {
        let (code, remedy) = match &bad {
            ConfigError::TooOld(error) | ConfigError::Name(error) => return error.clone(),
            ConfigError::Unreadable(_) => (Code::Io, "the runtime must give it by a pipe or a file"),
            ConfigError::Empty => (Code::Decode, "the runtime must write it and close standard input"),
            ConfigError::Endless(_) => (Code::Decode, "the runtime must close standard input after it"),
            ConfigError::NotText(_) | ConfigError::NotJson(_) => {
                (Code::Decode, "correct the network's configuration file")
            }
            ConfigError::TooLarge => (Code::InvalidConfig, "make the network's configuration smaller"),
            ConfigError::Version(_) => (
                Code::IncompatibleVersion,
                "known are 0.1.0 to 1.1.0; correct cniVersion in the network's configuration",
            ),
        };
        CniError::new(code, bad.to_string()).with(remedy)
    }
}

/// The CNI error of a call that the daemon did not serve. [`CallError::Answered`] is not for this: it is passed on as it is.
pub(crate) fn of_call(error: CallError, command: Command, socket: &Path) -> CniError {
    let error = match error {
        CallError::Config(error) => error.into(),
        CallError::Spool(error) => spool_error(&error, command),
        other => {
            let msg = format!("{} was not served at {}: {other}", command.name(), socket.display());
            CniError::new(code(&other, command), msg).with(remedy(&other, command))
        }
    };
    answer_to(command, error)
}

/// An error as the answer to this command.
pub(crate) fn answer_to(command: Command, error: CniError) -> CniError {
    if command == Command::Del { error.of_del() } else { error }
}

fn code(error: &CallError, command: Command) -> Code {
    match error {
        CallError::Malformed(_) | CallError::NoBody(_) => Code::Internal,
        _ if command == Command::Status => Code::NotAvailable,
        CallError::NoConnection(ConnectError::Refused(_)) => Code::Io,
        _ => Code::TryAgain,
    }
}

fn remedy(error: &CallError, command: Command) -> &'static str {
    match error {
        CallError::NoConnection(ConnectError::Down(_)) => {
            "start the daemon (systemctl start fairleadd), or restart it where it runs and its socket is gone, then try again"
        }
        CallError::NoConnection(ConnectError::Busy) => "try again later",
        CallError::NoConnection(ConnectError::Refused(_)) => {
            "the executable must run as root, and FAIRLEAD_SOCKET, where it is set, must name fairleadd's socket"
        }
        CallError::Hung(daemon) => daemon.remedy(),
        CallError::Stopping | CallError::NotRead => "try again once the daemon has come back",
        CallError::Lost | CallError::Late if command == Command::Add => {
            "the daemon undoes an ADD whose caller is gone; see its log, make a DEL, then try again"
        }
        CallError::Lost | CallError::Late => "see the daemon's log and \"fairleadd status\", then try again",
        _ => "see that fairlead and fairleadd are of the same release (\"fairleadd doctor\")",
    }
}

fn spool_error(error: &SpoolError, command: Command) -> CniError {
    let remedy = match error {
        SpoolError::Full { .. } => "start the daemon (systemctl start fairleadd), which empties it",
        SpoolError::Locked(_) => "try again: the daemon is replaying it",
        SpoolError::Unwritable { .. } | SpoolError::Request(_) => {
            "start the daemon (systemctl start fairleadd) or make the directory writable; the call must be made again"
        }
    };
    let msg = format!("{} was neither served nor spooled: no daemon is running, and {error}", command.name());
    CniError::new(Code::TryAgain, msg).with(remedy)
}
