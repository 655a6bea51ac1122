//! Reports changes of devices on the PCI bus, and of their interfaces and carriers.
//!
//! Changes that come close together are reported together, and a bus that is never quiet delays nobody. The
//! receiver looks at the devices itself, so a lost report costs time and never makes anything wrong. No device is
//! ever asked anything here.

use std::io;
use std::time::Duration;

use fairlead_host::vital_thread;
use fairlead_host::watch::{DeviceEvent, DeviceEvents};
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// The time within which later changes are reported together with the first.
const SETTLE: Duration = Duration::from_millis(50);
/// The pause between two attempts to listen.
const PAUSE: Duration = Duration::from_secs(5);

/// A running watch of devices; it ends when dropped.
#[derive(Debug)]
pub struct Hotplug {
    _end: oneshot::Sender<()>,
}

impl Hotplug {
    /// Reports on a thread of its own, whose panic ends the process. Nothing is missed of what happens after this has returned.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn watch(tell: impl FnMut(&[DeviceEvent]) + Send + 'static) -> io::Result<Hotplug> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Opened before the thread begins: nothing is missed once this function has returned.
        let events = runtime.block_on(async { DeviceEvents::open() });
        let (end, ended) = oneshot::channel();
        vital_thread::begin("hotplug", move || {
            runtime.block_on(async {
                tokio::select! {
                    () = listen(events, tell) => {}
                    // Nothing is ever sent: dropping the sender ends the watch.
                    _ = ended => {}
                }
            });
        })?;
        Ok(Hotplug { _end: end })
    }
}

async fn listen(events: io::Result<DeviceEvents>, mut tell: impl FnMut(&[DeviceEvent])) {
    let mut events = heard_at_last(events, &mut tell).await;
    loop {
        let mut news = vec![events.next().await];
        // Waking for each change would take the processor from whoever causes them.
        sleep(SETTLE).await;
        while let Some(event) = events.next().now_or_never() {
            news.push(event);
        }
        tell(&news);
    }
}

/// Tries until it can listen, and reports after each attempt that news may have been missed.
async fn heard_at_last(
    mut events: io::Result<DeviceEvents>,
    tell: &mut impl FnMut(&[DeviceEvent]),
) -> DeviceEvents {
    loop {
        match events {
            Ok(events) => return events,
            Err(error) => tracing::error!(%error, "news of devices cannot be heard"),
        }
        sleep(PAUSE).await;
        events = DeviceEvents::open();
        // Told even if listening failed again: changes that nobody could hear are found by a full look.
        tell(&[DeviceEvent::Overflow]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;

    use fairlead_host::watch::Action;

    use super::*;

    #[test]
    fn x17_changes_of_a_device_are_told_together_and_within_a_second_until_the_watch_ends() {
        let (sender, told) = channel();
        let watch = Hotplug::watch(move |news| sender.send(news.to_vec()).unwrap()).unwrap();
        let device = fs::read_dir("/sys/bus/pci/devices").unwrap().next().unwrap().unwrap();
        let address = device.file_name().into_string().unwrap();
        for _ in 0..20 {
            fs::write(device.path().join("uevent"), "change").unwrap();
        }
        let mut news = told.recv_timeout(Duration::from_secs(1)).unwrap();
        let mut times = 1;
        // Where the machine is slow, the twenty are not within one time of settling.
        while news.len() < 20 {
            news.extend(told.recv_timeout(Duration::from_secs(1)).unwrap());
            times += 1;
        }
        assert!(times < 10, "{times}");
        assert_eq!(news, vec![DeviceEvent::Pci { device: address, action: Action::Changed }; 20]);
        drop(watch);
        assert_eq!(told.iter().count(), 0);
    }
}
