//! DEL of a pod that Multus made: each of its networks gets its DEL, the last one first, as Multus' own DEL does it.

use fairlead_cni::config::{ClusterNetwork, ConfList};
use fairlead_cni::{CniError, names};
use fairlead_kube::multus::{CachedAttachment, cached_result, result_file};
use serde_json::Value;

use super::MultusFiles;
use super::addresses::{Places, places};
use crate::engine::Engine;
use crate::engine::attachment_request::{AttachmentRequest, Sandbox};
use crate::engine::cluster_network::{OneList, runtime_config};

/// The longest result of a plugin that is read, in bytes.
const MAX_RESULT: u64 = 1 << 20;

impl Engine {
    /// False: Multus knows nothing of the container. Its file goes when nothing is left of the pod; until then a DEL begins anew.
    ///
    /// # Errors
    /// A file that cannot be used, and everything that could not be removed.
    pub(in crate::engine) fn del_multus_pod(
        &self,
        request: &AttachmentRequest<'_>,
        node: &ClusterNetwork,
    ) -> Result<bool, CniError> {
        let files = self.multus_files(&node.multus_dir);
        let (container, ifname) = (request.sandbox.container, &request.key.ifname);
        let Some(attachments) = files.attachments(container, ifname)? else { return Ok(false) };
        tracing::info!(container, networks = attachments.len(), "DEL of a pod that Multus made");
        let each = attachments.iter().rev().map(|attachment| self.del_one(request, attachment, &files));
        CniError::all(each.filter_map(Result::err))?;
        let gone = files.root.remove_trusted(&files.path(container));
        gone.map_err(|error| super::unusable(&files.path(container), &error))?;
        Ok(true)
    }

    fn del_one(
        &self,
        request: &AttachmentRequest<'_>,
        attachment: &CachedAttachment,
        files: &MultusFiles,
    ) -> Result<(), CniError> {
        let CachedAttachment { network, interface, config, cni_args, .. } = attachment;
        let named = |error: CniError| CniError {
            msg: format!(
                "network {network:?} of a pod that Multus made, interface {interface:?}: {}",
                error.msg
            ),
            ..error
        };
        names::ifname(interface).map_err(named)?;
        let list = ConfList::parse(config).map_err(named)?;
        let runtime = match attachment.is_default {
            true => runtime_config(&request.conf.raw),
            false => attachment.capability_args.clone(),
        };
        let pairs = cni_args.iter().map(|(key, value)| format!("{key}={value}"));
        let args =
            Some(request.sandbox.args.to_owned()).filter(|args| !args.is_empty()).into_iter().chain(pairs);
        let args = args.collect::<Vec<_>>().join(";");
        let sandbox = Sandbox { args: &args, ..request.sandbox };
        let namespace = attachment.namespace();
        let one = OneList {
            list: &list,
            namespace: None,
            runtime: &runtime,
            of_tenant: namespace.is_some(),
            visit: None,
        };
        // libcni's own file of the plugin's answer. The specification has plugins do without it.
        let result = files.dir.join(result_file(&list.name, request.sandbox.container, interface));
        let prev = files.root.read_trusted(&result, MAX_RESULT).ok();
        let prev = prev.and_then(|text| cached_result(&text, list.version));
        self.with_list(request, &one, (sandbox, interface), |chain| chain.del(prev.as_ref()))
            .map_err(named)?;
        if let Some(namespace) = namespace {
            for Places { own, .. } in places(&list, namespace) {
                self.release_in(own, namespace, (request.sandbox.container, interface)).map_err(named)?;
            }
        }
        if let Err(error) = files.root.remove_trusted(&result) {
            tracing::warn!(file = %result.display(), %error, "a file of a pod that Multus made stays");
        }
        if let Some(path) = attachment.capability_args.get("CNIDeviceInfoFile").and_then(Value::as_str)
            && let Err(error) = self.core.kinds.device_info.remove(path, request.sandbox.container)
        {
            tracing::warn!(path, %error, "device information of a pod that Multus made stays");
        }
        Ok(())
    }
}
