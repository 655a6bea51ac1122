//! Why an ADD has attached nothing. By that it is decided whether the next of several paths may be tried.

use fairlead_cni::{CniError, Code};

/// An ADD that attached nothing.
#[derive(Debug)]
pub(crate) enum NotAttached {
    /// The host or the pod lacks what it needs, and nothing was changed: the next of several paths may be tried.
    Unavailable(CniError),
    /// It failed.
    Failed(CniError),
}

impl NotAttached {
    /// An error that was met before anything was changed. It reports a lack by its code: what could not be asked, and what comes
    /// by itself (code 11), is no lack.
    pub(crate) fn by_code(error: CniError) -> NotAttached {
        match error.code {
            Code::InvalidConfig | Code::BadEnvironment | Code::NotAvailable => {
                NotAttached::Unavailable(error)
            }
            _ => NotAttached::Failed(error),
        }
    }

    /// The error, where no other way is left.
    pub(crate) fn into_error(self) -> CniError {
        match self {
            NotAttached::Unavailable(error) | NotAttached::Failed(error) => error,
        }
    }
}

impl From<CniError> for NotAttached {
    fn from(error: CniError) -> NotAttached {
        NotAttached::Failed(error)
    }
}
