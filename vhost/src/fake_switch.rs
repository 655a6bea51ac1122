//! A switch for tests: the real control socket, and ports that are only remembered. Whatever goes wrong in here panics.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fairlead_host::Uplink;
use parking_lot::Mutex;

use super::capture::{CaptureKey, CaptureRequest};
use super::control::listening_socket::bind_control_socket;
use super::control::messages::{Refusal, RefusalCode};
use super::control::{EventQueues, PortCommands, Server};
use super::dataplane::Socket;
use super::port::{MacEntry, PortConfig, PortCounters, PortView, ThreadView, UplinkConfig, UplinkView};

/// Serves ports at this control socket, for root, until the server is dropped.
///
/// # Panics
/// When there is no such socket to be had.
pub fn serve(socket: &Path) -> (Server, FakePorts) {
    let listener = bind_control_socket(socket).unwrap();
    let ports = FakePorts::default();
    let events = Arc::new(EventQueues::new().unwrap());
    (Server::start(listener, ports.clone(), events, vec![0]).unwrap(), ports)
}

/// Ports with their sockets, and uplinks; no frame is forwarded.
#[derive(Debug, Default, Clone)]
pub struct FakePorts(
    Arc<Mutex<Vec<FakePort>>>,
    Arc<Mutex<Vec<FakeUplink>>>,
    Arc<AtomicUsize>,
    Arc<Listeners>,
);

/// How ports are given new listeners.
#[derive(Debug, Default)]
struct Listeners {
    is_older: AtomicBool,
    is_closing: AtomicBool,
    /// How many ports were added.
    added: AtomicUsize,
}

/// A port, its socket, and the NUMA node that was named.
type FakePort = (PortConfig, Socket, Option<u32>);

/// An uplink, its descriptors, the NUMA node that was named, and whether its sockets count as bound.
type FakeUplink = (UplinkConfig, Uplink, Option<u32>, bool);

impl FakePorts {
    /// Their names, in the order in which they came.
    pub fn names(&self) -> Vec<String> {
        self.0.lock().iter().map(|(config, ..)| config.name.clone()).collect()
    }

    /// How often all of them were asked for by the control socket.
    pub fn listings(&self) -> usize {
        self.2.load(Ordering::Relaxed)
    }

    /// How many ports were added, the ones before among them.
    pub fn added(&self) -> usize {
        self.3.added.load(Ordering::Relaxed)
    }

    /// Is a switch from before ports could be given new listeners, or one that is not.
    pub fn be_older(&self, is_older: bool) {
        self.3.is_older.store(is_older, Ordering::Relaxed);
    }

    /// Has all ports still close what their last guests sent, or not.
    pub fn close_files(&self, is_closing: bool) {
        self.3.is_closing.store(is_closing, Ordering::Relaxed);
    }

    /// A network's uplink.
    pub fn uplink(&self, network: &str) -> Option<UplinkConfig> {
        self.1.lock().iter().find(|(config, ..)| config.network == network).map(|(config, ..)| config.clone())
    }

    /// Has a network's uplink be one whose sockets nobody has bound, as a daemon leaves it that is killed before it does.
    ///
    /// # Panics
    /// Where the network has none.
    pub fn leave_unbound(&self, network: &str) {
        let mut uplinks = self.1.lock();
        uplinks.iter_mut().find(|(config, ..)| config.network == network).unwrap().3 = false;
    }

    /// The one that there is.
    ///
    /// # Panics
    /// Where there is none, or more than one.
    pub fn only(&self) -> PortConfig {
        let ports = self.0.lock();
        assert_eq!(ports.len(), 1);
        ports[0].0.clone()
    }
}

impl PortCommands for FakePorts {
    fn add_port(&self, config: PortConfig, socket: Socket, numa_node: Option<u32>) -> Result<(), Refusal> {
        if self.names().contains(&config.name) {
            return Err(Refusal::new(RefusalCode::NameTaken, "it is there"));
        }
        self.0.lock().push((config, socket, numa_node));
        self.3.added.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn remove_port(&self, name: &str) -> Result<(), Refusal> {
        if !self.names().iter().any(|known| known == name) {
            return Err(Refusal::new(RefusalCode::UnknownPort, "it is not there"));
        }
        self.0.lock().retain(|(config, ..)| config.name != name);
        Ok(())
    }

    fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        let mut ports = self.0.lock();
        let port = ports.iter_mut().find(|(config, ..)| config.name == name);
        port.ok_or_else(|| Refusal::new(RefusalCode::UnknownPort, "it is not there"))?.1 =
            Socket::Connecting(socket);
        Ok(())
    }

    fn can_listen_anew(&self, name: &str) -> Result<(), Refusal> {
        if self.3.is_older.load(Ordering::Relaxed) {
            return Err(Refusal::new(RefusalCode::NewerVersion, "it is of version 3"));
        }
        if self.3.is_closing.load(Ordering::Relaxed) {
            return Err(Refusal::new(RefusalCode::Failed, "it closes what its last guest sent"));
        }
        match self.names().iter().any(|known| known == name) {
            true => Ok(()),
            false => Err(Refusal::new(RefusalCode::UnknownPort, "it is not there")),
        }
    }

    fn new_listener(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        let mut ports = self.0.lock();
        let port = ports.iter_mut().find(|(config, ..)| config.name == name);
        port.ok_or_else(|| Refusal::new(RefusalCode::UnknownPort, "it is not there"))?.1 =
            Socket::Listening(socket);
        Ok(())
    }

    fn add_uplink(
        &self,
        config: UplinkConfig,
        uplink: Uplink,
        numa_node: Option<u32>,
    ) -> Result<(), Refusal> {
        if self.uplink(&config.network).is_some() {
            return Err(Refusal::new(RefusalCode::NameTaken, "it is there"));
        }
        self.1.lock().push((config, uplink, numa_node, true));
        Ok(())
    }

    fn remove_uplink(&self, network: &str) -> Result<(), Refusal> {
        if self.uplink(network).is_none() {
            return Err(Refusal::new(RefusalCode::UnknownPort, "it is not there"));
        }
        self.1.lock().retain(|(config, ..)| config.network != network);
        Ok(())
    }

    fn uplinks(&self) -> Vec<UplinkView> {
        let view = |(config, _, numa_node, bound): &FakeUplink| UplinkView {
            config: config.clone(),
            queues: 1,
            bound: *bound,
            zero_copy: false,
            lost_frames: 0,
            counters: PortCounters::default(),
            thread: ThreadView { number: 0, numa_node: *numa_node },
        };
        self.1.lock().iter().map(view).collect()
    }

    fn capture(&self, _: &str, _: CaptureRequest) -> Result<CaptureKey, Refusal> {
        Err(Refusal::new(RefusalCode::Failed, "it has no frames"))
    }

    fn end_capture(&self, _: &str, _: CaptureKey) {}

    fn ports(&self) -> Vec<PortView> {
        self.2.fetch_add(1, Ordering::Relaxed);
        let view = |(config, socket, numa_node): &FakePort| PortView {
            config: config.clone(),
            has_connection: matches!(socket, Socket::Connecting(_)),
            connected: matches!(socket, Socket::Connecting(_)),
            features: 0,
            active_queues: 0,
            counters: PortCounters::default(),
            thread: ThreadView { number: 0, numa_node: *numa_node },
        };
        self.0.lock().iter().map(view).collect()
    }

    fn mac_table(&self) -> Vec<MacEntry> {
        Vec::new()
    }
}
