//! One client of the control socket: what it is still to be sent, and whether it listens to events.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::answer_pages::message;
use super::event_queues::EventQueues;
use super::messages::{Answer, MESSAGE_BYTES, Refusal, RefusalCode};
use super::port_commands::PortCommands;
use super::requests::{Capture, Outcome, Requests};
use super::seqpacket::{Received, receive, send};

/// A connection and its number, which no other connection of the process has.
#[derive(Debug)]
pub(super) struct Connection {
    number: u64,
    socket: OwnedFd,
    /// Messages that the client has yet to take. While there are any, no request of its is read.
    waiting: VecDeque<Vec<u8>>,
    requests: Requests,
    is_subscribed: bool,
    /// The capture that ends with this connection.
    capture: Option<Capture>,
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It does.
    GoesOn,
    /// It is over.
    Over,
}

impl Connection {
    pub(super) fn new(number: u64, socket: OwnedFd) -> Connection {
        Connection {
            number,
            socket,
            waiting: VecDeque::new(),
            requests: Requests::default(),
            is_subscribed: false,
            capture: None,
        }
    }

    /// Ends what lasts as long as the connection.
    pub(super) fn end(&mut self, commands: &dyn PortCommands, events: &EventQueues) {
        events.unsubscribe(self.number);
        if let Some(Capture { port, key }) = self.capture.take() {
            commands.end_capture(&port, key);
            tracing::info!(port, "frames of a port are captured no longer");
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What poll(2) is to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.waiting.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Reads one request, if one is there and the last is answered, and sends what can be sent.
    pub(super) fn serve(
        &mut self,
        ready: PollFlags,
        commands: &dyn PortCommands,
        events: &EventQueues,
    ) -> Life {
        if self.waiting.is_empty() && ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            match receive(&self.socket) {
                Received::Nothing => {}
                Received::Closed => return Life::Over,
                Received::TooMuch => self.refuse(format!(
                    "the message is longer than {MESSAGE_BYTES} bytes or brings too many descriptors; send less"
                )),
                Received::Message(bytes, descriptors) => self.request(&bytes, descriptors, commands, events),
            }
        }
        self.send_waiting(events)
    }

    /// Sends messages, and events behind them, until the client has to read first.
    pub(super) fn send_waiting(&mut self, events: &EventQueues) -> Life {
        loop {
            if self.waiting.is_empty() && self.is_subscribed {
                let event = events.next(self.number);
                self.waiting.extend(event.map(|event| message(Answer::Event(event))));
            }
            let Some(next) = self.waiting.front() else { return Life::GoesOn };
            match send(&self.socket, next, &[]) {
                Ok(()) => self.waiting.pop_front(),
                Err(Errno::AGAIN) => return Life::GoesOn,
                Err(_) => return Life::Over,
            };
        }
    }

    fn request(
        &mut self,
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
        commands: &dyn PortCommands,
        events: &EventQueues,
    ) {
        if self.is_subscribed || self.capture.is_some() {
            let reason = "this connection is for events or a capture; send requests on another";
            return self.refuse(reason.to_owned());
        }
        match self.requests.answer(bytes, descriptors, commands) {
            Outcome::Answered(messages) => self.waiting.extend(messages),
            Outcome::Captures(capture) => {
                self.capture = Some(capture);
                self.waiting.push_back(message(Answer::Done));
            }
            Outcome::Subscribed => {
                self.is_subscribed = true;
                events.subscribe(self.number);
                self.waiting.push_back(message(Answer::Done));
            }
        }
    }

    fn refuse(&mut self, reason: String) {
        let refusal = Refusal::new(RefusalCode::Malformed, reason);
        self.waiting.push_back(message(Answer::Refused(refusal)));
    }
}
