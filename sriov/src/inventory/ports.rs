//! The interfaces of a physical function: its own one, and in switchdev mode those of the switch that stand for its virtual
//! functions (the kernel's `Documentation/networking/representors.rst`; their names are in `switchdev.rst`).
//!
//! Kernels before 5.9 hang representors on no device: there none is seen.

use std::path::Path;

use super::sysfs::{names, number, text};
use super::{Interface, InventoryError, LinkType};

/// `ARPHRD_ETHER`, `ARPHRD_INFINIBAND`
const ETHER: u32 = 1;
const INFINIBAND: u32 = 32;

/// The interfaces of a physical function that are at home, in order.
pub(super) struct Ports(Vec<Seat>);

struct Seat {
    name: String,
    switch: Option<String>,
    port: Port,
}

/// What an interface is by its `phys_port_name`.
#[derive(Debug, PartialEq, Eq)]
enum Port {
    /// The way out of the card.
    Uplink,
    /// The stand-in of the virtual function of this number.
    Function(u32),
    /// The stand-in of something else: the physical function of a SmartNIC's host, a subfunction.
    Other,
    /// No switch has made it.
    None,
}

impl Port {
    fn of(name: Option<&str>, in_switch: bool) -> Port {
        let Some(name) = name else { return Port::None };
        let uplink =
            name.strip_prefix('p').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        match name.strip_prefix("pf").and_then(|rest| rest.split_once("vf")) {
            _ if uplink => Port::Uplink,
            _ if !in_switch => Port::None,
            // `pf0vf3`; ice began with `pf0vfr3`. `c1pf0vf3` is of another host's card.
            Some((_, function)) => {
                function.strip_prefix('r').unwrap_or(function).parse().map_or(Port::Other, Port::Function)
            }
            None => Port::Other,
        }
    }
}

impl Ports {
    /// Those of the device in this directory.
    pub(super) fn read(device: &Path) -> Result<Ports, InventoryError> {
        let dir = device.join("net");
        let seats = names(&dir)?.into_iter().map(|name| {
            let of = dir.join(&name);
            let switch = text(&of.join("phys_switch_id"))?;
            let port = Port::of(text(&of.join("phys_port_name"))?.as_deref(), switch.is_some());
            Ok(Seat { name, switch, port })
        });
        Ok(Ports(seats.collect::<Result<_, InventoryError>>()?))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|seat| seat.name.clone()).collect()
    }

    fn own(&self) -> Option<&Seat> {
        let first = |port| self.0.iter().find(|seat| seat.port == port);
        first(Port::Uplink).or_else(|| first(Port::None))
    }

    /// The physical function's own interface.
    pub(super) fn interface(&self, device: &Path) -> Result<Option<Interface>, InventoryError> {
        let Some(own) = self.own() else { return Ok(None) };
        let dir = device.join("net").join(&own.name);
        let carrier = text(&dir.join("carrier"))?.map(|text| text == "1");
        Ok(Some(Interface { name: own.name.clone(), link_type: link_type(&dir)?, carrier }))
    }

    /// The switch that it is the way out of.
    pub(super) fn switch(&self) -> Option<String> {
        self.own()?.switch.clone()
    }

    /// The interface that stands for a virtual function.
    pub(super) fn representor(&self, index: u32) -> Option<String> {
        let switch = self.own()?.switch.as_ref()?;
        let stands =
            |seat: &&Seat| seat.port == Port::Function(index) && seat.switch.as_ref() == Some(switch);
        self.0.iter().find(stands).map(|seat| seat.name.clone())
    }
}

/// What the interface in this directory speaks; `None` for what no virtual function speaks, too.
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
            (Some("pf0vf12"), true, Port::Function(12)),
            (Some("pf1vfr3"), true, Port::Function(3)),
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
