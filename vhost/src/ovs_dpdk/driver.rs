//! The driver's handle: what the daemon calls.
//!
//! Calls come from any thread and block until OVS has done what they ask, or their limit has passed. Many at once cost little more
//! than one: they share transactions.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fairlead_host::backoff::Backoff;
use parking_lot::{Condvar, Mutex};

use super::database_address::DatabaseAddress;
use super::driver_state::{Counters, State};
use super::error::OvsError;
use super::port_rows::{InterfaceState, connected, interface_state, read_spec};
use super::port_spec::{PortName, PortSpec};
use super::request::{AddedPort, Done, Removal, Request, Task};
use super::tls_client::TlsFiles;
use super::worker::{Shared, Worker, default_run_dir};

/// How long is waited for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For a connection, by a call that finds none.
    pub connect: Duration,
    /// For the database's answer to one message.
    pub answer: Duration,
    /// For `ovs-vswitchd`, by a port that is added.
    pub apply: Duration,
    /// For `ovs-vswitchd`, by a port that is removed.
    pub release: Duration,
    /// For `ovs-vswitchd`, by whoever waits for anything: one that leaves everything undone for so long is taken for one that is away.
    pub serves: Duration,
    /// Between two attempts to connect.
    pub reconnect: Backoff,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(5),
            apply: Duration::from_secs(10),
            release: Duration::from_secs(2),
            serves: Duration::from_secs(5),
            reconnect: Backoff::new(Duration::from_millis(20), Duration::from_secs(2)),
        }
    }
}

/// What a driver needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where OVS's database is.
    pub address: DatabaseAddress,
    /// What an address `ssl:` needs; each connection reads the files anew.
    pub tls: Option<TlsFiles>,
    /// This node's name: ports with it are ours. Not empty; of an earlier name only ports are ours that are on record.
    pub node: String,
    /// Where OVS makes sockets, as Fairlead sees that directory; absent: where the database's socket is, or where that usually is.
    pub run_dir: Option<PathBuf>,
    /// How long is waited for what.
    pub limits: Limits,
}

/// Whether ports can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OvsStatus {
    /// Why there is no connection; `None`: there is one.
    pub unreachable: Option<String>,
    /// Whether OVS says that DPDK is at work; `None` where it does not say, or there is no connection.
    pub dpdk_initialized: Option<bool>,
}

/// A port of ours as OVS has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortView {
    /// Its name.
    pub name: String,
    /// The bridge that it is in.
    pub bridge: String,
    /// What it is to be; `None` where somebody changed it to what no spec says.
    pub spec: Option<PortSpec>,
    /// Its OpenFlow port number, once OVS has made it.
    pub ofport: Option<u16>,
    /// Why OVS cannot make it.
    pub error: Option<String>,
    /// Whether OVS has a running device at its socket: an application that has started its port.
    pub connected: bool,
}

/// What a reconciliation did.
#[derive(Debug, Default)]
pub struct Reconciled {
    /// Ports of ours that nobody owned, and that are no more.
    pub removed: Vec<PortName>,
    /// Ports that OVS had lost or that were other than they are to be, and that were made.
    pub put_back: Vec<PortName>,
    /// Ports that are not as they are to be.
    pub failed: Vec<(PortName, OvsError)>,
}

/// The driver of one OVS. Dropped, it ends its thread and connection, and leaves all ports as they are.
#[derive(Debug)]
pub struct OvsDpdk {
    shared: Arc<Shared>,
    limits: Limits,
    worker: Option<JoinHandle<()>>,
}

impl OvsDpdk {
    /// Starts the driver. OVS need not run yet: the connection is made, and made again, as soon as it can be.
    ///
    /// # Errors
    /// [`OvsError::Thread`], where there is no thread to be had.
    pub fn start(options: Options) -> Result<OvsDpdk, OvsError> {
        let Options { address, tls, node, run_dir, limits } = options;
        let run_dir = run_dir.unwrap_or_else(|| default_run_dir(&address));
        let state = State::new(node.clone(), run_dir, &limits);
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let worker = Worker {
            shared: Arc::clone(&shared),
            address,
            tls,
            node,
            answer_limit: limits.answer,
            apply_limit: limits.apply,
            connection: None,
        };
        let thread = thread::Builder::new().name("ovs-dpdk".to_owned()).spawn(move || worker.run());
        let worker = Some(thread.map_err(|error| OvsError::Thread(Arc::new(error)))?);
        Ok(OvsDpdk { shared, limits, worker })
    }

    /// Has a port made, and waits until OVS has it. The same spec again finds the port and is a success; another spec for a port of
    /// ours replaces it. From then on the port is put back whenever OVS loses it, until it is removed.
    ///
    /// # Errors
    /// See [`OvsError`]. After an error nothing of the port stays, at the latest when OVS can be reached again.
    pub fn add_port(&self, spec: PortSpec) -> Result<AddedPort, OvsError> {
        spec.check()?;
        let name = spec.name.clone();
        let (request, answer) = Request::new(Task::Add(Box::new(spec)), Instant::now() + self.limits.apply);
        self.enqueue(request);
        match wait_for(&answer) {
            Ok(Done::Added(added)) => Ok(added),
            Ok(Done::Removed(_)) => Err(OvsError::Stopped),
            Err(error) => {
                self.shared.state.lock().wanted.remove(&name);
                Err(error)
            }
        }
    }

    /// Has a port removed that is on record, and waits until OVS has let go of it. It may have been made when this node had another
    /// name. That there is none is a success.
    ///
    /// # Errors
    /// [`OvsError::Unreachable`] where the database is not there: the port is then removed by a reconciliation.
    pub fn remove_recorded(&self, spec: &PortSpec) -> Result<Removal, OvsError> {
        let task = Task::Remove(spec.name.clone());
        let (request, answer) = Request::new(task, Instant::now() + self.limits.release);
        self.enqueue(request.on_record(&spec.owner));
        match wait_for(&answer)? {
            Done::Removed(removal) => Ok(removal),
            Done::Added(_) => Err(OvsError::Stopped),
        }
    }

    /// All ports of ours that the database has, by name.
    ///
    /// # Errors
    /// [`OvsError::Unreachable`].
    pub fn ports(&self) -> Result<Vec<PortView>, OvsError> {
        let state = self.connected_state(self.limits.connect)?;
        let mut ports: Vec<PortView> = state
            .mirror
            .our_ports(&state.node)
            .map(|ours| {
                let made = interface_state(ours.interface);
                PortView {
                    name: ours.port.text("name").unwrap_or_default().to_owned(),
                    bridge: ours.bridge.to_owned(),
                    spec: read_spec(&ours),
                    ofport: if let InterfaceState::Working(ofport) = made { Some(ofport) } else { None },
                    error: if let InterfaceState::Failed(error) = made { Some(error) } else { None },
                    connected: connected(ours.interface),
                }
            })
            .collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(ports)
    }

    /// Makes OVS have exactly these ports of ours: what it lost or has otherwise is made, what nobody owns is removed, and one that is
    /// owned and was made when this node had another name gets the new one. `owned` must have each port whose add has ended. A port with
    /// a request under way is spared, whether it is in `owned` or not. What fails is tried again as soon as OVS has the bridge.
    ///
    /// # Errors
    /// [`OvsError::Unreachable`], and [`OvsError::Spec`] before anything was done. What fails for one port is in the answer.
    pub fn reconcile(&self, owned: &[PortSpec]) -> Result<Reconciled, OvsError> {
        owned.iter().try_for_each(PortSpec::check)?;
        let mut answers = Vec::new();
        let mut state = self.connected_state(self.limits.connect)?;
        for task in state.reconciliation(owned) {
            let name = task.name().clone();
            let (request, answer) = Request::new(task, Instant::now() + self.limits.apply);
            state.enqueue(request.of_records());
            answers.push((name, answer));
        }
        drop(state);
        self.shared.changed.notify_all();
        let mut reconciled = Reconciled::default();
        for (name, answer) in answers {
            match wait_for(&answer) {
                Ok(Done::Added(added)) if added.created => reconciled.put_back.push(name),
                Ok(Done::Removed(removal)) if removal != Removal::Absent => reconciled.removed.push(name),
                Ok(_) => {}
                Err(error) => reconciled.failed.push((name, error)),
            }
        }
        Ok(reconciled)
    }

    /// Says why no port could be made in a bridge just now. A connection that was lost is waited for as long as `limit`. Whether
    /// `ovs-vswitchd` serves is not waited for: where that is not known it is asked, and a later call tells.
    ///
    /// # Errors
    /// [`OvsError::Unreachable`], and what the bridge or the switch lacks.
    pub fn check_bridge(&self, bridge: &str, limit: Duration) -> Result<(), OvsError> {
        let mut state = self.connected_state(limit)?;
        state.service.ask(Instant::now());
        self.shared.changed.notify_all();
        state.check_bridge(bridge)
    }

    /// Says whether `ovs-vswitchd` serves; where that is not known, it is waited for.
    ///
    /// # Errors
    /// [`OvsError::Unreachable`] and [`OvsError::NotServing`].
    pub fn check_service(&self) -> Result<(), OvsError> {
        let mut state = self.connected_state(self.limits.connect)?;
        state.service.ask(Instant::now());
        self.shared.changed.notify_all();
        // The time of the switch begins when the database has the question.
        let last = Instant::now() + self.limits.answer + self.limits.serves;
        while state.connected() && !state.service.is_known(Instant::now()) && Instant::now() < last {
            let until = state.service.ends().map_or(last, |end| end.min(last));
            self.shared.changed.wait_until(&mut state, until);
        }
        match state.connected() {
            true => state.service.check(Instant::now()),
            false => Err(OvsError::Unreachable(Arc::clone(&state.down_because))),
        }
    }

    /// Whether ports can be made, as far as is known now.
    pub fn status(&self) -> OvsStatus {
        let state = self.shared.state.lock();
        match state.connected() {
            true => OvsStatus { unreachable: None, dpdk_initialized: state.mirror.dpdk_initialized() },
            false => OvsStatus { unreachable: Some(state.down_because.to_string()), dpdk_initialized: None },
        }
    }

    /// How often the driver did what.
    pub fn counters(&self) -> Counters {
        self.shared.state.lock().counters
    }

    /// How many ports have a request that is not answered.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.shared.state.lock().busy().len()
    }

    /// Whoever waits is answered [`OvsError::Stopped`], and nothing is done any more.
    pub fn stop(&self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
    }

    fn enqueue(&self, request: Request) {
        self.shared.state.lock().enqueue(request);
        self.shared.changed.notify_all();
    }

    /// The state, once there is a connection.
    fn connected_state(&self, limit: Duration) -> Result<parking_lot::MutexGuard<'_, State>, OvsError> {
        let until = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while !state.connected() {
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                return Err(OvsError::Unreachable(Arc::clone(&state.down_because)));
            }
        }
        Ok(state)
    }
}

impl Drop for OvsDpdk {
    fn drop(&mut self) {
        self.stop();
        if let Some(worker) = self.worker.take() {
            drop(worker.join()); // a panic of it was told by the panic itself
        }
    }
}

/// An answer comes always, because each request has a deadline; none does where the driver's thread is gone.
fn wait_for(answer: &Receiver<Result<Done, OvsError>>) -> Result<Done, OvsError> {
    answer.recv().unwrap_or(Err(OvsError::Stopped))
}
