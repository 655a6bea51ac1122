//! A switch that was started again has no port: it gets those of the records, each with a new socket in its pod's directory. Ports that
//! nobody has on record are taken out of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_host::socket_file;
use fairlead_vhost::control::EventStream;
use fairlead_vhost::control::messages::{PortEvent, SocketSide};
use fairlead_vhost::port::PortView;

use super::services::VhostUserServices;
use crate::store::{Attachment, Phase, VhostUserRecord};

/// A switch is looked for again so soon while pods have ports of it: they have no traffic.
const SOON: Duration = Duration::from_millis(10);
/// So long it is looked for that often.
const IMPATIENT: Duration = Duration::from_secs(10);
/// After that, and where no pod has a port.
const LATER: Duration = Duration::from_secs(2);
/// So often a pod is looked at whose process makes the socket.
const CONNECTS: Duration = Duration::from_millis(200);
/// So long a process may take from the connection until it has shared its memory. One whose connection is taken away in between is killed
/// by its next write (SIGPIPE): DPDK's virtio_user does not expect that.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// When each port last got a connection that is not known to have ended.
type HandedOver = BTreeMap<String, Instant>;

impl VhostUserServices {
    /// Keeps the switch's ports as the records have them, for as long as `goes_on` says so.
    pub(crate) fn keep_up(&self, goes_on: &dyn Fn() -> bool) {
        let mut since = Instant::now();
        while goes_on() {
            match self.switch.events() {
                Ok(mut events) => {
                    tracing::info!("fairlead-vswitch is there");
                    self.replay();
                    let mut handed_over = HandedOver::new();
                    while goes_on() && self.follow(&mut events, &mut handed_over) {}
                    since = Instant::now();
                }
                Err(_) => {
                    let is_missed = since.elapsed() < IMPATIENT && !self.attached().is_empty();
                    thread::sleep(if is_missed { SOON } else { LATER });
                }
            }
        }
    }

    /// Looks after connections for a while. False when the switch has ended.
    fn follow(&self, events: &mut EventStream, handed_over: &mut HandedOver) -> bool {
        match events.next(CONNECTS) {
            Ok(Some(PortEvent::Disconnected { port, why })) => {
                handed_over.remove(&port);
                tracing::info!(port, why, "a guest is gone");
            }
            Ok(Some(event @ PortEvent::Misbehaved { .. })) => {
                tracing::warn!(?event, "a pod's guest is disconnected")
            }
            Ok(Some(event)) => tracing::info!(?event, "a port of the switch"),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "fairlead-vswitch has ended; its ports are made again when it is back");
                return false;
            }
        }
        self.connect_to_pods(handed_over);
        true
    }

    /// Makes the switch's ports those of the records.
    fn replay(&self) {
        if let Err(error) = self.replay_each() {
            tracing::error!(%error, "the switch does not have the ports of the records; it is tried again when it ends");
        }
    }

    fn replay_each(&self) -> Result<(), CniError> {
        let served = self.switch.ports()?;
        {
            // The record comes before the port: with the turn no port is made between the look at the records and the order.
            let _turn = self.turn.lock();
            let all = self.store.all();
            let names = all.iter().filter_map(|a| Some(a.vhost_user()?.port.name.clone()));
            self.switch.keep_only(&names.collect::<Vec<_>>())?;
        }
        for attachment in self.attached() {
            let Some(record) = attachment.vhost_user() else { continue };
            if served.iter().any(|port| port.config == record.port) {
                continue;
            }
            // Each by itself: one pod's directory that is gone keeps no other from its port.
            if let Err(error) = self.serve_again(&attachment, record) {
                tracing::error!(container = %attachment.key.container, ifname = %attachment.key.ifname, %error,
                    "a pod's port is not made again");
            }
        }
        Ok(())
    }

    fn serve_again(&self, attachment: &Attachment, record: &VhostUserRecord) -> Result<(), CniError> {
        let _turn = self.turn.lock();
        if self.is_attached(attachment) { self.serve(record) } else { Ok(()) }
    }

    /// Its DEL may have come since it was looked up.
    fn is_attached(&self, attachment: &Attachment) -> bool {
        self.store.get(attachment.id).is_some_and(|now| now.phase == Phase::Attached)
    }

    /// Connects to the sockets that pods' processes have made since the last look.
    fn connect_to_pods(&self, handed_over: &mut HandedOver) {
        let listening: Vec<_> = self.attached().into_iter().filter(|a| listens(a)).collect();
        if listening.is_empty() {
            return;
        }
        let Ok(ports) = self.switch.ports() else { return };
        for attachment in &listening {
            let Some(record) = attachment.vhost_user() else { continue };
            let port = ports.iter().find(|port| port.config == record.port);
            let begun = handed_over.get(&record.port.name);
            if port.is_some_and(|port| port.connected)
                || begun.is_some_and(|begun| begun.elapsed() < HANDSHAKE)
            {
                continue;
            }
            // Not there yet, or nobody listens yet: the next look comes soon.
            let directory = self.open(Path::new(&record.directory));
            let connected = directory.and_then(|dir| socket_file::connect_to(dir, &record.socket));
            let Ok(stream) = connected else { continue };
            handed_over.insert(record.port.name.clone(), Instant::now());
            if let Err(error) = self.hand_over(attachment, record, port, &stream) {
                tracing::warn!(port = %record.port.name, %error, "a pod's socket is not taken by the switch");
            }
        }
    }

    fn hand_over(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
        port: Option<&PortView>,
        stream: &OwnedFd,
    ) -> Result<(), CniError> {
        let _turn = self.turn.lock();
        match (self.is_attached(attachment), port) {
            (false, _) => Ok(()),
            (true, Some(_)) => self.switch.reconnect(&record.port.name, stream),
            (true, None) => self.switch.add(&record.port, SocketSide::Connected, stream),
        }
    }

    fn attached(&self) -> Vec<Arc<Attachment>> {
        let is_port = |a: &Arc<Attachment>| a.phase == Phase::Attached && a.vhost_user().is_some();
        self.store.all().into_iter().filter(is_port).collect()
    }
}

fn listens(attachment: &Attachment) -> bool {
    attachment.vhost_user().is_some_and(|record| record.pod_listens)
}
