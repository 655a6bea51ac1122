//! Why settings could not be read or set.

use std::sync::Arc;

use fairlead_host::{NetError, VfChange};
use nix::errno::Errno;

use crate::resetting::is_resetting;
use crate::{PciAddr, VfDevice};

/// Why settings could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The PF is not there to be asked.
    #[error("the PF {physical} of {vf} has no interface here that tells its settings")]
    NoInterface {
        /// Whose settings.
        vf: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// The kernel could not be asked.
    #[error("reading the settings of VF {vf}: {source}")]
    Unread {
        /// Whose settings.
        vf: PciAddr,
        /// Why not; one reading is for many.
        #[source]
        source: Arc<NetError>,
    },
    /// The PF tells nothing of this one, and of others it does.
    #[error("VF {vf} does not end resetting: {physical} tells the settings of others, and not its")]
    Untold {
        /// Whose settings.
        vf: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// The PF tells nothing of any.
    #[error("the PF {physical} of {vf} tells the settings of none of its VFs")]
    Silent {
        /// Whose settings.
        vf: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// A setting was not taken.
    #[error("setting {setting} for VF {vf} by {physical}: {source}")]
    NotSet {
        /// Whose.
        vf: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// A setting was not taken as long as it was waited for, because this one is resetting; others are not.
    #[error("VF {vf} does not end resetting: {physical} does not take {setting} for it: {source}")]
    Stuck {
        /// Whose.
        vf: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// A rate was not taken: as a share of what the link carries, many a NIC takes it only while it has a carrier.
    #[error("setting {setting} for VF {vf} by {physical}, which has no carrier: {source}")]
    Dark {
        /// Whose.
        vf: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// It was taken, and is not in force.
    #[error("VF {vf} has not settled: its PF tells {told} instead of {wanted}")]
    Unsettled {
        /// Whose settings.
        vf: PciAddr,
        /// What was taken.
        wanted: String,
        /// What is told instead.
        told: String,
    },
    /// The thread that did it for others too did not end.
    #[error("the settings of VF {vf}: what was asked for many at once did not end")]
    Lost {
        /// Whose settings.
        vf: PciAddr,
    },
}

impl SettingError {
    pub(super) fn no_interface(vf: &VfDevice) -> SettingError {
        SettingError::NoInterface { vf: vf.address, physical: vf.physical.address }
    }

    pub(super) fn untold(vf: &VfDevice, others_are: bool) -> SettingError {
        let (vf, physical) = (vf.address, vf.physical.address);
        match others_are {
            true => SettingError::Untold { vf, physical },
            false => SettingError::Silent { vf, physical },
        }
    }

    pub(super) fn stuck(vf: &VfDevice, setting: &VfChange, source: NetError) -> SettingError {
        SettingError::Stuck {
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

    /// The same, of a PF that has no carrier.
    pub(super) fn in_the_dark(self) -> SettingError {
        match self {
            SettingError::NotSet { vf, physical, setting, source } => {
                SettingError::Dark { vf, physical, setting, source }
            }
            other => other,
        }
    }

    /// Whether it is a rate that a NIC may refuse for want of a carrier: it answers the same to one that it never takes.
    pub(super) fn is_refused_rate(&self, one: &VfChange) -> bool {
        let is_told_so =
            matches!(self, SettingError::NotSet { source, .. } if source.errno() == Some(Errno::EINVAL));
        is_told_so && one.rate.is_some()
    }

    /// It says nothing against the VF: its physical one is not there, cannot be asked, has no carrier, or is busy for
    /// all.
    pub fn is_of_physical(&self) -> bool {
        match self {
            SettingError::NotSet { source, .. } => is_resetting(source) || source.errno().is_none_or(is_away),
            SettingError::Untold { .. } | SettingError::Stuck { .. } | SettingError::Unsettled { .. } => {
                false
            }
            _ => true,
        }
    }

    /// The driver will never take the setting.
    pub fn is_refusal(&self) -> bool {
        match self {
            SettingError::NotSet { source, .. } => source.errno().is_some_and(is_refusal),
            _ => false,
        }
    }
}

/// What comes of a PF that is gone or does not answer.
fn is_away(errno: Errno) -> bool {
    matches!(errno, Errno::ENODEV | Errno::ENXIO | Errno::ETIMEDOUT)
}

/// What a driver answers to a setting that it will never take.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::ERANGE | Errno::EPERM)
}
