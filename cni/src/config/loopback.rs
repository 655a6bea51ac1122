//! Type `loopback`: sets `lo` up. It has no keys of its own, and passes `prevResult` on unchanged.

use super::NetConf;
use crate::error::CniError;
use crate::result::CniResult;

/// A configuration of type `loopback`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loopback {
    /// The result to pass on; `None` to answer with `lo` itself.
    pub pass_on: Option<CniResult>,
}

impl Loopback {
    /// The interface that it serves, whatever `CNI_IFNAME` says.
    pub const IFNAME: &'static str = "lo";

    /// Reads the configuration.
    pub fn parse(conf: &NetConf) -> Result<Loopback, CniError> {
        Ok(Loopback { pass_on: conf.prev_result.clone() })
    }
}
