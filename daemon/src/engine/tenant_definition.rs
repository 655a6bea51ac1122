//! An attachment that a tenant's definition asks for: read, judged by the policy in force, and then carried out like any other.
//!
//! There is no other way for a tenant's text into the engine. What is removed later goes by the record.

use std::net::IpAddr;
use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::{ConfList, NetConf};
use serde_json::{Map, Value, json};

use super::Engine;
use super::attachment_request::{AttachmentRequest, OWN_TYPE, Sandbox};
use super::core::PodVisit;
use super::kinds::BUILT_IN;
use super::parsed_request::ParsedRequest;
use crate::call::Waiting;
use crate::policy::{Definition, Refusal, Tenant};

/// What one interface of a pod is to be made of, and by whose word.
#[derive(Debug, Clone)]
pub struct DefinitionCall<'a> {
    /// The namespace that the definition belongs to.
    pub tenant: &'a Tenant,
    /// Its text.
    pub text: &'a str,
    /// Its name in the API.
    pub object: Option<&'a str>,
    /// The capability arguments that the runtime, or whoever speaks for it, has for this attachment.
    pub runtime: &'a Map<String, Value>,
    /// The pod.
    pub sandbox: Sandbox<'a>,
    /// The interface's name in the pod.
    pub ifname: &'a str,
    /// When the call came, and when it has to end.
    pub waiting: Waiting,
}

/// That a network is attached beside a pod's default one.
#[derive(Debug, Clone, Copy)]
pub(super) struct MadeWith<'a> {
    /// The number of the default network's attachment.
    pub(super) first: u64,
    /// The pod's namespace, where it is shared.
    pub(super) visit: Option<&'a dyn PodVisit>,
    /// The pod wants its default route to lead over this network, by these gateways or by the configuration's own.
    pub(super) default_route: Option<&'a [IpAddr]>,
    /// The file in which a device plugin describes its device.
    pub(super) device_plugin_file: Option<&'a str>,
}

impl Engine {
    /// ADD of a tenant's definition; returns the result, in the definition's version.
    ///
    /// # Errors
    /// Code 7 where the policy refuses it, and those of any ADD.
    pub fn add_definition(&self, call: &DefinitionCall<'_>) -> Result<String, CniError> {
        let definition = self.judged_for(call)?;
        self.attach_judged(call, (&definition, None), None)
    }

    /// Reads the definition of a call, and judges it by the policy in force.
    pub(super) fn judged_for(&self, call: &DefinitionCall<'_>) -> Result<Arc<Definition>, CniError> {
        let args = Args::parse(call.sandbox.args)?;
        self.judged(call.tenant, call.text, call.object, call.runtime, &args)
    }

    /// Reads a tenant's definition, and judges it by the policy in force.
    pub(super) fn judged(
        &self,
        tenant: &Tenant,
        text: &str,
        object: Option<&str>,
        runtime: &Map<String, Value>,
        args: &Args,
    ) -> Result<Arc<Definition>, CniError> {
        let call_settings = self.core.call_settings();
        // What cannot be read is not taken for a policy that allows everything.
        let policy = call_settings.policy.as_deref();
        let policy =
            policy.ok_or_else(|| Refusal::PolicyUnknown { namespace: tenant.namespace().to_owned() })?;
        let definition = self.definitions.get(tenant, text, object, runtime, args)?;
        definition.judge(policy)?;
        Ok(definition)
    }

    /// ADD of a definition that was judged, by itself or with the attachment of a pod's default network, whose ADD has locked the
    /// container. `meant`: the administrator's list, where the definition only names it. Returns the result, in the definition's
    /// version.
    pub(super) fn attach_judged(
        &self,
        call: &DefinitionCall<'_>,
        (definition, meant): (&Definition, Option<&ConfList>),
        made_with: Option<MadeWith<'_>>,
    ) -> Result<String, CniError> {
        let serves = |conf: &NetConf| BUILT_IN.contains(&&*conf.plugin_type) || conf.plugin_type == OWN_TYPE;
        let of_list = || conf_of_list(definition).map(Arc::new);
        match (definition.plugins(), meant) {
            (_, Some(list)) => self.add_as(call, of_list()?, Some((list, None)), made_with),
            ([one], None) if serves(one) => self.add_as(call, Arc::clone(one), None, made_with),
            (_, None) => {
                let namespace = call.tenant.namespace().into();
                self.add_as(call, of_list()?, Some((definition.list(), Some(&namespace))), made_with)
            }
        }
    }

    /// ADD of this configuration; of the whole list, where it stands for one, with the namespace whose words that is.
    fn add_as(
        &self,
        call: &DefinitionCall<'_>,
        conf: Arc<NetConf>,
        list: Option<(&ConfList, Option<&Arc<str>>)>,
        made_with: Option<MadeWith<'_>>,
    ) -> Result<String, CniError> {
        let sandbox = call.sandbox;
        let namespace = Some(call.tenant.namespace().into());
        let parsed = ParsedRequest::new(conf, namespace, sandbox.container, call.ifname, sandbox.args);
        let waiting = call.waiting.clone();
        let mut request = AttachmentRequest::of_definition(sandbox, call.ifname, &parsed.wanted, waiting)?;
        if let Some(MadeWith { first, visit, default_route, device_plugin_file }) = made_with {
            request.nested = true;
            request.made_with = Some(first);
            request.visit = visit;
            request.no_default_route = default_route.is_none();
            request.default_gateways = default_route.unwrap_or_default();
            request.device_plugin_file = device_plugin_file;
        }
        match list {
            Some((list, of)) => self.add_list(&mut request, list, of, &|_, result| Ok(result)),
            None => self.carry_out(&mut request, &parsed),
        }
    }
}

/// The configuration under which a list is on record: of our own type, so that it is told from its plugins.
fn conf_of_list(definition: &Definition) -> Result<NetConf, CniError> {
    let list = definition.list();
    let conf = json!({
        "cniVersion": list.version.as_str(),
        "name": list.name,
        "type": OWN_TYPE,
        "clusterNetwork": list.name,
        "runtimeConfig": definition.runtime(),
    });
    NetConf::parse(&conf.to_string())
}
