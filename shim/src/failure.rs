//! The one table from what can go wrong to CNI error codes and remedies.

use std::path::Path;

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};

use crate::conduct::Unserved;
use crate::config::BadConfig;
use crate::connection::Unreached;
use crate::invocation::BadCall;
use crate::spool::Unspooled;

/// Words that a runtime takes, in a DEL's error, for a success.
const TAKEN_FOR_SUCCESS: [&str; 2] = ["not found", "no such file or directory"];

impl From<BadCall> for CniError {
    fn from(bad: BadCall) -> CniError {
        let remedy = match &bad {
            BadCall::Grammar(error) => return error.clone(),
            BadCall::NoCommand => "this is a CNI plugin, which a container runtime calls".to_owned(),
            BadCall::UnknownCommand(_) => "known are ADD, DEL, CHECK, GC, STATUS and VERSION".to_owned(),
            BadCall::Missing(_) | BadCall::NotText(_) => "the container runtime must set it".to_owned(),
            BadCall::Timeout(_) => "set it to seconds, as in 30 or 0.5, or leave it out".to_owned(),
            BadCall::SocketPath(_) => "give a shorter path, to fairleadd (--run-dir) too".to_owned(),
            BadCall::Ipam { path, .. } => format!(
                "put the plugin's own file back at {path} (\"fairleadd uninstall\" does, where \"install\" put Fairlead there); networks of Fairlead's own types need no IPAM executable"
            ),
        };
        let code =
            if matches!(bad, BadCall::Ipam { .. }) { Code::InvalidConfig } else { Code::BadEnvironment };
        CniError::new(code, bad.to_string()).with(remedy)
    }
}

impl From<BadConfig> for CniError {
    fn from(bad: BadConfig) -> CniError {
        let (code, remedy) = match &bad {
            BadConfig::Name(error) => return error.clone(),
            BadConfig::Unreadable(_) => (Code::Io, "the runtime must give it by a pipe or a file"),
            BadConfig::Empty => (Code::Decode, "the runtime must write it and close standard input"),
            BadConfig::Endless(_) => (Code::Decode, "the runtime must close standard input after it"),
            BadConfig::NotText(_) | BadConfig::NotJson(_) => {
                (Code::Decode, "correct the network's configuration file")
            }
            BadConfig::TooLarge => (Code::InvalidConfig, "make the network's configuration smaller"),
            BadConfig::Version(_) | BadConfig::TooOld { .. } => (
                Code::IncompatibleVersion,
                "known are 0.1.0 to 1.1.0; correct cniVersion in the network's configuration",
            ),
        };
        CniError::new(code, bad.to_string()).with(remedy)
    }
}

/// The error of a call that was not served; not for [`Unserved::Told`], which is passed on as it is.
pub(crate) fn unserved(unserved: Unserved, command: Command, socket: &Path) -> CniError {
    let error = match unserved {
        Unserved::Config(bad) => return bad.into(),
        Unserved::Spool(unspooled) => spool_error(&unspooled, command),
        other => {
            let msg = format!("{} was not served at {}: {other}", command.name(), socket.display());
            CniError::new(code(&other, command), msg).with(remedy(&other, command))
        }
    };
    if command == Command::Del { without_success(error) } else { error }
}

fn code(unserved: &Unserved, command: Command) -> Code {
    match unserved {
        Unserved::Garbled(_) | Unserved::NoBody(_) => Code::Internal,
        _ if command == Command::Status => Code::NotAvailable,
        Unserved::Unreached(Unreached::Refused(_)) => Code::Io,
        _ => Code::TryAgain,
    }
}

fn remedy(unserved: &Unserved, command: Command) -> &'static str {
    match unserved {
        Unserved::Unreached(Unreached::Down(_)) => {
            "start the daemon (systemctl start fairleadd), then try again"
        }
        Unserved::Unreached(Unreached::Busy) => "try again later",
        Unserved::Unreached(Unreached::Refused(_)) => {
            "the executable must run as root, and FAIRLEAD_SOCKET, where it is set, must name fairleadd's socket"
        }
        Unserved::Standstill(standstill) => standstill.remedy(),
        Unserved::Stopping | Unserved::Unread => "try again once the daemon has come back",
        Unserved::Lost | Unserved::Late if command == Command::Add => {
            "the daemon undoes an ADD whose caller is gone; see its log, make a DEL, then try again"
        }
        Unserved::Lost | Unserved::Late => "see the daemon's log and \"fairleadd status\", then try again",
        _ => "see that fairlead and fairleadd are of the same release (\"fairleadd doctor\")",
    }
}

fn spool_error(unspooled: &Unspooled, command: Command) -> CniError {
    let remedy = match unspooled {
        Unspooled::Full { .. } => "start the daemon (systemctl start fairleadd), which empties it",
        Unspooled::Locked(_) => "try again: the daemon is replaying it",
        Unspooled::Unwritable { .. } | Unspooled::Request(_) => {
            "start the daemon (systemctl start fairleadd) or make the directory writable; the call must be made again"
        }
    };
    let msg =
        format!("{} was neither served nor spooled: no daemon is running, and {unspooled}", command.name());
    CniError::new(Code::TryAgain, msg).with(remedy)
}

/// Takes the words out that would make a runtime forget a container whose DEL failed (they can only have come in
/// by a path or a name).
fn without_success(mut error: CniError) -> CniError {
    for words in TAKEN_FOR_SUCCESS {
        let parts: Vec<&str> = words.split(' ').collect();
        error.msg = error.msg.replace(words, &parts.join("_"));
        error.details = error.details.replace(words, &parts.join("_"));
    }
    error
}
