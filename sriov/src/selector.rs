//! Which VFs a pool is made of: the selectors of the SR-IOV network device plugin, so that its configuration can be taken as it
//! is.
//!
//! A VF is matched by what a scan has found of it, and by nothing else. What a selector asks for and a scan cannot find
//! is refused when it is read: it never matches more than was meant.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{LinkType, PciAddr, ScannedPf, ScannedVf, USER_SPACE_DRIVERS, VFIO_PCI};

/// So many of the values that were found are shown.
const SHOWN: usize = 8;

/// A list of selectors, or a single one without a list around it. A VF belongs to it that any of them matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Selectors(Vec<Selector>);

impl Selectors {
    /// The first that matches a VF: what else it says (`isRdma`, `needVhostNet`) holds for that VF.
    pub fn matching(&self, physical: &ScannedPf, vf: &ScannedVf) -> Option<&Selector> {
        self.0.iter().find(|selector| selector.matches(physical, vf))
    }
}

impl Selectors {
    /// Whether any could match a VF that no driver has: what a VF has by its driver only is left out.
    pub(crate) fn may_match(&self, physical: &ScannedPf, vf: &ScannedVf) -> bool {
        self.0.iter().any(|selector| selector.may_match(physical, vf))
    }

    /// Whether any selects VFs by their RDMA devices.
    pub fn want_rdma(&self) -> bool {
        self.0.iter().any(|selector| selector.is_rdma)
    }

    /// Why no pool serves anything of what these select; `None`: some of it may be served.
    pub(crate) fn why_unserved(&self) -> Option<String> {
        let each: Option<Vec<String>> = self.0.iter().map(Selector::why_unserved).collect();
        each?.into_iter().next()
    }

    /// Why no pool serves what one of these selects; `None`: there is no such one.
    pub(crate) fn why_partly_unserved(&self) -> Option<String> {
        self.0.iter().find_map(Selector::why_unserved)
    }

    /// Why none of these VFs is selected, key by key; `None`: one is.
    pub(crate) fn why_none(&self, vfs: &[(&ScannedPf, ScannedVf)]) -> Option<String> {
        let each = self.0.iter().map(|selector| selector.why_none(vfs));
        let each: Option<Vec<String>> = each.collect();
        each.map(|each| each.join("; or "))
    }

    /// Whether a PF is named, by its interface or its address: only PFs that are named get VFs created.
    pub fn names(&self, physical: &ScannedPf) -> bool {
        self.0.iter().any(|selector| selector.names(physical))
    }

    /// Whether any PF could be named so.
    pub fn name_some(&self) -> bool {
        self.0.iter().any(Selector::names_some)
    }
}

impl<'de> Deserialize<'de> for Selectors {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Selectors, D::Error> {
        from.deserialize_any(OneOrMore)
    }
}

struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Selectors;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a selector or a list of selectors")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Selectors, A::Error> {
        Ok(Selectors(vec![Selector::deserialize(MapAccessDeserializer::new(map))?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Selectors, A::Error> {
        let selectors = Vec::deserialize(SeqAccessDeserializer::new(list))?;
        if selectors.is_empty() {
            return Err(A::Error::custom("a list of selectors without one; {} selects every VF"));
        }
        Ok(Selectors(selectors))
    }
}

/// What a VF must have. Every list that is not empty must have it in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Selector {
    vendors: Vec<Number>,
    devices: Vec<Number>,
    /// As they are before a pool binds one of its own.
    drivers: Vec<String>,
    pci_addresses: Vec<PciAddr>,
    acpi_indexes: Vec<AcpiIndex>,
    pf_names: Vec<Share<String>>,
    root_devices: Vec<Share<PciAddr>>,
    link_types: Vec<LinkType>,
    p_keys: Vec<Number>,
    /// It has an RDMA device, whose nodes go with it.
    pub is_rdma: bool,
    /// `/dev/vhost-net` and `/dev/net/tun` go with it. Selects nothing.
    pub need_vhost_net: bool,
    #[serde(deserialize_with = "no_ddp_profiles", skip_serializing)]
    ddp_profiles: (),
    #[serde(deserialize_with = "no_vdpa", skip_serializing)]
    vdpa_type: (),
}

impl Selector {
    fn names(&self, physical: &ScannedPf) -> bool {
        let own = physical.interface.as_ref();
        let is_named = |name: &Share<String>| own.is_some_and(|own| own.name.eq_ignore_ascii_case(&name.of));
        self.names_some()
            && holds(&self.pf_names, is_named)
            && holds(&self.root_devices, |address| address.of == physical.address)
    }

    fn names_some(&self) -> bool {
        !self.pf_names.is_empty() || !self.root_devices.is_empty()
    }

    fn matches(&self, physical: &ScannedPf, found: &ScannedVf) -> bool {
        Key::ALL.iter().all(|key| self.is_met(*key, physical, found))
    }

    fn may_match(&self, physical: &ScannedPf, found: &ScannedVf) -> bool {
        let is_met = |key: &Key| key.goes_with_driver() || self.is_met(*key, physical, found);
        Key::ALL.iter().all(is_met)
    }

    /// InfiniBand has none of what a pool sets and verifies, such as a MAC address of 6 bytes. Only InfiniBand has partition keys.
    /// Where Ethernet is selected beside it, that is served. Under UIO nothing keeps a process from the machine's memory.
    fn why_unserved(&self) -> Option<String> {
        let is_uio = |driver: &String| driver != VFIO_PCI && USER_SPACE_DRIVERS.contains(&driver.as_str());
        if !self.drivers.is_empty() && self.drivers.iter().all(is_uio) {
            let drivers = self.drivers.join(", ");
            return Some(format!(
                "drivers: [{drivers}] selects VFs under UIO, which are not served until they are bound to {VFIO_PCI}"
            ));
        }
        let is_infiniband = |link_type: &LinkType| *link_type == LinkType::Infiniband;
        let infiniband_alone = !self.link_types.is_empty() && self.link_types.iter().all(is_infiniband);
        let key = match (infiniband_alone, self.p_keys.is_empty()) {
            (true, _) => "linkTypes: [infiniband]",
            (false, false) => "pKeys",
            (false, true) => return None,
        };
        Some(format!("{key} selects VFs of InfiniBand, which are not served yet"))
    }

    /// Whether a VF has what the selector wants by one key, or it wants nothing by that.
    fn is_met(&self, key: Key, physical: &ScannedPf, found: &ScannedVf) -> bool {
        let (vf, own) = (&found.vf, physical.interface.as_ref());
        match key {
            Key::Vendors => holds(&self.vendors, |vendor| vendor.0 == found.model.vendor),
            Key::Devices => holds(&self.devices, |device| device.0 == found.model.device),
            Key::Drivers => holds(&self.drivers, |driver| vf.driver.as_ref() == Some(driver)),
            Key::PciAddresses => holds(&self.pci_addresses, |address| *address == vf.address),
            Key::AcpiIndexes => holds(&self.acpi_indexes, |index| found.acpi_index == Some(index.0)),
            Key::PfNames => has_share(&self.pf_names, vf.index, |name| {
                own.is_some_and(|own| own.name.eq_ignore_ascii_case(name))
            }),
            Key::RootDevices => {
                has_share(&self.root_devices, vf.index, |address| *address == physical.address)
            }
            Key::LinkTypes => {
                holds(&self.link_types, |link_type| link_type_of(physical, found) == Some(*link_type))
            }
            Key::PKeys => {
                let infiniband = link_type_of(physical, found) == Some(LinkType::Infiniband);
                let key = found.partition_key.filter(|_| infiniband);
                holds(&self.p_keys, |wanted| key == Some(wanted.0))
            }
            Key::IsRdma => !self.is_rdma || !found.rdma.devices.is_empty(),
        }
    }

    /// What the selector wants by a key, as it is written or in words; nothing where the key is not there.
    fn wanted(&self, key: Key) -> Vec<String> {
        let written = serde_json::to_value(self).unwrap_or_default();
        match &written[key.name()] {
            Value::Array(wanted) => wanted.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Value::Bool(true) => vec!["an RDMA device".to_owned()],
            _ => Vec::new(),
        }
    }

    /// Why it matches none of these VFs; `None`: it matches one.
    fn why_none(&self, vfs: &[(&ScannedPf, ScannedVf)]) -> Option<String> {
        if vfs.iter().any(|(physical, vf)| self.matches(physical, vf)) {
            return None;
        }
        let wanted: Vec<(Key, String)> = Key::ALL
            .into_iter()
            .map(|key| (key, self.wanted(key).join(", ")))
            .filter(|(_, wanted)| !wanted.is_empty())
            .collect();
        let no_vf_has = |key: &Key| !vfs.iter().any(|(physical, vf)| self.is_met(*key, physical, vf));
        let unmet: Vec<String> = wanted
            .iter()
            .filter(|(key, _)| no_vf_has(key))
            .map(|(key, wanted)| {
                let there: BTreeSet<String> =
                    vfs.iter().filter_map(|(physical, vf)| key.of(physical, vf)).collect();
                let shown: Vec<&str> = there.iter().take(SHOWN).map(String::as_str).collect();
                let more = if there.len() > SHOWN { ", …" } else { "" };
                let found = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") + more };
                format!("{}: no VF of this node has {wanted} (found {found})", key.name())
            })
            .collect();
        let all = || {
            let all: Vec<String> =
                wanted.iter().map(|(key, wanted)| format!("{} {wanted}", key.name())).collect();
            format!("no VF of this node has all of {}", all.join("; "))
        };
        Some(if unmet.is_empty() { all() } else { unmet.join("; ") })
    }
}

/// A key by which a selector selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Vendors,
    Devices,
    Drivers,
    PciAddresses,
    AcpiIndexes,
    PfNames,
    RootDevices,
    LinkTypes,
    PKeys,
    IsRdma,
}

impl Key {
    const ALL: [Key; 10] = [
        Key::Vendors,
        Key::Devices,
        Key::Drivers,
        Key::PciAddresses,
        Key::AcpiIndexes,
        Key::PfNames,
        Key::RootDevices,
        Key::LinkTypes,
        Key::PKeys,
        Key::IsRdma,
    ];

    /// Whether a VF has it by its driver: without one nobody can say what it has.
    fn goes_with_driver(self) -> bool {
        matches!(self, Key::Drivers | Key::PKeys | Key::IsRdma)
    }

    /// As it is written.
    fn name(self) -> &'static str {
        match self {
            Key::Vendors => "vendors",
            Key::Devices => "devices",
            Key::Drivers => "drivers",
            Key::PciAddresses => "pciAddresses",
            Key::AcpiIndexes => "acpiIndexes",
            Key::PfNames => "pfNames",
            Key::RootDevices => "rootDevices",
            Key::LinkTypes => "linkTypes",
            Key::PKeys => "pKeys",
            Key::IsRdma => "isRdma",
        }
    }

    /// What a VF has there, as a selector would write it.
    fn of(self, physical: &ScannedPf, found: &ScannedVf) -> Option<String> {
        match self {
            Key::Vendors => Some(Number(found.model.vendor).into()),
            Key::Devices => Some(Number(found.model.device).into()),
            Key::Drivers => found.vf.driver.clone(),
            Key::PciAddresses => Some(found.vf.address.to_string()),
            Key::AcpiIndexes => found.acpi_index.map(|index| index.to_string()),
            Key::PfNames => physical.interface.as_ref().map(|own| format!("{}#{}", own.name, found.vf.index)),
            Key::RootDevices => Some(format!("{}#{}", physical.address, found.vf.index)),
            Key::LinkTypes => {
                let speaks = serde_json::to_value(link_type_of(physical, found)?).ok()?;
                speaks.as_str().map(str::to_owned)
            }
            Key::PKeys => found.partition_key.map(|key| Number(key).into()),
            Key::IsRdma => (!found.rdma.devices.is_empty()).then(|| "true".to_owned()),
        }
    }
}

/// Under vfio-pci and in a pod a VF has no interface here: it goes by that of its PF.
fn link_type_of(physical: &ScannedPf, found: &ScannedVf) -> Option<LinkType> {
    found.link_type.or_else(|| physical.interface.as_ref()?.link_type)
}

fn holds<T>(list: &[T], is_it: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(is_it)
}

/// As with the device plugin, only the first entry for a PF counts.
fn has_share<T>(list: &[Share<T>], index: u32, is_it: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().find(|share| is_it(&share.of)).is_some_and(|share| share.has(index))
}

fn no_ddp_profiles<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    let profiles = Vec::<String>::deserialize(from)?;
    if profiles.is_empty() { Ok(()) } else { Err(unserved("ddpProfiles")) }
}

fn no_vdpa<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    let kind = String::deserialize(from)?;
    if kind.is_empty() { Ok(()) } else { Err(unserved("vdpaType")) }
}

fn unserved<E: serde::de::Error>(selector: &str) -> E {
    E::custom(format!("the selector {selector} is not served yet; take it out, and name the VFs otherwise"))
}

/// A number of at most four hexadecimal digits, in either case, as PCI ids and partition keys are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Number(u16);

impl TryFrom<String> for Number {
    type Error = String;

    fn try_from(text: String) -> Result<Number, String> {
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        let hexadecimal = digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = hexadecimal.then(|| u16::from_str_radix(digits, 16).ok()).flatten();
        number
            .map(Number)
            .ok_or_else(|| format!("{text:?} is no number of up to four hexadecimal digits, as 154c is"))
    }
}

impl From<Number> for String {
    fn from(number: Number) -> String {
        format!("{:04x}", number.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct AcpiIndex(u32);

impl TryFrom<String> for AcpiIndex {
    type Error = String;

    fn try_from(text: String) -> Result<AcpiIndex, String> {
        text.parse().map(AcpiIndex).map_err(|_| format!("{text:?} is no ACPI index (a number, as 101 is)"))
    }
}

impl From<AcpiIndex> for String {
    fn from(index: AcpiIndex) -> String {
        index.0.to_string()
    }
}

/// Some VFs of a PF: `eth0` for all, `eth0#0-3,7` for these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    try_from = "String",
    into = "String",
    bound(serialize = "T: Clone + fmt::Display", deserialize = "T: FromStr, T::Err: fmt::Display")
)]
struct Share<T> {
    of: T,
    /// From the first to the last of each; `None` for all.
    ranges: Option<Vec<(u32, u32)>>,
}

impl<T> Share<T> {
    fn has(&self, index: u32) -> bool {
        self.ranges
            .as_ref()
            .is_none_or(|ranges| ranges.iter().any(|(from, to)| (*from..=*to).contains(&index)))
    }
}

impl<T: FromStr<Err: fmt::Display>> TryFrom<String> for Share<T> {
    type Error = String;

    fn try_from(text: String) -> Result<Share<T>, String> {
        let (of, ranges) = match text.split_once('#') {
            Some((of, ranges)) => (of, Some(ranges)),
            None => (text.as_str(), None),
        };
        if of.is_empty() {
            return Err(format!("{text:?} names no PF"));
        }
        let bad = || format!("{text:?}: what is behind # is no list of VFs, as in #0-3,7");
        let ranges = ranges.map(|list| list.split(',').map(range).collect::<Option<_>>().ok_or_else(bad));
        Ok(Share { of: of.parse().map_err(|e: T::Err| e.to_string())?, ranges: ranges.transpose()? })
    }
}

fn range(text: &str) -> Option<(u32, u32)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
    (from <= to).then_some((from, to))
}

impl<T: fmt::Display> From<Share<T>> for String {
    fn from(share: Share<T>) -> String {
        let shown =
            |(from, to): &(u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
        match share.ranges {
            None => share.of.to_string(),
            Some(ranges) => {
                format!("{}#{}", share.of, ranges.iter().map(shown).collect::<Vec<_>>().join(","))
            }
        }
    }
}
