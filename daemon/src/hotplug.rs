//! Tells when something on the PCI bus has changed: devices, drivers, interfaces, carriers.
//!
//! What comes close together is told once. Whoever is told looks for himself: lost news cost time, never truth. Never asks a
//! device anything.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use fairlead_host::watch::{DeviceEvent, DeviceEvents};
use fairlead_sriov::PciAddr;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

/// News within this time of the first are told with it.
const SETTLE: Duration = Duration::from_millis(50);
/// How often it is tried to listen, where that fails.
const PAUSE: Duration = Duration::from_secs(5);

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// These devices, or something of theirs. Functions are told beside the physical function that they belong to.
    Devices(BTreeSet<PciAddr>),
    /// News were lost.
    Anything,
}

impl Changed {
    fn and(self, event: DeviceEvent) -> Changed {
        let (DeviceEvent::Pci { device, .. }
        | DeviceEvent::Interface { device, .. }
        | DeviceEvent::Carrier { device, .. }) = event
        else {
            return Changed::Anything;
        };
        match self {
            Changed::Anything => Changed::Anything,
            // A device on another bus is none of ours.
            Changed::Devices(mut devices) => {
                devices.extend(device.parse::<PciAddr>().ok());
                Changed::Devices(devices)
            }
        }
    }

    fn is_nothing(&self) -> bool {
        matches!(self, Changed::Devices(devices) if devices.is_empty())
    }
}

/// A watch; ends when dropped.
#[derive(Debug)]
pub struct Hotplug {
    _end: oneshot::Sender<()>,
}

impl Hotplug {
    /// Tells on a thread of its own. Of what happens after this has returned nothing is missed.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn watch(tell: impl FnMut(Changed) + Send + 'static) -> io::Result<Hotplug> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let events = runtime.block_on(async { DeviceEvents::open() });
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("hotplug".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = listen(events, tell) => {}
                    _ = ended => {}
                }
            });
        })?;
        Ok(Hotplug { _end: end })
    }
}

async fn listen(events: io::Result<DeviceEvents>, mut tell: impl FnMut(Changed)) {
    let mut events = heard_at_last(events, &mut tell).await;
    loop {
        let mut changed = Changed::Devices(BTreeSet::new()).and(events.next().await);
        let settled = Instant::now() + SETTLE;
        while let Ok(event) = timeout_at(settled, events.next()).await {
            changed = changed.and(event);
        }
        if !changed.is_nothing() {
            tell(changed);
        }
    }
}

/// Until it can be listened, anything may happen unheard.
async fn heard_at_last(mut events: io::Result<DeviceEvents>, tell: &mut impl FnMut(Changed)) -> DeviceEvents {
    loop {
        match events {
            Ok(events) => return events,
            Err(error) => tracing::error!(%error, "news of devices cannot be heard"),
        }
        sleep(PAUSE).await;
        events = DeviceEvents::open();
        tell(Changed::Anything);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn x17_changes_of_a_device_are_told_together_and_within_a_second_until_the_watch_ends() {
        let (sender, told) = channel();
        let watch = Hotplug::watch(move |changed| sender.send(changed).unwrap()).unwrap();
        let device = fs::read_dir("/sys/bus/pci/devices").unwrap().next().unwrap().unwrap();
        let address: PciAddr = device.file_name().into_string().unwrap().parse().unwrap();
        for _ in 0..20 {
            fs::write(device.path().join("uevent"), "change").unwrap();
        }
        let changed = told.recv_timeout(Duration::from_secs(1)).unwrap();
        assert_eq!(changed, Changed::Devices([address].into()));
        // Where the machine is slow, the twenty are not within one time of settling.
        let more = told.try_iter().count();
        assert!(more < 10, "{more}");
        drop(watch);
        let ended = told.iter().all(|changed| changed == Changed::Devices([address].into()));
        assert!(ended);
    }

    #[test]
    fn what_is_lost_makes_it_anything_and_what_is_on_another_bus_nothing() {
        let carrier = |device: &str| DeviceEvent::Carrier { device: device.to_owned(), carrier: true };
        let nothing = Changed::Devices(BTreeSet::new());
        assert!(nothing.clone().and(carrier("virtio2")).is_nothing());
        let one = nothing.and(carrier("0000:21:10.0"));
        assert_eq!(one, Changed::Devices(["0000:21:10.0".parse().unwrap()].into()));
        let lost = one.and(DeviceEvent::Overflow).and(carrier("0000:21:10.0"));
        assert_eq!(lost, Changed::Anything);
    }
}
