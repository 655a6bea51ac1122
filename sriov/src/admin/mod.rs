//! The administrator's settings of VFs, read and set through their PF.
//!
//! What many threads want of one PF at the same time goes to the kernel together: changes in one message,
//! readings as one. A VF is never given blame, or delay, for what its neighbours in the message want.
//!
//! Two changes of one VF at a time are not foreseen: it belongs to one attachment or one pool.

mod batch;
mod busy;
mod error;
mod gathered;
mod physical;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairlead_host::{Kernel, Vf, VfChange};

pub use error::SettingError;
use physical::{Asked, Queue};

use crate::resetting::{Pauses, is_resetting, patiently};
use crate::{PciAddr, VfDevice, VfProfile};

/// Reads and sets them.
pub struct Administrator {
    kernel: Arc<dyn Kernel>,
    queues: Mutex<BTreeMap<PciAddr, Arc<Queue>>>,
    settles: Duration,
}

impl Administrator {
    /// Of the machine's VFs. One that is resetting is waited for as long as it `settles`.
    pub fn new(kernel: Arc<dyn Kernel>, settles: Duration) -> Administrator {
        Administrator { kernel, queues: Mutex::default(), settles }
    }

    /// A VF's settings as they are, no older than the call. One of which nothing is told just now is being reset.
    pub fn settings(&self, vf: &VfDevice) -> Result<Vf, SettingError> {
        let mut pauses = Pauses::until(Instant::now() + self.settles);
        loop {
            let all = self.all(vf)?;
            match all.iter().find(|vf| vf.index == vf.index) {
                Some(vf) => return Ok(vf.clone()),
                None if pauses.pause() => {}
                None => return Err(SettingError::untold(vf, !all.is_empty())),
            }
        }
    }

    /// Makes a change, in one message with those of others. A setting that is refused is named; those before it (in the
    /// order of [`VfChange::singly`]) stay.
    pub fn set(&self, vf: &VfDevice, change: &VfChange) -> Result<(), SettingError> {
        let until = Instant::now() + self.settles;
        let left = self.together(vf, change)?;
        left.singly().try_for_each(|one| self.alone(vf, &one, until))
    }

    /// The same, but what the driver will never take is passed over and told. Nor do rates that wait for a carrier hold up the
    /// settings behind them.
    pub fn set_what_is_taken(
        &self,
        vf: &VfDevice,
        change: &VfChange,
    ) -> Result<Vec<SettingError>, SettingError> {
        let until = Instant::now() + self.settles;
        let (mut refused, mut dark) = (Vec::new(), None);
        for one in self.together(vf, change)?.singly() {
            match self.alone(vf, &one, until) {
                Err(e) if e.is_refusal() => refused.push(e),
                Err(e @ SettingError::Dark { .. }) => dark = Some(e),
                other => other?,
            }
        }
        dark.map_or(Ok(refused), Err)
    }

    /// Waits until the PF tells that a change is in force, as far as it tells anything of the kind. For when
    /// nobody waits for an answer: it reads.
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

    /// The settings of all VFs of the same physical one, in one reading; of one that is being reset nothing is told.
    pub fn all(&self, vf: &VfDevice) -> Result<Arc<Vec<Vf>>, SettingError> {
        let queue = self.queue(vf);
        match self.asked(vf, &queue).read() {
            Some(Ok(Some(all))) => Ok(all),
            Some(Ok(None)) => Err(SettingError::no_interface(vf)),
            Some(Err(source)) => Err(SettingError::Unread { vf: vf.address, source }),
            None => Err(SettingError::Lost { vf: vf.address }),
        }
    }

    /// With whatever others want just now; answers what is left to be made.
    fn together(&self, vf: &VfDevice, change: &VfChange) -> Result<VfChange, SettingError> {
        if change.is_empty() {
            return Ok(VfChange::default());
        }
        let queue = self.queue(vf);
        let asked = self.asked(vf, &queue);
        let left = queue.changes.pass((vf.index, change.clone()), |all| asked.change(all));
        let left = left.ok_or(SettingError::Lost { vf: vf.address })?;
        match left.untold {
            true => Ok(VfProfile::from(&left.change).plan(&self.settings(vf)?).change),
            false => Ok(left.change),
        }
    }

    /// One setting of one VF, as often as it takes.
    fn alone(&self, vf: &VfDevice, one: &VfChange, until: Instant) -> Result<(), SettingError> {
        let queue = self.queue(vf);
        let asked = self.asked(vf, &queue);
        let send = || asked.send(vec![(vf.index, one.clone())]);
        let error = match patiently(until, send) {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(SettingError::no_interface(vf)),
            Err(source) if is_resetting(&source) && queue.busy().is_its_own(vf.index) => {
                return Err(SettingError::stuck(vf, one, source));
            }
            Err(source) => SettingError::not_set(vf, one, source),
        };
        match error.is_refused_rate(one) {
            true if asked.is_dark() => Err(error.in_the_dark()),
            true if send().is_ok_and(|sent| sent) => Ok(()), // the carrier has come since
            _ => Err(error),
        }
    }

    fn queue(&self, vf: &VfDevice) -> Arc<Queue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(vf.physical.address).or_default())
    }

    fn asked<'a>(&'a self, vf: &'a VfDevice, queue: &'a Queue) -> Asked<'a> {
        Asked { kernel: self.kernel.as_ref(), physical: &vf.physical, queue }
    }
}
