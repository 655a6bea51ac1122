//! A port is made: its socket in the pod's directory, and the port in the switch that has that socket.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fairlead_cni::config::vhost_user::{Mode, Place};
use fairlead_cni::{CniError, Code};
use fairlead_host::socket_file::Access;
use fairlead_host::{Mac, failpoint, socket_file};
use fairlead_kube::PodRef;
use fairlead_vhost::control::messages::SocketSide;
use fairlead_vhost::port::PortConfig;
use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;

use super::config::VhostUser;
use super::services::VhostUserServices;
use super::socket_dir::{short_id, unusable};
use super::uplink;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::device_info::{DeviceInfoFiles, VERSION};
use crate::engine::kinds::{Applied, Kinds, Plan, Work};
use crate::port_pools::PortPools;
use crate::store::{Attachment, ConfigurationDataRecord, LinkRecord, VhostUserRecord};

/// A port that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewPort(VhostUserRecord);

/// Says what is to be made. Changes nothing.
pub(crate) fn plan(
    kinds: &Kinds,
    wanted: &VhostUser,
    request: &AttachmentRequest<'_>,
) -> Result<Plan, CniError> {
    let (config, services, ids) = (&wanted.config, &kinds.vhost_user, &kinds.ids);
    let place = match &wanted.found {
        Some(found) => found.clone(),
        None => services.place(&config.place, request)?,
    };
    // Tenants choose the names of their networks: those of two namespaces never meet.
    let network = match request.namespace {
        Some(namespace) => format!("{namespace}/{}", config.network),
        None => config.network.clone(),
    };
    let uplink = config.master.as_deref();
    let uplink = uplink.map(|master| uplink::plan(kinds, &network, master, config, request)).transpose()?;
    let (uplink, mtu) = uplink.unzip();
    let port = PortConfig {
        name: format!("{}/{}", short_id(&request.key.container), request.key.ifname),
        network,
        mac: mac_address(kinds, wanted)?,
        vlan: config.vlan,
        trunk: config.trunk.clone(),
        spoof_check: config.spoofchk,
        isolated: config.isolated,
        queues: config.queues,
        mtu: mtu.or(config.mtu).unwrap_or(uplink::ETHERNET_MTU),
        from_guest_bits: config.max_tx_rate.map(bits),
        to_guest_bits: config.max_rx_rate.map(bits),
    };
    let ovs = services.port_of_ovs(config, &port, &place, request)?;
    let record = VhostUserRecord {
        port,
        ovs: ovs.map(Box::new),
        directory: place.directory,
        socket: place.socket,
        in_volume: place.in_volume,
        pod_listens: config.mode == Mode::Server,
        mount_path: match &config.place {
            Place::Port(port) => Some(PortPools::in_container(port)),
            _ => config.mount_path.clone().or(place.mount_path),
        },
        configuration_data: config.container_side.as_ref().map(|side| ConfigurationDataRecord {
            config: side.config.clone(),
            // Without a cluster nobody has annotations. In a directory that is neither the pod's alone nor made for it nothing is put.
            in_file: (!side.by_annotation || services.cluster.is_none())
                && (place.in_volume || place.own_directory_in.is_some()),
        }),
        own_directory_in: place.own_directory_in,
        pool_port: match &config.place {
            Place::Port(port) => Some(port.clone()),
            _ => None,
        },
        uplink,
        numa_node: numa_node(kinds, &config.place, request),
        draft: Some(format!(".fairlead-{:016x}", ids.next())),
    };
    services.must_clash_with_none(&record, request.key, PodRef::of_args(request.args).as_ref())?;
    Ok(Plan {
        record: LinkRecord::VhostUser(Box::new(record.clone())),
        work: Work::VhostUser(NewPort(record)),
    })
}

/// The MAC address that is asked for, else that of the pool's port, else a new one.
fn mac_address(kinds: &Kinds, wanted: &VhostUser) -> Result<Mac, CniError> {
    let known = match (wanted.mac, &wanted.config.place) {
        (None, Place::Port(port)) => {
            let unread =
                |why: String| CniError::new(Code::TryAgain, format!("the MAC address of port {port}: {why}"));
            kinds.vhost_user.pools.mac_address(port).map_err(unread)?
        }
        (asked, _) => asked,
    };
    Ok(known.unwrap_or_else(|| Mac::local(kinds.ids.next())))
}

/// The pod's NUMA node, as far as that is known; a port of a pool is on the pool's, if nobody says where the pod is.
fn numa_node(kinds: &Kinds, place: &Place, request: &AttachmentRequest<'_>) -> Option<u32> {
    let of_pool = match place {
        Place::Port(port) => kinds.vhost_user.pools.numa_node(port),
        _ => None,
    };
    nearest(of_pool, &kinds.sriov.known_nodes(request))
}

fn nearest(of_pool: Option<u32>, of_pod: &BTreeSet<u32>) -> Option<u32> {
    of_pool.filter(|node| of_pod.is_empty() || of_pod.contains(node)).or_else(|| of_pod.first().copied())
}

/// Of a rate in Mbit/s.
fn bits(rate: u32) -> u64 {
    u64::from(rate) * 1_000_000
}

/// Makes socket and port; all of it is on record.
pub(crate) fn apply(
    services: &VhostUserServices,
    NewPort(record): &NewPort,
    attachment: &Attachment,
) -> Result<Applied, CniError> {
    // Another ADD may have come on record since this one was planned.
    services.must_clash_with_none(record, &attachment.key, attachment.pod.as_ref())?;
    uplink::must_still_be_alone(services, record)?;
    services.make_own_directory(record)?;
    match &record.ovs {
        Some(spec) => services.serve_by_ovs(record, spec)?,
        None => services.serve_by_own_switch(record)?,
    }
    failpoint::pass("add.prepared");
    Ok(Applied {
        mac: Some(record.port.mac),
        mtu: record.port.mtu.into(),
        socket_path: record.host_path(),
        ..Applied::default()
    })
}

impl VhostUserServices {
    fn serve_by_own_switch(&self, record: &VhostUserRecord) -> Result<(), CniError> {
        let _turn = self.turn.lock();
        self.ensure_uplink(record)?;
        match &record.pool_port {
            Some(port) => self.serve_of_pool(record, port)?,
            None => self.serve(record)?,
        }
        self.wake_keeper();
        Ok(())
    }

    /// Makes the socket where the pod's process is to connect, and has the switch serve it. What of both was there before is replaced.
    pub(super) fn serve(&self, record: &VhostUserRecord) -> Result<(), CniError> {
        // Its port is made when the pod's process has made the socket (`replay.rs`).
        if record.pod_listens {
            return Ok(());
        }
        let listener = self.make_socket(record, |_| Ok(()))?;
        failpoint::pass("add.socket");
        self.switch.add(record, SocketSide::Listening, &listener)
    }

    /// Has the switch serve a port that it has at a new socket, where the pod's process finds none any more. What bounds the pod stays with
    /// the port; one that was added anew would start afresh with each socket that its pod removes.
    pub(super) fn serve_at_new_socket(&self, record: &VhostUserRecord) -> Result<(), CniError> {
        let name = &record.port.name;
        if !self.switch.can_listen_anew(name)? {
            self.switch.remove(name)?;
            return self.serve(record);
        }
        // Before it has its name: a socket that is there is taken for one that is served.
        self.make_socket(record, |listener| self.switch.listen_anew(name, listener)).map(drop)
    }

    /// Makes a port's socket, and has it served before it takes its name.
    fn make_socket(
        &self,
        record: &VhostUserRecord,
        serve: impl FnOnce(&OwnedFd) -> Result<(), CniError>,
    ) -> Result<OwnedFd, CniError> {
        let directory = Path::new(&record.directory);
        let told = |e: io::Error| e.downcast::<CniError>().unwrap_or_else(|e| unusable(directory, &e));
        let opened = self.open_of(record).map_err(told)?;
        let access = if record.in_volume { Access::WhoeverSeesIt } else { Access::WhoeverWritesThere };
        let serve = |listener: &OwnedFd| serve(listener).map_err(io::Error::other);
        socket_file::make_served_listener(&opened, &record.socket, record.draft.as_deref(), access, serve)
            .map_err(told)
    }

    /// Has the switch serve the socket that a port of a pool has already.
    fn serve_of_pool(&self, record: &VhostUserRecord, port: &str) -> Result<(), CniError> {
        let taken = self.pools.take(port).map_err(|e| unusable(Path::new(&record.directory), &e))?;
        failpoint::pass("add.socket");
        match taken {
            Some(listener) => self.switch.add(record, SocketSide::Listening, &listener),
            None => self.serve(record),
        }
    }
}

/// What the device information of a committed port says, whether or not somebody wants a file of it.
pub(crate) fn device_info(attachment: &Attachment) -> Option<Value> {
    let record = attachment.vhost_user()?;
    serde_json::to_value(DeviceInfo::of(record, &attachment.addresses)).ok()
}

/// Writes the file of device information, where somebody wants one. `addresses`: what the port is given, not on record yet.
pub(crate) fn write_device_info(
    files: &DeviceInfoFiles,
    attachment: &Attachment,
    record: &VhostUserRecord,
    addresses: &[IpNet],
) -> Result<(), CniError> {
    files.write(attachment, &DeviceInfo::of(record, addresses))
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
    fairlead: Own<'a>,
}

#[derive(Serialize)]
struct Socket<'a> {
    /// The container's side.
    mode: &'a str,
    path: String,
}

#[derive(Serialize)]
struct Own<'a> {
    mac: Mac,
    mtu: u16,
    /// With the lengths of their prefixes: the application sets them itself.
    #[serde(skip_serializing_if = "<[IpNet]>::is_empty")]
    addresses: &'a [IpNet],
    #[serde(rename = "numaNode", skip_serializing_if = "Option::is_none")]
    numa_node: Option<u32>,
}

impl<'a> DeviceInfo<'a> {
    fn of(record: &'a VhostUserRecord, addresses: &'a [IpNet]) -> DeviceInfo<'a> {
        let mode = if record.pod_listens { Mode::Server } else { Mode::Client };
        let vhost_user = Socket { mode: mode.as_str(), path: record.path_for_pod() };
        let (mac, mtu) = (record.port.mac, record.port.mtu);
        let fairlead = Own { mac, mtu, addresses, numa_node: record.numa_node };
        DeviceInfo { kind: "vhost-user", version: VERSION, vhost_user, fairlead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pools_node_is_taken_unless_the_pod_is_known_to_be_elsewhere() {
        let of = |pool, pod: &[u32]| nearest(pool, &pod.iter().copied().collect());
        assert_eq!(of(Some(1), &[]), Some(1));
        assert_eq!(of(Some(1), &[0, 1]), Some(1));
        assert_eq!(of(Some(1), &[0]), Some(0));
        assert_eq!((of(None, &[2, 3]), of(None, &[])), (Some(2), None));
    }
}
