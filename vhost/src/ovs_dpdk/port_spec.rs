//! What a port of OVS is to be, and which of that OVS can take.
//!
//! A spec that exists is not yet a good one: [`PortSpec::check`] is called before anything is asked of OVS.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use fairlead_host::Mac;
use serde::{Deserialize, Serialize};

/// The longest path of a Unix socket in bytes: `sun_path` has 108, and the last is the end (unix(7)).
pub const LONGEST_SOCKET_PATH: usize = 107;

/// The longest name of a port in bytes: OpenFlow 1.x has 16, and the last is the end.
pub const LONGEST_PORT_NAME: usize = 15;

/// Why OVS cannot be asked for a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name of the port is none.
    #[error(
        "{name:?} is no name of an OVS port: 1 to 15 letters, digits, '-', '_' or '.', the first of them a letter"
    )]
    Name {
        /// The text that was given.
        name: String,
    },
    /// The name of the bridge is none.
    #[error("port {port}: {bridge:?} is no name of an OVS bridge")]
    Bridge {
        /// The port.
        port: PortName,
        /// The text that was given.
        bridge: String,
    },
    /// The path of the socket does not fit.
    #[error(
        "the socket path {} of port {port} has {} bytes, a Unix socket's has at most {LONGEST_SOCKET_PATH}: use a shorter directory",
        .path.display(),
        .path.as_os_str().len()
    )]
    SocketPathTooLong {
        /// The port.
        port: PortName,
        /// The path.
        path: PathBuf,
    },
    /// The path of the socket cannot be told to OVS.
    #[error(
        "the socket path {path:?} of port {port} is not absolute, or is no UTF-8 text: OVS cannot be told of it"
    )]
    SocketPath {
        /// The port.
        port: PortName,
        /// The path.
        path: PathBuf,
    },
    /// A number of a VLAN is none.
    #[error("port {port}: {vlan} is no VLAN (1 to 4094)")]
    Vlan {
        /// The port.
        port: PortName,
        /// The number.
        vlan: u16,
    },
    /// A trunk without VLANs: OVS would take it for one of all VLANs.
    #[error("port {port}: a trunk needs at least one VLAN")]
    EmptyTrunk {
        /// The port.
        port: PortName,
    },
    /// An MTU that OVS or Ethernet does not have.
    #[error("port {port}: {mtu} bytes are no MTU (68 to 9216)")]
    Mtu {
        /// The port.
        port: PortName,
        /// The MTU in bytes.
        mtu: u16,
    },
    /// A rate that OVS takes for no limit, or does not take.
    #[error("port {port}: a rate limit is 1 to 4294967295 kbit/s, with a burst of at most as many kbit")]
    Rate {
        /// The port.
        port: PortName,
    },
    /// A word about the owner that OVS does not keep.
    #[error("port {port}: the owner's {field} is empty")]
    Owner {
        /// The port.
        port: PortName,
        /// Which word it is.
        field: &'static str,
    },
}

/// The name of a port: unique among all ports of an OVS, 1 to 15 letters, digits, `-`, `_` or `.`, the first a letter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortName(String);

impl PortName {
    /// Takes a name as it is.
    ///
    /// # Errors
    /// [`SpecError::Name`].
    pub fn new(name: &str) -> Result<PortName, SpecError> {
        let good = (1..=LONGEST_PORT_NAME).contains(&name.len())
            && name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if good { Ok(PortName(name.to_owned())) } else { Err(SpecError::Name { name: name.to_owned() }) }
    }

    /// The name of a container's interface, the same each time: `vhu` and 60 bits of a hash (FNV-1a) as twelve digits of base 32.
    /// Two attachments of a node share a name once in 10¹² nodes of 1000 ports; OVS then refuses the second.
    pub fn of_attachment(container: &str, interface: &str) -> PortName {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in container.bytes().chain([0]).chain(interface.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let digits = (0..12).map(|at| {
            let digit = usize::try_from((hash >> (5 * at)) & 31).unwrap_or_default();
            char::from(b"abcdefghijklmnopqrstuvwxyz234567"[digit])
        });
        PortName("vhu".chars().chain(digits).collect())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for PortName {
    type Error = SpecError;

    fn try_from(name: String) -> Result<PortName, SpecError> {
        PortName::new(&name)
    }
}

impl From<PortName> for String {
    fn from(name: PortName) -> String {
        name.0
    }
}

/// Who creates the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VhostSocket {
    /// The application in the pod creates it at this path and listens; OVS connects, and again after each end
    /// (`dpdkvhostuserclient`).
    PodListens(PathBuf),
    /// OVS creates it as its own directory of sockets joined with the port's name, and listens (`dpdkvhostuser`). OVS calls that
    /// kind deprecated: after a restart of OVS the application must connect again by itself.
    OvsListens,
}

/// Which VLANs the frames of a port may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vlans {
    /// The pod's frames carry no tag, inside and outside; frames with one are dropped.
    #[default]
    Untagged,
    /// The pod's frames carry no tag, and are in this VLAN outside (1 to 4094).
    Access(u16),
    /// The pod's frames carry their tags: one of these VLANs.
    Trunk {
        /// The VLANs (1 to 4094), at least one.
        allowed: BTreeSet<u16>,
        /// The VLAN (1 to 4094) of frames without a tag; absent: they are dropped.
        native: Option<u16>,
    },
    /// Every VLAN, and no tag: what OVS does where nothing is said. The pod may send into each VLAN of the bridge.
    Every,
}

/// How much a pod may send: what is above it is dropped by OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policing {
    /// In kbit/s, at least 1.
    pub rate_kbps: u32,
    /// In kbit; 0: OVS's own choice.
    pub burst_kb: u32,
}

/// Whose port it is. Kept by OVS with the port, so that a person who looks there knows too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortOwner {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's (sandbox's) id.
    pub container: String,
    /// The interface's name inside the pod.
    pub ifname: String,
}

/// What a port of OVS is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSpec {
    /// Unique among all ports of that OVS.
    pub name: PortName,
    /// The bridge, whose datapath type is `netdev`.
    pub bridge: String,
    /// The bridge is made with the port where OVS has none of that name; it stays. Otherwise it must be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub makes_bridge: bool,
    /// Who creates the socket, and where.
    pub socket: VhostSocket,
    /// Which VLANs its frames may have.
    #[serde(default)]
    pub vlans: Vlans,
    /// How much the pod may send; absent: no limit.
    #[serde(default)]
    pub policing: Option<Policing>,
    /// The largest payload of a frame in bytes (68 to 9216); absent: OVS's own, 1500.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// The address that the pod was told to use; kept as `attached-mac`, as OVS's manual has it. OVS does not check it.
    #[serde(default)]
    pub mac: Option<Mac>,
    /// Whose it is.
    pub owner: PortOwner,
}

impl PortSpec {
    /// Says whether OVS can be asked for this port.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn check(&self) -> Result<(), SpecError> {
        let port = || self.name.clone();
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if self.bridge.is_empty() || self.bridge.len() > 64 || !self.bridge.bytes().all(plain) {
            return Err(SpecError::Bridge { port: port(), bridge: self.bridge.clone() });
        }
        if let VhostSocket::PodListens(path) = &self.socket {
            self.check_socket(path)?;
        }
        self.check_vlans()?;
        if let Some(mtu) = self.mtu.filter(|mtu| !(68..=9216).contains(mtu)) {
            return Err(SpecError::Mtu { port: port(), mtu });
        }
        if self.policing.is_some_and(|policing| policing.rate_kbps == 0) {
            return Err(SpecError::Rate { port: port() });
        }
        let PortOwner { container, ifname, .. } = &self.owner;
        match [("container", container), ("ifname", ifname)].iter().find(|(_, word)| word.is_empty()) {
            Some((field, _)) => Err(SpecError::Owner { port: port(), field }),
            None => Ok(()),
        }
    }

    fn check_socket(&self, path: &Path) -> Result<(), SpecError> {
        let (port, path) = (self.name.clone(), path.to_owned());
        if path.as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(SpecError::SocketPathTooLong { port, path });
        }
        if !path.is_absolute() || path.to_str().is_none_or(|text| text.contains('\0')) {
            return Err(SpecError::SocketPath { port, path });
        }
        Ok(())
    }

    fn check_vlans(&self) -> Result<(), SpecError> {
        let port = || self.name.clone();
        let mut numbers: Vec<u16> = Vec::new();
        match &self.vlans {
            Vlans::Untagged | Vlans::Every => {}
            Vlans::Access(vlan) => numbers.push(*vlan),
            Vlans::Trunk { allowed, .. } if allowed.is_empty() => {
                return Err(SpecError::EmptyTrunk { port: port() });
            }
            Vlans::Trunk { allowed, native } => numbers.extend(allowed.iter().chain(native)),
        }
        match numbers.into_iter().find(|vlan| !(1..=4094).contains(vlan)) {
            Some(vlan) => Err(SpecError::Vlan { port: port(), vlan }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "port_spec_tests.rs"]
mod tests;
