//! What the driver knows, under its one lock: requests, ports that it answers for, and the mirror of the database.
//!
//! Nothing here waits or speaks to anybody. Requests of one port are done in the order in which they came; whatever happens, each
//! is answered once.

mod reconciliation;
mod switch_service;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::backoff::{Attempts, Backoff};

use super::database_mirror::{Mirror, MirrorError};
use super::driver::Limits;
use super::error::{ConnectError, OvsError};
use super::port_rows::{InterfaceState, interface_state, read_spec};
use super::port_spec::{PortName, PortSpec, VhostSocket};
use super::request::{AddedPort, Done, Removal, Request, Task};
use switch_service::Service;

/// The most requests that go into one transaction.
const LARGEST_BATCH: usize = 64;
/// A connection that lasted as long as this was a good one: the next pause is the first again.
const GOOD_CONNECTION: Duration = Duration::from_secs(5);

/// How often the driver did what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions sent that change something.
    pub transactions: u64,
    /// Transactions that the database refused.
    pub rejected: u64,
    /// Ports made.
    pub added: u64,
    /// Ports removed.
    pub removed: u64,
    /// Ports that OVS had lost, and that were made again unasked.
    pub put_back: u64,
    /// Connections to the database.
    pub connections: u64,
}

/// What a request's transaction did, whose configuration number is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It made the port.
    Insert,
    /// The port was there, and OVS is asked to look at it.
    Confirm,
    /// It removed the port.
    Delete,
    /// It gave a port this node's name, that one of its earlier names may have; what was asked for comes next.
    Claim,
    /// It removed a port of ours that is to be another; the new one comes next.
    DeleteThenAdd,
}

/// A request that the database has committed.
#[derive(Debug)]
struct Applying {
    request: Request,
    stage: Stage,
    configuration: i64,
}

impl Applying {
    /// Whether it is answered as soon as the switch does not serve. What the driver puts back may wait until the switch comes again and
    /// makes it.
    fn needs_service(&self) -> bool {
        !self.request.is_own() || matches!(self.request.task, Task::Remove(_))
    }

    /// Whether a later request of the same port has to wait until this one is carried out. One that removes the port need not, where what
    /// was committed can be taken back: a switch that is away would keep it from its turn until its time has passed.
    fn holds_back(&self, later: &Request) -> bool {
        let is_taken_back = match self.request.task {
            Task::Remove(_) => true,
            Task::Add(_) => self.request.is_own() && self.stage != Stage::DeleteThenAdd,
        };
        self.request.task.name() == later.task.name()
            && !(is_taken_back && matches!(later.task, Task::Remove(_)))
    }
}

/// What a request needs now.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Nothing more.
    Finish(Result<Done, OvsError>),
    /// A transaction; the row's UUID where one is to be removed.
    Transact(Stage, Option<String>),
    /// Nothing but that OVS carries out this configuration, by which the port is removed.
    Await(i64),
}

/// Everything under the driver's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) connect_limit: Duration,
    pub(crate) mirror: Mirror,
    pub(crate) service: Service,
    pub(crate) wanted: BTreeMap<PortName, PortSpec>,
    pub(crate) counters: Counters,
    pub(crate) stopping: bool,
    /// Which connection is the present one.
    pub(crate) epoch: u64,
    /// News that came before the first rows were taken in.
    pub(crate) early: Vec<serde_json::Value>,
    up_since: Option<Instant>,
    pub(crate) down_because: Arc<ConnectError>,
    connect_at: Instant,
    connecting: Attempts,
    queue: VecDeque<Request>,
    /// The ports of the requests that the worker has taken and is committing.
    in_hand: BTreeSet<PortName>,
    applying: Vec<Applying>,
    repair_at: Instant,
    repairs: Attempts,
}

impl State {
    pub(crate) fn new(node: String, run_dir: PathBuf, limits: &Limits) -> State {
        State {
            node,
            run_dir,
            connect_limit: limits.connect,
            mirror: Mirror::default(),
            service: Service::new(limits.serves),
            wanted: BTreeMap::new(),
            counters: Counters::default(),
            stopping: false,
            epoch: 0,
            early: Vec::new(),
            up_since: None,
            down_because: Arc::new(ConnectError::Call("no connection was made yet".to_owned())),
            connect_at: Instant::now(),
            connecting: limits.reconnect.start(),
            queue: VecDeque::new(),
            in_hand: BTreeSet::new(),
            applying: Vec::new(),
            repair_at: Instant::now(),
            repairs: Backoff::new(Duration::from_millis(200), Duration::from_secs(60)).start(),
        }
    }

    pub(crate) fn connected(&self) -> bool {
        self.up_since.is_some()
    }

    pub(crate) fn connect_at(&self) -> Instant {
        self.connect_at
    }

    /// A connection stands, and the mirror has its first rows.
    pub(crate) fn up(&mut self, mirror: Mirror) {
        let now = Instant::now();
        self.mirror = mirror;
        self.service.begin(&self.mirror, now);
        (self.up_since, self.repair_at) = (Some(now), now);
        self.counters.connections += 1;
    }

    /// Takes what the database tells.
    pub(crate) fn told(&mut self, rows: &serde_json::Value) -> Result<(), MirrorError> {
        self.mirror.update(rows)?;
        self.service.look(&self.mirror, Instant::now());
        Ok(())
    }

    /// The connection has ended, or could not be made: what was committed is to be looked at again.
    pub(crate) fn down(&mut self, why: ConnectError) {
        if self.up_since.take().is_some_and(|since| since.elapsed() >= GOOD_CONNECTION) {
            self.connecting.succeeded();
        }
        self.connect_at = Instant::now() + self.connecting.failed();
        self.down_because = Arc::new(why);
        self.epoch += 1;
        for Applying { request, stage, .. } in std::mem::take(&mut self.applying).into_iter().rev() {
            self.requeue(request, stage != Stage::Confirm);
        }
    }

    /// Puts a request in front of the queue, to be planned again.
    pub(crate) fn requeue(&mut self, mut request: Request, unknown: bool) {
        request.unknown |= unknown;
        self.queue.push_front(request);
    }

    /// Takes a request that somebody waits for.
    pub(crate) fn enqueue(&mut self, request: Request) {
        if self.stopping {
            return request.finish(Err(OvsError::Stopped));
        }
        if let (Task::Remove(name), false) = (&request.task, request.is_own()) {
            self.wanted.remove(name);
        }
        self.queue.push_back(request);
    }

    /// The requests that can be done now: none that has to wait for another one of its port.
    pub(crate) fn take_batch(&mut self) -> Vec<Request> {
        let mut earlier = BTreeSet::new();
        let (mut batch, mut rest) = (Vec::new(), VecDeque::new());
        for request in std::mem::take(&mut self.queue) {
            let is_first = earlier.insert(request.task.name().clone());
            let free = is_first && !self.applying.iter().any(|applying| applying.holds_back(&request));
            if free && batch.len() < LARGEST_BATCH { batch.push(request) } else { rest.push_back(request) }
        }
        self.queue = rest;
        self.in_hand = batch.iter().map(|request| request.task.name().clone()).collect();
        batch
    }

    /// The batch that was taken is answered, committed or back in the queue.
    pub(crate) fn batch_done(&mut self) {
        self.in_hand.clear();
    }

    /// The ports that have a request which is not answered.
    pub(crate) fn busy(&self) -> BTreeSet<PortName> {
        let applying = self.applying.iter().map(|applying| &applying.request);
        let names = applying.chain(&self.queue).map(|request| request.task.name());
        names.chain(&self.in_hand).cloned().collect()
    }

    /// What a request needs, as the database is now.
    pub(crate) fn plan(&mut self, request: &Request) -> Plan {
        let spec = match &request.task {
            Task::Add(spec) => spec,
            Task::Remove(name) => {
                return match self.mirror.our_port(&self.node, name.as_str()) {
                    Some(ours) => Plan::Transact(Stage::Delete, Some(ours.id.clone())),
                    None => match self.removed_by(name) {
                        Some(configuration) => Plan::Await(configuration),
                        None if request.owner_on_record.is_some() => Plan::Transact(Stage::Claim, None),
                        None => Plan::Finish(Ok(Done::Removed(Removal::Absent))),
                    },
                };
            }
        };
        if let Err(error) = self.check_switch(spec) {
            return Plan::Finish(Err(error));
        }
        let Some(ours) = self.mirror.our_port(&self.node, spec.name.as_str()) else {
            let stage = if request.is_claimed { Stage::Claim } else { Stage::Insert };
            return Plan::Transact(stage, None);
        };
        if read_spec(&ours).as_ref() != Some(spec) {
            let id = ours.id.clone();
            if self.wanted.get(&spec.name) != Some(spec) {
                self.wanted.remove(&spec.name);
            }
            return Plan::Transact(Stage::DeleteThenAdd, Some(id));
        }
        match interface_state(ours.interface) {
            InterfaceState::Working(ofport) if !request.unknown => {
                let added = AddedPort { ofport, socket: self.socket_of(spec), created: false };
                self.wanted.insert(spec.name.clone(), spec.as_ref().clone());
                Plan::Finish(Ok(Done::Added(added)))
            }
            _ => Plan::Transact(Stage::Confirm, None),
        }
    }

    /// The configuration by which a port was removed that OVS may have still.
    fn removed_by(&self, name: &PortName) -> Option<i64> {
        let removals = self.applying.iter().filter(|applying| applying.stage == Stage::Delete);
        removals
            .filter(|removal| removal.request.task.name() == name)
            .map(|removal| removal.configuration)
            .max()
    }

    /// Whether the switch and the bridge can have vhost-user ports.
    fn check_switch(&self, spec: &PortSpec) -> Result<(), OvsError> {
        match self.check_bridge(&spec.bridge) {
            Err(OvsError::BridgeMissing { .. }) if spec.makes_bridge => self.check_vswitchd()?,
            checked => checked?,
        }
        let place = PortSpec { socket: VhostSocket::PodListens(self.socket_of(spec)), ..spec.clone() };
        place.check().map_err(OvsError::from)
    }

    /// Whether OVS makes vhost-user ports, and has this bridge for them.
    pub(crate) fn check_bridge(&self, bridge: &str) -> Result<(), OvsError> {
        let named = || bridge.to_owned();
        let Some(row) = self.mirror.bridge(bridge) else {
            return Err(OvsError::BridgeMissing { bridge: named() });
        };
        let datapath_type = row.text("datapath_type").unwrap_or_default().to_owned();
        if datapath_type != "netdev" {
            return Err(OvsError::BridgeNotNetdev { bridge: named(), datapath_type });
        }
        self.check_vswitchd()
    }

    fn check_vswitchd(&self) -> Result<(), OvsError> {
        self.service.check(Instant::now())?;
        match self.mirror.dpdk_initialized() {
            Some(false) => Err(OvsError::DpdkNotInitialized),
            _ => Ok(()),
        }
    }

    /// The socket of a port, as Fairlead sees it.
    pub(crate) fn socket_of(&self, spec: &PortSpec) -> PathBuf {
        match &spec.socket {
            VhostSocket::PodListens(path) => path.clone(),
            VhostSocket::OvsListens => {
                let below = self.mirror.setting("vhost-sock-dir").unwrap_or_default();
                self.run_dir.join(below.trim_start_matches('/')).join(spec.name.as_str())
            }
        }
    }

    /// A transaction with this request was committed as that configuration.
    pub(crate) fn committed(&mut self, request: Request, stage: Stage, configuration: i64) {
        if stage == Stage::Delete {
            // What the driver itself put back is not wanted any more.
            let is_taken_back = |earlier: &Applying| {
                earlier.request.is_own()
                    && matches!(&earlier.request.task, Task::Add(spec) if spec.name == *request.task.name())
            };
            self.applying.retain(|earlier| !is_taken_back(earlier));
        }
        self.applying.push(Applying { request, stage, configuration });
    }

    /// Answers what OVS has carried out, and what it has not in time.
    pub(crate) fn settle(&mut self, now: Instant) {
        let applied = self.mirror.applied().unwrap_or(0);
        let is_served = self.service.check(now).is_ok();
        for applying in std::mem::take(&mut self.applying) {
            if applying.configuration <= applied {
                self.applied(applying);
            } else if applying.request.deadline.is_some_and(|deadline| deadline <= now)
                || (!is_served && applying.needs_service())
            {
                self.not_applied(applying, now);
            } else {
                self.applying.push(applying);
            }
        }
    }

    fn applied(&mut self, applying: Applying) {
        let Applying { request, stage, .. } = applying;
        let spec = match (&request.task, stage) {
            (Task::Add(spec), Stage::Insert | Stage::Confirm) => spec.as_ref().clone(),
            (Task::Add(_), _) => return self.requeue(request, false),
            (Task::Remove(_), _) => {
                self.counters.removed += 1;
                return request.finish(Ok(Done::Removed(Removal::Gone)));
            }
        };
        let port = spec.name.clone();
        let made =
            self.mirror.our_port(&self.node, port.as_str()).map(|ours| interface_state(ours.interface));
        let reason = match made {
            None => return request.finish(Err(OvsError::Vanished { port })),
            Some(InterfaceState::Working(ofport)) => return self.made(request, stage, ofport, spec),
            Some(InterfaceState::Failed(reason)) => reason,
            Some(InterfaceState::Unknown) => "ovs-vswitchd gave it no port number".to_owned(),
        };
        self.remove_unasked(&port);
        request.finish(Err(OvsError::Refused { port, reason }));
    }

    fn made(&mut self, request: Request, stage: Stage, ofport: u16, spec: PortSpec) {
        let created = stage == Stage::Insert || request.unknown;
        self.counters.added += u64::from(created);
        if request.is_own() {
            self.counters.put_back += 1;
            self.repairs.succeeded();
            tracing::info!(port = %spec.name, bridge = spec.bridge, "OVS had lost the port: it was made again");
        }
        let socket = self.socket_of(&spec);
        self.wanted.insert(spec.name.clone(), spec);
        request.finish(Ok(Done::Added(AddedPort { ofport, socket, created })));
    }

    fn not_applied(&mut self, applying: Applying, now: Instant) {
        let Applying { request, stage, .. } = applying;
        if let Task::Remove(_) = request.task {
            return request.finish(Ok(Done::Removed(Removal::Pending)));
        }
        let port = request.task.name().clone();
        if stage == Stage::Insert {
            self.remove_unasked(&port);
        }
        let limit = request.queued.elapsed();
        let served = self.service.check(now);
        request.finish(Err(served.err().unwrap_or(OvsError::NotApplied { port, limit })));
    }

    /// Has a port removed that a failed request left, whenever that can be.
    fn remove_unasked(&mut self, port: &PortName) {
        self.queue.push_front(Request::own(Task::Remove(port.clone()), None));
    }

    /// Answers requests that have waited too long for their turn, or for a connection.
    pub(crate) fn expire(&mut self, now: Instant) {
        for request in std::mem::take(&mut self.queue) {
            if self.turn_ends(&request).is_none_or(|end| end > now) {
                self.queue.push_back(request);
                continue;
            }
            let port = request.task.name().clone();
            if request.unknown && matches!(request.task, Task::Add(_)) {
                self.queue.push_back(Request::own(Task::Remove(port.clone()), None));
            }
            let error = match self.connected() {
                true => OvsError::NotApplied { port, limit: request.queued.elapsed() },
                false => OvsError::Unreachable(Arc::clone(&self.down_because)),
            };
            request.finish(Err(error));
        }
    }

    fn turn_ends(&self, request: &Request) -> Option<Instant> {
        let deadline = request.deadline?;
        let without_connection = request.queued + self.connect_limit;
        Some(if self.connected() || request.unknown { deadline } else { deadline.min(without_connection) })
    }

    /// When there is something to do though nothing comes; `None`: never.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let applying = self.applying.iter().filter_map(|applying| applying.request.deadline);
        let queued = self.queue.iter().filter_map(|request| self.turn_ends(request));
        let connect = (!self.connected()).then_some(self.connect_at);
        let repair = (self.connected() && !self.missing().is_empty()).then_some(self.repair_at);
        let waits = self.applying.iter().any(Applying::needs_service);
        let service = self.service.ends().filter(|_| waits);
        applying.chain(queued).chain(connect).chain(repair).chain(service).min()
    }

    /// Answers everybody that there is no driver any more.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        let applying = std::mem::take(&mut self.applying).into_iter().map(|applying| applying.request);
        for request in applying.chain(std::mem::take(&mut self.queue)).collect::<Vec<_>>() {
            if !request.is_own() {
                request.finish(Err(OvsError::Stopped));
            }
        }
    }
}
