//! Attaches what a pod asks for beside its default network.

use fairlead_cni::config::ConfList;
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_kube::npwg::NetworkSelection;
use fairlead_kube::npwg::runtime_config::{
    Device, cni_args_pairs, cni_args_pairs_of, device_info_file, of_network, undeclared,
};
use fairlead_kube::{Definition, PodRef};
use fairlead_kubelet::device_info_path;

use super::allocated_devices::{AllocatedDevices, without_device};
use super::default_routes::DefaultRoutes;
use super::definitions::{FoundDefinition, list_of, text_of, with_args};
use super::{AskedNetwork, PodNetworks};
use crate::call::Waiting;
use crate::engine::Engine;
use crate::engine::attachment_request::Sandbox;
use crate::engine::cluster_network::FirstNetwork;
use crate::engine::tenant_definition::{DefinitionCall, MadeWith};
use crate::policy::Tenant;

impl Engine {
    /// Attaches the others in the pod's order, each by its definition. Returns the result of the default network, without the default
    /// routes that another network has taken over. `devices`: the pod's, and which of them the default network has.
    pub(in crate::engine) fn attach_others(
        &self,
        (of, definitions): (&PodNetworks, &[FoundDefinition]),
        (sandbox, waiting): (Sandbox<'_>, &Waiting),
        first: &FirstNetwork<'_>,
        (mut devices, mut result): (AllocatedDevices, CniResult),
    ) -> Result<CniResult, CniError> {
        let mut routes = DefaultRoutes::new(self, first);
        if let Some(own) = &of.default_network {
            let set = routes.of_default_network(own, &mut result);
            set.map_err(|error| {
                let (network, interface) = (own.reference(), &first.attachment.key.ifname);
                self.told(&of.pod, in_words_of_the_pod(&of.pod, (&network, interface), error))
            })?;
        }
        for (asked, found) in of.others.iter().zip(definitions) {
            let attached = routes.make_way(asked).and_then(|taken| {
                let attached =
                    self.attach_one(&of.pod, (asked, found), (sandbox, waiting), first, &mut devices)?;
                routes.settle(asked, &attached, taken)
            });
            attached.map_err(|error| {
                let network = asked.selection.reference();
                self.told(&of.pod, in_words_of_the_pod(&of.pod, (&network, &asked.interface), error))
            })?;
        }
        routes.leave_out_what_was_taken(&mut result);
        Ok(result)
    }

    fn attach_one(
        &self,
        pod: &PodRef,
        (asked, (definition, tenant)): (&AskedNetwork, &FoundDefinition),
        (sandbox, waiting): (Sandbox<'_>, &Waiting),
        first: &FirstNetwork<'_>,
        devices: &mut AllocatedDevices,
    ) -> Result<CniResult, CniError> {
        let visit = first.visit.filter(|_| self.is_immediate_definition(&asked.selection, definition));
        if visit.is_none() {
            first.visit.inspect(|visit| visit.leave());
        }
        let resource = definition.resource.as_deref();
        let id = self.next_device(pod, resource, devices, (sandbox.container, waiting))?;
        let device_plugin_file = resource.zip(id.as_deref()).map(|(of, id)| device_info_path(of, id));
        let made_with = MadeWith {
            first: first.attachment.id,
            visit,
            default_route: asked.selection.default_route.as_deref(),
            device_plugin_file: device_plugin_file.as_deref(),
        };
        let (id, lacking) = (id.as_deref(), resource.filter(|_| id.is_none()));
        self.attach_definition(asked, (definition, tenant), id, (sandbox, waiting), made_with)
            .map_err(|error| without_device(error, lacking))
    }

    /// Attaches a network by its definition, with the device of this id.
    fn attach_definition(
        &self,
        AskedNetwork { selection, interface }: &AskedNetwork,
        (definition, tenant): (&Definition, &Tenant),
        device: Option<&str>,
        (sandbox, waiting): (Sandbox<'_>, &Waiting),
        made_with: MadeWith<'_>,
    ) -> Result<CniResult, CniError> {
        let info_file = device_info_file(&selection.reference(), sandbox.container, interface);
        let device = device.map(|id| Device { id, info_file: &info_file });
        let text = text_of(definition, selection, device)?;
        let args = with_pairs_for_text(sandbox.args, selection, (definition, &text));
        let call = DefinitionCall {
            tenant,
            text: &text,
            object: Some(&definition.name),
            runtime: &of_network(selection, device),
            sandbox: Sandbox { args: &args, ..sandbox },
            ifname: interface,
            waiting: waiting.clone(),
        };
        let read = self.judged_for(&call)?;
        // NPWG 1.3, section 3.3: the administrator's configuration of this name, for which the pod may ask as for any other.
        let meant = match &definition.config {
            None => Some(with_args(self.wanted(&definition.name)?, selection, device)?),
            Some(_) => None,
        };
        must_be_declared(&undeclared(selection, meant.as_ref().unwrap_or(read.list())))?;
        // What that one declares is known only now, when the policy has let the pod have it.
        let of_meant = meant.as_ref().map(|list| with_pairs(sandbox.args, selection, Some(list)));
        let sandbox = Sandbox { args: of_meant.as_deref().unwrap_or(&args), ..sandbox };
        let call = DefinitionCall { sandbox, ..call };
        let answer = self.attach_judged(&call, (&read, meant.as_ref()), Some(made_with))?;
        CniResult::parse_text(&answer, read.list().version)
    }

    /// The error, told to whoever looks at the pod, too (X14).
    pub(super) fn told(&self, pod: &PodRef, error: CniError) -> CniError {
        if let Some(cluster) = &self.cluster {
            cluster.warn(pod, "FailedNetworks", &error.to_string());
        }
        error
    }

    /// The same where it is known which pod it is.
    pub(in crate::engine) fn told_of(&self, asked: Option<&PodNetworks>, error: CniError) -> CniError {
        match asked {
            Some(asked) => self.told(&asked.pod, error),
            None => error,
        }
    }
}

/// `CNI_ARGS` with what Multus adds for plugins that declare no capability; `plugins`: those of the network, where they are known.
pub(super) fn with_pairs(args: &str, selection: &NetworkSelection, plugins: Option<&ConfList>) -> String {
    let pairs = match plugins {
        Some(plugins) => cni_args_pairs_of(selection, plugins),
        None => cni_args_pairs(selection),
    };
    let pairs = pairs.into_iter().map(|(key, value)| format!("{key}={value}"));
    let all = (!args.is_empty()).then(|| args.to_owned()).into_iter().chain(pairs);
    all.collect::<Vec<_>>().join(";")
}

/// The same for the plugins of a definition's text, by which the policy judges it.
pub(super) fn with_pairs_for_text(
    args: &str,
    selection: &NetworkSelection,
    (definition, text): (&Definition, &str),
) -> String {
    // Only for a pod that asks for addresses the text is read once more.
    let plugins = (!selection.ips.is_empty()).then(|| list_of(definition, text)).flatten();
    with_pairs(args, selection, plugins.as_ref())
}

/// NPWG 1.3, sections 4.1.2.1.3 to 4.1.2.1.10: what no plugin would do fails the pod. Addresses go by `CNI_ARGS`, too.
pub(super) fn must_be_declared(undeclared: &[String]) -> Result<(), CniError> {
    let lacking: Vec<&str> =
        undeclared.iter().map(String::as_str).filter(|name| !matches!(*name, "mac" | "ips")).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let msg = format!("the pod asks for {}, which no plugin of the definition declares", lacking.join(", "));
    let remedy = format!("add \"capabilities\":{{\"{}\":true}} to the plugin that can do it", lacking[0]);
    Err(CniError::new(Code::InvalidConfig, msg).with(remedy))
}

/// M8: the error names the network.
pub(super) fn in_words_of_the_pod(
    pod: &PodRef,
    (network, interface): (&str, &str),
    error: CniError,
) -> CniError {
    CniError { msg: format!("pod {pod}, network {network}, interface {interface:?}: {}", error.msg), ..error }
}
