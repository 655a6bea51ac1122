//! The text of one database transaction (RFC 7047, section 4.1.3), and what its reply says.
//!
//! Pure. Each operation knows which request it is for, so that a refused transaction names the guilty. The conditions are part of
//! the transaction: a bridge that is gone, a name that is taken or a port that is not ours any more make it fail as a whole.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::database_mirror::OURS;
use super::ovsdb_value::{map_of, row};
use super::port_rows::{interface_row, on_record, port_row};
use super::port_spec::{PortName, PortOwner, PortSpec};

/// The database that OVS has.
pub(crate) const DATABASE: &str = "Open_vSwitch";

/// What an operation is in the transaction for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The bridge must exist.
    Bridge,
    /// No bridge must have the name.
    NoBridge,
    /// The name must be free.
    NameFree,
    /// The port must be ours, and there.
    Ours,
    /// A change.
    Change,
}

/// A transaction being written.
#[derive(Debug)]
pub(crate) struct Transaction {
    node: String,
    operations: Vec<Value>,
    purposes: Vec<Purpose>,
    bridges: BTreeSet<String>,
    added: usize,
}

/// Why the database did not commit a transaction. Nothing of it was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the database refuses the transaction: {error} ({details})")]
pub(crate) struct Rejected {
    /// What the operation was for that failed; `None` where the commit as a whole did.
    pub(crate) purpose: Option<Purpose>,
    /// RFC 7047's word for it.
    pub(crate) error: String,
    /// The server's own words.
    pub(crate) details: String,
}

impl Transaction {
    /// An empty one for the ports of this node.
    pub(crate) fn new(node: &str) -> Transaction {
        Transaction {
            node: node.to_owned(),
            operations: vec![json!(DATABASE)],
            purposes: Vec::new(),
            bridges: BTreeSet::new(),
            added: 0,
        }
    }

    fn push(&mut self, purpose: Purpose, operation: Value) {
        self.operations.push(operation);
        self.purposes.push(purpose);
    }

    /// Fails the transaction at once unless exactly `rows` are found.
    fn wait(&mut self, purpose: Purpose, table: &str, condition: &Value, rows: &Value) {
        self.push(
            purpose,
            json!({
                "op": "wait", "timeout": 0, "table": table, "where": condition,
                "columns": ["name"], "until": "==", "rows": rows,
            }),
        );
    }

    /// Makes a bridge, as `ovs-vsctl add-br` does with the datapath type `netdev`: none must have the name. It is nobody's own afterwards.
    pub(crate) fn add_bridge(&mut self, name: &str) {
        if !self.bridges.insert(name.to_owned()) {
            return;
        }
        self.wait(Purpose::NoBridge, "Bridge", &json!([["name", "==", name]]), &json!([]));
        let number = self.bridges.len();
        let [interface, port, bridge] =
            ["interface", "port", "bridge"].map(|row| format!("{row}_of_bridge{number}"));
        let rows = [
            ("Interface", &interface, json!({ "name": name, "type": "internal" })),
            ("Port", &port, json!({ "name": name, "interfaces": ["named-uuid", interface] })),
            (
                "Bridge",
                &bridge,
                json!({ "name": name, "datapath_type": "netdev", "ports": ["named-uuid", port] }),
            ),
        ];
        for (table, uuid_name, row) in rows {
            let insert = json!({ "op": "insert", "table": table, "uuid-name": uuid_name, "row": row });
            self.push(Purpose::Change, insert);
        }
        self.push(
            Purpose::Change,
            json!({
                "op": "mutate", "table": DATABASE, "where": [],
                "mutations": [["bridges", "insert", ["named-uuid", bridge]]],
            }),
        );
    }

    /// Adds a port: the bridge must be there, and the name free.
    pub(crate) fn add(&mut self, spec: &PortSpec) {
        let name = spec.name.as_str();
        let named = |name: &str| json!([["name", "==", name]]);
        if self.bridges.insert(spec.bridge.clone()) {
            self.wait(Purpose::Bridge, "Bridge", &named(&spec.bridge), &json!([{ "name": spec.bridge }]));
        }
        for table in ["Port", "Interface"] {
            self.wait(Purpose::NameFree, table, &named(name), &json!([]));
        }
        let (interface, port) = (format!("interface{}", self.added), format!("port{}", self.added));
        self.added += 1;
        let reference = json!(["named-uuid", interface]);
        self.push(
            Purpose::Change,
            json!({
                "op": "insert", "table": "Interface", "uuid-name": interface,
                "row": interface_row(spec, &self.node),
            }),
        );
        self.push(
            Purpose::Change,
            json!({
                "op": "insert", "table": "Port", "uuid-name": port,
                "row": port_row(spec, &self.node, &reference),
            }),
        );
        self.push(
            Purpose::Change,
            json!({
                "op": "mutate", "table": "Bridge", "where": named(&spec.bridge),
                "mutations": [["ports", "insert", ["named-uuid", port]]],
            }),
        );
    }

    /// Gives the port of an attachment this node's name, whatever node's name it has; nothing where there is none. Another node's
    /// attachment has another container.
    pub(crate) fn claim(&mut self, name: &PortName, owner: &PortOwner) {
        let of_owner = json!([["name", "==", name.as_str()], ["external_ids", "includes", on_record(owner)]]);
        for table in ["Port", "Interface"] {
            let name_of_node = map_of([(OURS, self.node.as_str())]);
            self.push(
                Purpose::Change,
                json!({
                    "op": "mutate", "table": table, "where": of_owner,
                    "mutations": [["external_ids", "delete", ["set", [OURS]]], ["external_ids", "insert", name_of_node]],
                }),
            );
        }
    }

    /// Removes the port of this row: it must still be ours.
    pub(crate) fn remove(&mut self, id: &str, name: &str) {
        let ours =
            json!([["_uuid", "==", row(id)], ["external_ids", "includes", ["map", [[OURS, self.node]]]],]);
        self.wait(Purpose::Ours, "Port", &ours, &json!([{ "name": name }]));
        self.push(
            Purpose::Change,
            json!({
                "op": "mutate", "table": "Bridge", "where": [["ports", "includes", row(id)]],
                "mutations": [["ports", "delete", row(id)]],
            }),
        );
    }

    /// The arguments of `transact`: all operations, and a new configuration number, which the reply tells.
    pub(crate) fn finish(mut self) -> (Value, Sent) {
        self.push(
            Purpose::Change,
            json!({
                "op": "mutate", "table": DATABASE, "where": [], "mutations": [["next_cfg", "+=", 1]],
            }),
        );
        self.push(
            Purpose::Change,
            json!({ "op": "select", "table": DATABASE, "where": [], "columns": ["next_cfg"] }),
        );
        let comment = json!({ "op": "comment", "comment": format!("fairlead on {}", self.node) });
        self.push(Purpose::Change, comment);
        (Value::Array(self.operations), Sent { purposes: self.purposes })
    }
}

/// What is needed to understand the reply.
#[derive(Debug)]
pub(crate) struct Sent {
    purposes: Vec<Purpose>,
}

impl Sent {
    /// The number of the configuration that contains the transaction.
    ///
    /// # Errors
    /// [`Rejected`], where the reply has an error, or not one result for each operation.
    pub(crate) fn configuration(&self, reply: &Value) -> Result<i64, Rejected> {
        let results = reply.as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |result: &Value, field: &str| result[field].as_str().unwrap_or_default().to_owned();
        if let Some(at) = results.iter().position(|result| !result["error"].is_null()) {
            let (error, details) = (text(&results[at], "error"), text(&results[at], "details"));
            return Err(Rejected { purpose: self.purposes.get(at).copied(), error, details });
        }
        let select = self.purposes.len().checked_sub(2).and_then(|at| results.get(at));
        let number = select.and_then(|result| result["rows"][0]["next_cfg"].as_i64());
        number.filter(|_| results.len() == self.purposes.len()).ok_or_else(|| Rejected {
            purpose: None,
            error: "the reply has not a result for each operation".to_owned(),
            details: reply.to_string().chars().take(200).collect(),
        })
    }
}

/// The arguments of `transact` that only ask for the `external_ids` of the port or interface with that name.
pub(crate) fn ask_owner(name: &str) -> Value {
    let select = |table: &str| {
        json!({
            "op": "select", "table": table, "where": [["name", "==", name]], "columns": ["external_ids"],
        })
    };
    json!([DATABASE, select("Port"), select("Interface")])
}

#[cfg(test)]
#[path = "transaction_tests.rs"]
mod tests;
