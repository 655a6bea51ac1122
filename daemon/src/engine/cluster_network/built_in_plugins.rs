//! Plugins of a list that are part of the daemon.

use std::sync::Arc;

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};

use crate::call::Waiting;
use crate::conf_dir::Networks;
use crate::conflist_runner::BuiltIn;
use crate::engine::attachment_request::{AttachmentRequest, OWN_TYPE, Sandbox};
use crate::engine::core::{Core, PodVisit};
use crate::engine::kinds;
use crate::engine::parsed_request::ParsedRequest;

/// The built-in plugins of a list, called in process, in the name of a container that is locked already.
pub(super) struct BuiltInPlugins<'e> {
    pub(super) core: &'e Core,
    /// The networks to look through anew at a STATUS; none at a DEL from the record.
    pub(super) networks: Option<&'e Networks>,
    /// The namespace whose definition the list is; `None`: it is the administrator's.
    pub(super) namespace: Option<&'e Arc<str>>,
    pub(super) sandbox: Sandbox<'e>,
    pub(super) ifname: &'e str,
    pub(super) waiting: Waiting,
    /// The pod's namespace, where the list's plugins share it.
    pub(super) visit: Option<&'e dyn PodVisit>,
    pub(super) no_default_route: bool,
}

impl BuiltIn for BuiltInPlugins<'_> {
    fn serves(&self, plugin: &str) -> bool {
        is_built_in(plugin) || plugin == OWN_TYPE
    }

    fn call(&self, command: Command, plugin: &str, config: &str) -> Result<String, CniError> {
        if plugin == OWN_TYPE {
            // A list that names a list, itself at last: nothing was ever made for it.
            return match command {
                Command::Del | Command::Gc => Ok(String::new()),
                Command::Add | Command::Check | Command::Status => Err(CniError::new(
                    Code::InvalidConfig,
                    format!("a plugin of type {OWN_TYPE:?} cannot stand in a list that {OWN_TYPE:?} runs"),
                )
                .with("name the network itself in clusterNetwork")),
            };
        }
        let removal = matches!(command, Command::Del | Command::Gc);
        let conf = self.core.ipam.confs.get(config, removal)?;
        let (sandbox, waiting, ifname) = (self.sandbox, self.waiting.clone(), self.ifname);
        let namespace = self.namespace.cloned();
        let parsed = ParsedRequest::new(conf, namespace, sandbox.container, ifname, sandbox.args);
        let mut request = AttachmentRequest::of_plugin(command, sandbox, ifname, &parsed.wanted, waiting)?;
        request.no_default_route = self.no_default_route;
        request.visit = self.visit;
        self.core.carry_out(&mut request, &parsed, self.networks)
    }
}

pub(super) fn is_built_in(plugin: &str) -> bool {
    kinds::BUILT_IN.contains(&plugin)
}
