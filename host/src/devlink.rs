//! Network cards as devlink describes them: the mode of a card's switch, and what each of the switch's ports is.
//!
//! Of a port only what sysfs cannot be trusted for is here: a driver chooses the names of its interfaces' ports in sysfs, and
//! some show none, or a switch that is not in use.

/// A device that devlink knows, as far as it has ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevlinkDevice {
    /// The name of its bus, which is `pci` for a card.
    pub bus: String,
    /// Its address on that bus.
    pub name: String,
    /// Whether its switch is in switchdev mode; `None` where it has no switch, or its driver does not say.
    pub switchdev: Option<bool>,
    /// The ports of its switch, or its own.
    pub ports: Vec<DevlinkPort>,
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevlinkPort {
    /// What is behind it.
    pub end: DevlinkEnd,
    /// The name of its interface, while that is in the daemon's own network namespace.
    pub link: Option<String>,
}

/// What is behind a port (`DEVLINK_ATTR_PORT_FLAVOUR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevlinkEnd {
    /// The wire: the port that a cable is in.
    Wire,
    /// A VF of the device.
    VfDevice(u16),
    /// Something else: a PF, a subfunction, a VF of another host that the card is in, too.
    Other,
}
