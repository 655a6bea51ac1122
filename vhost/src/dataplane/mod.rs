//! The data plane's face, kept by a map: it accepts ports and forwards nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;

use crate::port::{MacEntry, PortConfig, PortCounters, PortView};

/// Which processors the poll threads run on, and how they wait.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A poll thread for each.
    pub cpus: Vec<usize>,
    /// How they wait.
    pub polling: Polling,
}

/// How a poll thread waits for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// It sleeps while nothing comes.
    #[default]
    Adaptive,
    /// It never sleeps.
    Always,
}

/// A port's socket.
#[derive(Debug)]
pub enum Socket {
    /// Guests connect to it.
    Listening(OwnedFd),
    /// It is connected to the guest.
    Connecting(OwnedFd),
}

/// Something that happened to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A guest is there.
    Connected {
        /// The port.
        port: String,
    },
    /// The guest is gone.
    Disconnected {
        /// The port.
        port: String,
        /// Why.
        why: String,
    },
    /// The guest broke the protocol.
    Misbehaved {
        /// The port.
        port: String,
        /// How.
        what: String,
    },
}

/// The data plane can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Processors that can't be used.
    #[error("the poll thread cannot run on the CPUs {cpus:?}")]
    Cpus {
        /// Which.
        cpus: Vec<usize>,
        /// Why.
        #[source]
        source: nix::Error,
    },
}

/// A port can't be added, removed or connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Another port has the name.
    #[error("there is a port {0:?} already")]
    NameTaken(String),
    /// No port has the name.
    #[error("there is no port {0:?}")]
    NoSuchPort(String),
}

/// Ports.
pub struct DataPlane {
    ports: Mutex<BTreeMap<String, (PortConfig, Socket)>>,
    _events: Box<dyn Fn(Event) + Send + Sync>,
}

impl DataPlane {
    /// Starts it.
    ///
    /// # Errors
    /// When there is no such processor.
    pub fn start(
        options: Options,
        events: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<DataPlane, StartError> {
        if options.cpus.iter().any(|cpu| *cpu > 1023) {
            return Err(StartError::Cpus { cpus: options.cpus, source: nix::Error::EINVAL });
        }
        Ok(DataPlane { ports: Mutex::default(), _events: Box::new(events) })
    }

    /// Adds a port.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn add_port(&self, config: PortConfig, socket: Socket) -> Result<(), PortError> {
        let mut ports = self.ports.lock();
        if ports.contains_key(&config.name) {
            return Err(PortError::NameTaken(config.name));
        }
        ports.insert(config.name.clone(), (config, socket));
        Ok(())
    }

    /// Removes a port.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_port(&self, name: &str) -> Result<(), PortError> {
        self.ports.lock().remove(name).map(drop).ok_or_else(|| PortError::NoSuchPort(name.to_owned()))
    }

    /// Gives a port a new connection.
    ///
    /// # Errors
    /// When there is none.
    pub fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), PortError> {
        let mut ports = self.ports.lock();
        let port = ports.get_mut(name).ok_or_else(|| PortError::NoSuchPort(name.to_owned()))?;
        port.1 = Socket::Connecting(socket);
        Ok(())
    }

    /// All ports.
    pub fn ports(&self) -> Vec<PortView> {
        let view = |(config, _): &(PortConfig, Socket)| PortView {
            config: config.clone(),
            connected: false,
            features: 0,
            active_queues: 0,
            counters: PortCounters::default(),
        };
        self.ports.lock().values().map(view).collect()
    }

    /// Addresses.
    pub fn mac_table(&self) -> Vec<MacEntry> {
        Vec::new()
    }
}
