//! Why settings could not be read or set.

use std::sync::Arc;

use fairlead_host::{NetError, VfChange};
use nix::errno::Errno;

use crate::resetting::is_resetting;
use crate::{Function, PciAddr};

/// Why settings could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The physical function is not there to be asked.
    #[error("the physical function {physical} of {function} has no interface here that tells its settings")]
    NoInterface {
        /// Whose settings.
        function: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// The kernel could not be asked.
    #[error("reading the settings of function {function}: {source}")]
    Unread {
        /// Whose settings.
        function: PciAddr,
        /// Why not; one reading is for many.
        #[source]
        source: Arc<NetError>,
    },
    /// The physical function tells nothing of this one, and of others it does.
    #[error(
        "function {function} does not end resetting: {physical} tells the settings of others, and not its"
    )]
    Untold {
        /// Whose settings.
        function: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// The physical function tells nothing of any.
    #[error("the physical function {physical} of {function} tells the settings of none of its functions")]
    Silent {
        /// Whose settings.
        function: PciAddr,
        /// Who should have told.
        physical: PciAddr,
    },
    /// A setting was not taken.
    #[error("setting {setting} for function {function} by {physical}: {source}")]
    NotSet {
        /// Whose.
        function: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// A setting was not taken as long as it was waited for, because this one is resetting; others are not.
    #[error(
        "function {function} does not end resetting: {physical} does not take {setting} for it: {source}"
    )]
    Stuck {
        /// Whose.
        function: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// A rate was not taken: as a share of what the link carries, many a NIC takes it only while it has a carrier.
    #[error("setting {setting} for function {function} by {physical}, which has no carrier: {source}")]
    Dark {
        /// Whose.
        function: PciAddr,
        /// Who should have set it.
        physical: PciAddr,
        /// Which, for a person.
        setting: String,
        /// Why not.
        #[source]
        source: NetError,
    },
    /// It was taken, and is not in force.
    #[error("function {function} has not settled: its physical function tells {told} instead of {wanted}")]
    Unsettled {
        /// Whose settings.
        function: PciAddr,
        /// What was taken.
        wanted: String,
        /// What is told instead.
        told: String,
    },
    /// The thread that did it for others too did not end.
    #[error("the settings of function {function}: what was asked for many at once did not end")]
    Lost {
        /// Whose settings.
        function: PciAddr,
    },
}

impl SettingError {
    pub(super) fn no_interface(function: &Function) -> SettingError {
        SettingError::NoInterface { function: function.address, physical: function.physical.address }
    }

    pub(super) fn untold(function: &Function, others_are: bool) -> SettingError {
        let (function, physical) = (function.address, function.physical.address);
        match others_are {
            true => SettingError::Untold { function, physical },
            false => SettingError::Silent { function, physical },
        }
    }

    pub(super) fn stuck(function: &Function, setting: &VfChange, source: NetError) -> SettingError {
        SettingError::Stuck {
            function: function.address,
            physical: function.physical.address,
            setting: setting.describe(),
            source,
        }
    }

    pub(super) fn not_set(function: &Function, setting: &VfChange, source: NetError) -> SettingError {
        SettingError::NotSet {
            function: function.address,
            physical: function.physical.address,
            setting: setting.describe(),
            source,
        }
    }

    /// The same, of a physical function that has no carrier.
    pub(super) fn in_the_dark(self) -> SettingError {
        match self {
            SettingError::NotSet { function, physical, setting, source } => {
                SettingError::Dark { function, physical, setting, source }
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

    /// It says nothing against the function: its physical one is not there, cannot be asked, has no carrier, or is busy for
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

/// What comes of a physical function that is gone or does not answer.
fn is_away(errno: Errno) -> bool {
    matches!(errno, Errno::ENODEV | Errno::ENXIO | Errno::ETIMEDOUT)
}

/// What a driver answers to a setting that it will never take.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::ERANGE | Errno::EPERM)
}
