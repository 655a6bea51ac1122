//! The objects of the API, cut to what is kept of them while they are read: a page of pods with all their managed fields never
//! exists in memory as values.
//!
//! What a tenant writes into one object never keeps another from being read: an object is parsed alone, and a part of it that
//! is not as its kind says is told with that object.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cluster::{Definition, LegacyNetwork};
use crate::npwg::network_status::NETWORK_STATUS;
use crate::pod::{Pod, PodRef, SharedDirVolume, says_of_networks};

/// Longer configurations are refused: the definitions of the whole cluster are in every node's memory. In bytes.
const LONGEST_CONFIG: usize = 64 * 1024;
/// The resource of the device plugin (NPWG 1.3, section 3.2).
const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";
/// Set by kubelet on the object that it makes for a static pod; its value is the uid of the runtime's pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The volume of a pod that userspace-cni puts sockets in.
const SHARED_DIR: &str = "shared-dir";
/// The kernel takes no longer path (PATH_MAX). In bytes.
const LONGEST_PATH: usize = 4096;
/// What is kept of the parser's words about a spec, which may quote all of it. In characters.
const LONGEST_REASON: usize = 200;

/// An object as it is read; the text of its `spec` is parsed by its kind.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Object {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(default)]
    spec: Option<Box<RawValue>>,
}

/// What is kept of an object's `metadata`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// A page of a list; its objects are in the text that it was read from.
#[derive(Debug, Deserialize)]
pub(super) struct Page<'a> {
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    #[serde(default, borrow)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

/// Where a list stands.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    pub(super) r#continue: String,
}

/// A pod of the API, and the uid by which its runtime knows it if that is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiPod {
    pub(super) pod: Arc<Pod>,
    /// The uid of a static pod in its runtime.
    pub(super) runtime_uid: Option<String>,
    /// Its network-status, as [`digest`] has it; `None` where it has none, and of a pod from the snapshot.
    pub(super) network_status: Option<u64>,
}

/// By what one network-status is told from another: the texts of all pods would be long.
pub(super) fn digest(network_status: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    network_status.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Default, Deserialize)]
struct DefinitionSpec {
    #[serde(default)]
    config: Option<String>,
}

/// What is read of a pod's spec.
#[derive(Debug, Default, Deserialize)]
struct PodSpec {
    #[serde(default)]
    volumes: Option<Vec<Volume>>,
    #[serde(default)]
    containers: Option<Vec<Container>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(default)]
    name: String,
    #[serde(default)]
    host_path: Option<HostPath>,
}

#[derive(Debug, Deserialize)]
struct HostPath {
    #[serde(default)]
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    volume_mounts: Option<Vec<VolumeMount>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    #[serde(default)]
    name: String,
    #[serde(default)]
    mount_path: String,
}

impl PodSpec {
    fn shared_dir(self) -> Option<SharedDirVolume> {
        let volume = self.volumes.into_iter().flatten().find(|volume| volume.name == SHARED_DIR)?;
        // As userspace-cni has it: a container's first mount of the volume, and of several containers the last one's.
        let mut from_the_last = self.containers.into_iter().flatten().rev();
        let mount = from_the_last.find_map(|container| {
            container.volume_mounts?.into_iter().find(|mount| mount.name == SHARED_DIR)
        });
        let (host_path, mount_path) =
            (volume.host_path.map(|host| host.path), mount.map(|mount| mount.mount_path));
        // The API server bounds neither, and no pod with a longer one starts.
        let are_paths = [&host_path, &mount_path].into_iter().flatten().all(|path| path.len() < LONGEST_PATH);
        are_paths.then_some(SharedDirVolume { host_path, mount_path })
    }
}

#[derive(Debug, Default, Deserialize)]
struct LegacySpec {
    #[serde(default)]
    plugin: Option<String>,
}

impl Object {
    /// The object of this text.
    pub(super) fn parse(text: &RawValue) -> Result<Object, serde_json::Error> {
        serde_json::from_str(text.get())
    }

    /// The object as a pod.
    pub(super) fn into_pod(self) -> ApiPod {
        // Most pods have no such volume; and what of a spec is not as its kind says does not keep the pod from being known.
        let names_it = self.spec.as_ref().is_some_and(|spec| spec.get().contains(SHARED_DIR));
        let shared_dir = names_it.then(|| self.spec::<PodSpec>().ok()?.shared_dir()).flatten();
        let mut annotations = self.metadata.annotations.unwrap_or_default();
        let runtime_uid = annotations.remove(MIRROR);
        let network_status = annotations.remove(NETWORK_STATUS).map(|text| digest(&text));
        annotations.retain(|key, _| says_of_networks(key));
        let id = PodRef {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
            uid: Some(self.metadata.uid),
        };
        let pod = Arc::new(Pod { id, annotations, is_static: runtime_uid.is_some(), shared_dir });
        ApiPod { pod, runtime_uid, network_status }
    }

    /// The object as a NetworkAttachmentDefinition.
    ///
    /// # Errors
    /// Its spec is not that of one, or too long.
    pub(super) fn into_definition(self) -> Result<Definition, String> {
        let spec: DefinitionSpec = self.spec()?;
        if spec.config.as_ref().is_some_and(|config| config.len() > LONGEST_CONFIG) {
            return Err(format!("spec.config is longer than {LONGEST_CONFIG} bytes; shorten it"));
        }
        let resource = self.metadata.annotations.and_then(|mut all| all.remove(RESOURCE_NAME));
        Ok(Definition {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
            config: spec.config.filter(|config| !config.trim().is_empty()).map(Arc::from),
            resource: resource.filter(|name| !name.is_empty()),
        })
    }

    /// The object as a `Network` of the legacy API.
    ///
    /// # Errors
    /// Its spec is not that of one.
    pub(super) fn into_legacy_network(self) -> Result<LegacyNetwork, String> {
        let spec: LegacySpec = self.spec()?;
        Ok(LegacyNetwork {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
            plugin: spec.plugin.filter(|plugin| !plugin.is_empty()),
        })
    }

    /// The labels of the object.
    pub(super) fn into_labels(self) -> BTreeMap<String, String> {
        self.metadata.labels.unwrap_or_default()
    }

    fn spec<T: Default + for<'de> Deserialize<'de>>(&self) -> Result<T, String> {
        let Some(text) = self.spec.as_ref().filter(|text| text.get() != "null") else {
            return Ok(T::default());
        };
        serde_json::from_str(text.get()).map_err(|e| {
            let words: String = e.to_string().chars().take(LONGEST_REASON).collect();
            format!("its spec is not as its kind says ({words}); correct it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(&RawValue::from_string(text.to_owned()).unwrap()).unwrap()
    }

    #[test]
    fn of_a_pod_only_what_it_says_of_networks_is_kept() {
        let pod = object(
            r#"{"metadata":{"namespace":"a","name":"p","uid":"u","managedFields":[{"fieldsV1":{"f:x":{}}}],"annotations":
            {"k8s.v1.cni.cncf.io/networks":"n1","k8s.v1.cni.cncf.io/network-status":"[]","other/words":"long"}}}"#,
        )
        .into_pod();
        assert_eq!(pod.pod.annotations.keys().collect::<Vec<_>>(), ["k8s.v1.cni.cncf.io/networks"]);
        assert_eq!((pod.pod.is_static, pod.runtime_uid), (false, None));
        assert_eq!(pod.network_status, Some(digest("[]")));
    }

    #[test]
    fn the_volume_of_userspace_cni_is_known_with_its_directories() {
        let of = |spec: &str| {
            let text = format!(r#"{{"metadata":{{"namespace":"a","name":"p","uid":"u"}},"spec":{spec}}}"#);
            object(&text).into_pod().pod.shared_dir.clone()
        };
        let volumes = r#""volumes":[{"name":"x","hostPath":{"path":"/x"}},{"name":"shared-dir","hostPath":{"path":"/run/app1"}}]"#;
        let mounts =
            r#""containers":[{"name":"a"},{"volumeMounts":[{"name":"shared-dir","mountPath":"/sockets/"}]}]"#;
        let known = of(&format!("{{{volumes},{mounts}}}")).unwrap();
        assert_eq!(
            (known.host_path.as_deref(), known.mount_path.as_deref()),
            (Some("/run/app1"), Some("/sockets/"))
        );
        let several = r#""containers":[{"volumeMounts":[{"name":"shared-dir","mountPath":"/first"}]},
            {"volumeMounts":[{"name":"shared-dir","mountPath":"/last"},{"name":"shared-dir","mountPath":"/again"}]},
            {"volumeMounts":[{"name":"x","mountPath":"/x"}]}]"#;
        let known = of(&format!("{{{volumes},{several}}}")).unwrap();
        assert_eq!(known.mount_path.as_deref(), Some("/last"));
        let known = of(r#"{"volumes":[{"name":"shared-dir","emptyDir":{}}]}"#).unwrap();
        assert_eq!((known.host_path, known.mount_path), (None, None));
        let long = format!(
            r#"{{"volumes":[{{"name":"shared-dir","hostPath":{{"path":"/{}"}}}}]}}"#,
            "x".repeat(LONGEST_PATH)
        );
        for none in [
            "null",
            r#"{"volumes":[{"name":"x"}],"words":"shared-dir"}"#,
            r#"{"volumes":"shared-dir"}"#,
            long.as_str(),
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn k12_a_mirror_pod_is_known_by_the_uid_of_its_runtime() {
        let pod = object(
            r#"{"metadata":{"namespace":"a","name":"p","uid":"u","annotations":{"kubernetes.io/config.mirror":"hash"}}}"#,
        )
        .into_pod();
        assert_eq!((pod.pod.is_static, pod.runtime_uid.as_deref()), (true, Some("hash")));
    }

    #[test]
    fn a_definition_without_a_config_means_one_by_name() {
        for spec in ["", r#","spec":null"#, r#","spec":{}"#, r#","spec":{"config":"  "}"#] {
            let text = format!(r#"{{"metadata":{{"namespace":"a","name":"n"}}{spec}}}"#);
            assert_eq!(object(&text).into_definition().unwrap().config, None, "{text}");
        }
    }

    #[test]
    fn a_spec_of_another_shape_or_depth_is_told_of_its_own_object() {
        let deep = format!(r#"{{"config":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
        let long = format!(r#"{{"config":"{}"}}"#, "x".repeat(LONGEST_CONFIG + 1));
        let words = format!(r#""{}""#, "w".repeat(LONGEST_CONFIG));
        for spec in [deep.as_str(), words.as_str(), r#"{"config":7}"#, long.as_str()] {
            let text = format!(r#"{{"metadata":{{"namespace":"a","name":"n"}},"spec":{spec}}}"#);
            let told = object(&text).into_definition().unwrap_err();
            assert!(told.len() < 2 * LONGEST_REASON, "a tenant's text is not kept as an error: {told}");
        }
    }
}
