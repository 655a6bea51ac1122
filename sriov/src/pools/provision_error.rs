//! Why a member could not be made what its pool wants, and whose fault that is: a fault of its own counts towards its quarantine,
//! one of its PF or of the machine has it tried again.

use std::io;

use fairlead_host::NetError;
use nix::errno::Errno;

use crate::{InventoryError, SettingError};

/// Why a member is not what its pool wants.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProvisionError {
    /// Somebody else uses it.
    #[error("{0}")]
    Taken(String),
    /// The machine does not have it any more.
    #[error("{0}")]
    Gone(InventoryError),
    /// It is not as it was left, and can be made so again.
    #[error("{0}")]
    Changed(String),
    /// It may be what it should be: its PF was not there to be asked, or not itself, or does not answer the VF's driver, or the module that
    /// makes its RDMA device is away.
    #[error("{0}")]
    Physical(String),
    /// Sysfs could not be read.
    #[error(transparent)]
    Unread(InventoryError),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] NetError),
    /// Its settings could not be read or written.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Its record could not be written.
    #[error("its record cannot be written: {0}")]
    Record(#[source] io::Error),
    /// It is not what it should be.
    #[error("{0}")]
    Unfit(String),
}

impl From<InventoryError> for ProvisionError {
    fn from(error: InventoryError) -> ProvisionError {
        match error {
            InventoryError::Io { .. } | InventoryError::Astray(_) => ProvisionError::Unread(error),
            _ => ProvisionError::Gone(error),
        }
    }
}

impl ProvisionError {
    /// Whether it says nothing against the VF itself: that may be as good as any when what is in the way is gone.
    pub(super) fn is_of_others(&self) -> bool {
        match self {
            ProvisionError::Physical(_) | ProvisionError::Unread(_) | ProvisionError::Record(_) => true,
            ProvisionError::Setting(error) => error.is_of_physical(),
            // Another interface has its name, and gives it up in time: one of a VF that was made while a pod had its predecessor
            // is renamed when that pod is gone.
            ProvisionError::Kernel(NetError::Op(refused)) => refused.errno == Errno::EEXIST,
            _ => false,
        }
    }

    /// Whether a device has not ended what it was asked: the others of its card are not to be waited for too.
    pub(super) fn is_a_hang(&self) -> bool {
        matches!(self, ProvisionError::Kernel(error) if error.timed_out())
    }
}

/// The error of unbinding or resetting a VF: busy means that a process holds it.
pub(super) fn in_use(error: NetError) -> ProvisionError {
    match error.errno() == Some(Errno::EBUSY) {
        true => ProvisionError::Taken(format!("a process uses it: {error}")),
        false => ProvisionError::Kernel(error),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_host::double::FakeKernel;
    use fairlead_host::{NetKernel, Op, SetLink};

    use super::*;

    #[test]
    fn x17_a_name_that_another_interface_has_is_no_fault_of_the_vf() {
        let kernel = FakeKernel::new();
        kernel.add_host_link("eth3");
        let index = kernel.add_host_link("eth4");
        let mut host = kernel.host().unwrap();
        let named =
            |name: &str| Op::SetLink(SetLink { index, name: Some(name.to_owned()), ..SetLink::default() });
        let taken = ProvisionError::from(host.batch(&[named("eth3")]).unwrap_err());
        assert!(taken.is_of_others(), "{taken}");
        kernel.fail_from(0, Errno::EIO);
        let refused = ProvisionError::from(host.batch(&[named("eth5")]).unwrap_err());
        assert!(!refused.is_of_others(), "{refused}");
    }
}
