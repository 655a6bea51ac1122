//! The bytes of the fuzzer as what a database server sends.
//!
//! What must hold: however the stream is cut into reads, the messages are the same; whatever the database tells, every request is answered
//! once, and no port is changed that is not ours.

use std::path::PathBuf;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use fairlead_host::backoff::Backoff;
use serde_json::Value;

use super::ConnectError;
use super::database_mirror::Mirror;
use super::driver::Limits;
use super::driver_state::{Plan, Stage, State};
use super::jsonrpc::framing::{Framer, LARGEST_MESSAGE};
use super::jsonrpc::message::Message;
use super::port_rows::{describe_owner, interface_state, read_spec};
use super::port_spec::{PortName, PortOwner, PortSpec, VhostSocket, Vlans};
use super::request::{Request, Task};
use super::transaction::Transaction;

const NODE: &str = "here";
const PORT: &str = "p0";

fn messages(bytes: &[u8], cut: usize) -> (Vec<Value>, bool) {
    let mut framer = Framer::new(LARGEST_MESSAGE);
    let mut came = Vec::new();
    for part in bytes.chunks(cut) {
        framer.push(part);
        loop {
            match framer.next_message() {
                Ok(Some(message)) => came.push(message),
                Ok(None) => break,
                Err(_) => return (came, false),
            }
        }
    }
    (came, true)
}

fn spec() -> PortSpec {
    let text = |text: &str| text.to_owned();
    PortSpec {
        name: PortName::new(PORT).unwrap(),
        bridge: text("br0"),
        makes_bridge: false,
        socket: VhostSocket::PodListens(PathBuf::from("/run/p0.sock")),
        vlans: Vlans::Access(7),
        policing: None,
        mtu: None,
        mac: None,
        owner: PortOwner {
            namespace: text("n"),
            pod: text("p"),
            uid: text("u"),
            container: text("c"),
            ifname: text("net1"),
        },
    }
}

/// What a database server sends: news, replies to a monitor, and replies to transactions.
///
/// # Panics
/// If something does not hold that must.
pub fn fuzzed_replies(bytes: &[u8]) {
    let whole = messages(bytes, bytes.len().max(1));
    assert_eq!(messages(bytes, 7), whole, "the cuts between reads make a difference");
    let reconnect = Backoff::new(Duration::from_secs(1), Duration::from_secs(2));
    let limits = Limits { connect: Duration::from_secs(1), reconnect, ..Limits::default() };
    let mut state = State::new(NODE.to_owned(), PathBuf::from("/run"), &limits);
    state.up(Mirror::default());
    let later = Instant::now() + Duration::from_secs(3600);
    let mut waiting = Vec::new();
    for task in [Task::Add(Box::new(spec())), Task::Remove(PortName::new(PORT).unwrap())] {
        let (request, answer) = Request::new(task, later);
        state.enqueue(request);
        waiting.push(answer);
    }
    for object in whole.0 {
        heard(&mut state, object);
    }
    state.down(ConnectError::Call("the end".to_owned()));
    state.expire(later + Duration::from_secs(1));
    state.stop();
    for answer in waiting {
        assert!(answer.try_recv().is_ok(), "a request without an answer");
        assert_eq!(answer.try_recv().err(), Some(TryRecvError::Disconnected));
    }
}

/// One message of the server: requests wait for their turn, are planned and committed, and the news are taken.
fn heard(state: &mut State, object: Value) {
    let Ok(message) = Message::read(object) else { return };
    let told = match message {
        Message::Notification { params, .. } | Message::Request { params, .. } => params,
        Message::Reply { outcome: Ok(result), .. } => result,
        Message::Reply { outcome: Err(error), .. } => error,
    };
    let _ = describe_owner(Some(&told));
    let update = told.get(1).cloned().unwrap_or_else(|| told.clone());
    if state.told(&update).is_err() {
        return;
    }
    for ours in state.mirror.our_ports(NODE) {
        assert_eq!(ours.port.entry("external_ids", "fairlead"), Some(NODE), "a port of somebody else");
        let (_, _) = (read_spec(&ours), interface_state(ours.interface));
    }
    state.settle(Instant::now());
    for request in state.take_batch() {
        match state.plan(&request) {
            Plan::Finish(outcome) => request.finish(outcome),
            Plan::Transact(stage, id) => transact(state, request, stage, id.as_deref(), &told),
            Plan::Await(configuration) => state.committed(request, Stage::Delete, configuration),
        }
    }
    state.batch_done();
    let _ = state.reconciliation(&[spec()]);
    let _ = state.next_event();
}

/// Commits a request, if the message reads as the reply to its transaction.
fn transact(state: &mut State, request: Request, stage: Stage, id: Option<&str>, told: &Value) {
    let mut transaction = Transaction::new(NODE);
    match id {
        _ if stage == Stage::Claim => transaction.claim(request.task.name(), &spec().owner),
        Some(id) => transaction.remove(id, PORT),
        None => transaction.add(&spec()),
    }
    let (_, sent) = transaction.finish();
    match sent.configuration(told) {
        Ok(configuration) => state.committed(request, stage, configuration),
        Err(_) => state.requeue(request, false),
    }
}
