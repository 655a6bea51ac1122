//! A port as rows of OVS's database: written from a [`PortSpec`], and read back into one.
//!
//! Pure. What is written and read back is the same spec; a row that somebody changed reads as another spec, or as none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::database_mirror::{OURS, OurPort, Row};
use super::ovsdb_value::{Atom, Cell, map_of, set_of};
use super::port_spec::{Policing, PortName, PortOwner, PortSpec, VhostSocket, Vlans};

const POD_LISTENS: &str = "dpdkvhostuserclient";
const OVS_LISTENS: &str = "dpdkvhostuser";
/// The option of a `dpdkvhostuserclient` interface with the path that OVS connects to.
const SERVER_PATH: &str = "vhost-server-path";
/// OVS's own key for the address of what is behind an interface (ovs-vswitchd.conf.db(5)).
const ATTACHED_MAC: &str = "attached-mac";
const NAMESPACE: &str = "fairlead-namespace";
const POD: &str = "fairlead-pod";
const UID: &str = "fairlead-pod-uid";
const CONTAINER: &str = "fairlead-container";
const IFNAME: &str = "fairlead-ifname";
/// At a port that is made with its bridge.
const MAKES_BRIDGE: &str = "fairlead-makes-bridge";

/// The row of the interface, for an insert. `node` is who makes it.
pub(crate) fn interface_row(spec: &PortSpec, node: &str) -> Value {
    let mut row = json!({ "name": spec.name.as_str(), "external_ids": external_ids(spec, node) });
    match &spec.socket {
        VhostSocket::PodListens(path) => {
            row["type"] = json!(POD_LISTENS);
            row["options"] = map_of([(SERVER_PATH, path.to_string_lossy().as_ref())]);
        }
        VhostSocket::OvsListens => row["type"] = json!(OVS_LISTENS),
    }
    if let Some(mtu) = spec.mtu {
        row["mtu_request"] = json!(mtu);
    }
    if let Some(policing) = spec.policing {
        row["ingress_policing_rate"] = json!(policing.rate_kbps);
        row["ingress_policing_burst"] = json!(policing.burst_kb);
    }
    row
}

/// The row of the port, for an insert; `interface` is the interface's row, as a `<value>`.
pub(crate) fn port_row(spec: &PortSpec, node: &str, interface: &Value) -> Value {
    let mut row = json!({
        "name": spec.name.as_str(),
        "interfaces": interface,
        "external_ids": external_ids(spec, node),
    });
    match &spec.vlans {
        Vlans::Every => {}
        // VLAN 0 is how OVS calls frames without a tag: an access port of it takes no others.
        Vlans::Untagged => (row["vlan_mode"], row["tag"]) = (json!("access"), json!(0)),
        Vlans::Access(vlan) => (row["vlan_mode"], row["tag"]) = (json!("access"), json!(vlan)),
        Vlans::Trunk { allowed, native } => {
            row["vlan_mode"] = json!("trunk");
            row["trunks"] = set_of(allowed.iter().map(|vlan| json!(vlan)));
            if let Some(vlan) = native {
                (row["vlan_mode"], row["tag"]) = (json!("native-untagged"), json!(vlan));
            }
        }
    }
    row
}

fn external_ids(spec: &PortSpec, node: &str) -> Value {
    let owner = &spec.owner;
    let mac = spec.mac.map(|mac| mac.to_string());
    let pairs = [
        (OURS, Some(node)),
        (NAMESPACE, Some(owner.namespace.as_str())),
        (POD, Some(owner.pod.as_str())),
        (UID, Some(owner.uid.as_str())),
        (CONTAINER, Some(owner.container.as_str())),
        (IFNAME, Some(owner.ifname.as_str())),
        (ATTACHED_MAC, mac.as_deref()),
        (MAKES_BRIDGE, spec.makes_bridge.then_some("true")),
    ];
    map_of(pairs.into_iter().filter_map(|(key, value)| Some((key, value?))))
}

/// What `external_ids` say of an attachment's port, whatever this node is called.
pub(crate) fn on_record(owner: &PortOwner) -> Value {
    map_of([(CONTAINER, owner.container.as_str()), (IFNAME, owner.ifname.as_str())])
}

/// The spec that these rows are of; `None` where no spec makes such rows.
pub(crate) fn read_spec(ours: &OurPort<'_>) -> Option<PortSpec> {
    let OurPort { port, interface, bridge, .. } = ours;
    let word = |key| interface.entry("external_ids", key).unwrap_or_default().to_owned();
    Some(PortSpec {
        name: PortName::new(port.text("name")?).ok()?,
        bridge: (*bridge).to_owned(),
        makes_bridge: interface.entry("external_ids", MAKES_BRIDGE).is_some(),
        socket: read_socket(interface)?,
        vlans: read_vlans(port)?,
        policing: read_policing(interface)?,
        mtu: number(interface, "mtu_request").ok()?,
        mac: match interface.entry("external_ids", ATTACHED_MAC) {
            Some(mac) => Some(mac.parse().ok()?),
            None => None,
        },
        owner: PortOwner {
            namespace: word(NAMESPACE),
            pod: word(POD),
            uid: word(UID),
            container: word(CONTAINER),
            ifname: word(IFNAME),
        },
    })
}

fn read_socket(interface: &Row) -> Option<VhostSocket> {
    match interface.text("type")? {
        POD_LISTENS => {
            interface.entry("options", SERVER_PATH).map(PathBuf::from).map(VhostSocket::PodListens)
        }
        OVS_LISTENS => Some(VhostSocket::OvsListens),
        _ => None,
    }
}

fn read_policing(interface: &Row) -> Option<Option<Policing>> {
    let rate_kbps = number(interface, "ingress_policing_rate").ok()?.unwrap_or(0);
    let burst_kb = number(interface, "ingress_policing_burst").ok()?.unwrap_or(0);
    Some((rate_kbps > 0).then_some(Policing { rate_kbps, burst_kb }))
}

fn read_vlans(port: &Row) -> Option<Vlans> {
    let tag: Option<u16> = number(port, "tag").ok()?;
    let trunks: BTreeSet<u16> = match port.cell("trunks")? {
        Cell::Set(set) => set
            .iter()
            .map(|vlan| vlan.integer().and_then(|vlan| vlan.try_into().ok()))
            .collect::<Option<_>>()?,
        Cell::Map(_) => return None,
    };
    Some(match (port.text("vlan_mode"), tag, trunks.is_empty()) {
        (None, None, true) => Vlans::Every,
        (Some("access"), Some(0), true) => Vlans::Untagged,
        (Some("access"), Some(vlan), true) => Vlans::Access(vlan),
        (Some("trunk"), None, false) => Vlans::Trunk { allowed: trunks, native: None },
        (Some("native-untagged"), Some(_), false) => Vlans::Trunk { allowed: trunks, native: tag },
        _ => return None,
    })
}

/// A number that may be absent; an error where it is out of the type's range.
fn number<N: TryFrom<i64>>(row: &Row, column: &str) -> Result<Option<N>, N::Error> {
    row.integer(column).map(N::try_from).transpose()
}

/// What OVS made of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InterfaceState {
    /// It is at work, as this OpenFlow port.
    Working(u16),
    /// OVS cannot make it, and says why.
    Failed(String),
    /// OVS has not come to it yet.
    Unknown,
}

/// What OVS made of the interface of a row.
pub(crate) fn interface_state(interface: &Row) -> InterfaceState {
    if let Some(error) = interface.text("error").filter(|error| !error.is_empty()) {
        return InterfaceState::Failed(error.to_owned());
    }
    match number::<u16>(interface, "ofport") {
        Ok(Some(port)) => InterfaceState::Working(port),
        Ok(None) => InterfaceState::Unknown,
        Err(_) => InterfaceState::Failed("it got no port number, and ovs-vswitchd.log says why".to_owned()),
    }
}

/// Whether OVS has a running device at the socket: it writes `connected` once memory and rings are set up (`new_device`), so that of an
/// application which is there and has not started its port is `disconnected`.
pub(crate) fn connected(interface: &Row) -> bool {
    interface.entry("status", "status") == Some("connected")
}

/// Who a port of somebody else belongs to, as far as its `external_ids` tell.
pub(crate) fn describe_owner(external_ids: Option<&Value>) -> String {
    let pairs: BTreeMap<Atom, Atom> = match external_ids.map(Cell::read) {
        Some(Ok(Cell::Map(pairs))) => pairs,
        _ => BTreeMap::new(),
    };
    let words = pairs.iter().filter_map(|(key, value)| Some(format!("{}={}", key.text()?, value.text()?)));
    let words: Vec<String> = words.collect();
    if words.is_empty() {
        "has no external_ids".to_owned()
    } else {
        format!("has the external_ids {}", words.join(", "))
    }
}

#[cfg(test)]
#[path = "port_rows_tests.rs"]
mod tests;
