//! CHECK of what was attached beside a pod's default network (X4).

use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use fairlead_cni::wire::Command;

use crate::engine::Engine;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::cluster_network::result_of;
use crate::engine::netdev::setup::is_pods_default;
use crate::engine::parsed_request::ParsedRequest;
use crate::store::Attachment;

impl Engine {
    /// Compares each with its own record, and the default routes of all with what the pod asked for.
    pub(in crate::engine) fn check_others(
        &self,
        request: &AttachmentRequest<'_>,
        first: &Attachment,
    ) -> Result<(), CniError> {
        self.check_default_routes(first)?;
        self.core.made_with(first).iter().try_for_each(|other| {
            self.check_other(request, other)?;
            self.check_default_routes(other)
        })
    }

    fn check_other(&self, request: &AttachmentRequest<'_>, other: &Attachment) -> Result<(), CniError> {
        let conf = self.core.ipam.confs.get(&other.config, false)?;
        if !conf.version.has(Command::Check) {
            // There was no CHECK yet.
            return Ok(());
        }
        let mut prev_result = result_of(&self.core, other);
        if !other.default_gateways.is_empty() {
            // The pod's gateways have taken the place of the network's own default routes, in both families, and the record has what the
            // plugin answered before that. Whether the pod's own are there is looked at beside it.
            prev_result.iter_mut().for_each(|prev| prev.routes.retain(|route| !is_pods_default(route)));
        }
        let conf = NetConf { prev_result, ..NetConf::clone(&conf) };
        let (sandbox, ifname) = (request.sandbox, &other.key.ifname);
        let namespace = other.namespace.clone();
        let parsed = ParsedRequest::new(Arc::new(conf), namespace, sandbox.container, ifname, sandbox.args);
        let waiting = request.waiting.clone();
        let mut check =
            AttachmentRequest::of_plugin(Command::Check, sandbox, ifname, &parsed.wanted, waiting)?;
        self.carry_out(&mut check, &parsed).map(drop)
    }
}
