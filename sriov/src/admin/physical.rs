//! One PF: its interface, and what is asked of it for all its VFs at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fairlead_host::{Kernel, Link, Net, NetError, Op, Vf, VfChange};

use super::batch::{Batch, Left};
use super::busy::Busy;
use super::gathered::Gathered;
use crate::Physical;
use crate::interface::is_of;
use crate::resetting::is_resetting;

/// The kernel takes 64 KiB in one attribute; a VF's settings are 124 bytes of it.
const ONE_MESSAGE: usize = 256;
/// How often the rest of a batch is sent in one message after a refusal, each time for the price of a reading. Then each
/// has its own.
const RESUMED: usize = 2;

/// Who waits for what of a PF.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Changes, and what of each is left to be made one setting at a time.
    pub(super) changes: Gathered<(u32, VfChange), Left>,
    readings: Gathered<(), Reading>,
    /// In switchdev mode it has several interfaces: the one that tells the settings.
    teller: Mutex<Option<u32>>,
    busy: Mutex<Busy>,
}

impl Queue {
    /// Which of its VFs do not end resetting.
    pub(super) fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settings of all VFs; `None` where the PF has no interface here that tells them.
type Reading = Result<Option<Arc<Vec<Vf>>>, Arc<NetError>>;

/// A PF that is asked.
pub(super) struct Asked<'k> {
    pub(super) kernel: &'k dyn Kernel,
    pub(super) physical: &'k Physical,
    pub(super) queue: &'k Queue,
}

impl Asked<'_> {
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
                Ok(false) => break,
                Err(error) => error,
            };
            let Some(Ok(Some(now))) = self.read() else { break };
            let (taken, by) = batch.stopped(&now);
            let resetting = if is_resetting(&refused) { by.as_slice() } else { &[] };
            self.queue.busy().heard(&taken, resetting, Instant::now());
        }
        batch.left()
    }

    /// One message; false where there is nobody to send it to.
    pub(super) fn send(&self, changes: Vec<(u32, VfChange)>) -> Result<bool, NetError> {
        let mut host = self.kernel.host()?;
        let Some(pf) = self.interface(host.as_mut())? else { return Ok(false) };
        let vfs: Vec<u32> = changes.iter().map(|(vf, _)| *vf).collect();
        let done = host.batch(&[Op::SetVfs { pf, changes }]);
        match &done {
            Ok(()) => self.queue.busy().heard(&vfs, &[], Instant::now()),
            // Of many it is not known whose.
            Err(e) if vfs.len() == 1 && is_resetting(e) => self.queue.busy().heard(&[], &vfs, Instant::now()),
            Err(_) => {}
        }
        done.map(|()| true)
    }

    /// All settings, in one reading with everybody who wants one just now; `None` where the thread that did it did not end.
    pub(super) fn read(&self) -> Option<Reading> {
        self.queue.readings.pass((), |all| {
            let reading = self.read_now();
            all.iter().map(|()| reading.clone()).collect()
        })
    }

    /// Whether none of its interfaces has a carrier.
    pub(super) fn is_dark(&self) -> bool {
        let links = self.kernel.host().and_then(|mut host| links_of(host.as_mut(), self.physical));
        links.is_ok_and(|links| !links.iter().any(|link| link.carrier))
    }

    /// Dear, and there is none for a single VF.
    fn read_now(&self) -> Reading {
        let mut host = self.kernel.host().map_err(Arc::new)?;
        let Some(pf) = self.interface(host.as_mut()).map_err(Arc::new)? else { return Ok(None) };
        host.vfs(pf).map(|vfs| Some(Arc::new(vfs))).map_err(Arc::new)
    }

    /// The interface that tells and takes the settings. Only where there are several are they read to find it.
    fn interface(&self, host: &mut dyn Net) -> Result<Option<u32>, NetError> {
        let links = links_of(host, self.physical)?;
        if let [] | [_] = links.as_slice() {
            return Ok(links.first().map(|link| link.index));
        }
        let mut teller = self.queue.teller.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = links.iter().find(|link| *teller == Some(link.index)) {
            return Ok(Some(one.index));
        }
        for link in links {
            if !host.vfs(link.index)?.is_empty() {
                *teller = Some(link.index);
                return Ok(*teller);
            }
        }
        Ok(None)
    }
}

fn links_of(host: &mut dyn Net, physical: &Physical) -> Result<Vec<Link>, NetError> {
    let mut links = Vec::new();
    for name in &physical.interfaces {
        links.extend(host.link_by_name(name)?);
    }
    if links.is_empty() {
        // Sysfs lists those of the namespace that it was mounted in, which need not be the daemon's.
        let wanted = physical.address.to_string();
        links.extend(host.links()?.into_iter().filter(|link| is_of(link, &wanted)));
    }
    Ok(links)
}
