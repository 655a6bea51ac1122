//! The part of OVS's database that the driver needs, kept up to date by the monitor of a connection.
//!
//! Pure: it takes what the server tells, and answers questions. It never guesses: news that do not fit are an error, after
//! which the connection is made anew.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::ovsdb_value::{Atom, Cell, NoValue, RowId};

/// The key in `external_ids` of whatever is Fairlead's; its value is the node that made it.
pub(crate) const OURS: &str = "fairlead";

/// Whether a column has at most one value: its news are the new value, and of others only the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    One,
    Many,
}
use Holds::{Many, One};

/// All tables and columns that are asked for, and never more: news of statistics come each five seconds.
const COLUMNS: [(&str, &[(&str, Holds)]); 4] = [
    (
        "Open_vSwitch",
        &[("cur_cfg", One), ("next_cfg", One), ("dpdk_initialized", One), ("other_config", Many)],
    ),
    ("Bridge", &[("name", One), ("datapath_type", One), ("ports", Many)]),
    (
        "Port",
        &[
            ("name", One),
            ("interfaces", Many),
            ("tag", One),
            ("trunks", Many),
            ("vlan_mode", One),
            ("external_ids", Many),
        ],
    ),
    (
        "Interface",
        &[
            ("name", One),
            ("type", One),
            ("options", Many),
            ("mtu_request", One),
            ("ingress_policing_rate", One),
            ("ingress_policing_burst", One),
            ("external_ids", Many),
            ("ofport", One),
            ("error", One),
            ("status", Many),
        ],
    ),
];

/// A row: its columns by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row(BTreeMap<String, Cell>);

impl Row {
    /// A row of these columns.
    ///
    /// # Errors
    /// Where a column has no value of OVSDB's.
    pub(crate) fn read(columns: &Map<String, Value>) -> Result<Row, NoValue> {
        let cells = columns.iter().map(|(column, value)| Ok((column.clone(), Cell::read(value)?)));
        cells.collect::<Result<_, _>>().map(Row)
    }

    /// A column's cell.
    pub(crate) fn cell(&self, column: &str) -> Option<&Cell> {
        self.0.get(column)
    }

    /// The text in a column of one text.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        self.cell(column)?.single()?.text()
    }

    /// The integer in a column of one integer.
    pub(crate) fn integer(&self, column: &str) -> Option<i64> {
        self.cell(column)?.single()?.integer()
    }

    /// A key's value in a column of texts by texts.
    pub(crate) fn entry(&self, column: &str, key: &str) -> Option<&str> {
        self.cell(column)?.entry(key)
    }
}

/// News that do not fit to what was told before.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorError {
    /// A part of it has another form than the manual says.
    #[error("what the database server tells has not the form of an update: {0}")]
    Form(String),
    /// A value is none.
    #[error(transparent)]
    Value(#[from] NoValue),
}

/// The rows that were told, by table and UUID.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    tables: BTreeMap<String, BTreeMap<RowId, Row>>,
}

/// A port of ours as the database has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OurPort<'a> {
    /// Its row's UUID.
    pub(crate) id: &'a RowId,
    /// The port's row.
    pub(crate) port: &'a Row,
    /// The row of its only interface.
    pub(crate) interface: &'a Row,
    /// The name of the bridge that it is in.
    pub(crate) bridge: &'a str,
}

impl Mirror {
    /// Takes the reply to `monitor` (rows are told as `new`) or to `monitor_cond` (as `initial`), or news of either.
    ///
    /// # Errors
    /// See [`MirrorError`]; what was told before may be half changed then.
    pub(crate) fn update(&mut self, tables: &Value) -> Result<(), MirrorError> {
        for (table, rows) in object(tables)? {
            for (id, change) in object(rows)? {
                self.update_row(table, id, object(change)?)?;
            }
        }
        Ok(())
    }

    fn update_row(
        &mut self,
        table: &str,
        id: &RowId,
        change: &Map<String, Value>,
    ) -> Result<(), MirrorError> {
        let rows = self.tables.entry(table.to_owned()).or_default();
        if let Some(modified) = change.get("modify") {
            let differences = Row::read(object(modified)?)?;
            let row = rows.get_mut(id).ok_or_else(|| MirrorError::Form(format!("no row {id} in {table}")))?;
            for (column, difference) in differences.0 {
                match row.0.get_mut(&column) {
                    Some(cell) if holds(table, &column) == Many => cell.change(difference),
                    _ => drop(row.0.insert(column, difference)),
                }
            }
            return Ok(());
        }
        match ["initial", "insert", "new"].iter().find_map(|form| change.get(*form)) {
            Some(columns) if !columns.is_null() => {
                let mut row = Row::read(object(columns)?)?;
                fill(table, &mut row);
                rows.insert(id.clone(), row);
            }
            _ => drop(rows.remove(id)),
        }
        Ok(())
    }

    /// The rows of a table.
    pub(crate) fn rows(&self, table: &str) -> impl Iterator<Item = (&RowId, &Row)> {
        self.tables.get(table).into_iter().flatten()
    }

    fn root(&self) -> Option<&Row> {
        self.rows("Open_vSwitch").next().map(|(_, row)| row)
    }

    /// The number of the newest configuration that `ovs-vswitchd` has carried out.
    pub(crate) fn applied(&self) -> Option<i64> {
        self.root()?.integer("cur_cfg")
    }

    /// The number of the newest configuration that somebody waits for.
    pub(crate) fn requested(&self) -> Option<i64> {
        self.root()?.integer("next_cfg")
    }

    /// Whether OVS says that DPDK is at work; `None` where it does not say.
    pub(crate) fn dpdk_initialized(&self) -> Option<bool> {
        match self.root()?.cell("dpdk_initialized")?.single()? {
            Atom::Truth(truth) => Some(*truth),
            _ => None,
        }
    }

    /// A key of the switch's `other_config`.
    pub(crate) fn setting(&self, key: &str) -> Option<&str> {
        self.root()?.entry("other_config", key)
    }

    /// The bridge of that name.
    pub(crate) fn bridge(&self, name: &str) -> Option<&Row> {
        self.rows("Bridge").map(|(_, row)| row).find(|row| row.text("name") == Some(name))
    }

    /// The ports that this node's Fairlead made. One that is in no bridge is about to vanish, and is not there.
    pub(crate) fn our_ports<'a>(&'a self, node: &'a str) -> impl Iterator<Item = OurPort<'a>> {
        let interfaces = self.tables.get("Interface");
        let bridges: BTreeMap<&RowId, &str> = self
            .rows("Bridge")
            .flat_map(|(_, row)| {
                let name = row.text("name").unwrap_or_default();
                row.cell("ports").into_iter().flat_map(Cell::rows).map(move |id| (id, name))
            })
            .collect();
        self.rows("Port").filter(move |(_, row)| row.entry("external_ids", OURS) == Some(node)).filter_map(
            move |(id, port)| {
                let interface = interfaces?.get(port.cell("interfaces")?.rows().next()?)?;
                Some(OurPort { id, port, interface, bridge: bridges.get(id)? })
            },
        )
    }

    /// The port of ours with that name.
    pub(crate) fn our_port<'a>(&'a self, node: &'a str, name: &str) -> Option<OurPort<'a>> {
        self.our_ports(node).find(|ours| ours.port.text("name") == Some(name))
    }
}

fn object(value: &Value) -> Result<&Map<String, Value>, MirrorError> {
    value.as_object().ok_or_else(|| MirrorError::Form(value.to_string()))
}

fn columns(table: &str) -> &'static [(&'static str, Holds)] {
    COLUMNS.iter().find(|(name, _)| *name == table).map_or(&[], |(_, columns)| columns)
}

fn holds(table: &str, column: &str) -> Holds {
    columns(table).iter().find(|(name, _)| *name == column).map_or(One, |(_, holds)| *holds)
}

/// `update2` leaves columns out that have their default: a later difference needs a cell to change.
fn fill(table: &str, row: &mut Row) {
    let maps = ["external_ids", "other_config", "options", "status"];
    for (column, _) in columns(table) {
        row.0.entry((*column).to_owned()).or_insert_with(|| match maps.contains(column) {
            true => Cell::Map(BTreeMap::new()),
            false => Cell::Set([].into()),
        });
    }
}

/// What to ask a monitor for: all columns that `has` says the server knows. With `conditions`, the rows of ports and
/// interfaces that are this node's alone.
pub(crate) fn monitor_requests(node: &str, conditions: bool, has: impl Fn(&str, &str) -> bool) -> Value {
    let mut requests = Map::new();
    for (table, columns) in COLUMNS {
        let known: Vec<&str> =
            columns.iter().map(|(column, _)| *column).filter(|column| has(table, column)).collect();
        let mut request = json!({ "columns": known });
        if conditions && matches!(table, "Port" | "Interface") {
            request["where"] = json!([["external_ids", "includes", ["map", [[OURS, node]]]]]);
        }
        requests.insert(table.to_owned(), if conditions { json!([request]) } else { request });
    }
    Value::Object(requests)
}

/// The columns without which the driver cannot work, as table and column.
pub(crate) fn needed_columns() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = COLUMNS.iter().flat_map(|(table, columns)| columns.iter().map(|(column, _)| (*table, *column)));
    all.filter(|(_, column)| *column != "dpdk_initialized")
}

#[cfg(test)]
#[path = "database_mirror_tests.rs"]
mod tests;
