//! Why settings of a VF could not be read or written, and whether the VF is to blame for that.

use std::sync::Arc;

use fairlead_host::{NetError, VfChange};
use nix::errno::Errno;

use crate::wait_out_reset::is_resetting;
use crate::{PciAddr, VfDevice};

/// Why settings of a VF could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The PF is not there to be asked.
    #[error("the PF {physical} of {vf} has no interface here that tells its settings")]
    NoInterface {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The PF that should have reported them.
        physical: PciAddr,
    },
    /// The kernel could not be asked.
    #[error("reading the settings of VF {vf}: {source}")]
    Unread {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The kernel's error; one reading is for many.
        #[source]
        source: Arc<NetError>,
    },
    /// The PF reports other VFs, and not this one.
    #[error("VF {vf} does not end resetting: {physical} tells the settings of others, and not its")]
    NotReported {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The PF that should have reported them.
        physical: PciAddr,
    },
    /// The PF reports none of its VFs.
    #[error("the PF {physical} of {vf} tells the settings of none of its VFs")]
    NoAnswer {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The PF that should have reported them.
        physical: PciAddr,
    },
    /// A setting was not taken.
    #[error("setting {setting} for VF {vf} by {physical}: {source}")]
    NotSet {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The PF that was to make the setting.
        physical: PciAddr,
        /// The setting, in words.
        setting: String,
        /// The kernel's error.
        #[source]
        source: NetError,
    },
    /// A setting was not taken as long as it was waited for, because this one is resetting; others are not.
    #[error("VF {vf} does not end resetting: {physical} does not take {setting} for it: {source}")]
    EndlessReset {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The PF that was to make the setting.
        physical: PciAddr,
        /// The setting, in words.
        setting: String,
        /// The kernel's error.
        #[source]
        source: NetError,
    },
    /// A rate was not taken: as a share of what the link carries, many a NIC takes it only while it has a carrier.
    #[error("setting {setting} for VF {vf} by {physical}, which has no carrier: {source}")]
    NoCarrier {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The PF that was to make the setting.
        physical: PciAddr,
        /// The setting, in words.
        setting: String,
        /// The kernel's error.
        #[source]
        source: NetError,
    },
    /// A setting was taken, and is not in force.
    #[error("VF {vf} has not settled: its PF tells {told} instead of {wanted}")]
    Unsettled {
        /// The VF's PCI address.
        vf: PciAddr,
        /// The settings that were taken, in words.
        wanted: String,
        /// What the PF reports instead, in words.
        told: String,
    },
    /// The thread that worked for several callers did not end.
    #[error("the settings of VF {vf}: what was asked for many at once did not end")]
    Lost {
        /// The VF's PCI address.
        vf: PciAddr,
    },
}

impl SettingError {
    pub(super) fn no_interface(vf: &VfDevice) -> SettingError {
        SettingError::NoInterface { vf: vf.address, physical: vf.physical.address }
    }

    pub(super) fn not_reported(vf: &VfDevice, reports_others: bool) -> SettingError {
        let (vf, physical) = (vf.address, vf.physical.address);
        match reports_others {
            true => SettingError::NotReported { vf, physical },
            false => SettingError::NoAnswer { vf, physical },
        }
    }

    pub(super) fn endless_reset(vf: &VfDevice, setting: &VfChange, source: NetError) -> SettingError {
        SettingError::EndlessReset {
            vf: vf.address,
            physical: vf.physical.address,
            setting: setting.describe(),
            source,
        }
    }

    pub(super) fn not_set(vf: &VfDevice, setting: &VfChange, source: NetError) -> SettingError {
        SettingError::NotSet {
            vf: vf.address,
            physical: vf.physical.address,
            setting: setting.describe(),
            source,
        }
    }

    /// The same error, of a PF that has no carrier.
    pub(super) fn in_the_dark(self) -> SettingError {
        match self {
            SettingError::NotSet { vf, physical, setting, source } => {
                SettingError::NoCarrier { vf, physical, setting, source }
            }
            other => other,
        }
    }

    /// Whether it is a rate that a NIC may have refused for want of a carrier: it answers the same to one that it never takes.
    pub(super) fn is_refused_rate(&self, one: &VfChange) -> bool {
        let is_invalid =
            matches!(self, SettingError::NotSet { source, .. } if source.errno() == Some(Errno::EINVAL));
        is_invalid && one.rate.is_some()
    }

    /// Whether it says nothing against the VF: its PF is not there, cannot be asked, has no carrier, or is busy for all VFs.
    pub fn is_of_physical(&self) -> bool {
        match self {
            // A VF that alone does not end resetting has `EndlessReset`: what is busy here is busy for others too.
            SettingError::NotSet { source, .. } => is_resetting(source) || source.errno().is_none_or(is_away),
            SettingError::NotReported { .. }
            | SettingError::EndlessReset { .. }
            | SettingError::Unsettled { .. } => false,
            _ => true,
        }
    }

    /// Whether the driver will never take the setting.
    pub fn is_refusal(&self) -> bool {
        match self {
            SettingError::NotSet { source, .. } => source.errno().is_some_and(is_refusal),
            _ => false,
        }
    }
}

/// Whether a PF that is gone or does not answer makes the kernel return this.
fn is_away(errno: Errno) -> bool {
    matches!(errno, Errno::ENODEV | Errno::ENXIO | Errno::ETIMEDOUT)
}

/// Whether a driver answers so to a setting that it will never take.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::ERANGE | Errno::EPERM)
}
