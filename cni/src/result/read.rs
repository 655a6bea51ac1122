//! Reads results of every version into the one model, as libcni's `types/020`, `types/040` and `types/100` do.
//!
//! Invariant: an address refers to an interface of the same result or to none.

use serde_json::Value;

use super::{CniResult, Dns, Interface, IpConfig, RouteConfig};
use crate::error::{CniError, Code};
use crate::go_json::{self, Fields, Item};
use crate::version::CniVersion;

impl CniResult {
    /// Reads a result. Its own `cniVersion` decides the form. Before 1.0.0 results did not need to have one; then `version`
    /// decides.
    ///
    /// # Errors
    /// Code 6, or 1 for a version that is not supported.
    pub fn parse(value: &Value, version: CniVersion) -> Result<CniResult, CniError> {
        read(value, version).map_err(|error| match error.code {
            Code::InvalidConfig => CniError { code: Code::Decode, ..error },
            _ => error,
        })
    }

    /// Reads a result from its text, as a plugin printed it.
    ///
    /// # Errors
    /// As for [`CniResult::parse`].
    pub fn parse_text(text: &str, version: CniVersion) -> Result<CniResult, CniError> {
        CniResult::parse(&go_json::parse(text)?, version)
    }
}

fn read(value: &Value, version: CniVersion) -> Result<CniResult, CniError> {
    let fields = Fields::of(value)?;
    let own = fields.text("cniVersion")?;
    let version = match &own {
        None => version,
        Some(text) => CniVersion::parse(text).ok_or_else(|| unknown_version(text))?,
    };
    let mut result =
        if version <= CniVersion::V0_2_0 { read_02(&fields)? } else { read_list(&fields, version)? };
    result.dns = dns(&fields)?;
    Ok(result)
}

fn unknown_version(text: &str) -> CniError {
    let spoken: Vec<&str> = CniVersion::ALL.iter().map(|v| v.as_str()).collect();
    CniError::new(
        Code::IncompatibleVersion,
        format!("a result of CNI version {} cannot be read", crate::names::shown(text)),
    )
    .with(format!("versions that are understood: {}", spoken.join(", ")))
}

/// Reads the form of 0.1.0 and 0.2.0: `ip4` and `ip6`, each with its routes.
fn read_02(fields: &Fields<'_>) -> Result<CniResult, CniError> {
    let mut result = CniResult::default();
    for key in ["ip4", "ip6"] {
        let Some(ip) = fields.object(key)? else { continue };
        let address = ip.cidr("ip")?.ok_or_else(|| ip.missing("ip", "an address with prefix length"))?;
        result.ips.push(IpConfig { address, gateway: ip.ip("gateway")?, interface: None });
        result.routes.extend(ip.each("routes", |item| RouteConfig::read(&item))?);
    }
    Ok(result)
}

/// Reads the form from 0.3.0 on: lists. `ips[].version` (0.3.x, 0.4.0) says nothing that the address does not say. Of an
/// interface libcni knows only name, MAC and sandbox before 1.0.0.
fn read_list(fields: &Fields<'_>, version: CniVersion) -> Result<CniResult, CniError> {
    let interfaces = fields.each("interfaces", |item| interface(&item, version >= CniVersion::V1_0_0))?;
    let ips = fields.each("ips", |item| ip_config(&item, interfaces.len()))?;
    let routes = fields.each("routes", |item| RouteConfig::read(&item))?;
    Ok(CniResult { interfaces, ips, routes, dns: Dns::default() })
}

fn interface(item: &Item<'_>, full: bool) -> Result<Interface, CniError> {
    let fields = item.object()?;
    let text = |key| fields.text(key).map(Option::unwrap_or_default);
    let mut interface = Interface {
        name: text("name")?,
        mac: text("mac")?,
        sandbox: text("sandbox")?,
        ..Interface::default()
    };
    if full {
        interface.mtu = fields.unsigned("mtu")?.unwrap_or_default();
        interface.socket_path = text("socketPath")?;
        interface.pci_id = text("pciID")?;
    }
    Ok(interface)
}

fn ip_config(item: &Item<'_>, interfaces: usize) -> Result<IpConfig, CniError> {
    let fields = item.object()?;
    let address =
        fields.cidr("address")?.ok_or_else(|| fields.missing("address", "an address with prefix length"))?;
    Ok(IpConfig { address, gateway: fields.ip("gateway")?, interface: index(&fields, interfaces)? })
}

/// Reads the index of an address's interface. A negative index means none. So does one that is beyond the interfaces: libcni takes it, and
/// the result of an IPAM plugin has no interfaces at all, because its caller knows the interface.
fn index(fields: &Fields<'_>, interfaces: usize) -> Result<Option<usize>, CniError> {
    let number = fields.int("interface")?;
    Ok(number.and_then(|number| usize::try_from(number).ok()).filter(|index| *index < interfaces))
}

impl RouteConfig {
    /// Reads a route of a result.
    fn read(item: &Item<'_>) -> Result<RouteConfig, CniError> {
        let fields = item.object()?;
        Ok(RouteConfig {
            dst: fields
                .cidr("dst")?
                .ok_or_else(|| fields.missing("dst", "a destination such as 0.0.0.0/0"))?,
            gw: fields.ip("gw")?,
            mtu: fields.unsigned("mtu")?.filter(|n| *n != 0),
            advmss: fields.unsigned("advmss")?.filter(|n| *n != 0),
            priority: fields.unsigned("priority")?.filter(|n| *n != 0),
            table: fields.unsigned("table")?,
            scope: fields.unsigned("scope")?,
        })
    }

    /// Reads a route of an IPAM configuration, which is to be one that there can be.
    pub(crate) fn read_configured(item: &Item<'_>) -> Result<RouteConfig, CniError> {
        let route = RouteConfig::read(item)?;
        route.must_have_possible_gateway()?;
        Ok(route)
    }
}

impl Dns {
    /// Reads the object under a `dns` key.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Dns, CniError> {
        Ok(Dns {
            nameservers: fields.texts("nameservers")?,
            domain: fields.text("domain")?.unwrap_or_default(),
            search: fields.texts("search")?,
            options: fields.texts("options")?,
        })
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_empty()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

fn dns(fields: &Fields<'_>) -> Result<Dns, CniError> {
    fields.object("dns")?.map_or_else(|| Ok(Dns::default()), |dns| Dns::read(&dns))
}
