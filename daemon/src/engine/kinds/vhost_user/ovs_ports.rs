//! A port of OVS-DPDK as its record has it: what it is to be, and that OVS has it for as long as the record is there.
//!
//! The driver puts back by itself what OVS loses while the daemon runs. What was lost before, and ports that nobody has any more, show when
//! the ports are compared with the records, at each new connection to the database.

use std::path::Path;
use std::thread;
use std::time::Duration;

use fairlead_cni::config::VhostUser as Config;
use fairlead_cni::config::vhost_user::{Mode, Switch};
use fairlead_cni::{CniError, Code};
use fairlead_kube::PodRef;
use fairlead_vhost::ovs_dpdk::{
    Policing, PortName, PortOwner, PortSpec, PortView, Reconciled, VhostSocket, Vlans,
};
use fairlead_vhost::port::PortConfig;
use serde_json::{Value, json};

use super::ovs_link::why_unserved;
use super::services::VhostUserServices;
use super::socket_dir::{SocketPlace, unusable};
use crate::engine::attachment_request::AttachmentRequest;
use crate::store::{Attachment, Phase, VhostUserRecord};

/// So often it is looked whether there is a new connection.
const LOOKS: Duration = Duration::from_millis(500);
/// The same while no pod has a port, and OVS is not there.
const LOOKS_WITHOUT_PORTS: Duration = Duration::from_secs(10);
/// The MTU that a port of OVS has where nobody asks for one.
const OVS_MTU: u16 = 1500;

/// A port of OVS is one whose socket the pod makes.
pub(super) fn must_listen(mode: Mode) -> Result<(), CniError> {
    if mode == Mode::Server {
        return Ok(());
    }
    Err(CniError::new(Code::InvalidConfig, "kubelet has allocated a port of a pool with \"mode\" client to the pod")
        .with("with \"switch\" ovs-dpdk take a pool of mode server: the application makes the socket, and OVS connects"))
}

impl VhostUserServices {
    /// What OVS is asked for; `None`: the port is one of our own switch.
    pub(super) fn port_of_ovs(
        &self,
        config: &Config,
        port: &PortConfig,
        place: &SocketPlace,
        request: &AttachmentRequest<'_>,
    ) -> Result<Option<PortSpec>, CniError> {
        let Switch::OvsDpdk(bridge) = &config.switch else { return Ok(None) };
        must_listen(config.mode)?;
        let name = PortName::of_attachment(&request.key.container, &request.key.ifname);
        let vlans = match (port.vlan, port.trunk.is_empty()) {
            (Some(vlan), _) => Vlans::Access(vlan),
            (None, false) => Vlans::Trunk { allowed: port.trunk.iter().copied().collect(), native: None },
            (None, true) if bridge.every_vlan => Vlans::Every,
            (None, true) => Vlans::Untagged,
        };
        let kbps = config.max_tx_rate.map(|rate| rate.saturating_mul(1000));
        let spec = PortSpec {
            socket: VhostSocket::PodListens(self.ovs.socket(&name, &place.socket)),
            name,
            bridge: bridge.name.clone(),
            makes_bridge: bridge.is_made,
            vlans,
            policing: kbps.map(|rate_kbps| Policing { rate_kbps, burst_kb: 0 }),
            mtu: Some(port.mtu).filter(|mtu| *mtu != OVS_MTU),
            mac: Some(port.mac),
            owner: owner(request),
        };
        spec.check().map_err(|e| CniError::new(Code::InvalidConfig, e.to_string()))?;
        Ok(Some(spec))
    }

    /// Has OVS serve the socket that the pod makes, or will make.
    pub(super) fn serve_by_ovs(&self, record: &VhostUserRecord, spec: &PortSpec) -> Result<(), CniError> {
        let directory = Path::new(&record.directory);
        if let Some(port) = &record.pool_port {
            self.pools.take(port).map_err(|e| unusable(directory, &e))?;
        }
        self.ovs.add(spec, directory)
    }

    /// Keeps the ports of OVS as the records have them, for as long as `goes_on` says so.
    pub(crate) fn keep_up_ovs(&self, goes_on: &dyn Fn() -> bool) {
        // The connection at which nothing was left to be done.
        let (mut settled, mut told) = (0, String::new());
        while goes_on() {
            let is_wanted = self.store.all().iter().any(|attachment| spec_of_ovs(attachment).is_some());
            let connections = self.ovs.connections(is_wanted);
            if let Some(now) = connections.filter(|now| *now != settled) {
                let failed = match self.ovs.keep_only(|| self.specs_of_ovs()) {
                    Ok(done) => {
                        // An attachment may have ended meanwhile: what was put back is looked at once more.
                        if done.put_back.is_empty() && done.removed.is_empty() && done.failed.is_empty() {
                            settled = now;
                        }
                        log_done(&done)
                    }
                    Err(error) => error.to_string(),
                };
                if !failed.is_empty() && failed != told {
                    tracing::error!(error = %failed, "ports of OVS are not as the records have them; it is tried again");
                }
                told = failed;
            }
            // An ADD looks for OVS by itself: a node without any is not woken for it.
            thread::sleep(if is_wanted || connections.is_some() { LOOKS } else { LOOKS_WITHOUT_PORTS });
        }
    }

    /// The ports of OVS that pods have, as the operator sees them: whether OVS has a running device at the socket, or why it has none.
    pub(super) fn ovs_table(&self) -> Value {
        let mut attached = self.store.all();
        attached.retain(|a| a.phase == Phase::Attached && spec_of_ovs(a).is_some());
        // Most nodes have no OVS that could be asked.
        if attached.is_empty() {
            return json!([]);
        }
        let in_ovs = self.ovs.ports();
        let row = |attachment: &Attachment| {
            let (record, spec) = (attachment.vhost_user()?, spec_of_ovs(attachment)?);
            let reason = match &in_ovs {
                Ok(ports) => self.why_unconnected(record, spec, ports),
                Err(error) => Some(error.msg.clone()),
            };
            let mut config = json!(record.port);
            (config["name"], config["network"]) = (spec.name.as_str().into(), spec.bridge.as_str().into());
            let pod = attachment.pod.as_ref().map(ToString::to_string);
            Some(json!({"config": config, "pod": pod, "connected": reason.is_none(), "reason": reason}))
        };
        attached.iter().filter_map(|attachment| row(attachment)).collect()
    }

    /// Why OVS, with these ports, has no running device at the socket of a pod; `None` where it has one.
    fn why_unconnected(
        &self,
        record: &VhostUserRecord,
        spec: &PortSpec,
        ports: &[PortView],
    ) -> Option<String> {
        let Some(port) = ports.iter().find(|port| port.name == spec.name.as_str()) else {
            return Some(format!("OVS has no port {}", spec.name));
        };
        if let Some(why) = why_unserved(port) {
            return Some(why);
        }
        if port.connected {
            return None;
        }
        Some(match self.has_socket(record) {
            Ok(true) => format!(
                "the pod's socket {} is there, and OVS has no running device at it: the application has not started its port, or shares no \
                 memory (QEMU: share=on, huge pages); or OVS does not reach the socket: see that the application listens, that \
                 ovs-vswitchd {}, and that it sees {} (in a container: mountPropagation HostToContainer)",
                record.host_path(),
                self.ovs.has_access(),
                self.ovs.directory().display()
            ),
            _ => self.why_missing(record),
        })
    }

    /// The ports that pods have, or are about to have.
    fn specs_of_ovs(&self) -> Vec<PortSpec> {
        self.store.all().iter().filter_map(|attachment| spec_of_ovs(attachment).cloned()).collect()
    }
}

/// The port of OVS of an attachment that a pod has, or is about to have.
fn spec_of_ovs(attachment: &Attachment) -> Option<&PortSpec> {
    let is_kept = matches!(attachment.phase, Phase::Adding | Phase::Attached);
    attachment.vhost_user()?.ovs.as_deref().filter(|_| is_kept)
}

/// Tells what was done; answers what could not be.
fn log_done(done: &Reconciled) -> String {
    if !done.removed.is_empty() {
        tracing::warn!(removed = ?done.removed, "ports of OVS that no attachment has are removed");
    }
    if !done.put_back.is_empty() {
        tracing::info!(ports = ?done.put_back, "OVS has ports again that it had lost");
    }
    let failed: Vec<String> = done.failed.iter().map(|(port, error)| format!("{port}: {error}")).collect();
    failed.join("; ")
}

/// Whose port it is, for a person who looks at OVS.
fn owner(request: &AttachmentRequest<'_>) -> PortOwner {
    let pod = PodRef::of_args(request.args);
    let (namespace, name, uid) = pod.map(|pod| (pod.namespace, pod.name, pod.uid)).unwrap_or_default();
    PortOwner {
        namespace,
        pod: name,
        uid: uid.unwrap_or_default(),
        container: request.key.container.clone(),
        ifname: request.key.ifname.clone(),
    }
}
