//! What is to be told to each connection that asked for events: bounded, and filled without ever waiting for a reader.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::messages::PortEvent;
use crate::dataplane::Event;

/// How many events wait for one reader. One more, and the oldest is dropped.
const WAITING: usize = 1_024;

/// The longest text of an event in bytes: guests have a part in it.
const TEXT_BYTES: usize = 1_024;

/// The queues of all readers. Any thread may publish.
#[derive(Debug)]
pub struct EventQueues {
    queues: Mutex<HashMap<u64, Queue>>,
    /// Readable while there may be something that was not taken yet.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<PortEvent>,
    lost: u64,
}

impl EventQueues {
    /// Queues without readers.
    ///
    /// # Errors
    /// When the kernel has no eventfd(2) left.
    pub fn new() -> io::Result<EventQueues> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(EventQueues { queues: Mutex::default(), wake })
    }

    /// Tells every reader. Takes a lock for a moment and waits for nobody.
    pub fn publish(&self, event: Event) {
        let event = PortEvent::from(event);
        let mut queues = self.queues.lock();
        for queue in queues.values_mut() {
            if queue.events.len() == WAITING {
                queue.events.pop_front();
                queue.lost += 1;
            }
            queue.events.push_back(event.clone());
        }
        let has_readers = !queues.is_empty();
        drop(queues);
        if has_readers {
            self.wake();
        }
    }

    /// Wakes the server's thread.
    pub(super) fn wake(&self) {
        // It fails only where the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Readable after [`EventQueues::wake`].
    pub(super) fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// From now on nothing is to be read there, until the next wake.
    pub(super) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }

    pub(super) fn subscribe(&self, reader: u64) {
        self.queues.lock().insert(reader, Queue::default());
    }

    pub(super) fn unsubscribe(&self, reader: u64) {
        self.queues.lock().remove(&reader);
    }

    /// The next event for a reader; first how many were lost before it.
    pub(super) fn next(&self, reader: u64) -> Option<PortEvent> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&reader)?;
        match std::mem::take(&mut queue.lost) {
            0 => queue.events.pop_front(),
            count => Some(PortEvent::Lost { count }),
        }
    }
}

impl From<Event> for PortEvent {
    fn from(event: Event) -> PortEvent {
        match event {
            Event::Connected { port } => PortEvent::Connected { port },
            Event::Disconnected { port, why } => PortEvent::Disconnected { port, why: short(why) },
            Event::Misbehaved { port, what } => PortEvent::Misbehaved { port, what: short(what) },
        }
    }
}

fn short(mut text: String) -> String {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(n: usize) -> Event {
        Event::Connected { port: n.to_string() }
    }

    #[test]
    fn a_reader_that_is_too_slow_loses_the_oldest_and_is_told_how_many() {
        let queues = EventQueues::new().unwrap();
        queues.publish(connected(0));
        queues.subscribe(7);
        assert_eq!(queues.next(7), None, "what was before it came is not for it");
        (0..WAITING + 3).for_each(|n| queues.publish(connected(n)));
        assert_eq!(queues.next(7), Some(PortEvent::Lost { count: 3 }));
        assert_eq!(queues.next(7), Some(PortEvent::Connected { port: "3".into() }));
        queues.unsubscribe(7);
        assert_eq!(queues.next(7), None);
    }

    #[test]
    fn a_text_is_cut_between_two_characters() {
        assert_eq!(short("é".repeat(600)).len(), 1_024);
        assert_eq!(short(format!("x{}", "é".repeat(600))).len(), 1_023);
        assert_eq!(short("as it is".into()), "as it is");
    }
}
