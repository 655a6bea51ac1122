//! A call that could not be prepared because of a fault of the daemon.

use fairlead_cni::config::NetConf;
use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, CniVersion};

use crate::call::{Lane, PreparedCall, Reply, Waiting};

/// Stands for the call, and answers it with the fault.
pub(super) struct FaultyCall {
    pub(super) request: Request,
    pub(super) error: CniError,
}

impl PreparedCall for FaultyCall {
    fn request(&self) -> &Request {
        &self.request
    }

    fn conf(&self) -> Option<&NetConf> {
        None
    }

    fn lane(&self) -> Lane {
        Lane::Fast
    }

    fn serve(&self, _: Waiting) -> Reply {
        Reply { version: CniVersion::LATEST, outcome: Err(self.error.clone()) }
    }

    fn count_phases(&self) {}

    fn delivered(&self) {}

    fn answered(&self, _: bool) {}
}
