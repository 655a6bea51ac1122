//! What is asked of one PF for all its VFs at once: settings read, settings written, and the interface that they go through.

use std::sync::Arc;
use std::time::Instant;

use fairlead_host::{Kernel, Link, Net, NetError, Op, Vf, VfChange};
use parking_lot::{Mutex, MutexGuard};

use super::batch::{Batch, Left};
use super::request_coalescing::CombinedRequests;
use super::stuck_resets::ResettingVfs;
use crate::vf_netdev::is_of;
use crate::wait_out_reset::is_resetting;
use crate::{PciAddr, Physical};

/// So many VFs in one message: the kernel takes 64 KiB in one attribute, and a VF's settings are 124 bytes of it.
const ONE_MESSAGE: usize = 256;
/// How often the rest of a batch is sent in one message after a refusal, each time for the price of a reading. Then each
/// has its own.
const RESUMED: usize = 2;

/// The requests that wait for one PF, and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Changes, and what of each is left to be made one setting at a time.
    pub(super) changes: CombinedRequests<(u32, VfChange), Left>,
    readings: CombinedRequests<(), Reading>,
    /// The interface that reports the settings: in switchdev mode the PF has several.
    reporter: Mutex<Option<u32>>,
    resetting: Mutex<ResettingVfs>,
}

impl Queue {
    /// Which of its VFs do not end resetting.
    pub(super) fn resetting(&self) -> MutexGuard<'_, ResettingVfs> {
        self.resetting.lock()
    }
}

/// The settings of all VFs; `None` where the PF has no interface here that reports them.
type Reading = Result<Option<Arc<Vec<Vf>>>, Arc<NetError>>;

/// A PF that requests are sent to.
pub(super) struct PfRequests<'k> {
    pub(super) kernel: &'k dyn Kernel,
    pub(super) physical: &'k Physical,
    pub(super) queue: &'k Queue,
}

impl PfRequests<'_> {
    /// Makes the changes of many, in as few messages as can be; what is left of each is to be tried alone. The kernel stops
    /// at the first that is refused and does nothing of those behind it.
    pub(super) fn change(&self, wanted: &[(u32, VfChange)]) -> Vec<Left> {
        wanted.chunks(ONE_MESSAGE).flat_map(|some| self.change_some(some)).collect()
    }

    fn change_some(&self, wanted: &[(u32, VfChange)]) -> Vec<Left> {
        let mut batch = Batch::of(wanted);
        for _ in 0..=RESUMED {
            let message = batch.message();
            if message.is_empty() {
                break;
            }
            let refused = match self.send(message) {
                Ok(true) => {
                    batch.all_done();
                    break;
                }
                // The PF has no interface here. Each caller gets that error when it tries its change alone.
                Ok(false) => break,
                Err(error) => error,
            };
            // Without the settings nobody knows which change stopped the message: each is tried alone.
            let Some(Ok(Some(now))) = self.read() else { break };
            let (taken, by) = batch.stopped(&now);
            // Another refusal says nothing about a reset, and blames nobody for one.
            let resetting = if is_resetting(&refused) { by.as_slice() } else { &[] };
            self.queue.resetting().note(&taken, resetting, Instant::now());
        }
        batch.left()
    }

    /// Sends one message; false where the PF has no interface to send it to.
    pub(super) fn send(&self, changes: Vec<(u32, VfChange)>) -> Result<bool, NetError> {
        let mut host = self.kernel.host()?;
        let Some(pf) = self.interface(host.as_mut())? else { return Ok(false) };
        let vfs: Vec<u32> = changes.iter().map(|(vf, _)| *vf).collect();
        let done = host.batch(&[Op::SetVfs { pf, changes }]);
        match &done {
            Ok(()) => self.queue.resetting().note(&vfs, &[], Instant::now()),
            // Of a message for many VFs the kernel does not say whose change was refused.
            Err(e) if vfs.len() == 1 && is_resetting(e) => {
                self.queue.resetting().note(&[], &vfs, Instant::now())
            }
            Err(_) => {}
        }
        done.map(|()| true)
    }

    /// Reads all settings, once for everybody who wants them just now; `None` where the thread that did it did not end.
    pub(super) fn read(&self) -> Option<Reading> {
        self.queue.readings.pass((), |all| {
            let reading = self.read_now();
            all.iter().map(|()| reading.clone()).collect()
        })
    }

    /// Whether none of the PF's interfaces has a carrier.
    pub(super) fn is_dark(&self) -> bool {
        let links = self.kernel.host().and_then(|mut host| links_of(host.as_mut(), self.physical));
        links.is_ok_and(|links| !links.iter().any(|link| link.carrier))
    }

    /// Reads the settings of all VFs: expensive, and the kernel has no request for a single one.
    fn read_now(&self) -> Reading {
        let mut host = self.kernel.host().map_err(Arc::new)?;
        let Some(pf) = self.interface(host.as_mut()).map_err(Arc::new)? else { return Ok(None) };
        host.vfs(pf).map(|vfs| Some(Arc::new(vfs))).map_err(Arc::new)
    }

    /// The interface that reports and takes the settings. Only where there are several are they read to find it.
    fn interface(&self, host: &mut dyn Net) -> Result<Option<u32>, NetError> {
        let links = links_of(host, self.physical)?;
        // Reading the VFs takes up to hundreds of milliseconds: a PF with one interface is spared that.
        if let [] | [_] = links.as_slice() {
            return Ok(links.first().map(|link| link.index));
        }
        let mut reporter = self.queue.reporter.lock();
        // The interface may have been made anew since, and then has another index.
        if let Some(one) = links.iter().find(|link| *reporter == Some(link.index)) {
            return Ok(Some(one.index));
        }
        for link in links {
            if !host.vfs(link.index)?.is_empty() {
                *reporter = Some(link.index);
                return Ok(*reporter);
            }
        }
        Ok(None)
    }
}

fn links_of(host: &mut dyn Net, physical: &Physical) -> Result<Vec<Link>, NetError> {
    let wanted = physical.address.to_string();
    // The names were read earlier: by now one may be another PF's. Kernels before 5.14 do not say whose a link is, and what another bus
    // has is told by a name of that bus.
    let is_others = |device: &String| *device != wanted && device.parse::<PciAddr>().is_ok();
    let may_be_its = |link: &Link| !link.device.as_ref().is_some_and(is_others);
    let mut links = Vec::new();
    for name in &physical.interfaces {
        links.extend(host.link_by_name(name)?.filter(may_be_its));
    }
    if links.is_empty() {
        // Sysfs lists those of the namespace that it was mounted in, which need not be the daemon's.
        links.extend(host.links()?.into_iter().filter(|link| is_of(link, &wanted)));
    }
    Ok(links)
}
