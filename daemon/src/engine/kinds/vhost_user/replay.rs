//! Keeps our own switch's ports as the records have them. One that was started again has none: it gets those of the records, each with a new
//! socket in its pod's directory. What could not be made is tried again; ports that nobody has on record are taken out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_host::socket_file;
use fairlead_vhost::control::EventStream;
use fairlead_vhost::control::messages::{PortEvent, SocketSide};
use fairlead_vhost::log_limit::{Admitted, LogLimit};
use fairlead_vhost::port::PortView;

use super::services::VhostUserServices;
use super::socket_dir::unusable;
use crate::store::{Attachment, Phase, VhostUserRecord};

/// A switch is looked for again so soon while pods have ports of it, however long it is away: they have no traffic, and the look is one
/// system call.
const SOON: Duration = Duration::from_millis(10);
/// And so soon where no pod has a port, but pools have ports to be kept ready.
const LATER: Duration = Duration::from_secs(2);
/// And so soon where nothing needs a switch: most nodes have none, and are not woken for it. An ADD wakes who looks.
const SELDOM: Duration = Duration::from_secs(10);
/// Ports are compared with the records so often at most, whatever the switch tells: a pod may have it tell something all the time.
const LOOKS: Duration = Duration::from_millis(200);
/// And so often where nothing was missing: an ADD may have been on its way when the switch was started again.
const LOOKS_AT_ALL: Duration = Duration::from_secs(2);
/// Between two connections to one pod's socket: the pod may end each at once.
const BETWEEN: Duration = Duration::from_secs(1);

/// What one switch has been told, as far as the next look depends on it.
#[derive(Default)]
struct Upkeep {
    looked: Option<Instant>,
    /// At the last look a port was missing, or had no connection yet.
    is_missing: bool,
    /// When each port last got a connection.
    handed_over: BTreeMap<String, Instant>,
    /// A pod may have the switch tell something all the time.
    log_limit: LogLimit,
    /// Attachments whose port could not be made, which was said; until the port is found whole.
    told: BTreeSet<u64>,
    /// Networks whose uplink could not be made, which was said.
    without_uplink: BTreeSet<String>,
}

impl Upkeep {
    /// Forgets what is not attached any more: one connection to a switch may last for months.
    fn forget_detached(&mut self, attached: &[Arc<Attachment>]) {
        let ids: BTreeSet<u64> = attached.iter().map(|attachment| attachment.id).collect();
        let records = attached.iter().filter_map(|attachment| attachment.port_of_own_switch());
        let names: BTreeSet<&str> = records.map(|record| record.port.name.as_str()).collect();
        self.told.retain(|id| ids.contains(id));
        self.handed_over.retain(|name, _| names.contains(name.as_str()));
    }

    /// Says why a port cannot be made: once, since it is tried again soon, until the port was whole. A pod can have it made and fail in
    /// turn, all the time: of each port a few lines.
    fn tell(&mut self, attachment: &Attachment, record: &VhostUserRecord, error: &CniError) {
        if self.told.contains(&attachment.id) {
            return;
        }
        let Some(Admitted { left_out }) = self.log_limit.admit(&record.port.name, Instant::now()) else {
            return;
        };
        self.told.insert(attachment.id);
        tracing::error!(container = %attachment.key.container, ifname = %attachment.key.ifname, left_out, %error,
            "a pod's port cannot be made; it is tried again");
    }
}

impl VhostUserServices {
    /// Keeps the switch's ports as the records have them, for as long as `goes_on` says so.
    pub(crate) fn keep_up(&self, goes_on: &dyn Fn() -> bool) {
        *self.keeper.lock() = Some(thread::current());
        while goes_on() {
            self.pools.mend_when_due();
            match self.switch.events() {
                Ok(mut events) => {
                    tracing::info!("fairlead-vswitch is there");
                    self.remove_strangers();
                    let mut upkeep = Upkeep::default();
                    self.look(&mut upkeep);
                    while goes_on() && self.follow(&mut events, &mut upkeep) {
                        self.pools.mend_when_due();
                    }
                }
                Err(_) if self.has_attached() => thread::sleep(SOON),
                Err(_) => thread::park_timeout(if self.pools.has_ports() { LATER } else { SELDOM }),
            }
        }
    }

    /// Has the ports kept up from now on, where nothing needed the switch before.
    pub(super) fn wake_keeper(&self) {
        // Where it looks just now, it looks once more.
        self.keeper.lock().iter().for_each(thread::Thread::unpark);
    }

    /// Waits for what the switch tells, and looks after its ports. False when the switch has ended.
    fn follow(&self, events: &mut EventStream, upkeep: &mut Upkeep) -> bool {
        match events.next(LOOKS) {
            Ok(Some(event)) => {
                upkeep.is_missing = true;
                log(&event, &mut upkeep.log_limit);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "fairlead-vswitch has ended; its ports are made again when it is back");
                return false;
            }
        }
        let pause = if upkeep.is_missing { LOOKS } else { LOOKS_AT_ALL };
        if upkeep.looked.is_none_or(|looked| looked.elapsed() >= pause) {
            self.look(upkeep);
        }
        true
    }

    /// Takes out of the switch what nobody has on record.
    fn remove_strangers(&self) {
        // The record comes before the port: with the turn no port is made between the look at the records and the order.
        let _turn = self.turn.lock();
        if let Err(error) = self.switch.keep_only(&self.names_on_record()) {
            tracing::error!(%error, "ports that no attachment has may be left in the switch");
        }
    }

    /// The ports that are on record, also those that are being made or taken away.
    fn names_on_record(&self) -> Vec<String> {
        self.store.filter_map(|a| Some(a.port_of_own_switch()?.port.name.clone()))
    }

    /// Whether one of these ports of the switch was on nobody's record when they had been listed.
    fn has_stranger(&self, ports: &[PortView]) -> bool {
        let known: HashSet<String> = self.names_on_record().into_iter().collect();
        ports.iter().any(|port| !known.contains(&port.config.name))
    }

    /// Compares the switch's ports with the records: makes what is missing, and takes out what nobody has on record.
    fn look(&self, upkeep: &mut Upkeep) {
        (upkeep.looked, upkeep.is_missing) = (Some(Instant::now()), false);
        self.look_at_uplinks(upkeep);
        let attached = self.attached();
        upkeep.forget_detached(&attached);
        // After the records: what is on record as attached has its port in this list, or the switch has lost it.
        let Ok(ports) = self.switch.ports() else {
            upkeep.is_missing = !attached.is_empty();
            return;
        };
        if self.has_stranger(&ports) {
            self.remove_strangers();
        }
        let ports: HashMap<&str, &PortView> = ports.iter().map(|port| (&*port.config.name, port)).collect();
        for attachment in &attached {
            let Some(record) = attachment.port_of_own_switch() else { continue };
            let port = ports.get(&*record.port.name).copied().filter(|port| port.config == record.port);
            if self.is_whole(record, port) {
                upkeep.told.remove(&attachment.id);
                continue;
            }
            upkeep.is_missing = true;
            let done = match record.pod_listens {
                true => self.connect_to_pod(attachment, record, port, upkeep),
                false => self.serve_again(attachment, record, port.is_some()),
            };
            // Each by itself: one pod's directory that is gone keeps no other from its port.
            if let Err(error) = done {
                upkeep.tell(attachment, record, &error);
            }
        }
    }

    /// Whether nothing is to be done about a port, as the switch has it: its pod is connected, or can connect.
    fn is_whole(&self, record: &VhostUserRecord, port: Option<&PortView>) -> bool {
        port.is_some_and(|port| port.has_connection || !(record.pod_listens || self.has_lost_socket(record)))
    }

    fn look_at_uplinks(&self, upkeep: &mut Upkeep) {
        let failed = match self.mend_uplinks() {
            Ok(failed) => failed,
            Err(error) => {
                tracing::error!(%error, "the switch's uplinks cannot be compared with the records");
                return;
            }
        };
        for (network, error) in &failed {
            if !upkeep.without_uplink.contains(network) {
                tracing::error!(network, %error, "a network has no uplink; it is tried again");
            }
        }
        upkeep.without_uplink = failed.into_keys().collect();
    }

    /// `has_port`: the switch has the port, and waits at a socket that nobody can find any more.
    fn serve_again(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
        has_port: bool,
    ) -> Result<(), CniError> {
        let _turn = self.turn.lock();
        if !self.is_attached(attachment) {
            return Ok(());
        }
        if has_port { self.serve_at_new_socket(record) } else { self.serve(record) }
    }

    /// Whether the directory of a port that nobody has connected to is there without the socket, as its pod can have removed it.
    fn has_lost_socket(&self, record: &VhostUserRecord) -> bool {
        matches!(self.has_socket(record), Ok(false))
    }

    /// Its DEL may have come since it was looked up.
    fn is_attached(&self, attachment: &Attachment) -> bool {
        self.store.get(attachment.id).is_some_and(|now| now.phase == Phase::Attached)
    }

    /// Connects to the socket that the pod's process has made. One that has a connection is never connected to again: DPDK's virtio_user
    /// dies of the write that follows when its connection is taken away (SIGPIPE).
    fn connect_to_pod(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
        port: Option<&PortView>,
        upkeep: &mut Upkeep,
    ) -> Result<(), CniError> {
        let name = &record.port.name;
        if upkeep.handed_over.get(name).is_some_and(|last| last.elapsed() < BETWEEN) {
            return Ok(());
        }
        let directory = self.open_of(record);
        let stream = match directory.and_then(|dir| socket_file::connect_to(dir, &record.socket)) {
            Ok(stream) => stream,
            Err(e) if socket_file::is_no_socket(&e) => {
                return Err(unusable(Path::new(&record.directory), &e));
            }
            // Not there yet, or nobody listens yet: the next look comes soon.
            Err(_) => return Ok(()),
        };
        upkeep.handed_over.insert(name.clone(), Instant::now());
        self.hand_over(attachment, record, port.is_some(), &stream)
    }

    fn hand_over(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
        has_port: bool,
        stream: &OwnedFd,
    ) -> Result<(), CniError> {
        let _turn = self.turn.lock();
        match (self.is_attached(attachment), has_port) {
            (false, _) => Ok(()),
            (true, true) => self.switch.reconnect(&record.port.name, stream),
            (true, false) => self.switch.add(record, SocketSide::Connected, stream),
        }
    }

    /// The attachments by which pods have ports of the switch.
    pub(super) fn attached(&self) -> Vec<Arc<Attachment>> {
        self.store.all().into_iter().filter(|attachment| has_port(attachment)).collect()
    }

    fn has_attached(&self) -> bool {
        self.store.all().iter().any(|attachment| has_port(attachment))
    }
}

/// Whether a pod has a port of the switch by this attachment.
fn has_port(attachment: &Attachment) -> bool {
    attachment.phase == Phase::Attached && attachment.port_of_own_switch().is_some()
}

/// Says what the switch tells, of each port a few lines.
fn log(event: &PortEvent, limit: &mut LogLimit) {
    let port = match event {
        PortEvent::Connected { port }
        | PortEvent::Disconnected { port, .. }
        | PortEvent::Misbehaved { port, .. } => port.as_str(),
        PortEvent::Lost { .. } => "",
    };
    let Some(Admitted { left_out }) = limit.admit(port, Instant::now()) else { return };
    match event {
        PortEvent::Misbehaved { .. } => tracing::warn!(?event, left_out, "a pod's guest is disconnected"),
        _ => tracing::info!(?event, left_out, "a port of the switch"),
    }
}

#[cfg(test)]
mod tests;
