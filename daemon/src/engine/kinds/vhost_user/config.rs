//! What a configuration of type `vhost-user` or `userspace` asks for.

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::vhost_user::Place;
use fairlead_cni::config::{self, NetConf};
use fairlead_host::Mac;

use super::socket_dir::SocketPlace;
use crate::engine::kinds::{device_info, wanted_mac};

/// The types of configurations that are served here.
pub(crate) const TYPES: [&str; 2] = ["vhost-user", "userspace"];

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VhostUser {
    /// What it says.
    pub(crate) config: config::VhostUser,
    /// The MAC address that is asked for.
    pub(crate) mac: Option<Mac>,
    /// Where to tell what the port is (`CNIDeviceInfoFile`), below the host's root.
    pub(crate) device_info: Option<String>,
    /// Where userspace-cni's socket is to be, once that was looked for.
    pub(super) found: Option<SocketPlace>,
}

impl VhostUser {
    /// Whether kubelet allocates the port.
    pub(crate) fn is_kubelets(&self) -> bool {
        self.config.place.is_kubelets()
    }

    /// Whether userspace-cni's directory has to be looked for.
    pub(crate) fn is_in_shared_dir(&self) -> bool {
        matches!(self.config.place, Place::SharedDir(_))
    }

    /// Reads and validates the configuration.
    pub(crate) fn validate(conf: &NetConf, args: &Args) -> Result<VhostUser, CniError> {
        let config = config::VhostUser::parse(conf)?;
        let mac = config.mac(conf, args).map(wanted_mac).transpose()?;
        let device_info = conf.runtime.device_info_file.as_deref().map(device_info::validate).transpose()?;
        Ok(VhostUser { config, mac, device_info, found: None })
    }
}
