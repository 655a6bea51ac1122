//! Type `vhost-user`: a socket by which a process of the pod, DPDK's as a rule, reaches a switch in user space. Type `userspace` is read
//! into the same (`userspace.rs`).

use super::sriov::RESOURCE_NAME;
use super::userspace::{self, ContainerSide, SharedDir};
use super::{NetConf, masters};
use crate::args::Args;
use crate::error::{CniError, Code};
use crate::go_json::Fields;
use crate::names::shown;

/// The type of userspace-cni's configurations.
const USERSPACE: &str = "userspace";
/// The largest VLAN id.
pub(super) const MAX_VLAN: u32 = 4094;
/// Pairs of queues that a port may have.
const MOST_QUEUES: u32 = 8;
/// The MTUs that a port may have, in bytes: that of the smallest IPv4 packet, and a jumbo frame's.
const MTU: (u32, u32) = (68, 9216);
/// The volume of the pod in which its socket is, where the configuration names none.
const VOLUME: &str = "vhost-user";
/// The bridge of OVS where the configuration names none, as userspace-cni has it.
const BRIDGE: &str = "br0";
/// The most bytes of a bridge's name.
const MAX_BRIDGE: usize = 64;
/// The most that OVS polices, in Mbit/s: it counts kbit/s in 32 bits.
const MAX_POLICED: u32 = u32::MAX / 1000;
/// The most bytes of a network's name with its tenant's namespace before it.
const MAX_NETWORK: usize = 128;

/// A configuration of type `vhost-user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUser {
    /// The key `switch`.
    pub switch: Switch,
    /// The key `network`: ports of one network reach each other. Absent: the configuration's name.
    pub network: String,
    /// The key `master`: the host's interface by which the network reaches the wire, and which the switch has to itself. Absent: ports of
    /// the network reach each other only.
    pub master: Option<String>,
    /// The key `mode`; of a port that kubelet allocates its pool says it. Absent: `client`, with OVS `server`.
    pub mode: Mode,
    /// The key `vlan`, from 1 to 4094: frames of the pod carry no tag, and are of this VLAN.
    pub vlan: Option<u16>,
    /// The key `trunk`: frames of the pod carry the tags of these VLANs.
    pub trunk: Vec<u16>,
    /// The key `spoofchk`, on unless it is `off`: frames with another source address are dropped. OVS drops none.
    pub spoofchk: bool,
    /// The key `isolated`: the port does not reach other isolated ports.
    pub isolated: bool,
    /// The key `queues`: pairs of queues, from 1 to 8.
    pub queues: u16,
    /// The key `mtu` in bytes, from 68 to 9216; `None` where it is absent or 0.
    pub mtu: Option<u16>,
    /// The key `max_tx_rate` in Mbit/s: the most that the pod sends; `None` and 0: as much as it can.
    pub max_tx_rate: Option<u32>,
    /// The key `max_rx_rate` in Mbit/s: the most that the pod gets; `None` and 0: as much as comes.
    pub max_rx_rate: Option<u32>,
    /// The key `mac` of the configuration alone, as written; see [`VhostUser::mac`].
    pub mac: Option<String>,
    /// Where the socket is.
    pub place: Place,
    /// The key `mountPath`: where the pod sees the directory of the socket.
    pub mount_path: Option<String>,
    /// What the pod is told of its side, as userspace-cni does; of type `userspace` alone.
    pub container_side: Option<ContainerSide>,
}

/// The switches that serve ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Our own, `fairlead`.
    Fairlead,
    /// A running OVS-DPDK, `ovs-dpdk`: the port is in this bridge of it.
    OvsDpdk(OvsBridge),
}

/// A bridge of OVS, and how a port is in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OvsBridge {
    /// Its name: the key `bridge`, `br0` where it is absent.
    pub name: String,
    /// It is made where OVS has none of that name: for type `userspace` alone.
    pub is_made: bool,
    /// A port without a VLAN gets and sends frames of every VLAN and without a tag: for type `userspace` alone. Otherwise only the latter.
    pub every_vlan: bool,
}

impl OvsBridge {
    /// The one that is taken where none is named.
    pub fn usual() -> OvsBridge {
        OvsBridge { name: BRIDGE.to_owned(), is_made: false, every_vlan: false }
    }
}

/// Who makes the socket, as the key `mode` says it of the pod's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The pod's process connects, `client`: the socket is made for it.
    Client,
    /// The pod's process makes the socket, `server`: it is connected to.
    Server,
}

/// The directory of the socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// The key `volume`: a volume of the pod of type `emptyDir`, by its name.
    Volume(String),
    /// The key `directory`: a directory of the host, which the administrator alone may name.
    Directory(String),
    /// The key `resourceName`, or the annotation of a network attachment definition that stands for it: that of a port which kubelet
    /// has allocated to the pod.
    Resource(String),
    /// The key `deviceID`, by which a meta plugin or the runtime passes what kubelet has allocated: that of the port with this name.
    Port(String),
    /// That of userspace-cni: the pod's volume `shared-dir`, else a directory of the container's own.
    SharedDir(SharedDir),
}

impl Place {
    /// Whether kubelet allocates the port.
    pub fn is_kubelets(&self) -> bool {
        matches!(self, Place::Resource(_) | Place::Port(_))
    }
}

impl Mode {
    /// The mode as a configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Client => "client",
            Mode::Server => "server",
        }
    }
}

impl VhostUser {
    /// Reads the type's fields. Code 6 for a wrong type, 7 for a wrong value.
    pub fn parse(conf: &NetConf) -> Result<VhostUser, CniError> {
        if conf.plugin_type == USERSPACE {
            return userspace::parse(conf);
        }
        let fields = conf.fields()?;
        let switch = switch(conf)?;
        let place = place(conf)?;
        let mode = mode(conf, &place, &switch)?;
        let spoofchk = match fields.text("spoofchk")?.as_deref() {
            None | Some("on") => switch == Switch::Fairlead,
            Some("off") => false,
            Some(other) => return Err(fields.invalid("spoofchk", &shown(other), "on or off")),
        };
        let network = fields.text("network")?.unwrap_or_else(|| conf.name.clone());
        must_be_network(&fields, "network", &network)?;
        let vlan = fields.within("vlan", 0, MAX_VLAN)?.filter(|vlan| *vlan != 0);
        let trunk = trunk(conf)?;
        if let (Some(vlan), false) = (vlan, trunk.is_empty()) {
            return Err(fields.invalid("trunk", "given", &format!("none beside \"vlan\", which is {vlan}")));
        }
        let mtu = fields.within("mtu", 0, MTU.1)?.filter(|mtu| *mtu != 0);
        if let Some(small) = mtu.filter(|mtu| *mtu < MTU.0) {
            return Err(fields.invalid("mtu", &small.to_string(), &format!("at least {}", MTU.0)));
        }
        let rate = |key: &str| Ok::<_, CniError>(fields.within(key, 0, u32::MAX)?.filter(|rate| *rate != 0));
        Ok(VhostUser {
            switch,
            network,
            master: master(conf)?,
            mode,
            vlan: vlan.map(narrow),
            trunk,
            spoofchk,
            isolated: fields.flag("isolated")?,
            queues: fields.within("queues", 1, MOST_QUEUES)?.map_or(1, narrow),
            mtu: mtu.map(narrow),
            max_tx_rate: rate("max_tx_rate")?,
            max_rx_rate: rate("max_rx_rate")?,
            mac: fields.text("mac")?,
            mount_path: mount_path(conf, &place)?,
            place,
            container_side: None,
        })
    }

    /// The MAC address that is asked for, as written: `runtimeConfig.mac`, else `CNI_ARGS` `MAC`, else `mac`.
    pub fn mac<'a>(&'a self, conf: &'a NetConf, args: &'a Args) -> Option<&'a str> {
        let asked = conf.runtime.mac.as_deref().or_else(|| args.mac()).or(self.mac.as_deref());
        asked.filter(|mac| !mac.is_empty())
    }
}

fn switch(conf: &NetConf) -> Result<Switch, CniError> {
    let fields = conf.fields()?;
    let bridge = fields.text("bridge")?;
    match fields.text("switch")?.as_deref() {
        None | Some("fairlead") => match bridge {
            Some(bridge) => {
                Err(fields.invalid("bridge", &shown(&bridge), "absent unless \"switch\" is ovs-dpdk"))
            }
            None => Ok(Switch::Fairlead),
        },
        Some("ovs-dpdk") => {
            let mut of_port = OvsBridge::usual();
            if let Some(bridge) = bridge {
                must_be_bridge(&fields, "bridge", &bridge)?;
                of_port.name = bridge;
            }
            must_suit_ovs(conf)?;
            Ok(Switch::OvsDpdk(of_port))
        }
        Some(other) => Err(fields.invalid("switch", &shown(other), "fairlead or ovs-dpdk")),
    }
}

pub(super) fn must_be_network(fields: &Fields<'_>, key: &str, network: &str) -> Result<(), CniError> {
    // The namespace of a tenant stands before a slash.
    if network.len() <= MAX_NETWORK && !network.contains(|c: char| c.is_control() || c == '/') {
        return Ok(());
    }
    let expected = format!("at most {MAX_NETWORK} bytes without control characters and \"/\"");
    Err(fields.invalid(key, &shown(network), &expected))
}

pub(super) fn must_be_bridge(fields: &Fields<'_>, key: &str, bridge: &str) -> Result<(), CniError> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if (1..=MAX_BRIDGE).contains(&bridge.len()) && bridge.bytes().all(plain) {
        return Ok(());
    }
    let expected = format!("the name of a bridge of OVS (1 to {MAX_BRIDGE} bytes)");
    Err(fields.invalid(key, &shown(bridge), &expected))
}

/// Refuses what OVS does not do for a port: a promise that nobody keeps is worse than none.
fn must_suit_ovs(conf: &NetConf) -> Result<(), CniError> {
    let fields = conf.fields()?;
    let refused = |key: &str, value: &str, why: &str| {
        Err(fields.invalid(key, value, &format!("absent with \"switch\" ovs-dpdk: {why}")))
    };
    if master(conf)?.is_some() {
        return refused("master", "given", "the bridge's own ports lead to the wire");
    }
    if let Some(network) = fields.text("network")? {
        return refused("network", &shown(&network), "ports of one bridge and VLAN reach each other");
    }
    if fields.text("spoofchk")?.as_deref() == Some("on") {
        return refused("spoofchk", "\"on\"", "it looks at no source address");
    }
    if fields.flag("isolated")? {
        return refused("isolated", "true", "give the port a \"vlan\" of its own");
    }
    if let Some(queues) = fields.within("queues", 0, u32::MAX)? {
        return refused("queues", &queues.to_string(), "it serves as many as the application has");
    }
    if let Some(rate) = fields.within("max_rx_rate", 0, u32::MAX)?.filter(|rate| *rate != 0) {
        return refused("max_rx_rate", &rate.to_string(), "only \"max_tx_rate\" is limited");
    }
    fields.within("max_tx_rate", 0, MAX_POLICED).map(drop)
}

fn mode(conf: &NetConf, place: &Place, switch: &Switch) -> Result<Mode, CniError> {
    let fields = conf.fields()?;
    let said = fields.text("mode")?;
    if let (Some(mode), true) = (&said, place.is_kubelets()) {
        let expected = "absent where kubelet allocates the port: its pool has a mode";
        return Err(fields.invalid("mode", &shown(mode), expected));
    }
    match (said.as_deref(), switch) {
        (None, Switch::OvsDpdk(_)) | (Some("server"), _) => Ok(Mode::Server),
        (Some("client"), Switch::OvsDpdk(_)) => {
            let expected =
                "server with \"switch\" ovs-dpdk: the application makes the socket, and OVS connects";
            Err(fields.invalid("mode", "\"client\"", expected))
        }
        (None | Some("client"), Switch::Fairlead) => Ok(Mode::Client),
        (Some(other), _) => Err(fields.invalid("mode", &shown(other), "client or server")),
    }
}

/// Whoever calls has made sure that the value fits.
fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn master(conf: &NetConf) -> Result<Option<String>, CniError> {
    let fields = conf.fields()?;
    let mut masters = masters(&fields)?;
    match masters.len() {
        0 | 1 => Ok(masters.pop()),
        n => Err(fields.invalid(
            "master",
            &format!("{n} names"),
            "one interface, by which all ports of the network reach the wire",
        )),
    }
}

fn trunk(conf: &NetConf) -> Result<Vec<u16>, CniError> {
    let mut vlans = conf.fields()?.each("trunk", |item| {
        let id = item.number()?;
        u16::try_from(id).ok().filter(|id| (1..=MAX_VLAN).contains(&u32::from(*id))).ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                format!("\"trunk\" has {id}, expected VLAN ids from 1 to 4094"),
            )
        })
    })?;
    vlans.sort_unstable();
    vlans.dedup();
    Ok(vlans)
}

fn place(conf: &NetConf) -> Result<Place, CniError> {
    let fields = conf.fields()?;
    let (volume, directory) = (fields.text("volume")?, fields.text("directory")?);
    if let Some(place) = kubelets_place(conf)? {
        for (key, value) in [("volume", volume), ("directory", directory)] {
            if let Some(value) = value {
                let expected = "absent where kubelet allocates the port, which has a directory of its own";
                return Err(fields.invalid(key, &shown(&value), expected));
            }
        }
        return Ok(place);
    }
    match (volume, directory) {
        (Some(volume), Some(_)) => {
            Err(fields.invalid("volume", &shown(&volume), "absent where \"directory\" is given"))
        }
        (None, Some(directory)) => match directory.starts_with('/')
            && !directory.split('/').any(|p| p == "..")
        {
            true => Ok(Place::Directory(directory)),
            false => Err(fields.invalid("directory", &shown(&directory), "an absolute path without \"..\"")),
        },
        (volume, None) => {
            let volume = volume.unwrap_or_else(|| VOLUME.to_owned());
            match is_label(&volume) {
                true => Ok(Place::Volume(volume)),
                false => {
                    let expected = "the name of an emptyDir volume of the pod (lower case, digits and -)";
                    Err(fields.invalid("volume", &shown(&volume), expected))
                }
            }
        }
    }
}

/// The place of a port that kubelet allocates: `runtimeConfig.deviceID`, else `deviceID`, else one of `resourceName`.
fn kubelets_place(conf: &NetConf) -> Result<Option<Place>, CniError> {
    let fields = conf.fields()?;
    let port = conf.runtime.device_id.clone().or(fields.text("deviceID")?);
    let resource = fields.text("resourceName")?.or(fields.text(RESOURCE_NAME)?);
    // A PCI address is the VF of another path of the same interface; no port has a name with a colon.
    let port = port.filter(|id| !id.is_empty() && !id.contains(':'));
    let resource = resource.filter(|resource| !resource.is_empty());
    Ok(port.map(Place::Port).or(resource.map(Place::Resource)))
}

/// The names that Kubernetes allows a volume (RFC 1123 label).
fn is_label(name: &str) -> bool {
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=63).contains(&name.len())
        && name.as_bytes().iter().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn mount_path(conf: &NetConf, place: &Place) -> Result<Option<String>, CniError> {
    let fields = conf.fields()?;
    let path = fields.text("mountPath")?;
    match path.as_deref() {
        Some(path) if place.is_kubelets() => {
            let expected = "absent where kubelet allocates the port, and says where its directory is";
            Err(fields.invalid("mountPath", &shown(path), expected))
        }
        Some(relative) if !relative.starts_with('/') => {
            Err(fields.invalid("mountPath", &shown(relative), "an absolute path of the pod's"))
        }
        _ => Ok(path),
    }
}
