//! The files in which Multus keeps what it attached to a container: `<cniDir>/<container id>` (`saveDelegates` and
//! `consumeScratchNetConf` in pkg/multus/multus.go, `DelegateNetConf` in pkg/types/types.go).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fairlead_cni::go_json::Fields;
use fairlead_cni::{CniError, CniResult, CniVersion, Code};
use serde_json::{Map, Value, json};

use crate::npwg::NetworkSelection;
use crate::npwg::runtime_config::{Device, cni_args_pairs, device_info_file, of_network};

/// The longest file that is read, in bytes: many times what the most networks of a pod need.
const MAX_FILE: usize = 16 * 1024 * 1024;
/// The most attachments of one container: each costs a removal, and no pod has near as many.
const MAX_ATTACHMENTS: usize = 256;

/// One thing that Multus attached to a container, with what its DEL needs.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedAttachment {
    /// `namespace/name` of the definition, or the name of the configuration.
    pub network: String,
    /// The interface in the pod.
    pub interface: String,
    /// Whether it is the pod's default network.
    pub is_default: bool,
    /// The text of the configuration, of one plugin or of a list, with device and `cni-args` in it.
    pub config: String,
    /// The capability arguments that the plugins had. The file has no port mappings and no bandwidth, and so Multus' own DEL
    /// has none; those of the default network are the runtime's.
    pub capability_args: Map<String, Value>,
    /// What Multus added to `CNI_ARGS`.
    pub cni_args: Vec<(&'static str, String)>,
    /// The device that the pod got for it.
    pub device: Option<String>,
    /// The resource of which the device is one.
    pub resource: Option<String>,
}

impl CachedAttachment {
    /// The namespace whose definition it is; `None` for what is the administrator's: the default network, and a network by its name
    /// alone.
    pub fn namespace(&self) -> Option<&str> {
        self.network.split_once('/').map(|(namespace, _)| namespace).filter(|_| !self.is_default)
    }
}

/// An entry of a container's file, as Multus marshals its `DelegateNetConf`: its DEL calls the plugin of this configuration for this
/// interface. `name` is how Multus calls the network.
pub fn entry(name: &str, config: &Value, interface: &str) -> Value {
    json!({
        "Conf": {"cniVersion": config["cniVersion"], "name": config["name"], "type": config["type"], "ipam": {}},
        "ConfList": {}, "Name": name, "ifnameRequest": interface,
        "IsFilterV4Gateway": false, "IsFilterV6Gateway": false,
        "Bytes": STANDARD.encode(config.to_string()),
    })
}

/// Where libcni, called by Multus, has kept a plugin's answer to ADD, below `cniDir` (`getCacheFilePath` in pkg/libcni/api.go).
pub fn result_file(network: &str, container_id: &str, interface: &str) -> String {
    format!("results/{network}-{container_id}-{interface}")
}

/// The answer in such a file; `None` for what is none.
pub fn cached_result(text: &str, version: CniVersion) -> Option<CniResult> {
    let kept: Value = serde_json::from_str(text).ok()?;
    let kept = kept.get("result").filter(|_| kept["kind"] == "cniCacheV1")?;
    CniResult::parse_text(&kept.to_string(), version).ok()
}

/// Reads the file of a container, whose default network has the interface `default_interface` (`CNI_IFNAME`). The order is that of
/// the attachments; a DEL goes the other way.
///
/// # Errors
/// Code 6 for what is no such file.
pub fn cached_attachments(
    text: &str,
    container_id: &str,
    default_interface: &str,
) -> Result<Vec<CachedAttachment>, CniError> {
    if text.len() > MAX_FILE {
        return Err(unreadable(&format!("it has {} bytes, more than {MAX_FILE}", text.len())));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| unreadable(&error.to_string()))?;
    let list = value.as_array().ok_or_else(|| unreadable("it is no list"))?;
    if list.len() > MAX_ATTACHMENTS {
        let why = format!("it has {} attachments, more than {MAX_ATTACHMENTS}", list.len());
        return Err(unreadable(&why));
    }
    let numbered = list.iter().enumerate();
    numbered
        .map(|(position, delegate)| attachment(position, delegate, container_id, default_interface))
        .collect()
}

fn attachment(
    position: usize,
    delegate: &Value,
    container_id: &str,
    default_interface: &str,
) -> Result<CachedAttachment, CniError> {
    let fields = Fields::of(delegate)?;
    let network = fields.text("Name")?.unwrap_or_default();
    let is_default = position == 0;
    // As Multus' `getIfname` counts.
    let interface = match fields.text("ifnameRequest")? {
        Some(name) => name,
        None if is_default => default_interface.to_owned(),
        None => format!("net{position}"),
    };
    let request = NetworkSelection {
        ips: fields.texts("ipRequest")?,
        mac: fields.text("macRequest")?,
        infiniband_guid: fields.text("infinibandGUIDRequest")?,
        ..NetworkSelection::default()
    };
    let device = fields.text("deviceID")?;
    let info_file = device_info_file(&network, container_id, &interface);
    let of_pod = device.as_deref().map(|id| Device { id, info_file: &info_file });
    Ok(CachedAttachment {
        config: config(&fields)?,
        // Multus gives a default network only what the runtime gave it.
        capability_args: if is_default { Map::new() } else { of_network(&request, of_pod) },
        cni_args: cni_args_pairs(&request),
        resource: fields.text("resourceName")?,
        network,
        interface,
        is_default,
        device,
    })
}

/// The configuration: the list as Multus read it from the conf dir, else `Bytes`, else what Multus understood of it. Where there is such
/// a list, `Bytes` is made of what Multus understood, without the keys of most plugins (`LoadDelegateNetConfFromConfList`).
fn config(fields: &Fields<'_>) -> Result<String, CniError> {
    if let Some(list) = fields.object("CNINetworkConfigList")?
        && let Some(text) = list.text("Bytes")?.filter(|text| !text.is_empty())
    {
        return decoded(&text);
    }
    if let Some(text) = fields.text("Bytes")? {
        return decoded(&text);
    }
    let has = |key: &str, inner: &str| {
        let value = fields.raw(key).filter(|value| value.get(inner).is_some_and(|inner| !inner.is_null()));
        value.map(Value::to_string)
    };
    let understood = has("ConfList", "plugins").or_else(|| has("Conf", "type"));
    understood.ok_or_else(|| unreadable("an attachment has no configuration"))
}

/// The text behind a `[]byte` as Go's `json.Marshal` writes it.
fn decoded(bytes: &str) -> Result<String, CniError> {
    let bytes = STANDARD.decode(bytes).map_err(|error| unreadable(&format!("\"Bytes\": {error}")))?;
    String::from_utf8(bytes).map_err(|error| unreadable(&format!("\"Bytes\": {error}")))
}

fn unreadable(why: &str) -> CniError {
    CniError::new(Code::Decode, format!("this is no file of Multus' attachments: {why}"))
        .with("tear the pod down with Multus, or remove the file, and what it attached by hand")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What Go's `json.Marshal` writes of Multus' structs for a list as the default network, and a definition with a device; and an
    /// entry without `Bytes`.
    const FILE: &str = concat!(
        r#"[{"Conf":{"cniVersion":"0.3.1","ipam":{},"name":"cbr0"},"ConfList":{"cniVersion":"0.3.1","name":"cbr0","plugins":"#,
        r#"[{"ipam":{},"type":"flannel"},{"capabilities":{"portMappings":true},"ipam":{},"type":"portmap"}]},"Name":"cbr0","#,
        r#""IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"Bytes":"eyJuYW1lIjoiY2JyMCIsImNuaVZlcnNpb24iOiIwLjMuMSIsInBsd"#,
        r#"WdpbnMiOlt7InR5cGUiOiJmbGFubmVsIiwiZGVsZWdhdGUiOnsiaGFpcnBpbk1vZGUiOnRydWV9fSx7InR5cGUiOiJwb3J0bWFwIiwiY2FwYWJpbG"#,
        r#"l0aWVzIjp7InBvcnRNYXBwaW5ncyI6dHJ1ZX19XX0="},{"Conf":{"ipam":{},"name":"sriov-net","type":"sriov"},"ConfList":{},"#,
        r#""Name":"shop/sriov-net","macRequest":"02:00:00:00:00:01","ipRequest":["10.9.0.5/24"],"default-route":["10.9.0.1"],"#,
        r#""IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"deviceID":"0000:03:00.2","resourceName":"example.com/vf","#,
        r#""Bytes":"eyJuYW1lIjoic3Jpb3YtbmV0IiwidHlwZSI6InNyaW92IiwiZGV2aWNlSUQiOiIwMDAwOjAzOjAwLjIifQ=="},"#,
        r#"{"Conf":{"name":"m","type":"macvlan"},"ConfList":{},"Name":"shop/m","ifnameRequest":"radio0","Bytes":null}]"#,
    );

    #[test]
    fn what_multus_attached_is_read_with_its_interfaces_and_whole_configurations() {
        let attachments = cached_attachments(FILE, "c1", "eth0").unwrap();
        let of = |at: usize| {
            let attachment = &attachments[at];
            (attachment.network.as_str(), attachment.interface.as_str(), attachment.is_default)
        };
        assert_eq!(of(0), ("cbr0", "eth0", true));
        assert_eq!(of(1), ("shop/sriov-net", "net1", false));
        assert_eq!(of(2), ("shop/m", "radio0", false));
        // `Bytes` has what `ConfList` lost.
        assert!(attachments[0].config.contains(r#""delegate":{"hairpinMode":true}"#));
        assert_eq!(attachments[2].config, r#"{"name":"m","type":"macvlan"}"#);
        assert_eq!(attachments[1].config, r#"{"name":"sriov-net","type":"sriov","deviceID":"0000:03:00.2"}"#);
        assert_eq!(attachments[1].resource.as_deref(), Some("example.com/vf"));
    }

    #[test]
    fn a_list_of_the_conf_dir_is_whole_though_multus_wrote_only_what_it_understood_of_it() {
        let whole = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"ranges":[]}}]}"#;
        let lossy = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{}}]}"#;
        let entry = |list: Value| {
            let file = json!([{"Name": "pods", "ConfList": {}, "CNINetworkConfigList": list, "Bytes": STANDARD.encode(lossy)}]);
            cached_attachments(&file.to_string(), "c", "eth0").unwrap().remove(0).config
        };
        assert_eq!(entry(json!({"Name": "pods", "Plugins": [], "Bytes": STANDARD.encode(whole)})), whole);
        // As of a definition, which Multus does not read by libcni.
        assert_eq!(entry(json!({"Name": "", "Plugins": null, "Bytes": null})), lossy);
        assert_eq!(entry(json!({"Name": "", "Bytes": ""})), lossy);
    }

    #[test]
    fn its_del_gets_the_arguments_that_multus_own_del_would_give() {
        let attachments = cached_attachments(FILE, "c1", "eth0").unwrap();
        assert_eq!(json!(attachments[0].capability_args), json!({}));
        assert_eq!(
            json!(attachments[1].capability_args),
            json!({"mac":"02:00:00:00:00:01","ips":["10.9.0.5/24"],"deviceID":"0000:03:00.2",
                "CNIDeviceInfoFile":"/var/run/k8s.cni.cncf.io/devinfo/cni/shop-sriov-net-c1_net1"})
        );
        let pairs = [("MAC", "02:00:00:00:00:01".to_owned()), ("IP", "10.9.0.5/24".to_owned())];
        assert_eq!(attachments[1].cni_args, pairs);
    }

    #[test]
    fn what_is_no_such_file_is_refused_in_words_that_no_runtime_takes_for_success() {
        let cases = [
            "",
            "{}",
            "[7]",
            r#"[{"Name":"a"}]"#,
            r#"[{"Bytes":"%"}]"#,
            r#"[{"CNINetworkConfigList":{"Bytes":"%"}}]"#,
            r#"[{"Bytes":"/w=="}]"#,
            r#"[{"Name":5}]"#,
        ];
        for text in cases {
            let error = cached_attachments(text, "c", "eth0").expect_err(text);
            let words = format!("{} {}", error.msg, error.details).to_ascii_lowercase();
            assert_eq!(fairlead_cni::avoid_containerd_phrases(&words), words);
        }
        assert_eq!(cached_attachments("[]", "c", "eth0").unwrap(), []);
    }
}
