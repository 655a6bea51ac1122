//! The section `policy` of the configuration file.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_cni::names;
use ipnet::IpNet;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wildmatch::WildMatch;

use super::Tenant;
use super::data_dir::components;

/// The longest name of an interface in bytes (`IFNAMSIZ` without the final zero).
const LONGEST_NAME: usize = 15;

/// What the node's administrator allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PolicySettings {
    /// Where the address directories of tenants' definitions may lie.
    #[serde(deserialize_with = "data_dir_roots")]
    pub data_dir_roots: Vec<PathBuf>,
    /// The plugins that may be executed for tenants' definitions; absent: whatever `CNI_PATH` has.
    #[serde(deserialize_with = "plugins", skip_serializing_if = "Option::is_none")]
    pub execute: Option<Vec<String>>,
    /// The host's files and directories that definitions may name, by these very paths, for programs that are executed.
    #[serde(deserialize_with = "host_paths")]
    pub executed_paths: Vec<PathBuf>,
    /// A pod may use the definitions of its own namespace only, and those of `globalNamespaces`.
    pub namespace_isolation: bool,
    /// The namespaces whose definitions every pod may use, where namespaces are isolated.
    #[serde(deserialize_with = "namespace_names")]
    pub global_namespaces: Vec<String>,
    /// What the definitions of which namespace may use. The first rule that matches decides; with rules of which none matches
    /// a definition is refused.
    #[serde(deserialize_with = "rules", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Interfaces of the host, by their exact names, that may be lent to pods though the node itself uses them.
    #[serde(deserialize_with = "interface_names")]
    pub lendable: Vec<String>,
}

impl Default for PolicySettings {
    fn default() -> PolicySettings {
        PolicySettings {
            data_dir_roots: vec![DEFAULT_DATA_DIR.into()],
            execute: None,
            executed_paths: Vec::new(),
            namespace_isolation: false,
            global_namespaces: vec!["default".to_owned()],
            rules: Vec::new(),
            lendable: Vec::new(),
        }
    }
}

impl PolicySettings {
    /// Whether a rule names namespaces by their labels.
    pub fn goes_by_labels(&self) -> bool {
        let by_labels = |selector: &NamespaceSelector| matches!(selector, NamespaceSelector::Labels(_));
        self.rules.iter().any(|rule| rule.namespaces.iter().any(by_labels))
    }

    /// Whether the rule for a namespace depends on its labels: one that names namespaces by them comes before the first with its name.
    pub fn needs_labels_of(&self, namespace: &str) -> bool {
        let by_name = |selector: &NamespaceSelector| match selector {
            NamespaceSelector::Name(glob) => glob.matches(namespace),
            NamespaceSelector::Labels(_) => false,
        };
        let by_labels = |selector: &NamespaceSelector| matches!(selector, NamespaceSelector::Labels(_));
        let before = self.rules.iter().take_while(|rule| !rule.namespaces.iter().any(by_name));
        before.flat_map(|rule| &rule.namespaces).any(by_labels)
    }
}

/// Refuses what no interface can be called: it would allow nothing, and nobody would notice.
fn interface_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    match names.iter().find(|name| !is_interface_name(name)) {
        Some(wrong) => Err(D::Error::custom(format!(
            "{wrong:?} is no name of an interface: those have 1 to {LONGEST_NAME} bytes, without white space, \"/\" and \":\""
        ))),
        None => Ok(names),
    }
}

fn is_interface_name(name: &str) -> bool {
    let is_legal = |c: char| !c.is_whitespace() && !matches!(c, '/' | ':' | '*' | '?');
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_legal)
}

/// What the definitions of some namespaces may use. A list that is absent allows everything, but for `privileged`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The namespaces that it is for: any of these.
    #[serde(deserialize_with = "selectors")]
    pub namespaces: Vec<NamespaceSelector>,
    /// The types of plugins.
    #[serde(default, deserialize_with = "plugins", skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// The host's interfaces that a network may stand on, or take.
    #[serde(default, deserialize_with = "list", skip_serializing_if = "Option::is_none")]
    pub masters: Option<Vec<Glob>>,
    /// The pools and resources that VFs may come from.
    #[serde(default, deserialize_with = "list", skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<Glob>>,
    /// The VLAN ids; 0 stands for a VF whose VLAN is removed.
    #[serde(default, deserialize_with = "list", skip_serializing_if = "Option::is_none")]
    pub vlans: Option<Vec<VlanRange>>,
    /// The ports of the node that pods of these namespaces may have lead to them.
    #[serde(default, deserialize_with = "list", skip_serializing_if = "Option::is_none")]
    pub host_ports: Option<Vec<PortRange>>,
    /// The subnets that addresses may be of.
    #[serde(default, deserialize_with = "ranges", skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Vec<IpNet>>,
    /// The types of IPAMs; without one at all a network is always allowed.
    #[serde(default, deserialize_with = "plugins", skip_serializing_if = "Option::is_none")]
    pub ipam_types: Option<Vec<String>>,
    /// What nobody may use unless it stands here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub privileged: Vec<Privilege>,
}

/// What a definition needs the administrator's word for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Privilege {
    /// `"trust": "on"`: the VF may change its MAC address and see frames that are not for it.
    Trust,
    /// `"spoofchk": "off"`: the VF may send under any address.
    SpoofchkOff,
    /// `min_tx_rate` and `max_tx_rate`: a share of the PF's bandwidth.
    Rates,
    /// `"mode": "passthru"`: the master has this one interface, and takes its MAC address.
    Passthru,
    /// `"deviceAccess": "host"`: a VF is set up for a pod that was not given it.
    DeviceAccess,
}

impl Privilege {
    /// The word in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Privilege::Trust => "trust",
            Privilege::SpoofchkOff => "spoofchkOff",
            Privilege::Rates => "rates",
            Privilege::Passthru => "passthru",
            Privilege::DeviceAccess => "deviceAccess",
        }
    }
}

/// A name in which `*` stands for any text and `?` for any one character.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Glob(pub String);

impl Glob {
    /// Whether the whole name is of this form.
    pub fn matches(&self, name: &str) -> bool {
        WildMatch::new(&self.0).matches(name)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Some namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceSelector {
    /// Those with a name of this form.
    Name(Glob),
    /// Those with all of these labels.
    Labels(BTreeMap<String, String>),
}

/// The form of a selector that goes by labels.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ByLabels {
    labels: BTreeMap<String, String>,
}

impl fmt::Display for NamespaceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamespaceSelector::Name(glob) => write!(f, "{glob}"),
            NamespaceSelector::Labels(labels) => {
                let pairs: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
                f.write_str(&pairs.join(","))
            }
        }
    }
}

impl Serialize for NamespaceSelector {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            NamespaceSelector::Name(glob) => glob.serialize(to),
            NamespaceSelector::Labels(labels) => ByLabels { labels: labels.clone() }.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for NamespaceSelector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NameOrLabels;
        impl<'de> Visitor<'de> for NameOrLabels {
            type Value = NamespaceSelector;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a namespace such as \"radio-*\", or {labels: {tier: ran}}")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
                Ok(NamespaceSelector::Name(Glob(name.to_owned())))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let ByLabels { labels } =
                    ByLabels::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                match labels.is_empty() {
                    true => Err(A::Error::custom("labels without a label select nothing that is meant")),
                    false => Ok(NamespaceSelector::Labels(labels)),
                }
            }
        }
        from.deserialize_any(NameOrLabels)
    }
}

/// VLAN ids; 0 stands for none.
pub type VlanRange = NumberRange<0, 4094>;

/// Ports of TCP, UDP and SCTP.
pub type PortRange = NumberRange<1, { u16::MAX }>;

/// Numbers from the first to the last, both included. Neither is below `LEAST` or above `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberRange<const LEAST: u16, const MOST: u16> {
    first: u16,
    last: u16,
}

impl<const LEAST: u16, const MOST: u16> NumberRange<LEAST, MOST> {
    /// Those from `first` to `last`.
    pub(super) const fn new(first: u16, last: u16) -> NumberRange<LEAST, MOST> {
        NumberRange { first, last }
    }

    /// Whether the number is one of them.
    pub fn contains(self, number: u16) -> bool {
        (self.first..=self.last).contains(&number)
    }

    fn parse(text: &str) -> Option<NumberRange<LEAST, MOST>> {
        let number = |text: &str| text.trim().parse().ok().filter(|n| (LEAST..=MOST).contains(n));
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(NumberRange::new(number(first)?, number(last)?)).filter(|range| range.first <= range.last)
    }
}

impl<const LEAST: u16, const MOST: u16> fmt::Display for NumberRange<LEAST, MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl<const LEAST: u16, const MOST: u16> Serialize for NumberRange<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, const LEAST: u16, const MOST: u16> Deserialize<'de> for NumberRange<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NumberOrRange<const LEAST: u16, const MOST: u16>;
        impl<const LEAST: u16, const MOST: u16> Visitor<'_> for NumberOrRange<LEAST, MOST> {
            type Value = NumberRange<LEAST, MOST>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number from {LEAST} to {MOST}, or a range such as \"100-199\"")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                NumberRange::parse(text).ok_or_else(|| {
                    E::custom(format!(
                        "{text:?} is no number from {LEAST} to {MOST} and no range such as \"100-199\""
                    ))
                })
            }
        }
        from.deserialize_any(NumberOrRange)
    }
}

fn data_dir_roots<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    absolute_paths(from, "the directory of addresses")
}

fn host_paths<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    absolute_paths(from, "the file or directory that a program may be told of")
}

/// `meant`: what is to be named instead of the root directory.
fn absolute_paths<'de, D: Deserializer<'de>>(from: D, meant: &str) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(from)?;
    for path in &paths {
        let wrong = match path.to_str().and_then(components) {
            Some(parts) if !parts.is_empty() => continue,
            Some(_) => &format!("is the whole host: name {meant}"),
            None => "is no absolute path without \"..\"",
        };
        return Err(D::Error::custom(format!("{path:?} {wrong}")));
    }
    Ok(paths)
}

/// A key with nothing behind it counts as absent for serde, and an absent list allows everything: whoever has taken the last item out of
/// a list meant the opposite.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Vec<T>>, D::Error> {
    match Option::deserialize(from)? {
        Some(list) => Ok(Some(list)),
        None => Err(D::Error::custom(
            "a list without items allows nothing and is written []; leave the key out to allow everything",
        )),
    }
}

fn ranges<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<IpNet>>, D::Error> {
    let texts: Vec<String> = list(from)?.unwrap_or_default();
    let range = |text: &String| {
        text.parse().map_err(|_| match text.parse::<IpAddr>() {
            Ok(_) => format!("{text:?} is an address: give its prefix too, such as \"{text}/24\""),
            Err(_) => format!("{text:?} is no range of addresses such as \"10.9.0.0/16\""),
        })
    };
    texts.iter().map(range).collect::<Result<_, _>>().map(Some).map_err(D::Error::custom)
}

/// Refuses what no namespace can be called: it would allow nothing, and nobody would notice.
fn namespace_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    match names.iter().find_map(|name| Tenant::new(name, BTreeMap::new()).err()) {
        Some(wrong) => Err(D::Error::custom(wrong)),
        None => Ok(names),
    }
}

fn plugins<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let types: Option<Vec<String>> = list(from)?;
    for kind in types.iter().flatten() {
        names::plugin_type(kind).map_err(|e| D::Error::custom(e.msg))?;
    }
    Ok(types)
}

fn selectors<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NamespaceSelector>, D::Error> {
    let selectors = Vec::deserialize(from)?;
    match selectors.is_empty() {
        true => Err(D::Error::custom("a rule without namespaces never decides: write [\"*\"] for all")),
        false => Ok(selectors),
    }
}

fn rules<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Rule>, D::Error> {
    let rules = Vec::deserialize(from)?;
    match rules.is_empty() {
        true => {
            Err(D::Error::custom("\"rules\" is empty: leave it out to allow everything, or write a rule"))
        }
        false => Ok(rules),
    }
}
