//! Devlink's messages (`include/uapi/linux/devlink.h` and `genetlink.h`), over generic netlink: the requests, and how their answers
//! are read.
//!
//! Only reads. The kernel answers while it holds each device's lock, which a driver that loads new firmware has for minutes: a
//! thread that cannot wait must not call this.

use libc::NLM_F_DUMP;

use super::attributes::{attributes, text, u16_at};
use super::decode::Body;
use super::generic::{GENERIC_HEADER, family, number_in, request};
use super::socket::{Failure, Socket};
use crate::devlink::{DevlinkDevice, DevlinkEnd, DevlinkPort};

const DEVLINK_CMD_PORT_GET: u8 = 5;
const DEVLINK_CMD_ESWITCH_GET: u8 = 29;
const DEVLINK_ATTR_BUS_NAME: u16 = 1;
const DEVLINK_ATTR_DEV_NAME: u16 = 2;
const DEVLINK_ATTR_PORT_NETDEV_NAME: u16 = 7;
/// The mode of a card's switch, a u16: 0 is legacy, 1 switchdev, and newer kernels have a switchdev that does not forward yet.
const DEVLINK_ATTR_ESWITCH_MODE: u16 = 25;
/// What is behind a port, a u16.
const DEVLINK_ATTR_PORT_FLAVOUR: u16 = 77;
/// The number of the VF behind a port, a u16.
const DEVLINK_ATTR_PORT_PCI_VF_NUMBER: u16 = 128;
/// Whether the port leads to another host, a u8; since kernel 5.11.
const DEVLINK_ATTR_PORT_EXTERNAL: u16 = 149;
const DEVLINK_PORT_FLAVOUR_PHYSICAL: u16 = 0;
const DEVLINK_PORT_FLAVOUR_PCI_VF: u16 = 4;

/// All devices that have ports; none where the kernel has no devlink.
pub(in crate::real) fn devices(socket: &mut Socket) -> Result<Vec<DevlinkDevice>, Failure> {
    let Some(family) = family(socket, "devlink")? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    socket.dump(|| request(family, DEVLINK_CMD_PORT_GET, NLM_F_DUMP), &mut |body| {
        if let Body::Generic(payload) = body {
            add_port(&mut found, &payload);
        }
    })?;
    // A VF is a device of its own, too, whose port leads to nothing that could be a switch's.
    for device in found.iter_mut().filter(|device| device.ports.iter().any(|p| p.end != DevlinkEnd::Other)) {
        device.switchdev = switchdev(socket, family, device)?;
    }
    Ok(found)
}

/// A refusal says that there is no switch, or no device any more.
fn switchdev(socket: &mut Socket, family: u16, device: &DevlinkDevice) -> Result<Option<bool>, Failure> {
    let mut message = request(family, DEVLINK_CMD_ESWITCH_GET, 0);
    message.text(DEVLINK_ATTR_BUS_NAME, &device.bus);
    message.text(DEVLINK_ATTR_DEV_NAME, &device.name);
    let mut mode = None;
    match socket.exchange(message, &mut |body| mode = number_in(&body, DEVLINK_ATTR_ESWITCH_MODE)) {
        Ok(()) => Ok(mode.map(|mode| mode != 0)),
        Err(Failure::Refused { .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// One message of the dump of ports; they come device by device. One that names no device is passed over.
fn add_port(devices: &mut Vec<DevlinkDevice>, payload: &[u8]) {
    let (mut bus, mut name, mut link) = (None, None, None);
    let (mut flavour, mut vf, mut external) = (None, None, false);
    for (kind, value) in attributes(payload.get(GENERIC_HEADER..).unwrap_or(&[])) {
        match kind {
            DEVLINK_ATTR_BUS_NAME => bus = Some(text(value)),
            DEVLINK_ATTR_DEV_NAME => name = Some(text(value)),
            DEVLINK_ATTR_PORT_NETDEV_NAME => link = Some(text(value)),
            DEVLINK_ATTR_PORT_FLAVOUR => flavour = u16_at(value, 0),
            DEVLINK_ATTR_PORT_PCI_VF_NUMBER => vf = u16_at(value, 0),
            DEVLINK_ATTR_PORT_EXTERNAL => external = value.first().is_some_and(|byte| *byte != 0),
            _ => {}
        }
    }
    let (Some(bus), Some(name)) = (bus, name) else { return };
    let end = match (flavour, vf) {
        (Some(DEVLINK_PORT_FLAVOUR_PHYSICAL), _) => DevlinkEnd::Wire,
        (Some(DEVLINK_PORT_FLAVOUR_PCI_VF), Some(number)) if !external => DevlinkEnd::Vf(number),
        _ => DevlinkEnd::Other,
    };
    let port = DevlinkPort { end, link };
    match devices.iter_mut().find(|device| device.bus == bus && device.name == name) {
        Some(device) => device.ports.push(port),
        None => devices.push(DevlinkDevice { bus, name, switchdev: None, ports: vec![port] }),
    }
}

#[cfg(test)]
mod tests {
    //! The messages were recorded from kernel 6.12 with netdevsim and its two VFs.

    use nix::errno::Errno;

    use super::super::decode::decode_generic;
    use super::super::generic::CTRL_ATTR_FAMILY_ID;
    use super::*;

    /// `CTRL_CMD_GETFAMILY`, up to the list of commands
    const FAMILY: &str = "\
        400000001000000007000000c9000000010200000c0002006465766c696e6b0006000100170000000800030001000000\
        08000400000000000800050000000000";
    /// The same of a family that there is not
    const NO_FAMILY: &str = "\
        340000000200000007000000c9000000feffffff20000000100001000700000000000000030100000c0002006e6f7468\
        696e6700";
    /// `DEVLINK_CMD_PORT_GET` in switchdev mode
    const WIRE: &str = "\
        700000001700020007000000ce000000070100000e0001006e657464657673696d000000100002006e65746465767369\
        6d3130000800030000000000060004000200000008000600050000000900070065746833000000000500940000000000\
        06004d000000000008004e0001000000";
    /// Its next message
    const FIRST: &str = "\
        880000001700020007000000ce000000070100000e0001006e657464657673696d000000100002006e65746465767369\
        6d3130000800030080000000060004000200000008000600060000000900070065746834000000000500940000000000\
        06004d0004000000080096000000000006007f000000000006008000000000000500950000000000";
    /// Its last one
    const SECOND: &str = "\
        880000001700020007000000ce000000070100000e0001006e657464657673696d000000100002006e65746465767369\
        6d3130000800030081000000060004000200000008000600070000000900070065746835000000000500940000000000\
        06004d0004000000080096000000000006007f000000000006008000010000000500950000000000";
    /// `DEVLINK_CMD_ESWITCH_GET` in legacy mode
    const LEGACY: &str = "\
        3c0000001700000007000000c90000001d0100000e0001006e657464657673696d000000100002006e65746465767369\
        6d3130000600190000000000";
    /// The same in switchdev mode
    const SWITCHDEV: &str = "\
        3c0000001700000007000000ce0000001d0100000e0001006e657464657673696d000000100002006e65746465767369\
        6d3130000600190001000000";
    /// The same of a device that devlink does not know
    const UNKNOWN: &str = "\
        440000000200000007000000c9000000edffffff300000001700010007000000000000001d0100000800010070636900\
        11000200303030303a32313a30302e3000000000";

    fn body(message: &str) -> Body {
        let digits: Vec<_> = message.as_bytes().chunks(2).collect();
        let bytes =
            digits.iter().map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap());
        let mut answers = decode_generic(&bytes.collect::<Vec<_>>()).unwrap();
        assert_eq!((answers.len(), answers[0].sequence), (1, 7));
        answers.remove(0).body
    }

    fn payload(message: &str) -> Vec<u8> {
        let Body::Generic(payload) = body(message) else { panic!("a message of generic netlink") };
        payload
    }

    fn ports_of(messages: &[Vec<u8>]) -> Vec<DevlinkDevice> {
        let mut devices = Vec::new();
        messages.iter().for_each(|payload| add_port(&mut devices, payload));
        devices
    }

    #[test]
    fn the_ports_of_a_switch_are_read_as_the_kernel_told_them() {
        let port = |end, link: &str| DevlinkPort { end, link: Some(link.to_owned()) };
        let device = DevlinkDevice {
            bus: "netdevsim".to_owned(),
            name: "netdevsim10".to_owned(),
            switchdev: None,
            ports: vec![
                port(DevlinkEnd::Wire, "eth3"),
                port(DevlinkEnd::Vf(0), "eth4"),
                port(DevlinkEnd::Vf(1), "eth5"),
            ],
        };
        assert_eq!(ports_of(&[WIRE, FIRST, SECOND].map(payload)), [device]);
    }

    #[test]
    fn another_hosts_vf_is_none_of_ours() {
        let mut external = payload(SECOND);
        let at = external.len() - 8;
        assert_eq!(external[at..at + 4], [5, 0, 149, 0], "the last attribute");
        external[at + 4] = 1;
        assert_eq!(ports_of(&[external])[0].ports[0].end, DevlinkEnd::Other);
    }

    #[test]
    fn the_number_of_the_family_and_the_mode_of_a_switch_are_read() {
        assert_eq!(number_in(&body(FAMILY), CTRL_ATTR_FAMILY_ID), Some(23));
        assert_eq!(number_in(&body(LEGACY), DEVLINK_ATTR_ESWITCH_MODE), Some(0));
        assert_eq!(number_in(&body(SWITCHDEV), DEVLINK_ATTR_ESWITCH_MODE), Some(1));
        assert_eq!(body(NO_FAMILY), Body::Refused { errno: Errno::ENOENT, extack: None });
        assert_eq!(body(UNKNOWN), Body::Refused { errno: Errno::ENODEV, extack: None });
    }

    #[test]
    fn a_message_cut_short_anywhere_is_no_port_of_another_device() {
        let whole = payload(SECOND);
        for length in 0..whole.len() {
            let read = ports_of(&[whole[..length].to_vec()]);
            assert!(read.iter().all(|device| device.name == "netdevsim10"), "{length}: {read:?}");
        }
    }
}
