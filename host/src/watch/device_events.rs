//! News of what is on the PCI bus: devices, who drives them, their interfaces and those interfaces' carriers.
//!
//! What is on no bus (bridges, veths, tunnels) wakes nobody: a filter in the kernel drops it before.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::str;

use super::news_socket::{Heard, Listener};
use super::{Event, RTNLGRP_LINK, events};
use crate::real::{netlink_news, no_virtual_devices, only_with_a_device, uevents};

/// What happened to a device or an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is there. An interface also is when it comes into the namespace.
    Added,
    /// It is gone. An interface also is when it is moved to another namespace.
    Removed,
    /// A driver has it.
    Bound,
    /// No driver has it.
    Unbound,
    /// It has another name.
    Renamed,
    /// Something of it is otherwise: the number of VFs.
    Changed,
}

/// One piece of news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Of a device on the PCI bus.
    Pci {
        /// Its PCI address.
        device: String,
        /// What happened to it.
        action: Action,
    },
    /// Of a network interface of such a device, in the namespace that is listened to.
    Interface {
        /// The device's address.
        device: String,
        /// The interface's name now.
        name: String,
        /// What happened to it.
        action: Action,
    },
    /// An interface has a carrier now, or has none any more. Kernels before 5.14 do not say of which device.
    Carrier {
        /// Its device, by its name on its bus.
        device: String,
        /// Whether it has one.
        carrier: bool,
    },
    /// News were lost: the state itself has to be read.
    Overflow,
}

/// The stream of news of devices.
#[derive(Debug)]
pub struct DeviceEvents {
    devices: Listener,
    links: Listener,
    /// The carrier that was reported last, by the interface's index.
    carriers: BTreeMap<u32, bool>,
    waiting: VecDeque<DeviceEvent>,
}

impl DeviceEvents {
    /// Begins to listen, to interfaces in the calling thread's namespace. Needs a tokio runtime with I/O.
    pub fn open() -> io::Result<DeviceEvents> {
        let devices = uevents()?;
        no_virtual_devices(&devices)?;
        let links = netlink_news(&[RTNLGRP_LINK])?;
        only_with_a_device(&links)?;
        Ok(DeviceEvents {
            devices: Listener::new(devices)?,
            links: Listener::new(links)?,
            carriers: BTreeMap::new(),
            waiting: VecDeque::new(),
        })
    }

    /// The next piece of news. Nothing is lost when this is dropped before it is ready.
    pub async fn next(&mut self) -> DeviceEvent {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return event;
            }
            let links = tokio::select! {
                heard = self.devices.next() => {
                    self.waiting.extend(match heard {
                        Heard::Datagram(datagram) => device_event(datagram),
                        Heard::Loss => Some(DeviceEvent::Overflow),
                    });
                    continue;
                }
                heard = self.links.next() => events(heard),
            };
            let news = links.into_iter().filter_map(|event| carrier_event(&mut self.carriers, event));
            self.waiting.extend(news);
        }
    }
}

fn carrier_event(carriers: &mut BTreeMap<u32, bool>, event: Event) -> Option<DeviceEvent> {
    match event {
        Event::LinkNew(link) => {
            let carrier = link.carrier;
            let news = carriers.insert(link.index, carrier) != Some(carrier);
            Some(DeviceEvent::Carrier { device: link.device?, carrier }).filter(|_| news)
        }
        Event::LinkGone(index) => {
            carriers.remove(&index);
            None
        }
        Event::Overflow => Some(DeviceEvent::Overflow),
        Event::NsidGone(_) | Event::NsidNew(_) => None,
    }
}

/// The event in a message of `lib/kobject_uevent.c`: `add@<path>` and then `KEY=value`, each closed by a zero byte.
fn device_event(datagram: &[u8]) -> Option<DeviceEvent> {
    let mut parts = datagram.split(|byte| *byte == 0).map(str::from_utf8);
    let (action, path) = parts.next()?.ok()?.split_once('@')?;
    let action = match action {
        "add" => Action::Added,
        "remove" => Action::Removed,
        "bind" => Action::Bound,
        "unbind" => Action::Unbound,
        "move" => Action::Renamed,
        "change" => Action::Changed,
        _ => return None,
    };
    let subsystem = parts.find_map(|part| part.ok()?.strip_prefix("SUBSYSTEM="))?;
    let (above, last) = path.rsplit_once('/')?;
    match subsystem {
        "pci" => Some(DeviceEvent::Pci { device: last.to_owned(), action }),
        // `…/0000:21:00.0/0000:21:10.0/net/eth5`; with virtio there is one more between.
        "net" => {
            let device = above.rsplit('/').find(|part| is_pci_address(part))?.to_owned();
            Some(DeviceEvent::Interface { device, name: last.to_owned(), action })
        }
        _ => None,
    }
}

/// By its form: `0000:21:10.0`, unlike the bus above it, `pci0000:20`.
fn is_pci_address(text: &str) -> bool {
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    text.rsplit_once('.').is_some_and(|(rest, vf)| {
        vf.len() == 1 && rest.matches(':').count() == 2 && digits(rest) && digits(vf)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(header: &str, subsystem: &str) -> Option<DeviceEvent> {
        let text = format!("{header}\0ACTION=x\0DEVPATH=x\0SUBSYSTEM={subsystem}\0SEQNUM=7\0");
        device_event(text.as_bytes())
    }

    const VF: &str = "/devices/pci0000:20/0000:20:02.0/0000:21:10.0";

    #[test]
    fn devices_drivers_and_interfaces_are_told_and_everything_else_is_not() {
        let pci = |action| Some(DeviceEvent::Pci { device: "0000:21:10.0".to_owned(), action });
        for (verb, action) in [
            ("add", Action::Added),
            ("remove", Action::Removed),
            ("bind", Action::Bound),
            ("unbind", Action::Unbound),
            ("change", Action::Changed),
        ] {
            assert_eq!(read(&format!("{verb}@{VF}"), "pci"), pci(action));
        }
        assert_eq!(read(&format!("online@{VF}"), "pci"), None);
        assert_eq!(read(&format!("add@{VF}/net/eth5/queues/rx-0"), "queues"), None);
        assert_eq!(read("add@/devices/virtual/net/veth0", "net"), None);
        assert_eq!(read("libudev", "pci"), None);
    }

    #[test]
    fn an_interface_is_told_with_the_pci_device_that_it_belongs_to() {
        let of = |device: &str, name: &str| {
            let action = Action::Renamed;
            Some(DeviceEvent::Interface { device: device.to_owned(), name: name.to_owned(), action })
        };
        assert_eq!(read(&format!("move@{VF}/net/net1"), "net"), of("0000:21:10.0", "net1"));
        let virtio = "move@/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0";
        assert_eq!(read(virtio, "net"), of("0000:00:03.0", "eth0"));
        let behind_vmd = "move@/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e1:00.0/net/eth1";
        assert_eq!(read(behind_vmd, "net"), of("10000:e1:00.0", "eth1"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), path in "(/[a-z0-9:.]{0,9}){0,4}") {
            let _ = device_event(&bytes);
            let _ = read(&format!("add@{path}"), "net");
            let _ = read(&format!("add@{path}"), "pci");
        }
    }
}
