//! Type `userspace`: the configuration of userspace-cni (intel/userspace-cni-network-plugin), read into what type `vhost-user` is.
//!
//! Its side `host` says who of the two makes the socket, and where the port is; its side `container` is told to the pod and changes
//! nothing of the port. What userspace-cni does for other switches and interfaces is refused: a port of another kind would be none
//! that the application can use.

use serde_json::{Value, json};

use super::NetConf;
use super::vhost_user::{
    MAX_VLAN, Mode, OvsBridge, Place, Switch, VhostUser, must_be_bridge, must_be_network,
};
use crate::error::{CniError, Code};
use crate::go_json::Fields;
use crate::names::shown;

/// The most bytes of a socket's name.
const MAX_SOCKET: usize = 64;

/// Where userspace-cni's sockets are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SharedDir {
    /// The key `sharedDir`, for pods without a volume `shared-dir`: a directory of the host, in which each container has one of its own.
    pub base: Option<String>,
    /// The key `host.vhost.socketfile`: the socket's name. Absent: the first twelve characters of the container's id, `-`, and the
    /// interface's name.
    pub socket: Option<String>,
    /// The key `host.vhost.group`: the group that the switch is of, where that is not root's.
    pub group: Option<String>,
}

/// What userspace-cni tells the pod of its side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSide {
    /// `config` of its configuration data, but for the socket's name.
    pub config: Value,
    /// It is told by annotations of the pod, as userspace-cni does where the key `kubeconfig` lets it; else by a file beside the socket.
    pub by_annotation: bool,
}

/// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong value.
pub(super) fn parse(conf: &NetConf) -> Result<VhostUser, CniError> {
    let fields = conf.fields()?;
    let host = fields.object("host")?.ok_or_else(|| fields.missing("host", "the host's side of the port"))?;
    must_be_vhost_user(&host)?;
    let vhost = host.object("vhost")?;
    let mode = match mode_of(vhost.as_ref())? {
        Some(Mode::Client) => Mode::Server,
        Some(Mode::Server) | None => Mode::Client,
    };
    let bridge = host.object("bridge")?;
    let name = bridge.as_ref().map_or(Ok(None), |bridge| bridge.text("bridgeName"))?;
    let vlan = bridge.as_ref().map_or(Ok(None), |bridge| bridge.within("vlanId", 0, MAX_VLAN))?;
    let vlan = vlan.filter(|vlan| *vlan != 0).and_then(|vlan| u16::try_from(vlan).ok());
    let switch = switch(&host, bridge.as_ref(), name.as_deref(), vlan, mode)?;
    let socket = vhost.as_ref().map_or(Ok(None), |vhost| socket_name(vhost))?;
    let group = vhost.as_ref().map_or(Ok(None), |vhost| vhost.text("group"))?;
    let base = fields.text("sharedDir")?;
    if let Some(base) =
        base.as_deref().filter(|base| !base.starts_with('/') || base.split('/').any(|p| p == ".."))
    {
        return Err(fields.invalid("sharedDir", &shown(base), "an absolute path without \"..\""));
    }
    Ok(VhostUser {
        spoofchk: switch == Switch::Fairlead,
        switch,
        network: name.unwrap_or_else(|| conf.name.clone()),
        master: None,
        mode,
        vlan,
        trunk: Vec::new(),
        isolated: false,
        queues: 1,
        mtu: None,
        max_tx_rate: None,
        max_rx_rate: None,
        mac: None,
        place: Place::SharedDir(SharedDir { base, socket, group }),
        mount_path: None,
        container_side: Some(container_side(&fields, mode)?),
    })
}

/// Refuses what is no vhost-user port.
fn must_be_vhost_user(host: &Fields<'_>) -> Result<(), CniError> {
    let only = |key: &str, served: &[&str], expected: &str| match host.text(key)?.as_deref() {
        Some(value) if served.contains(&value) => Ok(()),
        Some(value) => Err(host.invalid(key, &shown(value), expected)),
        None if served.contains(&"") => Ok(()),
        None => Err(host.missing(key, expected)),
    };
    only(
        "engine",
        &["ovs-dpdk", "fairlead"],
        "ovs-dpdk, or fairlead for the node's own switch; VPP is not served: leave networks of \"vpp\" to userspace-cni",
    )?;
    only(
        "iftype",
        &["vhostuser"],
        "vhostuser; memif is VPP's alone and not served: leave it to userspace-cni",
    )?;
    only("netType", &["", "bridge"], "bridge; \"interface\" without one is nothing that OVS has")
}

fn switch(
    host: &Fields<'_>,
    of_host: Option<&Fields<'_>>,
    name: Option<&str>,
    vlan: Option<u16>,
    mode: Mode,
) -> Result<Switch, CniError> {
    if host.text("engine")?.as_deref() == Some("fairlead") {
        if let (Some(fields), Some(name)) = (of_host, name) {
            must_be_network(fields, "bridgeName", name)?;
        }
        return Ok(Switch::Fairlead);
    }
    if mode == Mode::Client {
        let why = "host.vhost.mode is not \"client\": OVS would make the socket, which does not outlive a restart of OVS";
        return Err(CniError::new(Code::InvalidConfig, why).with(
            "set host.vhost.mode to client, container.vhost.mode to server, and have the application make the socket (virtio_user with server=1)",
        ));
    }
    let mut bridge = OvsBridge::usual();
    if let (Some(fields), Some(name)) = (of_host, name) {
        must_be_bridge(fields, "bridgeName", name)?;
        name.clone_into(&mut bridge.name);
    }
    // As userspace-cni has them: a bridge is made, and a port without a VLAN takes part in all of them.
    (bridge.is_made, bridge.every_vlan) = (true, vlan.is_none());
    Ok(Switch::OvsDpdk(bridge))
}

fn mode_of(vhost: Option<&Fields<'_>>) -> Result<Option<Mode>, CniError> {
    let Some(vhost) = vhost else { return Ok(None) };
    match vhost.text("mode")?.as_deref() {
        None => Ok(None),
        Some("client") => Ok(Some(Mode::Client)),
        Some("server") => Ok(Some(Mode::Server)),
        Some(other) => Err(vhost.invalid("mode", &shown(other), "client or server")),
    }
}

/// A name of a file, and of none that anybody treats in a special way.
fn socket_name(vhost: &Fields<'_>) -> Result<Option<String>, CniError> {
    let name = vhost.text("socketfile")?.filter(|name| !name.is_empty());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match name {
        Some(name) if name.len() > MAX_SOCKET || name.starts_with('.') || !name.bytes().all(plain) => {
            let expected =
                format!("at most {MAX_SOCKET} letters, digits, - _ ., none of these a dot at the beginning");
            Err(vhost.invalid("socketfile", &shown(&name), &expected))
        }
        name => Ok(name),
    }
}

/// What the pod is told of its side; what is absent follows from the host's.
fn container_side(fields: &Fields<'_>, mode: Mode) -> Result<ContainerSide, CniError> {
    let of_pod = fields.object("container")?;
    let (mut engine, mut net_type) = (None, None);
    if let Some(of_pod) = &of_pod {
        engine = of_pod.text("engine")?;
        net_type = of_pod.text("netType")?;
        if let Some(kind) = of_pod.text("iftype")?.filter(|kind| kind != "vhostuser") {
            return Err(of_pod.invalid("iftype", &shown(&kind), "vhostuser, as the host's side has it"));
        }
        if let Some(vhost) = of_pod.object("vhost")?
            && mode_of(Some(&vhost))?.is_some_and(|of_pod| of_pod != mode)
        {
            let expected = format!("{}: the other side of host.vhost.mode", mode.as_str());
            return Err(vhost.invalid(
                "mode",
                &shown(vhost.text("mode")?.as_deref().unwrap_or_default()),
                &expected,
            ));
        }
    }
    let mut config = json!({
        "iftype": "vhostuser",
        "netType": net_type.as_deref().unwrap_or("interface"),
        "memif": {},
        "vhost": {"mode": mode.as_str()},
        "bridge": {},
    });
    if let Some(engine) = engine {
        config["engine"] = engine.into();
    }
    if let Some(bridge) =
        of_pod.as_ref().and_then(|of_pod| of_pod.raw("bridge")).filter(|bridge| bridge.is_object())
    {
        config["bridge"] = bridge.clone();
    }
    Ok(ContainerSide { config, by_annotation: fields.text("kubeconfig")?.is_some() })
}
