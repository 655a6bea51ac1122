//! What a configuration of type `vhost-user` asks for.

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::{self, NetConf};
use fairlead_host::Mac;

use crate::engine::kinds::{device_info, wanted_mac};

/// The types of configurations that are served here.
pub(crate) const TYPES: [&str; 1] = ["vhost-user"];

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VhostUser {
    /// What it says.
    pub(crate) config: config::VhostUser,
    /// The MAC address that is asked for.
    pub(crate) mac: Option<Mac>,
    /// Where to tell what the port is (`CNIDeviceInfoFile`), below the host's root.
    pub(crate) device_info: Option<String>,
}

impl VhostUser {
    /// Reads and validates the configuration.
    pub(crate) fn validate(conf: &NetConf, args: &Args) -> Result<VhostUser, CniError> {
        let config = config::VhostUser::parse(conf)?;
        let mac = config.mac(conf, args).map(wanted_mac).transpose()?;
        let device_info = conf.runtime.device_info_file.as_deref().map(device_info::validate).transpose()?;
        Ok(VhostUser { config, mac, device_info })
    }
}
