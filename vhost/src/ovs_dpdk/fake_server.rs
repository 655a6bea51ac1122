//! A small database server for tests, which does as a test says: it carries out the driver's transactions, plays `ovs-vswitchd`,
//! and can refuse, hold back, forget to answer or hang up.
//!
//! News are told as whole rows; the differences that a real server sends are tried with a real one.

mod operations;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
#[cfg(test)]
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Map, Value, json};

use super::database_mirror::{OURS, needed_columns};
use super::jsonrpc::framing::Framer;
use super::ovsdb_value::Cell;
#[cfg(test)]
use super::{DatabaseAddress, Limits, Options, OvsDpdk};

type Rows = BTreeMap<String, Map<String, Value>>;

/// What the server does with the next transactions that change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// It commits and answers.
    Commit,
    /// It hangs up and does nothing.
    HangUp,
    /// It commits, and hangs up before the answer.
    CommitAndHangUp,
    /// It commits, and does not answer.
    CommitAndBeSilent,
}

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) tables: BTreeMap<String, Rows>,
    /// For the next transactions, one by one; then [`Conduct::Commit`].
    pub(crate) conducts: Vec<Conduct>,
    /// Transactions wait while this is set.
    pub(crate) held: bool,
    /// Whether there is an `ovs-vswitchd`.
    pub(crate) switch_runs: bool,
    /// Interfaces that the switch cannot make.
    pub(crate) failing: BTreeSet<String>,
    /// Names whose insert breaks a constraint.
    pub(crate) poisoned: BTreeSet<String>,
    pub(crate) knows_monitor_cond: bool,
    pub(crate) schema: Value,
    /// The operations of each transaction that came.
    pub(crate) transactions: Vec<Vec<Value>>,
    clients: Vec<UnixStream>,
    rows_made: u64,
}

/// A server, until its test ends.
#[derive(Debug)]
pub struct FakeServer {
    pub(crate) database: Arc<Mutex<Database>>,
    pub(crate) changed: Arc<Condvar>,
    #[cfg(test)]
    dir: Option<tempfile::TempDir>,
}

impl FakeServer {
    /// A server with a bridge `br0`, and DPDK at work, at this socket.
    ///
    /// # Panics
    /// When there is no such socket to be had.
    pub fn serve(socket: &Path) -> FakeServer {
        let database = Database {
            tables: BTreeMap::new(),
            conducts: Vec::new(),
            held: false,
            switch_runs: true,
            failing: BTreeSet::new(),
            poisoned: BTreeSet::new(),
            knows_monitor_cond: true,
            schema: schema(),
            transactions: Vec::new(),
            clients: Vec::new(),
            rows_made: 0,
        };
        let server = FakeServer {
            database: Arc::new(Mutex::new(database)),
            changed: Arc::default(),
            #[cfg(test)]
            dir: None,
        };
        server.recreate();
        let listener = UnixListener::bind(socket).unwrap();
        let (database, changed) = (Arc::clone(&server.database), Arc::clone(&server.changed));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, database, changed) =
                    (stream.unwrap(), Arc::clone(&database), Arc::clone(&changed));
                database.lock().clients.push(stream.try_clone().unwrap());
                thread::spawn(move || serve(stream, &database, &changed));
            }
        });
        server
    }

    /// The same at a socket of its own.
    #[cfg(test)]
    pub(crate) fn start() -> FakeServer {
        let dir = tempfile::TempDir::new().unwrap();
        let server = FakeServer::serve(&dir.path().join("db.sock"));
        FakeServer { dir: Some(dir), ..server }
    }

    #[cfg(test)]
    fn socket(&self) -> PathBuf {
        self.dir.as_ref().unwrap().path().join("db.sock")
    }

    /// Starts or stops `ovs-vswitchd`.
    ///
    /// # Panics
    /// When its own thread has.
    pub fn run_switch(&self, runs: bool) {
        self.change(|database| {
            database.switch_runs = runs;
            if runs {
                database.apply();
            }
        });
    }

    /// Empties the database but for the bridge, and hangs up.
    ///
    /// # Panics
    /// When its own thread has.
    pub fn recreate(&self) {
        let mut database = self.database.lock();
        database.tables.clear();
        let root = json!({ "cur_cfg": 0, "next_cfg": 0, "dpdk_initialized": true, "bridges": ["set", []] });
        database.insert("Open_vSwitch", root);
        database.insert("Bridge", json!({ "name": "br0", "datapath_type": "netdev", "ports": ["set", []] }));
        database.hang_up();
    }

    /// A driver for the node `here`.
    #[cfg(test)]
    pub(crate) fn driver(&self, limits: Limits) -> OvsDpdk {
        self.driver_of("here", limits)
    }

    #[cfg(test)]
    pub(crate) fn driver_of(&self, node: &str, limits: Limits) -> OvsDpdk {
        let address = format!("unix:{}", self.socket().display());
        let address = DatabaseAddress::parse(&address).unwrap();
        OvsDpdk::start(Options { address, tls: None, node: node.to_owned(), run_dir: None, limits }).unwrap()
    }

    /// Adds a port to the bridge: somebody else's, or one of this node's Fairlead.
    ///
    /// # Panics
    /// When its own thread has.
    pub fn add_port(&self, name: &str, node: Option<&str>) {
        let ids: Vec<[&str; 2]> = node.map(|node| [OURS, node]).into_iter().collect();
        let row = json!({ "name": name, "type": "dpdkvhostuserclient", "external_ids": ["map", ids] });
        self.change(|database| {
            let interface = database.insert("Interface", row.clone());
            let mut port = row;
            port["interfaces"] = json!(["uuid", interface]);
            let port = database.insert("Port", port);
            for bridge in database.tables.get_mut("Bridge").unwrap().values_mut() {
                let ports = Cell::read(&bridge["ports"]).unwrap();
                let all = ports.rows().chain([&port]).map(|id| json!(["uuid", id]));
                bridge["ports"] = json!(["set", all.collect::<Vec<_>>()]);
            }
        });
    }

    /// Changes a column of a row, by its name.
    ///
    /// # Panics
    /// Where there is none.
    pub fn set(&self, table: &str, name: &str, column: &str, value: Value) {
        self.change(|database| {
            let rows = database.tables.get_mut(table).unwrap();
            let row = rows.values_mut().find(|row| row["name"] == name).unwrap();
            row.insert(column.to_owned(), value);
        });
    }

    /// A row as JSON, by its name.
    ///
    /// # Panics
    /// Where there is none.
    pub fn row(&self, table: &str, name: &str) -> Value {
        let database = self.database.lock();
        let row = database.tables[table].values().find(|row| row["name"] == name);
        Value::Object(row.unwrap().clone())
    }

    /// Changes the database as somebody else, and tells it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Database)) {
        let mut database = self.database.lock();
        let before = database.tables.clone();
        change(&mut database);
        database.tell(&before);
        self.changed.notify_all();
    }

    /// The names of the ports in the bridges.
    ///
    /// # Panics
    /// When its own thread has.
    pub fn ports(&self) -> Vec<String> {
        let database = self.database.lock();
        let rows = database.tables.get("Port").into_iter().flatten();
        let mut names: Vec<String> = rows.map(|(_, row)| row["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

impl Database {
    pub(crate) fn insert(&mut self, table: &str, row: Value) -> String {
        self.rows_made += 1;
        let id = format!("00000000-0000-0000-0000-{:012}", self.rows_made);
        let Value::Object(row) = row else { panic!("a row is an object") };
        self.tables.entry(table.to_owned()).or_default().insert(id.clone(), row);
        id
    }

    pub(crate) fn hang_up(&mut self) {
        for client in self.clients.drain(..) {
            drop(client.shutdown(std::net::Shutdown::Both));
        }
    }

    /// Takes all ports out of all bridges.
    #[cfg(test)]
    pub(crate) fn empty_bridges(&mut self) {
        for bridge in self.tables.get_mut("Bridge").unwrap().values_mut() {
            bridge["ports"] = json!(["set", []]);
        }
        self.collect_garbage();
    }

    fn root(&mut self) -> &mut Map<String, Value> {
        self.tables.get_mut("Open_vSwitch").unwrap().values_mut().next().unwrap()
    }

    /// Plays the switch: all that is there is made.
    pub(crate) fn apply(&mut self) {
        let failing = self.failing.clone();
        for (number, interface) in
            self.tables.entry("Interface".to_owned()).or_default().values_mut().enumerate()
        {
            if failing.contains(interface["name"].as_str().unwrap()) {
                interface.insert("error".to_owned(), json!("no memory for it"));
                interface.insert("ofport".to_owned(), json!(-1));
            } else {
                interface.insert("ofport".to_owned(), json!(number + 1));
            }
        }
        let next = self.root()["next_cfg"].clone();
        self.root()["cur_cfg"] = next;
    }

    fn collect_garbage(&mut self) {
        for (parent, column, child) in [("Bridge", "ports", "Port"), ("Port", "interfaces", "Interface")] {
            let rows = self.tables.get(parent).into_iter().flat_map(BTreeMap::values);
            let kept: BTreeSet<String> = rows
                .flat_map(|row| Cell::read(&row[column]).unwrap().rows().cloned().collect::<Vec<_>>())
                .collect();
            self.tables.entry(child.to_owned()).or_default().retain(|id, _| kept.contains(id));
        }
    }

    /// All rows that are not as before, to every client.
    fn tell(&mut self, before: &BTreeMap<String, Rows>) {
        let mut updates = Map::new();
        let none = Rows::new();
        for (table, rows) in &self.tables {
            let old = before.get(table).unwrap_or(&none);
            let changed = rows.iter().filter(|(id, row)| old.get(*id) != Some(row));
            let mut news: Map<String, Value> =
                changed.map(|(id, row)| (id.clone(), json!({ "insert": row }))).collect();
            let gone = old.keys().filter(|id| !rows.contains_key(*id));
            news.extend(gone.map(|id| (id.clone(), json!({ "delete": null }))));
            updates.insert(table.clone(), Value::Object(news));
        }
        let method = if self.knows_monitor_cond { "update2" } else { "update" };
        let mut text = json!({ "id": null, "method": method, "params": ["fairlead", updates] }).to_string();
        if !self.knows_monitor_cond {
            text = text.replace("{\"insert\":", "{\"new\":");
        }
        self.clients.retain_mut(|client| client.write_all(text.as_bytes()).is_ok());
    }
}

fn serve(mut stream: UnixStream, database: &Mutex<Database>, changed: &Condvar) {
    let mut framer = Framer::new(1 << 20);
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        framer.push(&buffer[..length]);
        while let Some(request) = framer.next_message().unwrap() {
            if !answer(&mut stream, &request, database, changed) {
                return;
            }
        }
    }
}

/// False where the server has hung up.
fn answer(stream: &mut UnixStream, request: &Value, shared: &Mutex<Database>, changed: &Condvar) -> bool {
    let database = shared.lock();
    let reply = |result: &Value| json!({ "id": request["id"], "result": result, "error": null }).to_string();
    let refusal = json!({ "id": request["id"], "result": null, "error": "unknown method" }).to_string();
    let text = match request["method"].as_str() {
        Some("get_schema") if database.schema.is_object() => reply(&database.schema),
        Some("monitor_cond") if database.knows_monitor_cond => reply(&all_rows(&database, "initial")),
        Some("monitor") => reply(&all_rows(&database, "new")),
        Some("transact") => return transact(stream, request, database, changed),
        Some(_) => refusal,
        None => return true,
    };
    stream.write_all(text.as_bytes()).is_ok()
}

/// False where the server has hung up.
fn transact(
    stream: &mut UnixStream,
    request: &Value,
    mut database: MutexGuard<'_, Database>,
    changed: &Condvar,
) -> bool {
    let operations = request["params"].as_array().unwrap()[1..].to_vec();
    let asks = operations[0]["op"] == "select";
    while database.held && !asks {
        changed.wait_for(&mut database, Duration::from_secs(60));
    }
    let conducts = &mut database.conducts;
    let conduct = if asks || conducts.is_empty() { Conduct::Commit } else { conducts.remove(0) };
    if conduct == Conduct::HangUp {
        database.hang_up();
        return false;
    }
    let before = database.tables.clone();
    let results = database.execute(&operations);
    if !asks {
        database.transactions.push(operations);
        database.tell(&before);
    }
    let reply = json!({ "id": request["id"], "result": results, "error": null }).to_string();
    let answered = conduct == Conduct::Commit && stream.write_all(reply.as_bytes()).is_ok();
    if conduct == Conduct::CommitAndHangUp {
        database.hang_up();
    }
    if database.switch_runs && !asks {
        let before = database.tables.clone();
        database.apply();
        database.tell(&before);
    }
    answered || conduct == Conduct::CommitAndBeSilent
}

fn schema() -> Value {
    let mut schema = json!({ "tables": { "Open_vSwitch": { "columns": { "dpdk_initialized": {} } } } });
    for (table, column) in needed_columns() {
        schema["tables"][table]["columns"][column] = json!({});
    }
    schema
}

fn all_rows(database: &Database, form: &str) -> Value {
    let tables = database.tables.iter().map(|(table, rows)| {
        let rows: Map<String, Value> =
            rows.iter().map(|(id, row)| (id.clone(), json!({ form: row }))).collect();
        (table.clone(), Value::Object(rows))
    });
    Value::Object(tables.collect())
}
