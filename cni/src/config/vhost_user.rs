//! Type `vhost-user`: a socket by which a process of the pod, DPDK's as a rule, reaches a switch in user space.

use super::NetConf;
use crate::args::Args;
use crate::error::{CniError, Code};
use crate::names::shown;

/// The largest VLAN id.
const MAX_VLAN: u32 = 4094;
/// Pairs of queues that a port may have.
const MOST_QUEUES: u32 = 8;
/// The MTUs that a port may have, in bytes: that of the smallest IPv4 packet, and a jumbo frame's.
const MTU: (u32, u32) = (68, 9216);
/// The MTU of Ethernet, in bytes.
const ETHERNET_MTU: u16 = 1500;
/// The volume of the pod in which its socket is, where the configuration names none.
const VOLUME: &str = "vhost-user";
/// The most bytes of a network's name with its tenant's namespace before it.
const MAX_NETWORK: usize = 128;

/// A configuration of type `vhost-user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUser {
    /// The key `switch`.
    pub switch: Switch,
    /// The key `network`: ports of one network reach each other. Absent: the configuration's name.
    pub network: String,
    /// The key `mode`.
    pub mode: Mode,
    /// The key `vlan`, from 1 to 4094: frames of the pod carry no tag, and are of this VLAN.
    pub vlan: Option<u16>,
    /// The key `trunk`: frames of the pod carry the tags of these VLANs.
    pub trunk: Vec<u16>,
    /// The key `spoofchk`, on unless it is `off`: frames with another source address are dropped.
    pub spoofchk: bool,
    /// The key `isolated`: the port does not reach other isolated ports.
    pub isolated: bool,
    /// The key `queues`: pairs of queues, from 1 to 8.
    pub queues: u16,
    /// The key `mtu` in bytes, from 68 to 9216; 1500 where it is absent or 0.
    pub mtu: u16,
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
}

/// The switches that serve ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Our own, `fairlead`.
    Fairlead,
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
        let fields = conf.fields()?;
        let switch = match fields.text("switch")?.as_deref() {
            None | Some("fairlead") => Switch::Fairlead,
            Some(other) => return Err(fields.invalid("switch", &shown(other), "fairlead")),
        };
        let mode = match fields.text("mode")?.as_deref() {
            None | Some("client") => Mode::Client,
            Some("server") => Mode::Server,
            Some(other) => return Err(fields.invalid("mode", &shown(other), "client or server")),
        };
        let spoofchk = match fields.text("spoofchk")?.as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(fields.invalid("spoofchk", &shown(other), "on or off")),
        };
        let network = fields.text("network")?.unwrap_or_else(|| conf.name.clone());
        // The namespace of a tenant stands before a slash.
        if network.len() > MAX_NETWORK || network.contains(|c: char| c.is_control() || c == '/') {
            let expected = format!("at most {MAX_NETWORK} bytes without control characters and \"/\"");
            return Err(fields.invalid("network", &shown(&network), &expected));
        }
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
            mode,
            vlan: vlan.map(narrow),
            trunk,
            spoofchk,
            isolated: fields.flag("isolated")?,
            queues: fields.within("queues", 1, MOST_QUEUES)?.map_or(1, narrow),
            mtu: mtu.map_or(ETHERNET_MTU, narrow),
            max_tx_rate: rate("max_tx_rate")?,
            max_rx_rate: rate("max_rx_rate")?,
            mac: fields.text("mac")?,
            place: place(conf)?,
            mount_path: mount_path(conf)?,
        })
    }

    /// The MAC address that is asked for, as written: `runtimeConfig.mac`, else `CNI_ARGS` `MAC`, else `mac`.
    pub fn mac<'a>(&'a self, conf: &'a NetConf, args: &'a Args) -> Option<&'a str> {
        let asked = conf.runtime.mac.as_deref().or_else(|| args.mac()).or(self.mac.as_deref());
        asked.filter(|mac| !mac.is_empty())
    }
}

/// Whoever calls has made sure that the value fits.
fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
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

/// The names that Kubernetes allows a volume (RFC 1123 label).
fn is_label(name: &str) -> bool {
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=63).contains(&name.len())
        && name.as_bytes().iter().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn mount_path(conf: &NetConf) -> Result<Option<String>, CniError> {
    let fields = conf.fields()?;
    let path = fields.text("mountPath")?;
    match path.as_deref() {
        Some(relative) if !relative.starts_with('/') => {
            Err(fields.invalid("mountPath", &shown(relative), "an absolute path of the pod's"))
        }
        _ => Ok(path),
    }
}
