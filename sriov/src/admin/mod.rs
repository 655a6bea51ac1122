//! The settings of VFs that only the administrator may change, read and written through their PF.
//!
//! What many threads want of one PF at the same time goes to the kernel together: changes in one message, readings as one. No
//! VF is blamed, or delayed, for what its neighbours in the message want.
//!
//! Two changes of one VF at the same time are not foreseen: it belongs to one attachment or one pool.

mod batch;
mod error;
mod pf_requests;
mod request_coalescing;
mod stuck_resets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::{Kernel, Vf, VfChange};
use parking_lot::Mutex;

pub use error::SettingError;
use pf_requests::{PfRequests, Queue};

use crate::wait_out_reset::{Pauses, is_resetting, patiently};
use crate::{PciAddr, VfDevice, VfProfile};

/// Reads and writes the settings of VFs.
pub struct Administrator {
    kernel: Arc<dyn Kernel>,
    queues: Mutex<BTreeMap<PciAddr, Arc<Queue>>>,
    settles: Duration,
}

impl Administrator {
    /// Works on this kernel's VFs. One that is resetting is waited for as long as it `settles`.
    pub fn new(kernel: Arc<dyn Kernel>, settles: Duration) -> Administrator {
        Administrator { kernel, queues: Mutex::default(), settles }
    }

    /// A VF's settings as they are, no older than the call. One of which the PF reports nothing just now is being reset, and is
    /// waited for.
    ///
    /// # Errors
    /// When the PF cannot be asked, or never reports the VF.
    pub fn settings(&self, vf: &VfDevice) -> Result<Vf, SettingError> {
        let mut pauses = Pauses::until(Instant::now() + self.settles);
        loop {
            let all = self.all(vf)?;
            match all.iter().find(|settings| settings.index == vf.index) {
                Some(settings) => return Ok(settings.clone()),
                None if pauses.pause() => {}
                None => return Err(SettingError::not_reported(vf, !all.is_empty())),
            }
        }
    }

    /// Makes a change, in one message with those of others. A setting that is refused is named; those before it (in the
    /// order of [`VfChange::singly`]) stay.
    ///
    /// # Errors
    /// With the first setting that is refused.
    pub fn set(&self, vf: &VfDevice, change: &VfChange) -> Result<(), SettingError> {
        // One limit for all settings: with one for each, a VF that never ends resetting would hold its caller several
        // times as long.
        let until = Instant::now() + self.settles;
        let left = self.set_with_others(vf, change)?;
        left.singly().try_for_each(|one| self.set_alone(vf, &one, until))
    }

    /// The same, but what the driver will never take is passed over and returned. Nor do rates that wait for a carrier hold up the
    /// settings behind them.
    ///
    /// # Errors
    /// With a setting that may be taken later.
    pub fn set_what_is_taken(
        &self,
        vf: &VfDevice,
        change: &VfChange,
    ) -> Result<Vec<SettingError>, SettingError> {
        let until = Instant::now() + self.settles;
        let (mut refused, mut dark) = (Vec::new(), None);
        for one in self.set_with_others(vf, change)?.singly() {
            match self.set_alone(vf, &one, until) {
                Err(e) if e.is_refusal() => refused.push(e),
                Err(e @ SettingError::NoCarrier { .. }) => dark = Some(e),
                other => other?,
            }
        }
        dark.map_or(Ok(refused), Err)
    }

    /// Waits until the PF reports that a change is in force, as far as it reports anything of the kind. For when nobody waits for
    /// an answer: it reads.
    ///
    /// # Errors
    /// When the PF cannot be asked, or still reports something else in the end.
    pub fn settle(&self, vf: &VfDevice, change: &VfChange) -> Result<(), SettingError> {
        let mut pauses = Pauses::until(Instant::now() + self.settles);
        loop {
            let otherwise = VfProfile::from(change).plan(&self.settings(vf)?).undo;
            if otherwise.is_empty() {
                return Ok(());
            }
            if !pauses.pause() {
                return Err(SettingError::Unsettled {
                    vf: vf.address,
                    wanted: change.describe(),
                    told: otherwise.describe(),
                });
            }
        }
    }

    /// The settings of all VFs of the same PF, in one reading; one that is being reset is not among them.
    ///
    /// # Errors
    /// When the PF cannot be asked.
    pub fn all(&self, vf: &VfDevice) -> Result<Arc<Vec<Vf>>, SettingError> {
        let queue = self.queue(vf);
        match self.requests(vf, &queue).read() {
            Some(Ok(Some(all))) => Ok(all),
            Some(Ok(None)) => Err(SettingError::no_interface(vf)),
            Some(Err(source)) => Err(SettingError::Unread { vf: vf.address, source }),
            None => Err(SettingError::Lost { vf: vf.address }),
        }
    }

    /// Makes a change together with whatever others want just now; answers what is left of it.
    fn set_with_others(&self, vf: &VfDevice, change: &VfChange) -> Result<VfChange, SettingError> {
        // An ADD whose VF has all that it wants sends no message, and waits for nobody.
        if change.is_empty() {
            return Ok(VfChange::default());
        }
        let queue = self.queue(vf);
        let requests = self.requests(vf, &queue);
        let left = queue.changes.pass((vf.index, change.clone()), |all| requests.change(all));
        let left = left.ok_or(SettingError::Lost { vf: vf.address })?;
        // Its VF was being reset when the message was refused: part of the change may be made. Reading waits for the end
        // of the reset.
        match left.is_uncertain {
            true => Ok(VfProfile::from(&left.change).plan(&self.settings(vf)?).change),
            false => Ok(left.change),
        }
    }

    /// Makes one setting of one VF, trying as long as the VF is resetting.
    fn set_alone(&self, vf: &VfDevice, one: &VfChange, until: Instant) -> Result<(), SettingError> {
        let queue = self.queue(vf);
        let requests = self.requests(vf, &queue);
        let send = || requests.send(vec![(vf.index, one.clone())]);
        let error = match patiently(until, send) {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(SettingError::no_interface(vf)),
            Err(source) if is_resetting(&source) && queue.resetting().is_its_own(vf.index) => {
                return Err(SettingError::endless_reset(vf, one, source));
            }
            Err(source) => SettingError::not_set(vf, one, source),
        };
        // EINVAL does not say why: a NIC answers it to a rate that it never takes, and to a rate while it has no carrier.
        match error.is_refused_rate(one) {
            true if requests.is_dark() => Err(error.in_the_dark()),
            true if send().is_ok_and(|sent| sent) => Ok(()), // the carrier has come since
            _ => Err(error),
        }
    }

    fn queue(&self, vf: &VfDevice) -> Arc<Queue> {
        let mut queues = self.queues.lock();
        Arc::clone(queues.entry(vf.physical.address).or_default())
    }

    fn requests<'a>(&'a self, vf: &'a VfDevice, queue: &'a Queue) -> PfRequests<'a> {
        PfRequests { kernel: self.kernel.as_ref(), physical: &vf.physical, queue }
    }
}
