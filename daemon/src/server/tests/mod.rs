//! The server over a real socket, with an engine that answers what the configuration says.

mod access;
mod answers;
mod callers_and_acceptors;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Caller;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use fairlead_cni::wire::{self, Command, RECEIVED, WIRE};
use fairlead_cni::{CniError, CniVersion, Code};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use super::*;
use crate::admission::Limits;
use crate::call::fake_service::FakeService;
use crate::call::{Lane, NamedAttachment, OrphansListed, Reply};
use crate::conf_dir::{Directories, Networks};
use crate::metrics::{Calls, Node};
use crate::run_dir::{STOPPING, stop_was_announced};
use crate::settings::LiveSettings;

/// What a test holds calls up with, so that it decides the order and not the clock.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Waits until it is open, at most for so long.
    fn pass(&self, most: Duration) {
        self.opened.wait_while_for(&mut self.is_open.lock(), |is_open| !*is_open, most);
    }

    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }
}

#[derive(Default)]
struct Fake {
    prepared: AtomicUsize,
    begun: Mutex<Vec<String>>,
    gate: Gate,
    served: Mutex<Vec<String>>,
    delivered: Mutex<Vec<bool>>,
}

impl FakeService for Fake {
    fn answer(&self, request: &wire::Request) -> Reply {
        let config: Value = serde_json::from_str(&request.config).unwrap();
        self.begun.lock().push(request.container_id.clone());
        if let Some(ms) = config["held"].as_u64() {
            self.gate.pass(Duration::from_millis(ms));
        }
        self.served.lock().push(request.container_id.clone());
        let outcome = match config["fail"].as_str() {
            Some(msg) => Err(CniError::new(Code::InvalidConfig, msg)),
            None => Ok(r#"{"cniVersion":"1.1.0"}"#.to_owned()),
        };
        Reply { version: CniVersion::V0_4_0, outcome }
    }

    fn lane_of(&self, request: &wire::Request) -> Lane {
        if request.container_id == "slow" { Lane::Slow } else { Lane::Fast }
    }

    fn note_prepared(&self, request: &wire::Request) {
        assert_ne!(request.container_id, "fault", "as asked");
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    fn note_answered(&self, _: &wire::Request, delivered: bool) {
        self.delivered.lock().push(delivered);
    }

    fn rows_of(&self, table: &str) -> Option<Value> {
        assert_ne!(table, "pools", "as asked");
        if table == "orphans" {
            self.begun.lock().push(table.to_owned());
            self.gate.pass(Duration::from_secs(20));
            return Some(json!([]));
        }
        (table == "attachments").then(|| json!([{ "container": "c1" }]))
    }

    fn collected(&self, orphans: Option<OrphansListed>) -> Value {
        json!({ "listed": orphans.map(|listed| listed.at) })
    }

    fn forgotten(&self, named: &NamedAttachment, carry_out: bool) -> Value {
        json!({ "network": named.network, "carriedOut": carry_out })
    }
}

struct TestServer {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    server: ServerState,
    fake: Arc<Fake>,
    closing: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A node whose conf dir is empty.
fn no_networks(dir: &Path) -> DefaultNetwork {
    let node = Node::default();
    let networks = Networks::new(Directories::new(dir, None, None), &["macvlan"], node.clone());
    let settings = LiveSettings::new(&dir.join("config.yaml"), node);
    DefaultNetwork::new(Arc::new(networks), Arc::new(settings), None)
}

impl TestServer {
    /// Whether each answer arrived, as the engine was told, once it was told of so many.
    fn delivered(&self, count: usize) -> Vec<bool> {
        let until = Instant::now() + Duration::from_secs(10);
        while self.fake.delivered.lock().len() < count && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.fake.delivered.lock().clone()
    }

    fn shut() -> TestServer {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let exposition = Arc::new(Exposition::default());
        let health = Arc::new(Health::default());
        let limits = Limits { fast: 1, slow: 0, queued: 100 };
        let admission = Admission::new(limits, Calls::new(&exposition, &["macvlan"]), health.clone());
        let readiness = Arc::new(Readiness::new(&["engine"]));
        let mut server = ServerState::new(admission, readiness, health, exposition, no_networks(dir.path()));
        let run_dir = dir.path().to_owned();
        server.stop_was_announced = Arc::new(move || stop_was_announced(&run_dir));
        let closing = Arc::new(Notify::new());
        let (served, closed) = (server.clone(), closing.clone());
        let thread = std::thread::spawn(move || {
            runtime().unwrap().block_on(serve(listener, served, closed)).unwrap();
        });
        TestServer { _dir: dir, socket, server, fake: Arc::default(), closing, thread: Some(thread) }
    }

    /// Waits until something holds of the server.
    fn until(&self, what: &str, holds: impl Fn(&TestServer) -> bool) {
        let limit = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(Instant::now() < limit, "it never came that {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn has_begun(&self, container: &str) {
        self.until("the call is at work", |rig| rig.fake.begun.lock().iter().any(|begun| begun == container));
    }

    fn has_queued(&self, calls: u64) {
        self.until("the calls are queued", |rig| rig.server.admission.counts()["queued"] == calls);
    }

    fn open() -> TestServer {
        let rig = TestServer::shut();
        let service: Arc<dyn Service> = rig.fake.clone();
        let _ = rig.server.service.set(service.clone());
        rig.server.readiness.met("engine");
        rig.server.admission.open(service).unwrap();
        rig
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.closing.notify_one();
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            // A second panic would end all tests, and hide what the first one said.
            assert!(std::thread::panicking() || served.is_ok(), "the server ended: {served:?}");
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Every answer but DEL's is checked to be an error object with a code, or JSON.
    fn code(&self) -> u64 {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        assert!(body["cniVersion"].is_string() && !body["msg"].as_str().unwrap().is_empty(), "{self:?}");
        body["code"].as_u64().unwrap()
    }
}

fn raw(socket: &Path, request: &[u8]) -> Answer {
    let mut stream = Caller::connect(socket).unwrap();
    // A server that has answered early may have hung up.
    let _ = stream.write_all(request);
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let _ = stream.write_all(RECEIVED);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len());
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

fn http(socket: &Path, method: &str, path: &str, body: &str) -> Answer {
    let length = body.len();
    raw(
        socket,
        format!("{method} {path} HTTP/1.1\r\nHost: f\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes(),
    )
}

fn request(command: Command, container: &str, config: &Value) -> Value {
    json!({ "wire": WIRE, "command": command, "container_id": container, "ifname": "eth0",
            "config": config.to_string(), "deadline_ms": 10_000 })
}

fn call(rig: &TestServer, command: Command, container: &str, config: &Value) -> Answer {
    http(&rig.socket, "POST", command.path(), &request(command, container, config).to_string())
}

/// A call as the executable sends it.
fn executables_call(command: Command, container: &str, config: &Value) -> Vec<u8> {
    let body = request(command, container, config).to_string();
    (wire::head(command, body.len()) + &body).into_bytes()
}

/// Sends pieces, reads the answer and no more, and confirms it.
fn ask(socket: &Path, pieces: &[&[u8]]) -> Answer {
    let mut stream = Caller::connect(socket).unwrap();
    for (n, piece) in pieces.iter().enumerate() {
        // Longer than an acceptor waits.
        std::thread::sleep(Duration::from_millis(if n == 0 { 0 } else { 30 }));
        stream.write_all(piece).unwrap();
    }
    answer_of(stream)
}

/// Reads the answer and no more, and confirms it.
fn answer_of(mut stream: Caller) -> Answer {
    let mut text = Vec::new();
    let mut byte = [0];
    let body = loop {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
        if text.ends_with(b"\r\n\r\n") {
            let head = str::from_utf8(&text).unwrap();
            let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            break body;
        }
    };
    // Nobody waits for it after a refusal.
    let _ = stream.write_all(RECEIVED);
    let head = String::from_utf8(text).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: String::from_utf8(body).unwrap() }
}
