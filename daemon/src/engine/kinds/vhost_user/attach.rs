//! A port is made: its socket in the pod's directory, and the port in the switch that has that socket.

use std::path::Path;

use fairlead_cni::config::vhost_user::{Mode, Place};
use fairlead_cni::{CniError, Code};
use fairlead_host::socket_file::Access;
use fairlead_host::{Mac, failpoint, socket_file};
use fairlead_vhost::control::messages::SocketSide;
use fairlead_vhost::port::PortConfig;
use serde::Serialize;
use serde_json::Value;

use super::config::VhostUser;
use super::services::VhostUserServices;
use super::socket_dir::{short_id, unusable};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::device_info::{DeviceInfoFiles, VERSION};
use crate::engine::kinds::{Applied, Plan, Work};
use crate::engine::random_ids::RandomIds;
use crate::store::{Attachment, LinkRecord, VhostUserRecord};

/// A port that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewPort(VhostUserRecord);

/// Says what is to be made. Changes nothing.
pub(crate) fn plan(
    services: &VhostUserServices,
    ids: &RandomIds,
    wanted: &VhostUser,
    request: &AttachmentRequest<'_>,
) -> Result<Plan, CniError> {
    let config = &wanted.config;
    let place = services.place(&config.place, request)?;
    // Tenants choose the names of their networks: those of two namespaces never meet.
    let network = match request.namespace {
        Some(namespace) => format!("{namespace}/{}", config.network),
        None => config.network.clone(),
    };
    let port = PortConfig {
        name: format!("{}/{}", short_id(&request.key.container), request.key.ifname),
        network,
        mac: wanted.mac.unwrap_or_else(|| Mac::local(ids.next())),
        vlan: config.vlan,
        trunk: config.trunk.clone(),
        spoof_check: config.spoofchk,
        isolated: config.isolated,
        queues: config.queues,
        mtu: config.mtu,
        from_guest_bits: config.max_tx_rate.map(bits),
        to_guest_bits: config.max_rx_rate.map(bits),
    };
    let record = VhostUserRecord {
        port,
        directory: place.directory,
        socket: place.socket,
        in_volume: matches!(config.place, Place::Volume(_)),
        pod_listens: config.mode == Mode::Server,
        mount_path: config.mount_path.clone(),
    };
    Ok(Plan {
        record: LinkRecord::VhostUser(Box::new(record.clone())),
        work: Work::VhostUser(NewPort(record)),
    })
}

/// Of a rate in Mbit/s.
fn bits(rate: u32) -> u64 {
    u64::from(rate) * 1_000_000
}

/// Makes socket and port; all of it is on record.
pub(crate) fn apply(
    services: &VhostUserServices,
    files: &DeviceInfoFiles,
    NewPort(record): &NewPort,
    attachment: &Attachment,
) -> Result<Applied, CniError> {
    {
        let _turn = services.turn.lock();
        services.serve(record)?;
    }
    failpoint::pass("add.prepared");
    files.write(attachment, &DeviceInfo::of(record))?;
    Ok(Applied {
        mac: Some(record.port.mac),
        mtu: record.port.mtu.into(),
        socket_path: record.host_path(),
        ..Applied::default()
    })
}

impl VhostUserServices {
    /// Makes the socket where the pod's process is to connect, and has the switch serve it. What of both was there before is replaced.
    pub(super) fn serve(&self, record: &VhostUserRecord) -> Result<(), CniError> {
        // Its port is made when the pod's process has made the socket (`replay.rs`).
        if record.pod_listens {
            return Ok(());
        }
        let directory = Path::new(&record.directory);
        let told = |e: std::io::Error| match socket_file::is_no_socket(&e) {
            true => CniError::new(Code::InvalidConfig, format!("{}: {e}", record.directory)),
            false => unusable(directory, &e),
        };
        let opened = self.open(directory).map_err(told)?;
        let access = if record.in_volume { Access::WhoeverSeesIt } else { Access::WhoeverWritesThere };
        let listener = socket_file::make_listener(&opened, &record.socket, access).map_err(told)?;
        failpoint::pass("add.socket");
        self.switch.add(&record.port, SocketSide::Listening, &listener)
    }
}

/// What the device information of a port says, whether or not somebody wants a file of it.
pub(crate) fn device_info(record: &VhostUserRecord) -> Option<Value> {
    serde_json::to_value(DeviceInfo::of(record)).ok()
}

/// Device information of type `vhost-user`.
#[derive(Serialize)]
struct DeviceInfo<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    version: &'a str,
    #[serde(rename = "vhost-user")]
    vhost_user: Socket<'a>,
    /// What the specification has no key for.
    fairlead: Own,
}

#[derive(Serialize)]
struct Socket<'a> {
    /// The container's side.
    mode: &'a str,
    path: String,
}

#[derive(Serialize)]
struct Own {
    mac: Mac,
    mtu: u16,
}

impl<'a> DeviceInfo<'a> {
    fn of(record: &'a VhostUserRecord) -> DeviceInfo<'a> {
        let mode = if record.pod_listens { Mode::Server } else { Mode::Client };
        let vhost_user = Socket { mode: mode.as_str(), path: record.path_for_pod() };
        let fairlead = Own { mac: record.port.mac, mtu: record.port.mtu };
        DeviceInfo { kind: "vhost-user", version: VERSION, vhost_user, fairlead }
    }
}
