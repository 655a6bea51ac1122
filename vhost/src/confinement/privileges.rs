//! Users, capabilities (capabilities(7)) and the process's flags.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::user::User;

/// A privilege can't be given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// The bounding set can't be emptied.
    #[error("capability {number} can't be taken out of the bounding set")]
    BoundingSet {
        /// The capability's number (`linux/capability.h`).
        number: u32,
        /// What the kernel says.
        #[source]
        source: Errno,
    },
    /// The user can't be changed.
    #[error(
        "the process can't become user {user}; start it as root with CAP_SETUID and CAP_SETGID, or leave --user out"
    )]
    User {
        /// The user and group.
        user: User,
        /// What the kernel says.
        #[source]
        source: nix::Error,
    },
    /// Capabilities can't be cleared.
    #[error("the process can't drop its capabilities")]
    Capabilities(#[source] Errno),
    /// Some are left.
    #[error("the kernel left the process capabilities {0:#x}")]
    Left(u64),
    /// A flag of the process can't be set.
    #[error("prctl({flag}) failed")]
    Flag {
        /// Its name.
        flag: &'static str,
        /// What the kernel says.
        #[source]
        source: Errno,
    },
}

/// Gives up everything; the process is `user` then, if one is given.
pub(super) fn give_up(user: Option<User>) -> Result<(), PrivilegeError> {
    empty_bounding_set()?;
    clear_ambient_capability_set().map_err(PrivilegeError::Capabilities)?;
    if let Some(user) = user {
        become_user(user).map_err(|source| PrivilegeError::User { user, source })?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(PrivilegeError::Capabilities)?;
    let flag = |flag| move |source| PrivilegeError::Flag { flag, source };
    set_no_new_privs(true).map_err(flag("PR_SET_NO_NEW_PRIVS"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(flag("PR_SET_DUMPABLE"))?;
    let left = capabilities(None).map_err(PrivilegeError::Capabilities)?;
    match (left.effective | left.permitted | left.inheritable).bits() {
        0 => Ok(()),
        left => Err(PrivilegeError::Left(left)),
    }
}

/// Without CAP_SETPCAP the set stays; nothing comes of it, since there are no new privileges.
fn empty_bounding_set() -> Result<(), PrivilegeError> {
    let own = capabilities(None).map_err(PrivilegeError::Capabilities)?;
    if !own.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The kernel has no capability of this number, nor a higher one.
            Err(Errno::INVAL) if number > 0 => break,
            Err(source) => return Err(PrivilegeError::BoundingSet { number, source }),
        }
    }
    Ok(())
}

fn become_user(user: User) -> Result<(), nix::Error> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}
