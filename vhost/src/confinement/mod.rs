//! What `fairlead-vswitch` gives up before it hears of the first guest: its user, every capability, new privileges, core dumps, and the
//! system calls that it does not need.
//!
//! The order is the kernel's: limits are raised and the bounding set is emptied while there is the privilege to do so, then the user is
//! changed, and the filter comes last, since it forbids all of the former.
//!
//! Invariants: [`confine`] is called once, while the process has one thread, so that all later threads are confined too. Where a step
//! fails, the program does not start. Nothing that is given up ever comes back.

mod open_files;
mod privileges;
mod system_calls;
mod user;

pub(crate) use open_files::{FILES_OF_A_PORT, FILES_OF_ALL_PORTS};
pub use open_files::{OPEN_FILES, OpenFilesError};
pub use privileges::PrivilegeError;
pub use system_calls::{FilterError, SystemCallFilters};
pub use user::{BadUser, User};

use tracing::{info, warn};

/// The process can't be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// A limit can't be set.
    #[error("a limit of the process can't be set")]
    Limit(#[from] OpenFilesError),
    /// A privilege can't be given up.
    #[error("a privilege can't be given up")]
    Privilege(#[from] PrivilegeError),
    /// System calls can't be filtered.
    #[error("system calls can't be filtered; see that the kernel is built with CONFIG_SECCOMP_FILTER")]
    Filter(#[from] FilterError),
}

/// Confines the process, as `user` from now on, if one is given.
///
/// To be called while the process has one thread.
///
/// # Errors
/// When a step fails. Steps before it are not undone: the process is to end.
pub fn confine(user: Option<User>) -> Result<(), ConfinementError> {
    open_files::forbid_core_dumps()?;
    let open_files = open_files::raise()?;
    if open_files < OPEN_FILES {
        warn!(
            open_files,
            wanted = OPEN_FILES,
            "few files may be open, so there can be fewer ports; raise the hard limit (systemd: LimitNOFILE)"
        );
    }
    privileges::give_up(user)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    SystemCallFilters::new()?.apply_to_process()?;
    info!(uid, gid, open_files, "privileges are given up and system calls filtered");
    if uid == 0 {
        warn!("this process still owns what root owns; name another user (--user UID:GID)");
    }
    Ok(())
}
