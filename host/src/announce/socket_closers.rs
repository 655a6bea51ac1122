//! Threads that close packet sockets. Each close waits for a grace period of the kernel, and several wait for the same one: so
//! the announcer's thread closes none itself.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

/// So many threads close sockets.
const THREADS: usize = 4;

/// Where sockets are handed over to be closed; the threads end when this is dropped.
#[derive(Debug)]
pub(super) struct SocketClosers(Sender<OwnedFd>);

impl SocketClosers {
    /// Starts the threads.
    pub(super) fn start() -> io::Result<SocketClosers> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for n in 0..THREADS {
            let receiver: Arc<Mutex<Receiver<OwnedFd>>> = Arc::clone(&receiver);
            std::thread::Builder::new().name(format!("closer-{n}")).spawn(move || {
                loop {
                    // A statement of its own: the lock must be free again before the socket is closed.
                    let next = receiver.lock().recv();
                    let Ok(socket) = next else { return };
                    drop(socket);
                }
            })?;
        }
        Ok(SocketClosers(sender))
    }

    /// Closes a socket soon; with the threads gone at once.
    pub(super) fn close(&self, socket: OwnedFd) {
        let _ = self.0.send(socket);
    }
}
