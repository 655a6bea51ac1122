//! What a pod's annotations ask for: which networks, in which order, and what of each of them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use fairlead_cni::go_json;
use serde::Serialize;
use serde_json::{Map, Value};

use super::entry::{self, Fault};

/// The annotation that selects networks (NPWG 1.3, section 4.1).
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The annotation by which a pod replaces the cluster's default network for itself; Multus' own.
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// The annotation from before the specification: names of `Network` objects of the pod's own namespace.
pub const LEGACY_NETWORKS: &str = "alpha.network.k8s.io/networks";
/// The longest annotation that is read, in bytes; the API allows all annotations of an object together no more.
pub const MAX_ANNOTATION: usize = 256 * 1024;
/// The most networks that a pod may ask for by one annotation.
pub const MAX_NETWORKS: usize = 64;
/// The most keys without a meaning that are told.
const MAX_IGNORED: usize = 16;

/// What a network's name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ObjectKind {
    /// A `NetworkAttachmentDefinition` (`k8s.cni.cncf.io/v1`).
    #[default]
    NetworkAttachmentDefinition,
    /// A `Network` (`alpha.network.k8s.io/v1`).
    Network,
    /// What the administrator gives every pod (Multus' `defaultNetworks`): a configuration of the conf dir, else a
    /// `NetworkAttachmentDefinition`. No pod can ask for it as such.
    OfEveryPod,
}

/// One network that a pod asks for, and what of it. Texts are kept as their author wrote them, and are valid.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NetworkSelection {
    /// What the name stands for.
    pub object: ObjectKind,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The name that the interface shall have in the pod; `None` for one by position.
    pub interface: Option<String>,
    /// The addresses that the pod shall have, with or without prefix length.
    pub ips: Vec<String>,
    /// The MAC address that the interface shall have, of 6 bytes.
    pub mac: Option<String>,
    /// The InfiniBand GUID that the interface shall have, of 8 bytes.
    pub infiniband_guid: Option<String>,
    /// `cni-args`: what goes to the plugins as `args.cni`, without being understood here.
    pub cni_args: Map<String, Value>,
    /// The ports of the node that shall lead to the pod over this network.
    pub port_mappings: Vec<PortMapping>,
    /// How much may go through the interface.
    pub bandwidth: Option<Bandwidth>,
    /// `default-route`: this network gets the pod's default route, by these gateways. Empty: by what its own configuration says.
    /// `None`: it gets none where another network, or the default one, has it.
    pub default_route: Option<Vec<IpAddr>>,
}

impl NetworkSelection {
    /// `namespace/name`, as network-status and errors write it.
    pub fn reference(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A port of the node that leads to a port of the pod, as CNI's conventions write it in `runtimeConfig.portMappings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// The port of the node, from 1.
    pub host_port: u16,
    /// The port of the pod, from 1.
    pub container_port: u16,
    /// TCP, UDP or SCTP in any case, as written; "tcp" where nothing was.
    pub protocol: String,
    /// The address of the node; `None` for all of them.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<String>,
}

/// Rates in bit/s and bursts in bit, as CNI's conventions write them in `runtimeConfig.bandwidth`. 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bandwidth {
    /// The rate towards the pod.
    pub ingress_rate: u64,
    /// The burst towards the pod.
    pub ingress_burst: u64,
    /// The rate from the pod.
    pub egress_rate: u64,
    /// The burst from the pod.
    pub egress_burst: u64,
}

/// All that a pod asks for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Requested {
    /// What the pod has instead of the cluster's default network: that of [`DEFAULT_NETWORK`], or the first of
    /// [`LEGACY_NETWORKS`].
    pub default_network: Option<NetworkSelection>,
    /// The further networks, in their order. The same one may be there more than once: each is an attachment (section 4.2).
    pub networks: Vec<NetworkSelection>,
    /// What was written and has no effect, so that somebody can be told.
    pub ignored: Vec<Ignored>,
}

/// Something that a pod's author wrote and that has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ignored {
    /// A key that has no meaning, as Go's decoder ignores it. Keys with a point in their name are other programs' (section
    /// 4.1.2.1) and not told.
    Key {
        /// The annotation.
        annotation: &'static str,
        /// Whose key it is.
        entry: Entry,
        /// The key, in lower case.
        key: String,
    },
    /// An annotation, because there is another that counts.
    Annotation {
        /// The one that has no effect.
        annotation: &'static str,
        /// The one that counts.
        instead: &'static str,
    },
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ignored::Key { annotation, entry, key } => {
                write!(f, "annotation {annotation}, {entry}: the key \"{key}\" has no meaning and no effect")
            }
            Ignored::Annotation { annotation, instead } => {
                write!(f, "annotation {annotation} has no effect beside {instead}")
            }
        }
    }
}

/// An entry of an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its position, from 1.
    pub position: usize,
    /// The network as far as it could be read, cut and escaped; empty where it could not.
    pub network: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network.as_str() {
            "" => write!(f, "entry {}", self.position),
            network => write!(f, "entry {} ({network})", self.position),
        }
    }
}

/// Why a pod's annotation cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The annotation.
    pub annotation: &'static str,
    /// The entry; `None` where the whole annotation is meant.
    pub entry: Option<Entry>,
    /// What is wrong.
    pub reason: String,
    /// What would be right.
    pub remedy: &'static str,
}

impl std::error::Error for RequestError {}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "annotation {}", self.annotation)?;
        if let Some(entry) = &self.entry {
            write!(f, ", {entry}")?;
        }
        write!(f, ": {}; {}", self.reason, self.remedy)
    }
}

impl RequestError {
    pub(super) fn of(annotation: &'static str, entry: Option<Entry>, fault: Fault) -> RequestError {
        RequestError { annotation, entry, reason: fault.reason, remedy: fault.remedy }
    }
}

/// Reads what a pod of `pod_namespace` asks for. Networks of [`DEFAULT_NETWORK`] without a namespace are those of
/// `system_namespace` (Multus' `multusNamespace`, `kube-system` by default).
///
/// [`NETWORKS`] counts before [`LEGACY_NETWORKS`]. An annotation that is empty or blank is the same as none.
///
/// # Errors
/// The first thing that is wrong, with its place and the remedy.
pub fn selections(
    annotations: &BTreeMap<String, String>,
    pod_namespace: &str,
    system_namespace: &str,
) -> Result<Requested, RequestError> {
    let mut requested = Requested::default();
    match (filled(annotations, NETWORKS), filled(annotations, LEGACY_NETWORKS)) {
        (Some(text), legacy) => {
            requested.networks = read(NETWORKS, text, pod_namespace, &mut requested.ignored)?;
            let ignored = Ignored::Annotation { annotation: LEGACY_NETWORKS, instead: NETWORKS };
            requested.ignored.extend(legacy.map(|_| ignored));
        }
        (None, Some(text)) => {
            let mut networks =
                read(LEGACY_NETWORKS, text, pod_namespace, &mut requested.ignored)?.into_iter();
            requested.default_network = networks.next();
            requested.networks = networks.collect();
        }
        (None, None) => {}
    }
    if let Some(text) = filled(annotations, DEFAULT_NETWORK) {
        let own = default_network(text, system_namespace, &mut requested)?;
        requested.default_network = own.or(requested.default_network);
    }
    one_default_route(&requested)?;
    Ok(requested)
}

fn filled<'a>(annotations: &'a BTreeMap<String, String>, annotation: &str) -> Option<&'a str> {
    annotations.get(annotation).map(|text| text.trim()).filter(|text| !text.is_empty())
}

fn default_network(
    text: &str,
    namespace: &str,
    requested: &mut Requested,
) -> Result<Option<NetworkSelection>, RequestError> {
    let refused =
        |reason: String, remedy| RequestError { annotation: DEFAULT_NETWORK, entry: None, reason, remedy };
    let mut networks = read(DEFAULT_NETWORK, text, namespace, &mut requested.ignored)?;
    if networks.len() > 1 {
        let reason = format!("it names {} networks, and a pod has one default network", networks.len());
        return Err(refused(reason, "name one, and further ones by k8s.v1.cni.cncf.io/networks"));
    }
    if let (Some(first), false) = (&requested.default_network, networks.is_empty()) {
        let reason = format!("{LEGACY_NETWORKS} makes {} the default network already", first.name);
        return Err(refused(reason, "remove one of the two annotations"));
    }
    Ok(networks.pop())
}

/// Reads the entries of one annotation. A text with one of `[{"` is JSON, as for the reference library (`ParseNetworkAnnotation` of
/// network-attachment-definition-client); any other is a list with commas.
fn read(
    annotation: &'static str,
    text: &str,
    namespace: &str,
    ignored: &mut Vec<Ignored>,
) -> Result<Vec<NetworkSelection>, RequestError> {
    let whole = |fault| RequestError::of(annotation, None, fault);
    if text.len() > MAX_ANNOTATION {
        let reason = format!("it has {} bytes, more than {MAX_ANNOTATION}", text.len());
        return Err(whole(Fault::new(reason, "shorten it")));
    }
    if annotation == LEGACY_NETWORKS || !text.contains(['[', '{', '"']) {
        let entries = bounded(text.split(',').map(str::trim).collect()).map_err(whole)?;
        return each(annotation, &entries, |text| {
            (text.to_string(), entry::of_text(annotation, text, namespace))
        });
    }
    let list = json_list(text).map_err(whole)?;
    let mut unknown = Vec::new();
    let networks = each(annotation, &list, |value| {
        let name = entry::name_of(value, namespace);
        let read = entry::of_json(value, namespace).map(|(network, keys)| {
            unknown.push(keys);
            network
        });
        (name, read)
    })?;
    for (at, (keys, network)) in unknown.into_iter().zip(&networks).enumerate() {
        let entry = Entry { position: at + 1, network: network.reference() };
        let keys = keys.into_iter().take(MAX_IGNORED.saturating_sub(ignored.len()));
        ignored.extend(keys.map(|key| Ignored::Key { annotation, entry: entry.clone(), key }));
    }
    Ok(networks)
}

/// Reads each entry, and tells an error's place.
fn each<T>(
    annotation: &'static str,
    entries: &[T],
    mut read: impl FnMut(&T) -> (String, Result<NetworkSelection, Fault>),
) -> Result<Vec<NetworkSelection>, RequestError> {
    let numbered = entries.iter().enumerate();
    let read = numbered.map(|(at, entry)| {
        let (network, read) = read(entry);
        let entry = Entry { position: at + 1, network: entry::escaped(&network) };
        read.map_err(|fault| RequestError::of(annotation, Some(entry), fault))
    });
    read.collect()
}

fn json_list(text: &str) -> Result<Vec<Value>, Fault> {
    const FORM: &str = "write a JSON list of objects with \"name\", or names with commas between them";
    match go_json::parse(text).map_err(|error| Fault::new(error.msg, FORM))? {
        Value::Array(list) => bounded(list),
        Value::Null => Ok(Vec::new()),
        _ => Err(Fault::new("the JSON is no list", FORM)),
    }
}

fn bounded<T>(entries: Vec<T>) -> Result<Vec<T>, Fault> {
    if entries.len() > MAX_NETWORKS {
        let reason = format!("it asks for {} networks, more than {MAX_NETWORKS}", entries.len());
        return Err(Fault::new(reason, "ask for fewer"));
    }
    Ok(entries)
}

/// Section 4.1.2.1.9 gives the default route to one network. As Multus does, it is allowed that one has that of IPv4 and another
/// that of IPv6.
fn one_default_route(requested: &Requested) -> Result<(), RequestError> {
    let mut taken: [Option<String>; 2] = [None, None];
    let default = requested.default_network.iter().map(|network| (DEFAULT_NETWORK, 1, network));
    let further = requested.networks.iter().enumerate().map(|(at, network)| (NETWORKS, at + 1, network));
    for (annotation, position, network) in default.chain(further) {
        let Some(gateways) = &network.default_route else { continue };
        let families =
            [IpAddr::is_ipv4, IpAddr::is_ipv6].map(|is| gateways.iter().filter(|ip| is(ip)).count());
        for (taken, count) in taken.iter_mut().zip(families) {
            // Without gateways the network's own configuration decides, which can have a route of each family.
            if count == 0 && !gateways.is_empty() {
                continue;
            }
            let entry = Some(Entry { position, network: network.reference() });
            let refused =
                |reason: String, remedy| Err(RequestError::of(annotation, entry, Fault::new(reason, remedy)));
            if count > 1 {
                let reason = format!("\"default-route\" names {count} gateways of one family");
                return refused(reason, "name one gateway for IPv4 and one for IPv6 at most");
            }
            if let Some(other) = taken.replace(network.reference()) {
                let reason = format!("\"default-route\" is asked for {other} already");
                return refused(reason, "ask for it on one network only");
            }
        }
    }
    Ok(())
}
