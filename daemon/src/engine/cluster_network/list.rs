//! A list as it is run: for a call, and from its record alone.

use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::CniError;
use fairlead_cni::config::ConfList;
use serde_json::{Map, Value};

use super::built_in_plugins::BuiltInPlugins;
use super::{result_of, runtime_config};
use crate::call::{CallerGone, Waiting};
use crate::conflist_runner::Chain;
use crate::delegate::Parameters;
use crate::engine::Engine;
use crate::engine::attachment_request::{AttachmentRequest, Sandbox};
use crate::engine::core::{Core, PodVisit, parameters};
use crate::own_executable::is_file_of_ours;
use crate::store::{Attachment, LinkRecord};

/// A list, and by whose word it is run.
pub(in crate::engine) struct OneList<'a> {
    pub(in crate::engine) list: &'a ConfList,
    /// The namespace by which its address directories are told from others' of the name.
    pub(in crate::engine) namespace: Option<&'a Arc<str>>,
    pub(in crate::engine) runtime: &'a Map<String, Value>,
    /// Its text is a tenant's.
    pub(in crate::engine) of_tenant: bool,
    /// The pod's namespace, where its plugins share it.
    pub(in crate::engine) visit: Option<&'a dyn PodVisit>,
}

impl Engine {
    /// A list that shares no visit of the pod's namespace, for the interface of the call.
    pub(super) fn with_chain<T>(
        &self,
        request: &AttachmentRequest<'_>,
        list: &ConfList,
        namespace: Option<&Arc<str>>,
        run: impl FnOnce(&Chain<'_>) -> T,
    ) -> T {
        self.with_visit(request, list, (namespace, None), run)
    }

    /// The same where its plugins share one.
    pub(super) fn with_visit<T>(
        &self,
        request: &AttachmentRequest<'_>,
        list: &ConfList,
        (namespace, visit): (Option<&Arc<str>>, Option<&dyn PodVisit>),
        run: impl FnOnce(&Chain<'_>) -> T,
    ) -> T {
        let runtime = runtime_config(&request.conf.raw);
        let one = OneList { list, namespace, runtime: &runtime, of_tenant: namespace.is_some(), visit };
        self.with_list(request, &one, (request.sandbox, &request.key.ifname), run)
    }

    /// A list for an interface of the call's pod.
    pub(in crate::engine) fn with_list<T>(
        &self,
        request: &AttachmentRequest<'_>,
        one: &OneList<'_>,
        (sandbox, ifname): (Sandbox<'_>, &str),
        run: impl FnOnce(&Chain<'_>) -> T,
    ) -> T {
        let built_in = BuiltInPlugins {
            core: &self.core,
            networks: Some(&self.networks),
            namespace: one.namespace,
            sandbox,
            ifname,
            waiting: request.waiting.clone(),
            visit: one.visit,
            no_default_route: request.no_default_route,
        };
        run(&Chain {
            list: one.list,
            delegates: &self.core.ipam.delegates,
            built_in: &built_in,
            // A tenant may name a list of the administrator's: whose the list is decides.
            parameters: Parameters {
                of_tenant: one.of_tenant,
                ifname,
                args: sandbox.args,
                ..request.parameters()
            },
            runtime: one.runtime,
            deadline: request.waiting.deadline,
            plugin_limit: self.core.call_settings().delegate_timeout,
            cancelled: &|| request.waiting.gone.get(),
            is_ours: is_file_of_ours,
        })
    }
}

/// DEL of a list from its record alone.
pub(in crate::engine) fn remove(
    core: &Core,
    attachment: &Attachment,
    conflist: &str,
) -> Result<(), CniError> {
    let list = ConfList::parse(conflist)?;
    let namespace = match &attachment.link {
        LinkRecord::Conflist { namespace, .. } => namespace.as_ref(),
        _ => None,
    };
    let netns = core.netns_for_delegates(attachment);
    let limit = core.call_settings().delegate_timeout;
    let now = Instant::now();
    let parameters = Parameters { of_tenant: namespace.is_some(), ..parameters(attachment, &netns) };
    let sandbox = Sandbox {
        container: parameters.container_id,
        netns: parameters.netns,
        netns_inode: None,
        callers_netns: None,
        callers_cookie: None,
        args: parameters.args,
        path: parameters.path,
        env: parameters.env,
        spooled: None,
        issued: None,
    };
    let waiting = Waiting { arrived: now, deadline: now + limit, gone: CallerGone::default() };
    let ifname = &attachment.key.ifname;
    let chain = Chain {
        list: &list,
        delegates: &core.ipam.delegates,
        built_in: &BuiltInPlugins {
            core,
            networks: None,
            namespace,
            sandbox,
            ifname,
            waiting,
            visit: None,
            no_default_route: false,
        },
        parameters,
        runtime: &runtime_config(&attachment.config),
        deadline: now + limit,
        plugin_limit: limit,
        cancelled: &|| false,
        is_ours: is_file_of_ours,
    };
    chain.del(result_of(core, attachment).as_ref())
}
