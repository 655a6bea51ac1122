//! The interfaces of a PF: its own one, and in switchdev mode the representors that stand for its VFs (the kernel's
//! `Documentation/networking/representors.rst`).
//!
//! What an interface is, devlink says; the name of its port in sysfs (`switchdev.rst`) does where devlink does not know it. There
//! is more that sysfs does not say: ice shows a switch in legacy mode too, a switch without representors looks like none, and
//! kernels before 5.9 hang representors on no device. A port of another host that the card is in too (the VFs that a
//! SmartNIC's own processors see), and one of a subfunction, stand for none of the VFs here.

use std::path::Path;

use fairlead_host::{DevlinkDevice, DevlinkEnd};

use super::sysfs::{names, number, text};
use super::{Interface, InventoryError, LinkType};

/// The kernel's numbers of link types: `ARPHRD_ETHER`, and `ARPHRD_INFINIBAND` below.
const ETHER: u32 = 1;
const INFINIBAND: u32 = 32;

/// The interfaces of a PF that are at home, in order, and what devlink reports of it.
pub(super) struct Ports<'d> {
    interfaces: Vec<PortInterface>,
    devlink: Option<&'d DevlinkDevice>,
}

struct PortInterface {
    name: String,
    switch: Option<String>,
    port: Port,
}

/// What an interface of a PF is.
#[derive(Debug, PartialEq, Eq)]
enum Port {
    /// The way out of the card.
    Uplink,
    /// The representor of the VF of this number.
    Vf(u32),
    /// The representor of something else: the PF of a SmartNIC's host, a subfunction.
    Other,
    /// No switch has made it.
    None,
}

impl Port {
    fn by_devlink(end: DevlinkEnd) -> Port {
        match end {
            DevlinkEnd::Wire => Port::Uplink,
            DevlinkEnd::Vf(number) => Port::Vf(number.into()),
            DevlinkEnd::Other => Port::Other,
        }
    }

    /// By its `phys_port_name`.
    fn of(name: Option<&str>, in_switch: bool) -> Port {
        let Some(name) = name else { return Port::None };
        // `p0`, and `p0s1` for a port that was split. `pf0vf3` is no uplink: no digit follows its first letter.
        let uplink =
            name.strip_prefix('p').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        match name.strip_prefix("pf").and_then(|rest| rest.split_once("vf")) {
            _ if uplink => Port::Uplink,
            // Without a switch there are no representors, whatever name the driver has for a port.
            _ if !in_switch => Port::None,
            // `pf0vf3`; ice began with `pf0vfr3`. `c1pf0vf3` is of another host's card.
            Some((_, vf)) => vf.strip_prefix('r').unwrap_or(vf).parse().map_or(Port::Other, Port::Vf),
            None => Port::Other,
        }
    }
}

impl<'d> Ports<'d> {
    /// Those of the device in this directory.
    pub(super) fn read(
        device: &Path,
        devlink: Option<&'d DevlinkDevice>,
    ) -> Result<Ports<'d>, InventoryError> {
        let dir = device.join("net");
        let by_devlink = |name: &str| {
            let port = devlink?.ports.iter().find(|port| port.link.as_deref() == Some(name))?;
            Some(Port::by_devlink(port.end))
        };
        let interfaces = names(&dir)?.into_iter().map(|name| {
            let of = dir.join(&name);
            let switch = text(&of.join("phys_switch_id"))?;
            let port = match by_devlink(&name) {
                Some(by_devlink) => by_devlink,
                None => Port::of(text(&of.join("phys_port_name"))?.as_deref(), switch.is_some()),
            };
            Ok(PortInterface { name, switch, port })
        });
        Ok(Ports { interfaces: interfaces.collect::<Result<_, InventoryError>>()?, devlink })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.interfaces.iter().map(|interface| interface.name.clone()).collect()
    }

    fn own(&self) -> Option<&PortInterface> {
        let first = |port| self.interfaces.iter().find(|interface| interface.port == port);
        // A NIC without a switch need not name its port.
        first(Port::Uplink).or_else(|| first(Port::None))
    }

    /// The name of the PF's own interface.
    pub(super) fn own_name(&self) -> Option<&str> {
        self.own().map(|own| own.name.as_str())
    }

    /// The PF's own interface.
    pub(super) fn interface(&self, device: &Path) -> Result<Option<Interface>, InventoryError> {
        let Some(own) = self.own() else { return Ok(None) };
        let dir = device.join("net").join(&own.name);
        let carrier = text(&dir.join("carrier"))?.map(|text| text == "1");
        Ok(Some(Interface { name: own.name.clone(), link_type: link_type(&dir)?, carrier }))
    }

    /// Whether it is the way out of a switch, which has representors or may have.
    pub(super) fn has_a_switch(&self) -> bool {
        self.own().is_some_and(|own| own.switch.is_some())
    }

    /// Whether it is in switchdev mode. Where devlink does not say that, representors do.
    pub(super) fn switchdev(&self) -> bool {
        let stands = |interface: &PortInterface| {
            matches!(interface.port, Port::Vf(_)) && self.is_of_own_switch(interface)
        };
        let by_devlink = self.devlink.and_then(|devlink| devlink.switchdev);
        by_devlink.unwrap_or_else(|| self.interfaces.iter().any(stands))
    }

    /// The interface that stands for a VF.
    pub(super) fn representor(&self, index: u32) -> Option<String> {
        let mut ports = self.devlink.iter().flat_map(|devlink| &devlink.ports);
        let by_devlink = ports
            .find_map(|port| port.link.clone().filter(|_| Port::by_devlink(port.end) == Port::Vf(index)));
        let stands = |interface: &&PortInterface| {
            interface.port == Port::Vf(index) && self.is_of_own_switch(interface)
        };
        by_devlink.or_else(|| self.interfaces.iter().find(stands).map(|interface| interface.name.clone()))
    }

    fn is_of_own_switch(&self, interface: &PortInterface) -> bool {
        interface.switch.is_some() && self.own().is_some_and(|own| own.switch == interface.switch)
    }
}

/// The interface of the wire's port, by what is known of devlink, if the device in this directory still has it under that name.
pub(super) fn uplink_at_home<'d>(device: &Path, devlink: &'d DevlinkDevice) -> Option<&'d str> {
    let net = device.join("net");
    let of_wire = devlink.ports.iter().filter(|port| port.end == DevlinkEnd::Wire);
    of_wire.filter_map(|port| port.link.as_deref()).filter(|name| net.join(name).exists()).min()
}

/// What the interface in this directory speaks; `None` for what no VF speaks, too.
pub(super) fn link_type(interface: &Path) -> Result<Option<LinkType>, InventoryError> {
    Ok(match number(&interface.join("type"))? {
        Some(ETHER) => Some(LinkType::Ether),
        Some(INFINIBAND) => Some(LinkType::Infiniband),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_told_by_its_name() {
        let table = [
            (None, true, Port::None),
            (Some("p0"), true, Port::Uplink),
            (Some("p1"), false, Port::Uplink),
            (Some("pf0vf12"), true, Port::Vf(12)),
            (Some("pf1vfr3"), true, Port::Vf(3)),
            (Some("p0s1"), true, Port::Uplink),
            (Some("7"), true, Port::Other),
            (Some("7"), false, Port::None),
            (Some("pf0"), true, Port::Other),
            (Some("pf0sf3"), true, Port::Other),
            (Some("c1pf0vf3"), true, Port::Other),
            (Some("pf0vf"), true, Port::Other),
            (Some("pf0vf99999999999"), true, Port::Other),
        ];
        for (name, in_switch, port) in table {
            assert_eq!(Port::of(name, in_switch), port, "{name:?}");
        }
    }
}
