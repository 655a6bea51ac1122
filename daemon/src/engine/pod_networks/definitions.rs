//! The definitions that a pod names: whether it may use them, and whose words they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::args::Args;
use fairlead_cni::config::{ConfList, Fairlead};
use fairlead_cni::go_json::{Fields, folded};
use fairlead_cni::{CniError, CniVersion, Code};
use fairlead_kube::legacy::spoken_versions;
use fairlead_kube::npwg::runtime_config::{
    Device, device_info_file, of_default_network, undeclared, with_cni_args,
};
use fairlead_kube::npwg::{NetworkSelection, ObjectKind};
use fairlead_kube::{Definition, PodRef, Wait};
use fairlead_kubelet::device_info_path;
use serde_json::{Map, Value, json};

use super::allocated_devices::{AllocatedDevices, without_device};
use super::attach_others::{in_words_of_the_pod, must_be_declared, with_pairs, with_pairs_for_text};
use super::{PodNetworks, told_of_cluster};
use crate::call::Waiting;
use crate::engine::Engine;
use crate::engine::attachment_request::{AttachmentRequest, OWN_TYPE, Sandbox};
use crate::engine::cluster_network::runtime_config;
use crate::engine::kinds::BUILT_IN;
use crate::policy::{self, Tenant};

/// A definition that a pod may use, and the namespace whose words it is.
pub(in crate::engine) type FoundDefinition = (Arc<Definition>, Tenant);

impl Engine {
    /// The definition that a pod names, if the pod may use it.
    pub(super) fn definition(
        &self,
        pod: &PodRef,
        selection: &NetworkSelection,
        (sandbox, waiting): (Sandbox<'_>, &Waiting),
    ) -> Result<FoundDefinition, CniError> {
        let (namespace, name) = (&selection.namespace, &selection.name);
        let call_settings = self.core.call_settings();
        let of_every_pod = selection.object == ObjectKind::OfEveryPod;
        if let Some(policy) = call_settings.policy.as_deref().filter(|_| !of_every_pod) {
            policy::may_use(policy, &pod.namespace, namespace)?;
        }
        // Before the API: the conf dir is the administrator's, and needs no API server.
        if of_every_pod && self.networks.find(name).is_some() {
            let (namespace, name) = (namespace.clone(), name.clone());
            let tenant = self.tenant(&namespace)?;
            return Ok((Arc::new(Definition { namespace, name, config: None, resource: None }), tenant));
        }
        let cluster = self.cluster.as_deref().ok_or_else(no_api_server)?;
        let deadline = waiting.deadline.min(Instant::now() + call_settings.pod_wait);
        let wait = Wait { deadline, gone: &|| waiting.gone.get() };
        let told = |why| told_of_cluster(&why);
        match selection.object {
            ObjectKind::NetworkAttachmentDefinition | ObjectKind::OfEveryPod => {
                let definition = cluster.definition(namespace, name, &wait).map_err(told)?;
                Ok((definition, self.tenant(namespace)?))
            }
            ObjectKind::Network => {
                let network = cluster.legacy_network(namespace, name, &wait).map_err(told)?;
                let tenant = self.tenant(namespace)?;
                let spoken = |plugin: &str| self.spoken(&tenant, plugin, (sandbox, waiting));
                Ok((Arc::new(network.definition(spoken)?), tenant))
            }
        }
    }

    /// The namespace whose words a definition is, with its labels where the policy goes by them.
    pub(super) fn tenant(&self, namespace: &str) -> Result<Tenant, CniError> {
        let call_settings = self.core.call_settings();
        let by_labels = call_settings.policy.as_deref().is_some_and(policy::PolicySettings::goes_by_labels);
        let labels = match self.cluster.as_deref().and_then(|cluster| cluster.namespace_labels(namespace)) {
            Some(labels) => BTreeMap::clone(&labels),
            // What is not known is not taken for a namespace without labels: a rule that forbids could be passed by.
            None if by_labels => return Err(labels_unknown(namespace)),
            None => BTreeMap::new(),
        };
        Tenant::new(namespace, labels).map_err(|wrong| CniError::new(Code::InvalidConfig, wrong.to_string()))
    }

    /// M5: the versions that a plugin speaks. One that is executed is asked, once the policy lets this tenant have it executed.
    fn spoken(
        &self,
        tenant: &Tenant,
        plugin: &str,
        (sandbox, waiting): (Sandbox<'_>, &Waiting),
    ) -> Result<Vec<CniVersion>, CniError> {
        if BUILT_IN.contains(&plugin) {
            return Ok(vec![CniVersion::LATEST]);
        }
        let version = CniVersion::LATEST.as_str();
        let provisional = json!({"cniVersion": version, "name": "version", "type": plugin}).to_string();
        self.judged(tenant, &provisional, None, &Map::new(), &Args::default())?;
        let time_limit = self.core.call_settings().delegate_timeout;
        let time_limit = time_limit.min(waiting.deadline.saturating_duration_since(Instant::now()));
        let gone = || waiting.gone.get();
        let delegates = &self.core.ipam.delegates;
        spoken_versions(&delegates.version(plugin, (sandbox.path, sandbox.env), (time_limit, &gone))?)
    }

    /// The list that is the pod's default network, the namespace whose definition that is, and what its plugins are told: the
    /// cluster's by its name, unless the pod names another.
    pub(in crate::engine) fn default_list(
        &self,
        request: &AttachmentRequest<'_>,
        asked: Option<&PodNetworks>,
        name: &str,
    ) -> Result<DefaultList, CniError> {
        let Some((asked, selection)) = asked.and_then(|asked| Some((asked, asked.default_network()?))) else {
            return Ok(DefaultList { list: self.wanted(name)?, namespace: None, own: None });
        };
        self.own_default_list(request, asked.pod(), selection).map_err(|error| {
            let (network, interface) = (selection.reference(), &request.key.ifname);
            in_words_of_the_pod(asked.pod(), (&network, interface), error)
        })
    }

    /// The same where the pod has chosen it. It is judged with what the pod asks for, as any other of its networks.
    fn own_default_list(
        &self,
        request: &AttachmentRequest<'_>,
        pod: &PodRef,
        selection: &NetworkSelection,
    ) -> Result<DefaultList, CniError> {
        let (sandbox, waiting) = (request.sandbox, &request.waiting);
        let (definition, tenant) = self.definition(pod, selection, (sandbox, waiting))?;
        let (resource, mut devices) = (definition.resource.as_deref(), AllocatedDevices::default());
        let id = self.next_device(pod, resource, &mut devices, (sandbox.container, waiting))?;
        let lacking = resource.filter(|_| id.is_none());
        let info_file = device_info_file(&selection.reference(), sandbox.container, &request.key.ifname);
        let device = id.as_deref().map(|id| Device { id, info_file: &info_file });
        let runtime = of_default_network(runtime_config(&request.conf.raw), Some(selection), device);
        let text = text_of(&definition, selection, device)?;
        let args = with_pairs_for_text(sandbox.args, selection, (&definition, &text));
        let read = self
            .judged(&tenant, &text, Some(&definition.name), &runtime, &Args::parse(&args)?)
            .map_err(|error| without_device(error, lacking))?;
        let (list, namespace) = match &definition.config {
            // NPWG 1.3, section 3.3: the administrator's configuration of this name.
            None => (with_args(self.wanted(&definition.name)?, selection, device)?, None),
            Some(_) => (read.list().clone(), Some(tenant.namespace().into())),
        };
        must_be_declared(&undeclared(selection, &list))?;
        // What the administrator's plugins declare is known only now.
        let args = with_pairs(sandbox.args, selection, Some(&list));
        let device_plugin_file = resource.zip(id.as_deref()).map(|(of, id)| device_info_path(of, id));
        let lacking = lacking.map(str::to_owned);
        let runtime = Value::Object(runtime);
        Ok(DefaultList {
            list,
            namespace,
            own: Some(OwnDefault { text: text.len(), runtime, args, device_plugin_file, lacking, devices }),
        })
    }
}

/// A pod's default network.
pub(in crate::engine) struct DefaultList {
    pub(in crate::engine) list: ConfList,
    /// The namespace whose definition it is; `None`: it is the administrator's.
    pub(in crate::engine) namespace: Option<Arc<str>>,
    /// Where the pod has chosen it.
    pub(in crate::engine) own: Option<OwnDefault>,
}

/// What a pod asks for of the default network that it has chosen.
pub(in crate::engine) struct OwnDefault {
    /// How much text its definition has, in bytes.
    pub(in crate::engine) text: usize,
    /// `runtimeConfig` with that.
    pub(in crate::engine) runtime: Value,
    /// `CNI_ARGS` with that.
    pub(in crate::engine) args: String,
    /// The file in which a device plugin describes its device.
    pub(in crate::engine) device_plugin_file: Option<String>,
    /// The resource of which it has no device.
    pub(in crate::engine) lacking: Option<String>,
    /// The pod's devices, and which of them it has.
    pub(in crate::engine) devices: AllocatedDevices,
}

/// A list of the administrator's, with what the pod says to its plugins, and its device.
pub(super) fn with_args(
    list: ConfList,
    selection: &NetworkSelection,
    device: Option<Device<'_>>,
) -> Result<ConfList, CniError> {
    if selection.cni_args.is_empty() && device.is_none() {
        return Ok(list);
    }
    ConfList::parse(&told_to_plugins(&list.to_text(), selection, device)?)
}

/// The text of a definition, with what the pod says to its plugins, and its device. Where a configuration of the conf dir is meant it is
/// empty, or names that one with what the pod says: the policy judges it, and the plugins get it by [`with_args`].
pub(super) fn text_of(
    definition: &Definition,
    selection: &NetworkSelection,
    device: Option<Device<'_>>,
) -> Result<String, CniError> {
    match definition.config.as_deref() {
        Some(text) => told_to_plugins(text, selection, device),
        None if selection.cni_args.is_empty() => Ok(String::new()),
        None => told_to_plugins(&policy::with_name("", Some(&definition.name))?, selection, None),
    }
}

/// The plugins that a definition's text names; `None` where it has no text, and where that is no list, which its reader says better.
pub(super) fn list_of(definition: &Definition, text: &str) -> Option<ConfList> {
    definition.config.as_ref()?;
    let list = ConfList::parse(&policy::with_name(text, Some(&definition.name)).ok()?).ok()?;
    let conf = list.plugin_conf(0, None, &Map::new()).ok()?;
    // What a `clusterNetwork` declares says nothing of what the plugins take of the network that it names.
    let only_names =
        conf.plugin_type == OWN_TYPE && matches!(Fairlead::parse(&conf), Ok(Fairlead::ClusterNetwork(_)));
    (!only_names).then_some(list)
}

fn told_to_plugins(
    text: &str,
    selection: &NetworkSelection,
    device: Option<Device<'_>>,
) -> Result<String, CniError> {
    let text = with_cni_args(text, &selection.cni_args)
        .map_err(|wrong| CniError::new(Code::InvalidConfig, wrong.to_string()))?;
    Ok(device.and_then(|device| taking_a_device(&text, device.id)).unwrap_or(text))
}

/// A definition with a resource gets its device whether or not its plugins declare the capability, as Multus hands it to each, and one
/// of ours the file for its description, which it writes. One that is executed may know the device only by the two keys that Multus
/// writes into its configuration (`delegateAddDeviceID` in pkg/types/conf.go). `None`: it is no definition, which its reader says better.
fn taking_a_device(text: &str, device: &str) -> Option<String> {
    let mut definition: Value = serde_json::from_str(text).ok()?;
    let declare = |plugin: &mut Value| {
        let read = Fields::of(plugin).ok()?;
        let kind = read.text("type").ok()??;
        // In whatever spelling the reader of the list finds them; `null` is none.
        let mut declared = match read.item("capabilities") {
            Some(capabilities) => capabilities.value().as_object()?.clone(),
            None => Map::new(),
        };
        let is_ours = BUILT_IN.contains(&kind.as_str()) || kind == OWN_TYPE;
        declared.insert("deviceID".to_owned(), true.into());
        if is_ours {
            declared.insert("CNIDeviceInfoFile".to_owned(), true.into());
        }
        let plugin = plugin.as_object_mut()?;
        if !is_ours {
            for key in ["deviceID", "pciBusID"] {
                plugin.insert(key.to_owned(), device.into());
            }
        }
        plugin.retain(|key, _| folded(key) != "capabilities");
        plugin.insert("capabilities".to_owned(), Value::Object(declared));
        Some(())
    };
    match definition.get_mut("plugins").and_then(Value::as_array_mut) {
        Some(plugins) => plugins.iter_mut().try_for_each(declare)?,
        None => declare(&mut definition)?,
    }
    Some(definition.to_string())
}

fn no_api_server() -> CniError {
    CniError::new(Code::TryAgain, "its definition is not known: no API server is configured").with(
        "name the cluster's kubeconfig in the configuration file (key kubeconfig), or run fairleadd as a pod of it",
    )
}

fn labels_unknown(namespace: &str) -> CniError {
    let msg = format!("the labels of namespace {namespace} are not known yet, and the policy goes by them");
    CniError::new(Code::TryAgain, msg).with("the runtime will try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    const VF: &str = "0000:21:10.0";

    #[test]
    fn x10_a_definition_with_a_resource_takes_its_device_without_declaring_that() {
        let of = |text: &str| serde_json::from_str::<Value>(&taking_a_device(text, VF).unwrap()).unwrap();
        let sriov = of(r#"{"cniVersion":"1.0.0","type":"sriov","vlan":9,"capabilities":{"mac":true}}"#);
        let declared = json!({ "mac": true, "deviceID": true, "CNIDeviceInfoFile": true });
        assert_eq!(sriov["capabilities"], declared);
        let list = of(r#"{"cniVersion":"1.0.0","plugins":[{"type":"sriov"},{"type":"tuning"}]}"#);
        assert!(
            list["plugins"].as_array().unwrap().iter().all(|one| one["capabilities"]["deviceID"] == true)
        );
        assert_eq!(taking_a_device(r#"{"plugins":[7]}"#, VF), None, "its reader says what is wrong");
    }

    #[test]
    fn x10_capabilities_in_any_spelling_and_null_hide_neither_the_device_nor_what_is_declared_beside_it() {
        const MAC: &str = "02:00:00:00:00:01";
        let runtime = json!({ "deviceID": VF, "mac": MAC });
        for (capabilities, mac) in [
            (r#""capabilities":null"#, None),
            (r#""Capabilities":{"mac":true}"#, Some(MAC)),
            (r#""CAPABILITIES":{"mac":true,"deviceID":false}"#, Some(MAC)),
        ] {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"sriov",{capabilities}}}"#);
            let list = ConfList::parse(&taking_a_device(&text, VF).unwrap()).unwrap();
            let told = list.plugin_conf(0, None, runtime.as_object().unwrap()).unwrap().runtime;
            assert_eq!((told.device_id.as_deref(), told.mac.as_deref()), (Some(VF), mac), "{capabilities}");
        }
    }

    #[test]
    fn x10_a_plugin_that_is_executed_gets_its_device_by_the_keys_of_multus_too() {
        let list =
            r#"{"cniVersion":"1.0.0","plugins":[{"type":"rdma","pciBusID":"mine"},{"type":"host-device"}]}"#;
        let list: Value = serde_json::from_str(&taking_a_device(list, VF).unwrap()).unwrap();
        let of = |at: usize| ["deviceID", "pciBusID"].map(|key| list["plugins"][at][key].as_str());
        assert_eq!(of(0), [Some(VF); 2], "kubelet's word counts before the definition's");
        assert_eq!(of(1), [None; 2], "ours has it by runtimeConfig, and takes one of them only");
        // In a list of the administrator's, too, that a pod has for its default network.
        let device = Some(Device { id: VF, info_file: "/file" });
        let own = ConfList::parse(r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"rdma"}]}"#);
        let told = with_args(own.unwrap(), &NetworkSelection::default(), device).unwrap().to_text();
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["plugins"][0]["pciBusID"], VF);
    }
}
