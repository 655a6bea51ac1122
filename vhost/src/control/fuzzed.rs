//! The bytes of the fuzzer as messages of the control socket, in both directions.
//!
//! What must hold: each request has an answer that the client understands, and nothing that was refused reaches the data plane; whatever was
//! read is written and read again without loss.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use fairlead_host::Uplink;

use super::PortCommands;
use super::messages::{
    Answer, AnswerMessage, MESSAGE_BYTES, Refusal, RefusalCode, Request, RequestMessage, SocketSide,
};
use super::port_config_check;
use super::requests::{Outcome, Requests};
use crate::capture::{CaptureKey, CaptureRequest};
use crate::dataplane::Socket;
use crate::port::{MacEntry, PortConfig, PortCounters, PortView, ThreadView, UplinkConfig, UplinkView};

/// Ports by name, and nothing behind them.
#[derive(Default)]
struct Ports(RefCell<Vec<PortConfig>>);

impl Ports {
    fn position(&self, name: &str) -> Result<usize, Refusal> {
        let unknown = || Refusal::new(RefusalCode::UnknownPort, "there is no such port");
        self.0.borrow().iter().position(|port| port.name == name).ok_or_else(unknown)
    }
}

impl PortCommands for Ports {
    fn add_port(&self, config: PortConfig, socket: Socket, _: Option<u32>) -> Result<(), Refusal> {
        assert_eq!(port_config_check::check(&config), Ok(()), "an unchecked configuration");
        drop(socket);
        if self.position(&config.name).is_ok() {
            return Err(Refusal::new(RefusalCode::NameTaken, "the name is taken"));
        }
        self.0.borrow_mut().push(config);
        Ok(())
    }

    fn remove_port(&self, name: &str) -> Result<(), Refusal> {
        let at = self.position(name)?;
        self.0.borrow_mut().remove(at);
        Ok(())
    }

    fn reconnect(&self, name: &str, _socket: OwnedFd) -> Result<(), Refusal> {
        self.position(name).map(drop)
    }

    fn can_listen_anew(&self, name: &str) -> Result<(), Refusal> {
        self.position(name).map(drop)
    }

    fn new_listener(&self, name: &str, _socket: OwnedFd) -> Result<(), Refusal> {
        self.position(name).map(drop)
    }

    fn add_uplink(&self, _: UplinkConfig, _: Uplink, _: Option<u32>) -> Result<(), Refusal> {
        Ok(())
    }

    fn remove_uplink(&self, _network: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn uplinks(&self) -> Vec<UplinkView> {
        Vec::new()
    }

    fn capture(&self, name: &str, _request: CaptureRequest) -> Result<CaptureKey, Refusal> {
        self.position(name).map(|at| CaptureKey(at as u64))
    }

    fn end_capture(&self, _name: &str, _key: CaptureKey) {}

    fn ports(&self) -> Vec<PortView> {
        let view = |config: &PortConfig| PortView {
            config: config.clone(),
            has_connection: false,
            connected: false,
            features: 0,
            active_queues: 0,
            counters: PortCounters::default(),
            thread: ThreadView::default(),
        };
        self.0.borrow().iter().map(view).collect()
    }

    fn mac_table(&self) -> Vec<MacEntry> {
        Vec::new()
    }
}

/// The descriptors that the daemon sends with such a request, so that what is behind their check is reached.
fn descriptors(request: Option<&Request>) -> Vec<OwnedFd> {
    match request {
        Some(
            Request::AddPort { socket: SocketSide::Connected, .. }
            | Request::Reconnect { .. }
            | Request::Capture { .. },
        ) => UnixStream::pair().map(|(one, _)| vec![OwnedFd::from(one)]).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Requests of one connection, one on each line of the input, and the same lines as answers of a switch.
///
/// # Panics
/// If something does not hold that must.
pub fn fuzzed_requests(bytes: &[u8]) {
    let (commands, mut requests) = (Ports::default(), Requests::default());
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let read = serde_json::from_slice::<RequestMessage>(line).ok();
        if let Some(read) = &read {
            let written = serde_json::to_vec(read).unwrap();
            assert_eq!(serde_json::from_slice::<RequestMessage>(&written).ok().as_ref(), Some(read));
        }
        let before = commands.0.borrow().clone();
        let sent = descriptors(read.as_ref().map(|read| &read.request));
        if let Outcome::Answered(answers) = requests.answer(line, sent, &commands) {
            check_answers(&answers, commands.0.borrow().as_slice() == before.as_slice());
        }
        if let Ok(answer) = serde_json::from_slice::<AnswerMessage>(line) {
            let written = serde_json::to_vec(&answer).unwrap();
            assert_eq!(serde_json::from_slice::<AnswerMessage>(&written).ok(), Some(answer));
        }
    }
}

fn check_answers(answers: &[Vec<u8>], unchanged: bool) {
    assert!(!answers.is_empty(), "a request without an answer");
    for answer in answers {
        assert!(answer.len() <= MESSAGE_BYTES, "an answer of {} bytes", answer.len());
        let read: AnswerMessage = serde_json::from_slice(answer).unwrap();
        if let Answer::Refused(refusal) = read.answer {
            assert!(unchanged, "refused, and done: {refusal}");
            assert!(!refusal.reason.is_empty());
        }
    }
}
