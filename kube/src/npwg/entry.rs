//! One entry of an annotation, in both of its forms (NPWG 1.3, sections 4.1.1 and 4.1.2).
//!
//! Keys match in any case, `null` and empty values are the same as absent ones, because existing annotations were written for Go's
//! decoder.

use std::net::IpAddr;

use fairlead_cni::go_json::{Fields, Item};
use fairlead_cni::{CniError, addr, names};
use serde_json::{Map, Value};

use super::selection::{Bandwidth, LEGACY_NETWORKS, NetworkSelection, ObjectKind, PortMapping};

/// The keys that have a meaning, in lower case.
const KEYS: [&str; 12] = [
    "name",
    "namespace",
    "interface",
    "interfacerequest",
    "ips",
    "mac",
    "infiniband-guid",
    "cni-args",
    "portmappings",
    "bandwidth",
    "default-route",
    "ipam-claim-reference",
];

const NAME_RULE: &str = "a name has at most 253 lower-case letters, digits, '-' and '.', and each part between points begins and \
                         ends with a letter or digit";
const NAMESPACE_RULE: &str = "a namespace has at most 63 lower-case letters, digits and '-', and begins and ends with a letter or digit";
const AS_SPECIFIED: &str = "write it as the NPWG specification 1.3, section 4.1.2.1, says";

/// What is wrong with an entry, and what would be right.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reason: String,
    pub(super) remedy: &'static str,
}

impl Fault {
    pub(super) fn new(reason: impl Into<String>, remedy: &'static str) -> Fault {
        Fault { reason: reason.into(), remedy }
    }
}

impl From<CniError> for Fault {
    fn from(error: CniError) -> Fault {
        Fault::new(error.msg, AS_SPECIFIED)
    }
}

/// A network's name as an error repeats it: cut, and without control characters.
pub(super) fn escaped(name: &str) -> String {
    let shown = names::shown(name);
    match name.chars().any(char::is_control) || shown.ends_with('…') {
        true => shown,
        false => name.to_owned(),
    }
}

/// Reads `namespace/name@interface`. An empty namespace or interface is not given, as Multus takes it (`parsePodNetworkObjectName`).
pub(super) fn of_text(annotation: &str, text: &str, namespace: &str) -> Result<NetworkSelection, Fault> {
    const FORM: &str = "write <namespace>/<name>@<interface>, of which only the name is needed";
    if text.is_empty() {
        return Err(Fault::new("it is empty", "remove the comma that is too many"));
    }
    if annotation == LEGACY_NETWORKS {
        let object = ObjectKind::Network;
        return named(object, namespace, text);
    }
    let (before, interface) = match text.split_once('@') {
        Some((before, interface)) => (before, Some(interface.trim()).filter(|name| !name.is_empty())),
        None => (text, None),
    };
    let (own, name) = match before.split_once('/') {
        Some((own, name)) => (Some(own.trim()).filter(|own| !own.is_empty()), name.trim()),
        None => (None, before.trim()),
    };
    if name.contains('/') || interface.is_some_and(|name| name.contains('@')) {
        return Err(Fault::new("it has too many '/' or '@'", FORM));
    }
    let mut network = named(ObjectKind::NetworkAttachmentDefinition, own.unwrap_or(namespace), name)?;
    network.interface = interface.map(interface_name).transpose()?;
    Ok(network)
}

/// The name of the network of an entry, for an error about the rest.
pub(super) fn name_of(value: &Value, namespace: &str) -> String {
    let Ok(fields) = Fields::of(value) else { return String::new() };
    match (fields.text("namespace"), fields.text("name")) {
        (Ok(own), Ok(Some(name))) => format!("{}/{name}", own.as_deref().unwrap_or(namespace)),
        _ => String::new(),
    }
}

/// Reads an object of a JSON list, and the names of its keys that have no meaning.
pub(super) fn of_json(value: &Value, namespace: &str) -> Result<(NetworkSelection, Vec<String>), Fault> {
    let fields = Fields::of(value)?;
    let name = fields.text("name")?;
    let name = name.ok_or_else(|| Fault::new("\"name\" is missing", "name a NetworkAttachmentDefinition"))?;
    let own = fields.text("namespace")?;
    let mut network =
        named(ObjectKind::NetworkAttachmentDefinition, own.as_deref().unwrap_or(namespace), &name)?;
    let interface =
        fields.text("interface")?.map_or_else(|| fields.text("interfaceRequest"), |i| Ok(Some(i)))?;
    network.interface = interface.as_deref().map(interface_name).transpose()?;
    network.ips = fields.each("ips", |ip| address(&ip))?;
    refuse_unbuilt(&fields, &network)?;
    network.mac = fields.text("mac")?.map(mac).transpose()?;
    network.infiniband_guid = fields.text("infiniband-guid")?.map(guid).transpose()?;
    network.cni_args = cni_args(&fields)?;
    network.port_mappings = port_mappings(&fields)?;
    network.bandwidth = bandwidth(&fields)?;
    network.default_route = default_route(&fields)?;
    let keys = value.as_object().into_iter().flat_map(Map::keys);
    let unknown = keys.filter(|key| !KEYS.contains(&key.as_str()) && !key.contains('.'));
    Ok((network, unknown.map(|key| escaped(key)).collect()))
}

fn named(object: ObjectKind, namespace: &str, name: &str) -> Result<NetworkSelection, Fault> {
    if !is_label(namespace) {
        let reason = format!("the namespace {} is no name", names::shown(namespace));
        return Err(Fault::new(reason, NAMESPACE_RULE));
    }
    if !is_subdomain(name) {
        let remedy = match object {
            ObjectKind::NetworkAttachmentDefinition | ObjectKind::OfEveryPod => NAME_RULE,
            ObjectKind::Network => {
                "name Network objects of the pod's own namespace, with commas between them"
            }
        };
        return Err(Fault::new(format!("{} is no name of a network", names::shown(name)), remedy));
    }
    Ok(NetworkSelection {
        object,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..NetworkSelection::default()
    })
}

/// A DNS-1123 label, as the API wants the name of a namespace.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_unit(text)
}

/// A DNS-1123 subdomain, as the API wants the name of any other object: its labels have no limit of their own.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_unit)
}

/// The unit of names in Kubernetes (section 3.3), of any length.
fn is_unit(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn interface_name(name: &str) -> Result<String, Fault> {
    let refused =
        |why: &str, remedy| Err(Fault::new(format!("the interface {} {why}", names::shown(name)), remedy));
    if let Err(why) = names::interface(name) {
        return refused(&why, names::IFNAME_RULE);
    }
    if name == "lo" {
        return refused("is the pod's loopback", "choose another name");
    }
    // The kernel takes `%d` for a number of its own choice, so the interface would get another name than the one that was asked for.
    if let Some(bad) = name.chars().find(|c| c.is_control() || *c == '%') {
        return refused(&format!("holds {bad:?}"), "choose another name");
    }
    Ok(name.to_owned())
}

fn refuse_unbuilt(fields: &Fields<'_>, network: &NetworkSelection) -> Result<(), Fault> {
    if fields.text("ipam-claim-reference")?.is_some() {
        return Err(match network.ips.is_empty() {
            false => Fault::new(
                "\"ips\" and \"ipam-claim-reference\" are both there",
                "keep one of them: an address is asked for, or taken from the claim",
            ),
            true => Fault::new(
                "\"ipam-claim-reference\" is not built yet",
                "ask for fixed addresses by \"ips\", or remove the claim",
            ),
        });
    }
    if fields.text("deviceID")?.is_some() {
        return Err(Fault::new(
            "\"deviceID\" is not for a pod to choose",
            "remove it; the pod gets devices by its resources, and the definition names the resource by k8s.v1.cni.cncf.io/resourceName",
        ));
    }
    Ok(())
}

fn address(item: &Item<'_>) -> Result<String, CniError> {
    item.read("an IP address, as in 10.1.2.3 or 10.1.2.3/24", |text| {
        addr::ip_or_cidr(text).map(|_| text.to_owned())
    })
}

fn mac(text: String) -> Result<String, Fault> {
    let refused = |why| {
        Fault::new(format!("\"mac\" {} {why}", names::shown(&text)), "write it as in 02:00:00:00:00:01")
    };
    match octets(&text).as_deref() {
        Some([0, 0, 0, 0, 0, 0]) => Err(refused("is all zeros")),
        Some([first, _, _, _, _, _]) if first & 1 == 1 => Err(refused("is the address of a group")),
        Some([_, _, _, _, _, _]) => Ok(text),
        _ => Err(refused("is no MAC address of 6 bytes")),
    }
}

fn guid(text: String) -> Result<String, Fault> {
    match octets(&text) {
        Some(octets) if octets.len() == 8 => Ok(text),
        _ => Err(Fault::new(
            format!("\"infiniband-guid\" {} is no GUID of 8 bytes", names::shown(&text)),
            "write it as in 24:8a:07:03:00:8d:ae:2f",
        )),
    }
}

/// The bytes of an address of the three forms that Go's `net.ParseMAC` takes: `aa:bb`, `aa-bb`, `aabb.ccdd`. At most 20 of them.
fn octets(text: &str) -> Option<Vec<u8>> {
    let separator = text.chars().find(|c| !c.is_ascii_hexdigit())?;
    let digits = match separator {
        ':' | '-' => 2,
        '.' => 4,
        _ => return None,
    };
    if text.len() > 59 {
        return None;
    }
    let groups = text.split(separator).map(|group| {
        let right = group.len() == digits && group.bytes().all(|b| b.is_ascii_hexdigit());
        right.then(|| u16::from_str_radix(group, 16).ok()).flatten()
    });
    let groups: Vec<u16> = groups.collect::<Option<_>>()?;
    let bytes = groups.into_iter().flat_map(u16::to_be_bytes).enumerate();
    Some(bytes.filter(|(at, _)| digits == 4 || at % 2 == 1).map(|(_, byte)| byte).collect())
}

fn cni_args(fields: &Fields<'_>) -> Result<Map<String, Value>, Fault> {
    let Some(item) = fields.item("cni-args") else { return Ok(Map::new()) };
    item.object()?;
    Ok(item.value().as_object().cloned().unwrap_or_default())
}

fn port_mappings(fields: &Fields<'_>) -> Result<Vec<PortMapping>, Fault> {
    let read = |item: Item<'_>| {
        let mapping = item.object()?;
        let protocol = mapping.text("protocol")?.unwrap_or_else(|| "tcp".to_owned());
        if !["tcp", "udp", "sctp"].iter().any(|known| protocol.eq_ignore_ascii_case(known)) {
            return Err(mapping.invalid("protocol", &names::shown(&protocol), "TCP, UDP or SCTP"));
        }
        mapping.ip("hostIP")?;
        Ok(PortMapping {
            host_port: port(&mapping, "hostPort")?,
            container_port: port(&mapping, "containerPort")?,
            protocol,
            host_ip: mapping.text("hostIP")?,
        })
    };
    Ok(fields.each("portMappings", read)?)
}

fn port(mapping: &Fields<'_>, key: &str) -> Result<u16, CniError> {
    let port = mapping.within(key, 1, u16::MAX.into())?.and_then(|port| u16::try_from(port).ok());
    port.ok_or_else(|| mapping.missing(key, AS_SPECIFIED))
}

fn bandwidth(fields: &Fields<'_>) -> Result<Option<Bandwidth>, Fault> {
    let Some(limits) = fields.object("bandwidth")? else { return Ok(None) };
    let bits = |key| match u64::try_from(limits.int(key)?.unwrap_or(0)) {
        Ok(bits) => Ok(bits),
        Err(_) => Err(limits.invalid(key, "negative", "a number of bits")),
    };
    let bandwidth = Bandwidth {
        ingress_rate: bits("ingressRate")?,
        ingress_burst: bits("ingressBurst")?,
        egress_rate: bits("egressRate")?,
        egress_burst: bits("egressBurst")?,
    };
    let directions = [
        ("ingress", bandwidth.ingress_rate, bandwidth.ingress_burst),
        ("egress", bandwidth.egress_rate, bandwidth.egress_burst),
    ];
    for (direction, rate, burst) in directions {
        if burst > 0 && rate == 0 {
            let reason = format!("\"bandwidth.{direction}Burst\" is there without \"{direction}Rate\"");
            return Err(Fault::new(reason, "give the rate in bit/s, or remove the burst"));
        }
    }
    Ok((bandwidth != Bandwidth::default()).then_some(bandwidth))
}

fn default_route(fields: &Fields<'_>) -> Result<Option<Vec<IpAddr>>, Fault> {
    let Some(list) = fields.item("default-route") else { return Ok(None) };
    let gateway = |text: &str| addr::ip(text).filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
    Ok(Some(list.each(|item| item.read("the IP address of a gateway", gateway))?))
}
