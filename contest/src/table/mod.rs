//! The equality table: networks as they are in use, and what each must not do.

use serde_json::{Value, json};

use crate::case::Case;

mod chains;
mod dummy;
mod errors;
mod host_device;
mod ipam;
mod ipvlan;
mod lax_json;
mod macvlan;
mod versions;
mod vlan;

/// Rows of the table about one subject matter.
#[derive(Debug)]
pub struct Group {
    /// The name of the group in the report.
    pub name: &'static str,
    /// The rows of the group.
    pub rows: Vec<Case>,
}

/// All groups, in the report's order.
pub fn all() -> Vec<Group> {
    vec![
        Group { name: "macvlan", rows: macvlan::rows() },
        Group { name: "ipvlan", rows: ipvlan::rows() },
        Group { name: "vlan", rows: vlan::rows() },
        Group { name: "dummy", rows: dummy::rows() },
        Group { name: "host-device and loopback", rows: host_device::rows() },
        Group { name: "IPAM", rows: ipam::rows() },
        Group { name: "versions", rows: versions::rows() },
        Group { name: "chains", rows: chains::rows() },
        Group { name: "Go's lax JSON", rows: lax_json::rows() },
        Group { name: "errors", rows: errors::rows() },
    ]
}

/// A `host-local` section with one small subnet.
fn host_local() -> Value {
    json!({"type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]})
}

/// A network of one type: version 1.0.0, on `eth1`, host-local. `more` replaces keys, and a null in it removes
/// one.
fn network(kind: &str, more: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": kind, "master": "eth1", "ipam": host_local(),
    });
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        for (key, value) in more {
            match value {
                Value::Null => config.remove(key),
                value => config.insert(key.clone(), value.clone()),
            };
        }
    }
    config
}

/// A macvlan network with this `ipam` section.
fn with_ipam(ipam: &Value) -> Value {
    network("macvlan", &json!({"ipam": ipam}))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn x20_the_table_has_at_least_forty_rows_and_no_title_twice() {
        let rows: Vec<String> = super::all().into_iter().flat_map(|g| g.rows).map(|row| row.title).collect();
        let titles: BTreeSet<&String> = rows.iter().collect();
        assert!(rows.len() >= 40, "{} rows", rows.len());
        assert_eq!(rows.len(), titles.len());
    }
}
