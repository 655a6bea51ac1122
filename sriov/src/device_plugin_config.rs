//! The configuration file of the SR-IOV network device plugin, read as that reads it: keys in any case, `null` for absent,
//! unknown keys left out.
//!
//! A resource that cannot be served as it is meant is refused alone, with the reason; the others are served. Never reads a
//! file: its text is handed in.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{BadResourceName, PciAddr, Selectors, check_resource_name};

/// The device plugin's default for `--resource-prefix`.
const PREFIX: &str = "intel.com";
/// The only kind of device that is served, and the default.
const NET_DEVICE: &str = "netDevice";
/// The entry of `additionalInfo` that holds for all devices.
const EVERY_DEVICE: &str = "*";

const RESOURCE_KEYS: &[&str] =
    &["resourceName", "resourcePrefix", "deviceType", "excludeTopology", "selectors", "additionalInfo"];
const SELECTOR_KEYS: &[&str] = &[
    "vendors",
    "devices",
    "drivers",
    "pciAddresses",
    "acpiIndexes",
    "pfNames",
    "rootDevices",
    "linkTypes",
    "pKeys",
    "isRdma",
    "needVhostNet",
    "ddpProfiles",
    "vdpaType",
];

/// What the device plugin puts before the name of a resource whose `resourcePrefix` the file does not give. It stands on the plugin's
/// command line (`--resource-prefix`) and not in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourcePrefix(String);

/// A prefix under which kubelet takes no resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no prefix of a resource's name that kubelet takes: give a domain in small letters, as openshift.io"
)]
pub struct BadResourcePrefix(String);

impl Default for ResourcePrefix {
    fn default() -> ResourcePrefix {
        ResourcePrefix(PREFIX.to_owned())
    }
}

impl TryFrom<String> for ResourcePrefix {
    type Error = BadResourcePrefix;

    fn try_from(prefix: String) -> Result<ResourcePrefix, BadResourcePrefix> {
        // Any name behind it will do: it is the prefix that is judged.
        match check_resource_name(&format!("{prefix}/vf")) {
            Ok(()) => Ok(ResourcePrefix(prefix)),
            Err(_) => Err(BadResourcePrefix(prefix)),
        }
    }
}

impl From<ResourcePrefix> for String {
    fn from(prefix: ResourcePrefix) -> String {
        prefix.0
    }
}

/// What a configuration file says.
#[derive(Debug, Default)]
pub struct DevicePluginConfig {
    /// The resources that can be served, in the file's order: a VF belongs to the first that matches.
    pub resources: Vec<Resource>,
    /// The resources that cannot be served.
    pub refused: Vec<RefusedResource>,
}

/// A resource for kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its name with its prefix: `intel.com/radio`.
    pub name: String,
    /// The selectors of its VFs.
    pub selectors: Selectors,
    /// Kubelet is not to know the devices' NUMA nodes.
    pub exclude_topology: bool,
    info: BTreeMap<String, BTreeMap<String, String>>,
}

impl Resource {
    /// Further facts about a VF for its pod (`extraInfo`): what holds for all VFs, and over it what holds for this one.
    pub fn additional_info(&self, address: PciAddr) -> BTreeMap<String, String> {
        let of = |key: &str| self.info.get(key).cloned().unwrap_or_default();
        let mut info = of(EVERY_DEVICE);
        info.extend(of(&address.to_string()));
        info
    }
}

/// A resource that is not served.
#[derive(Debug, thiserror::Error)]
#[error("resource {name:?}: {reason}")]
pub struct RefusedResource {
    /// Its name, as far as it has one.
    pub name: String,
    /// Why it is not served.
    #[source]
    pub reason: Refusal,
}

/// Why a resource is not served.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Something of it has another form.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// Its name has characters that kubelet does not take, or none.
    #[error("resourceName must consist of letters, digits, - and _")]
    Name,
    /// Kubelet does not take it with its prefix.
    #[error("resourcePrefix and resourceName: {0}")]
    NotTaken(#[from] BadResourceName),
    /// Another one has its name.
    #[error("a resource before it has the same name")]
    Twice,
    /// It has no selectors.
    #[error("it has no selectors; {{}} selects every VF")]
    NoSelectors,
    /// It is about devices of another type.
    #[error("deviceType {0} is not served yet, only netDevice")]
    DeviceType(String),
    /// It is about VFs that no pool serves, and about no others.
    #[error("{0}; take it out")]
    Selectors(String),
}

/// Why a configuration file cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum DevicePluginConfigError {
    /// It is no JSON.
    #[error("it is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It has not what makes it one.
    #[error("it has no list resourceList")]
    NoList,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Written {
    resource_name: String,
    resource_prefix: String,
    device_type: String,
    exclude_topology: bool,
    selectors: Option<Selectors>,
    additional_info: BTreeMap<String, BTreeMap<String, String>>,
}

impl DevicePluginConfig {
    /// Reads the text of a file. `prefix`: of the resources that have none of their own.
    pub fn read(text: &str, prefix: &ResourcePrefix) -> Result<DevicePluginConfig, DevicePluginConfigError> {
        let mut file = known(serde_json::from_str(text)?, &["resourceList"]);
        let Some(Value::Array(list)) = file.get_mut("resourceList").map(Value::take) else {
            return Err(DevicePluginConfigError::NoList);
        };
        let mut config = DevicePluginConfig::default();
        let mut names = BTreeSet::new();
        for written in list {
            let written = known(written, RESOURCE_KEYS);
            // Taken before the rest is read: a resource that cannot be read is still reported by its name.
            let name = written["resourceName"].as_str().unwrap_or_default().to_owned();
            match resource(written, prefix) {
                Ok(resource) if names.insert(resource.name.clone()) => config.resources.push(resource),
                Ok(resource) => {
                    config.refused.push(RefusedResource { name: resource.name, reason: Refusal::Twice });
                }
                Err(reason) => config.refused.push(RefusedResource { name, reason }),
            }
        }
        Ok(config)
    }
}

fn resource(mut written: Value, default_prefix: &ResourcePrefix) -> Result<Resource, Refusal> {
    let kind = written["deviceType"].as_str().unwrap_or_default();
    if ![NET_DEVICE, ""].contains(&kind) {
        return Err(Refusal::DeviceType(kind.to_owned()));
    }
    // The device plugin ignores unknown keys. `Selector` refuses them, because it is read from our own configuration too.
    if let Some(selectors) = written.get_mut("selectors") {
        *selectors = match selectors.take() {
            Value::Array(list) => list.into_iter().map(|one| known(one, SELECTOR_KEYS)).collect(),
            one => known(one, SELECTOR_KEYS),
        };
    }
    let written = Written::deserialize(written)?;
    let name = written.resource_name;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        return Err(Refusal::Name);
    }
    // The device plugin takes an empty prefix for none.
    let prefix = Some(written.resource_prefix).filter(|prefix| !prefix.is_empty());
    let name = format!("{}/{name}", prefix.as_deref().unwrap_or(&default_prefix.0));
    check_resource_name(&name)?;
    let selectors = written.selectors.ok_or(Refusal::NoSelectors)?;
    if let Some(why) = selectors.why_unserved() {
        return Err(Refusal::Selectors(why));
    }
    Ok(Resource {
        name,
        selectors,
        exclude_topology: written.exclude_topology,
        info: written.additional_info,
    })
}

/// An object with the keys that are known, as they are written here, and a value; anything else as it is.
fn known(value: Value, keys: &[&str]) -> Value {
    let Value::Object(object) = value else { return value };
    let own = |key: &str| keys.iter().find(|known| known.eq_ignore_ascii_case(key));
    let kept = object.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        kept.filter_map(|(key, value)| Some(((*own(&key)?).to_owned(), value))).collect::<Map<_, _>>(),
    )
}
