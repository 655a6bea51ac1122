//! The server over a real socket, with an engine that answers what the configuration says.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as Caller;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use fairlead_cni::config::NetConf;
use fairlead_cni::wire::{self, Command, MAX_BODY, NOT_BEGUN, OUTCOME_HEADER, RECEIVED, WIRE};
use fairlead_cni::{CniError, CniVersion, Code};
use fairlead_proto::v1::TearDownPodRequest;
use fairlead_proto::v1::remote_cni_client::RemoteCniClient;
use hyper_util::rt::TokioIo;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use tonic::transport::{Endpoint, Uri};

use super::http2::IdleLimits;
use super::*;
use crate::admission::Limits;
use crate::call::{Lane, NamedAttachment, OrphansListed, PodNetwork, PreparedCall, Reply, Waiting};
use crate::conf_dir::{Directories, Networks};
use crate::metrics::{Calls, Node};
use crate::settings::LiveSettings;
use crate::store::Key;

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

struct FakeCall(Arc<Fake>, wire::Request);

impl PreparedCall for FakeCall {
    fn request(&self) -> &wire::Request {
        &self.1
    }

    fn conf(&self) -> Option<&NetConf> {
        None
    }

    fn lane(&self) -> Lane {
        if self.1.container_id == "slow" { Lane::Slow } else { Lane::Fast }
    }

    fn serve(&self, _: Waiting) -> Reply {
        let FakeCall(fake, request) = self;
        let config: Value = serde_json::from_str(&request.config).unwrap();
        fake.begun.lock().push(request.container_id.clone());
        if let Some(ms) = config["held"].as_u64() {
            fake.gate.pass(Duration::from_millis(ms));
        }
        fake.served.lock().push(request.container_id.clone());
        let outcome = match config["fail"].as_str() {
            Some(msg) => Err(CniError::new(Code::InvalidConfig, msg)),
            None => Ok(r#"{"cniVersion":"1.1.0"}"#.to_owned()),
        };
        Reply { version: CniVersion::V0_4_0, outcome }
    }

    fn delivered(&self) {}

    fn count_phases(&self) {}

    fn answered(&self, delivered: bool) {
        self.0.delivered.lock().push(delivered);
    }
}

impl Service for Fake {
    fn prepare(self: Arc<Self>, request: wire::Request) -> Arc<dyn PreparedCall> {
        assert_ne!(request.container_id, "fault", "as asked");
        self.prepared.fetch_add(1, Ordering::Relaxed);
        Arc::new(FakeCall(self, request))
    }

    fn table(&self, name: &str) -> Option<Value> {
        assert_ne!(name, "pools", "as asked");
        (name == "attachments").then(|| json!([{ "container": "c1" }]))
    }

    fn describe(&self, named: &str) -> Value {
        Value::String(named.to_owned())
    }

    fn pod_networks(&self, _: &Key) -> Vec<PodNetwork> {
        Vec::new()
    }

    fn order_pools(&self, _: fairlead_sriov::pools::Verb, of: &str) -> Result<Value, CniError> {
        Ok(vec![of].into())
    }

    fn change_over(&self, _: crate::call::ChangeOver, _: &str) -> Result<(), CniError> {
        Ok(())
    }

    fn forget(&self, named: &NamedAttachment, carry_out: bool) -> Result<Value, CniError> {
        Ok(json!({ "network": named.network, "carriedOut": carry_out }))
    }

    fn collect(&self, orphans: Option<OrphansListed>) -> Result<Value, CniError> {
        Ok(json!({ "listed": orphans.map(|listed| listed.at) }))
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
    fn shut() -> TestServer {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let exposition = Arc::new(Exposition::default());
        let health = Arc::new(Health::default());
        let limits = Limits { fast: 1, slow: 0, queued: 100 };
        let admission = Admission::new(limits, Calls::new(&exposition, &["macvlan"]), health.clone());
        let readiness = Arc::new(Readiness::new(&["engine"]));
        let server = ServerState::new(admission, readiness, health, exposition, no_networks(dir.path()));
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

#[test]
fn k01_each_call_is_answered_with_a_result_or_an_error_in_its_own_version() {
    let rig = TestServer::open();
    for command in [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status] {
        let good = call(&rig, command, "c", &json!({}));
        assert_eq!((good.status, good.body.as_str()), (200, r#"{"cniVersion":"1.1.0"}"#));
        let bad = call(&rig, command, "c", &json!({ "fail": "no such mode" }));
        assert_eq!((bad.status, bad.code()), (400, 7));
        assert!(bad.body.contains(r#""cniVersion":"0.4.0""#), "{bad:?}");
    }
}

#[test]
fn every_rejection_of_the_servers_own_is_a_cni_error_object() {
    let rig = TestServer::open();
    let add = request(Command::Add, "c", &json!({}));
    let with = |key: &str, value: Value| {
        let mut changed = add.clone();
        changed[key] = value;
        changed.to_string()
    };
    let large = format!("POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1);
    let chunked = "POST /addNetwork HTTP/1.1\r\nHost: f\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    let post = |path: &str, body: &str| http(&rig.socket, "POST", path, body);
    let endless = format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(200_000));
    let later = r#"{"wire":2,"shape":"another"}"#;
    let table = [
        ("too large", raw(&rig.socket, large.as_bytes()), 413, 7),
        ("no HTTP", raw(&rig.socket, b"hello\r\n\r\n"), 400, 6),
        ("HTTP of another version", raw(&rig.socket, b"GET / HTTP/9.9\r\n\r\n"), 400, 6),
        ("a head without an end", raw(&rig.socket, endless.as_bytes()), 431, 6),
        ("broken chunks", raw(&rig.socket, chunked.as_bytes()), 400, 6),
        ("wrong method", http(&rig.socket, "GET", "/addNetwork", ""), 405, 4),
        ("wrong method for a table", post("/v1/attachments", ""), 405, 4),
        ("no such path", post("/nothing", ""), 404, 4),
        ("a table that is no text", http(&rig.socket, "GET", "/v1/%ff", ""), 400, 4),
        ("orphans neither true nor false", post("/v1/gc?orphans=maybe", ""), 400, 4),
        ("no such table", http(&rig.socket, "GET", "/v1/nothing", ""), 404, 4),
        ("no JSON", post("/addNetwork", "{"), 400, 6),
        (
            "no UTF-8",
            raw(&rig.socket, b"POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: 3\r\n\r\n\"\xff\""),
            400,
            6,
        ),
        ("empty", post("/addNetwork", ""), 400, 6),
        ("later wire", post("/addNetwork", &with("wire", json!(WIRE + 1))), 400, 1),
        ("later wire of another shape", post("/addNetwork", later), 400, 1),
        ("wire 0", post("/addNetwork", &with("wire", json!(0))), 400, 1),
        ("path of another command", post("/delNetwork", &add.to_string()), 400, 4),
        ("panic in a handler", http(&rig.socket, "GET", "/v1/pools", ""), 500, 999),
    ];
    for (name, answer, status, code) in table {
        assert_eq!((answer.status, answer.code()), (status, code), "{name}: {answer:?}");
    }
    assert_eq!(call(&rig, Command::Add, "c", &json!({})).status, 200);
}

#[test]
fn a_deeply_nested_body_is_refused_and_does_not_hang_or_kill() {
    let rig = TestServer::open();
    let deep = format!(r#"{{"wire":1,"x":{}"#, "[".repeat(200_000));
    assert_eq!(http(&rig.socket, "POST", "/addNetwork", &deep).code(), 6);
}

#[test]
fn bodies_that_never_end_keep_nobody_from_being_served_and_are_refused_in_time() {
    let rig = TestServer::open();
    let begun: Vec<Caller> = (0..40)
        .map(|_| {
            let mut stream = Caller::connect(&rig.socket).unwrap();
            let head =
                format!("POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: {MAX_BODY}\r\n\r\n{{");
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let asked = Instant::now();
    assert_eq!(call(&rig, Command::Add, "c", &json!({})).status, 200);
    assert!(asked.elapsed() < Duration::from_secs(3), "it waited {:?}", asked.elapsed());
    for mut stream in begun {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 408") && text.contains(r#""code":5"#), "{text}");
    }
}

#[test]
fn only_uid_0_is_served() {
    let rig = TestServer::open();
    let dir = rig.socket.parent().unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&rig.socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    // This very program, as another user: `the_caller_of_another_user` below.
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--exact", "server::tests::the_caller_of_another_user", "--ignored", "--nocapture"])
        .env("FAIRLEAD_TEST_SOCKET", &rig.socket)
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("answer: 403 4 fairleadd serves only uid 0"), "{said}{output:?}");
    assert!(said.contains("status: PermissionDenied fairleadd serves only uid 0"), "{said}{output:?}");
    assert!(rig.fake.served.lock().is_empty());
}

#[test]
#[ignore = "run by only_uid_0_is_served as another user"]
fn the_caller_of_another_user() {
    let socket = std::env::var("FAIRLEAD_TEST_SOCKET").unwrap();
    let answer =
        http(Path::new(&socket), "POST", "/delNetwork", &request(Command::Del, "c", &json!({})).to_string());
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    println!("answer: {} {} {}", answer.status, body["code"], body["msg"].as_str().unwrap());
    let refused = runtime().unwrap().block_on(async {
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        RemoteCniClient::new(channel).tear_down_pod(TearDownPodRequest::default()).await.unwrap_err()
    });
    println!("status: {:?} {}", refused.code(), refused.message());
}

/// The beginning of a connection of HTTP/2: the preface, and settings that change nothing.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn x12_a_connection_of_grpc_without_a_call_is_told_that_it_ends_and_is_closed() {
    let rig = TestServer::open();
    let (_running, stopped) = watch::channel(());
    let mut grpc = GrpcServer::new(rig.server.clone(), stopped).unwrap();
    let soon = Duration::from_millis(20);
    grpc.limits = IdleLimits { first_call: soon, next_call: soon, questions: soon };
    let (here, mut caller) = Caller::pair().unwrap();
    caller.write_all(BEGIN).unwrap();
    runtime().unwrap().block_on(async {
        let (accepted, _) = HandedOver::fresh(here).unwrap().here().unwrap();
        grpc.connection(accepted).await;
    });
    let mut frames = Vec::new();
    caller.read_to_end(&mut frames).unwrap();
    let mut rest = &frames[..];
    let mut kinds = Vec::new();
    while let [a, b, c, kind, ..] = *rest {
        kinds.push(kind);
        rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
    }
    const GOAWAY: u8 = 7;
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
}

/// Longer than any test: what is held goes on when the test opens the gate.
const HELD: u64 = 30_000;

fn send(rig: &TestServer, command: Command, container: &str) -> Caller {
    let body = request(command, container, &json!({})).to_string();
    let mut stream = Caller::connect(&rig.socket).unwrap();
    let head =
        format!("POST {} HTTP/1.1\r\nHost: f\r\nContent-Length: {}\r\n\r\n", command.path(), body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

#[test]
fn a_caller_that_hangs_up_in_the_queue_is_not_served_and_its_del_is() {
    let rig = TestServer::open();
    let (socket, held) = (&rig.socket, json!({ "held": HELD }));
    std::thread::scope(|scope| {
        // One is at work where it was accepted, one on the only thread for calls.
        let first = executables_call(Command::Add, "first", &held);
        let first = scope.spawn(move || ask(socket, &[&first]));
        rig.has_begun("first");
        let second = scope.spawn(|| call(&rig, Command::Add, "second", &held));
        rig.has_begun("second");
        // Handed in before they hang up, so that it is the queue that drops one.
        let gone = send(&rig, Command::Add, "gone");
        rig.has_queued(1);
        let removed = send(&rig, Command::Del, "removed");
        rig.has_queued(2);
        drop((gone, removed));
        // The server has one thread: when it has answered what came after it, it has seen who hung up.
        for _ in 0..3 {
            assert_eq!(http(&rig.socket, "GET", "/healthz", "").status, 200);
        }
        rig.fake.gate.open();
        assert_eq!((first.join().unwrap().status, second.join().unwrap().status), (200, 200));
    });
    assert_eq!(call(&rig, Command::Add, "last", &json!({})).status, 200);
    rig.until("the DEL is carried out", |rig| rig.fake.served.lock().len() >= 4);
    let mut served = rig.fake.served.lock().clone();
    // They went on together.
    served.sort_unstable();
    assert_eq!(served, ["first", "last", "removed", "second"]);
}

#[test]
fn a_call_that_takes_long_where_it_was_accepted_holds_up_nobody() {
    let rig = TestServer::open();
    let socket = &rig.socket;
    std::thread::scope(|scope| {
        let call_of_long = executables_call(Command::Add, "long", &json!({ "held": HELD }));
        let long = scope.spawn(move || ask(socket, &[&call_of_long]));
        rig.has_begun("long");
        assert_eq!(http(&rig.socket, "GET", "/healthz", "").status, 200);
        assert_eq!(call(&rig, Command::Add, "other", &json!({})).status, 200);
        assert_eq!(*rig.fake.served.lock(), ["other"]);
        // Of the same container: behind it.
        let behind = scope.spawn(|| call(&rig, Command::Del, "long", &json!({})));
        rig.has_queued(1);
        assert_eq!(*rig.fake.begun.lock(), ["long", "other"]);
        rig.fake.gate.open();
        assert_eq!(behind.join().unwrap().status, 200);
        assert_eq!(*rig.fake.served.lock(), ["other", "long", "long"]);
        assert_eq!(long.join().unwrap().status, 200);
    });
}

#[test]
fn a_question_does_not_wait_for_all_calls_before_it_where_they_take_long() {
    let rig = TestServer::open();
    // Each takes this long until the question is answered, and all of them came before it.
    let call = |n| executables_call(Command::Add, &format!("c{n}"), &json!({ "held": 150 }));
    let callers: Vec<Caller> = (0..60)
        .map(|n| {
            let mut stream = Caller::connect(&rig.socket).unwrap();
            stream.write_all(&call(n)).unwrap();
            stream
        })
        .collect();
    assert_eq!(http(&rig.socket, "GET", "/healthz", "").status, 200);
    let served = rig.fake.served.lock().len();
    rig.fake.gate.open();
    assert!(served < 60, "it was answered after all of them");
    assert!(callers.into_iter().all(|stream| answer_of(stream).status == 200));
}

#[test]
fn what_is_in_the_backlog_at_the_end_is_answered_still() {
    let mut rig = TestServer::open();
    let (said, asked) = (rig.socket.clone(), request(Command::Add, "c", &json!({})).to_string());
    rig.server.admission.stop();
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let (socket, body) = (said.clone(), asked.clone());
            std::thread::spawn(move || http(&socket, "POST", "/addNetwork", &body).code())
        })
        .collect();
    // All have connected, at the latest, when the first is answered or half a second has passed.
    std::thread::sleep(Duration::from_millis(500));
    rig.closing.notify_one();
    rig.thread.take().unwrap().join().unwrap();
    assert!(callers.into_iter().all(|caller| caller.join().unwrap() == 11));
    assert!(Caller::connect(&rig.socket).is_err(), "nobody gets in any more");
}

#[test]
fn the_acceptors_end_with_the_server_and_see_to_what_they_answered() {
    let mut rig = TestServer::open();
    for n in 0..3 {
        assert_eq!(call(&rig, Command::Add, &format!("c{n}"), &json!({})).status, 200);
    }
    let begun = Instant::now();
    rig.closing.notify_one();
    rig.thread.take().unwrap().join().unwrap();
    // Else it waits for them for as long as this.
    assert!(begun.elapsed() < LAST_ANSWERS / 2, "{:?}", begun.elapsed());
    let until = Instant::now() + Duration::from_secs(10);
    while rig.fake.delivered.lock().len() < 3 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(*rig.fake.delivered.lock(), [true; 3]);
}

#[test]
fn the_engine_learns_whether_an_adds_answer_was_written_to_its_caller() {
    let rig = TestServer::open();
    assert_eq!(call(&rig, Command::Add, "a", &json!({})).status, 200);
    let until = Instant::now() + Duration::from_secs(10);
    while rig.fake.delivered.lock().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(*rig.fake.delivered.lock(), [true]);
}

#[test]
fn an_answer_that_was_written_and_not_read_counts_as_not_arrived() {
    let rig = TestServer::open();
    let body = request(Command::Add, "c", &json!({})).to_string();
    let mut stream = Caller::connect(&rig.socket).unwrap();
    let head = format!("POST /addNetwork HTTP/1.1\r\nHost: f\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    drop(stream);
    let until = Instant::now() + Duration::from_secs(10);
    while rig.fake.delivered.lock().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(*rig.fake.delivered.lock(), [false]);
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

#[test]
fn the_executable_s_own_calls_get_the_answers_that_http_gets() {
    let rig = TestServer::open();
    for (command, config) in [
        (Command::Add, json!({})),
        (Command::Add, json!({ "fail": "as asked" })),
        (Command::Del, json!({})),
        (Command::Check, json!({ "fail": "as asked" })),
        (Command::Gc, json!({})),
        (Command::Status, json!({})),
    ] {
        let (own, http) = (executables_call(command, "c", &config), call(&rig, command, "c", &config));
        let own = ask(&rig.socket, &[&own]);
        assert_eq!((own.status, &own.body), (http.status, &http.body), "{command:?}");
        let lines = |answer: &Answer| {
            let mut lines: Vec<String> = answer.head.lines().map(str::to_ascii_lowercase).collect();
            lines.retain(|line| !line.is_empty());
            lines.sort();
            lines
        };
        assert_eq!(lines(&own), lines(&http), "{command:?}");
    }
}

#[test]
fn a_call_in_pieces_a_large_one_a_slow_one_and_a_fault_are_answered_by_the_router() {
    let rig = TestServer::open();
    let add = executables_call(Command::Add, "pieces", &json!({}));
    for cut in [1, 30, add.len() - 1] {
        assert_eq!(ask(&rig.socket, &[&add[..cut], &add[cut..]]).status, 200, "cut at {cut}");
    }
    let large = executables_call(Command::Add, "large", &json!({ "x": "x".repeat(100_000) }));
    assert_eq!(ask(&rig.socket, &[&large]).status, 200);
    let before = rig.fake.prepared.load(Ordering::Relaxed);
    assert_eq!(ask(&rig.socket, &[&executables_call(Command::Add, "slow", &json!({}))]).status, 200);
    assert_eq!(rig.fake.prepared.load(Ordering::Relaxed), before + 1, "prepared once");
    let fault = ask(&rig.socket, &[&executables_call(Command::Add, "fault", &json!({}))]);
    assert_eq!((fault.status, fault.code()), (500, 999));
    assert_eq!(ask(&rig.socket, &[&add]).status, 200, "the acceptor goes on");
}

#[test]
fn whether_the_executable_has_its_answer_is_learnt_by_its_word_only() {
    let rig = TestServer::open();
    let add = executables_call(Command::Add, "c", &json!({}));
    let reported = |count: usize| {
        let until = Instant::now() + Duration::from_secs(10);
        while rig.fake.delivered.lock().len() < count && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        rig.fake.delivered.lock().clone()
    };
    assert_eq!(ask(&rig.socket, &[&add]).status, 200);
    assert_eq!(reported(1), [true]);
    let mut stream = Caller::connect(&rig.socket).unwrap();
    stream.write_all(&add).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    drop(stream);
    assert_eq!(reported(2), [true, false], "it hung up");
    // This one reads nothing and says nothing. Others are served meanwhile.
    let mut silent = Caller::connect(&rig.socket).unwrap();
    silent.write_all(&add).unwrap();
    assert_eq!(ask(&rig.socket, &[&executables_call(Command::Add, "d", &json!({}))]).status, 200);
    assert_eq!(reported(4), [true, false, true, false], "it is given up");
}

#[test]
fn k18_a_stopping_daemon_says_that_it_did_not_begin() {
    let rig = TestServer::open();
    rig.server.admission.stop();
    let refused = call(&rig, Command::Add, "a", &json!({ "cniVersion": "0.3.1" }));
    assert_eq!((refused.status, refused.code()), (503, 11));
    assert!(refused.head.contains(&format!("{OUTCOME_HEADER}: {NOT_BEGUN}")), "{refused:?}");
    assert!(refused.body.contains(r#""cniVersion":"0.3.1""#));
}

#[test]
fn r06_before_it_is_ready_status_is_50_tables_are_50_and_an_add_gets_11_at_its_deadline() {
    let rig = TestServer::shut();
    assert_eq!(call(&rig, Command::Status, "", &json!({})).code(), 50);
    assert_eq!(http(&rig.socket, "GET", "/v1/attachments", "").code(), 50);
    let mut add = request(Command::Add, "a", &json!({}));
    add["deadline_ms"] = json!(50);
    let late = http(&rig.socket, "POST", "/addNetwork", &add.to_string());
    assert_eq!(late.code(), 11);
    assert!(late.body.contains("engine (not yet done)"), "{late:?}");
    let ready = http(&rig.socket, "GET", "/readyz", "");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("not yet done"));
}

#[test]
fn k19_k21_health_metrics_tables_and_the_order_to_collect_are_answered() {
    let rig = TestServer::open();
    assert_eq!(call(&rig, Command::Add, "a", &json!({ "type": "macvlan" })).status, 200);
    let get = |path: &str| http(&rig.socket, "GET", path, "");
    assert_eq!((get("/healthz").status, get("/readyz").status), (200, 200));
    assert!(get("/metrics").body.contains("# EOF"));
    assert_eq!(get("/v1/attachments").body, r#"[{"container":"c1"}]"#);
    let status: Value = serde_json::from_str(&get("/v1/status").body).unwrap();
    assert_eq!((&status["ready"], &status["healthy"]), (&json!(true), &json!(true)));
    assert_eq!(http(&rig.socket, "POST", "/v1/gc?orphans=true&listed=7", "").body, r#"{"listed":7}"#);
    assert_eq!(http(&rig.socket, "POST", "/v1/gc", "").body, r#"{"listed":null}"#);
    let unseen = http(&rig.socket, "POST", "/v1/gc?orphans=true", "");
    assert!(unseen.status == 409 && unseen.body.contains("only after they were listed"), "{unseen:?}");
    let named = "/v1/forget?container=c1&ifname=eth0";
    assert_eq!(http(&rig.socket, "GET", named, "").body, r#"{"carriedOut":false,"network":null}"#);
    let named = format!("{named}&network=net");
    assert_eq!(http(&rig.socket, "POST", &named, "").body, r#"{"carriedOut":true,"network":"net"}"#);
    assert_eq!(http(&rig.socket, "POST", "/v1/forget?container=c1", "").status, 400);
    rig.server.health.probe("netlink", Box::new(|| Err("no answer".into())));
    assert_eq!(get("/healthz").status, 503);
}
