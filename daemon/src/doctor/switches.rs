//! Whether the switches of vhost-user ports can serve a pod: each that a network names is asked for by STATUS, as a runtime asks, and the
//! ports that pods have must be in the node's own.

use std::path::Path;

use fairlead_cni::args::Args;
use fairlead_cni::config::vhost_user::{OvsBridge, Switch};
use fairlead_cni::config::{ConfList, Fairlead, NetConf};
use serde_json::{Map, Value};

use crate::engine::attachment_request::OWN_TYPE;
use crate::engine::kinds::Network;
use crate::few_names::a_few_of;
use crate::finding::{Finding, good, less, wrong};
use crate::operator_client::{ClientError, get, status};

const ABOUT: &str = "switches";

/// A switch that networks name.
struct Needed {
    switch: Switch,
    /// The first network's configuration.
    conf: NetConf,
    /// The names of all of them.
    networks: Vec<String>,
}

/// Looks at what these networks, each with its name, need, and at the ports that are there.
pub(super) fn findings(socket: &Path, networks: impl Iterator<Item = (String, ConfList)>) -> Vec<Finding> {
    let needed = needed_by(networks);
    let mut findings: Vec<Finding> = needed.iter().map(|needed| of_switch(socket, needed)).collect();
    let is_told = needed.iter().any(|needed| needed.switch == Switch::Fairlead);
    findings.extend(ports(socket, is_told));
    findings
}

fn needed_by(networks: impl Iterator<Item = (String, ConfList)>) -> Vec<Needed> {
    let mut needed: Vec<Needed> = Vec::new();
    for (name, list) in networks {
        let confs = (0..list.len()).filter_map(|index| list.plugin_conf(index, None, &Map::new()).ok());
        for (switch, conf) in confs.flat_map(paths).filter_map(with_switch) {
            match needed.iter_mut().find(|known| known.switch == switch) {
                Some(known) if known.networks.contains(&name) => {}
                Some(known) => known.networks.push(name.clone()),
                None => needed.push(Needed { switch, conf, networks: vec![name.clone()] }),
            }
        }
    }
    needed
}

/// The ways to a network's interface: of type `fairlead` there can be several.
fn paths(conf: NetConf) -> Vec<NetConf> {
    match Fairlead::parse(&conf) {
        Ok(Fairlead::Paths { paths, .. }) if conf.plugin_type == OWN_TYPE => paths,
        _ => vec![conf],
    }
}

fn with_switch(conf: NetConf) -> Option<(Switch, NetConf)> {
    match Network::validate(&conf, &Args::default()).ok()? {
        Network::VhostUser(network) => Some((network.config.switch.clone(), conf)),
        _ => None,
    }
}

fn of_switch(socket: &Path, Needed { switch, conf, networks }: &Needed) -> Finding {
    let (name, start) = match switch {
        Switch::Fairlead => ("fairlead-vswitch".to_owned(), "start fairlead-vswitch, or see its log"),
        Switch::OvsDpdk(OvsBridge { name, .. }) => (
            format!("bridge {name:?} of OVS-DPDK"),
            "start ovsdb-server and ovs-vswitchd with DPDK, or see their logs",
        ),
    };
    let by = format!("needed by {}", a_few_of(networks));
    match status(socket, &without_ipam(&conf.raw)) {
        Ok(()) => good(ABOUT, format!("{name} serves, {by}")),
        Err(ClientError::Refused(error)) => {
            wrong(ABOUT, format!("{name}, {by}: {}", error.msg), format!("{start} (docs/vhost-user.md)"))
        }
        Err(error) => less(ABOUT, format!("{name}, {by}: {error}"), "ask again when the daemon is ready"),
    }
}

/// What an IPAM lacks is not the switch's.
fn without_ipam(conf: &str) -> String {
    let mut tree: Value = serde_json::from_str(conf).unwrap_or_default();
    tree.as_object_mut().and_then(|keys| keys.remove("ipam"));
    tree.to_string()
}

/// The ports of our own switch that pods have and it has not, uplinks by which no frames pass, and ports of OVS at whose sockets it has
/// no running device. `is_told`: that it does not answer is said already.
fn ports(socket: &Path, is_told: bool) -> Vec<Finding> {
    match get(socket, "/v1/vswitch-ports") {
        Ok(table) => listed(&table, is_told),
        Err(error) => vec![less(ABOUT, error.to_string(), "use programs of one release")],
    }
}

fn listed(table: &Value, is_told: bool) -> Vec<Finding> {
    let rows = |key: &str| table[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let unconnected = rows("ovs").iter().filter_map(|row| port(row, "running in OVS"));
    let waiting = table["waiting"].as_u64().unwrap_or_default();
    match table["lacks"].as_str() {
        Some(lacks) if waiting > 0 && !is_told => {
            let seen = format!("{waiting} ports that pods have are in no switch: {lacks}");
            let lacking = wrong(ABOUT, seen, "start fairlead-vswitch, or see its log (docs/vhost-user.md)");
            return unconnected.chain([lacking]).collect();
        }
        Some(_) => return unconnected.collect(),
        None => {}
    }
    let lost = |row: &Value| {
        let (reason, config) = (row["reason"].as_str()?, &row["config"]);
        let word = |key: &str| config[key].as_str().unwrap_or("?");
        let seen = format!("the uplink {} of network {}: {reason}", word("interface"), word("network"));
        Some(wrong(ABOUT, seen, "mend the interface; it is taken again by itself"))
    };
    let missing = rows("ports").iter().filter_map(|row| port(row, "in the switch"));
    rows("uplinks").iter().filter_map(lost).chain(missing).chain(unconnected).collect()
}

/// A port that a pod has, and that is not what it is `to_be`, with the reason.
fn port(row: &Value, to_be: &str) -> Option<Finding> {
    let reason = row["reason"].as_str()?;
    let name = row["config"]["name"].as_str().unwrap_or("?");
    let of = row["pod"].as_str().map(|pod| format!(" of pod {pod}")).unwrap_or_default();
    let seen = format!("port {name}{of} is not {to_be}: {reason}");
    Some(less(ABOUT, seen, "mend that; it is tried again by itself"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_port_of_ovs_without_a_running_device_is_told_also_where_our_own_switch_is_not_there() {
        let row = |reason: Value| json!({"config": {"name": "fl-1"}, "pod": "ran/du-0", "reason": reason});
        let ovs = json!([row(Value::Null), row("why".into())]);
        let own = [json!({"lacks": "it does not run", "waiting": 0}), json!({"ports": [], "uplinks": []})];
        for mut table in own {
            table["ovs"] = ovs.clone();
            let told = listed(&table, false);
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].seen, "port fl-1 of pod ran/du-0 is not running in OVS: why");
        }
    }
}
