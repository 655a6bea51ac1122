//! The administrator's settings of functions, read and set through their physical function.
//!
//! What many threads want of one physical function at the same time goes to the kernel together: changes in one message,
//! readings as one. A function is never given blame, or delay, for what its neighbours in the message want.
//!
//! Two changes of one function at a time are not foreseen: it belongs to one attachment or one pool.

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
use crate::{Function, PciAddr, VfProfile};

/// Reads and sets them.
pub struct Administrator {
    kernel: Arc<dyn Kernel>,
    queues: Mutex<BTreeMap<PciAddr, Arc<Queue>>>,
    settles: Duration,
}

impl Administrator {
    /// Of the machine's functions. One that is resetting is waited for as long as it `settles`.
    pub fn new(kernel: Arc<dyn Kernel>, settles: Duration) -> Administrator {
        Administrator { kernel, queues: Mutex::default(), settles }
    }

    /// A function's settings as they are, no older than the call. One of which nothing is told just now is being reset.
    pub fn settings(&self, function: &Function) -> Result<Vf, SettingError> {
        let mut pauses = Pauses::until(Instant::now() + self.settles);
        loop {
            let all = self.all(function)?;
            match all.iter().find(|vf| vf.index == function.index) {
                Some(vf) => return Ok(vf.clone()),
                None if pauses.pause() => {}
                None => return Err(SettingError::untold(function, !all.is_empty())),
            }
        }
    }

    /// Makes a change, in one message with those of others. A setting that is refused is named; those before it (in the
    /// order of [`VfChange::singly`]) stay.
    pub fn set(&self, function: &Function, change: &VfChange) -> Result<(), SettingError> {
        let until = Instant::now() + self.settles;
        let left = self.together(function, change)?;
        left.singly().try_for_each(|one| self.alone(function, &one, until))
    }

    /// The same, but what the driver will never take is passed over and told. Nor do rates that wait for a carrier hold up the
    /// settings behind them.
    pub fn set_what_is_taken(
        &self,
        function: &Function,
        change: &VfChange,
    ) -> Result<Vec<SettingError>, SettingError> {
        let until = Instant::now() + self.settles;
        let (mut refused, mut dark) = (Vec::new(), None);
        for one in self.together(function, change)?.singly() {
            match self.alone(function, &one, until) {
                Err(e) if e.is_refusal() => refused.push(e),
                Err(e @ SettingError::Dark { .. }) => dark = Some(e),
                other => other?,
            }
        }
        dark.map_or(Ok(refused), Err)
    }

    /// Waits until the physical function tells that a change is in force, as far as it tells anything of the kind. For when
    /// nobody waits for an answer: it reads.
    pub fn settle(&self, function: &Function, change: &VfChange) -> Result<(), SettingError> {
        let mut pauses = Pauses::until(Instant::now() + self.settles);
        loop {
            let otherwise = VfProfile::from(change).plan(&self.settings(function)?).undo;
            if otherwise.is_empty() {
                return Ok(());
            }
            if !pauses.pause() {
                return Err(SettingError::Unsettled {
                    function: function.address,
                    wanted: change.describe(),
                    told: otherwise.describe(),
                });
            }
        }
    }

    /// The settings of all functions of the same physical one, in one reading; of one that is being reset nothing is told.
    pub fn all(&self, function: &Function) -> Result<Arc<Vec<Vf>>, SettingError> {
        let queue = self.queue(function);
        match self.asked(function, &queue).read() {
            Some(Ok(Some(all))) => Ok(all),
            Some(Ok(None)) => Err(SettingError::no_interface(function)),
            Some(Err(source)) => Err(SettingError::Unread { function: function.address, source }),
            None => Err(SettingError::Lost { function: function.address }),
        }
    }

    /// With whatever others want just now; answers what is left to be made.
    fn together(&self, function: &Function, change: &VfChange) -> Result<VfChange, SettingError> {
        if change.is_empty() {
            return Ok(VfChange::default());
        }
        let queue = self.queue(function);
        let asked = self.asked(function, &queue);
        let left = queue.changes.pass((function.index, change.clone()), |all| asked.change(all));
        let left = left.ok_or(SettingError::Lost { function: function.address })?;
        match left.untold {
            true => Ok(VfProfile::from(&left.change).plan(&self.settings(function)?).change),
            false => Ok(left.change),
        }
    }

    /// One setting of one function, as often as it takes.
    fn alone(&self, function: &Function, one: &VfChange, until: Instant) -> Result<(), SettingError> {
        let queue = self.queue(function);
        let asked = self.asked(function, &queue);
        let send = || asked.send(vec![(function.index, one.clone())]);
        let error = match patiently(until, send) {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(SettingError::no_interface(function)),
            Err(source) if is_resetting(&source) && queue.busy().is_its_own(function.index) => {
                return Err(SettingError::stuck(function, one, source));
            }
            Err(source) => SettingError::not_set(function, one, source),
        };
        match error.is_refused_rate(one) {
            true if asked.is_dark() => Err(error.in_the_dark()),
            true if send().is_ok_and(|sent| sent) => Ok(()), // the carrier has come since
            _ => Err(error),
        }
    }

    fn queue(&self, function: &Function) -> Arc<Queue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(function.physical.address).or_default())
    }

    fn asked<'a>(&'a self, function: &'a Function, queue: &'a Queue) -> Asked<'a> {
        Asked { kernel: self.kernel.as_ref(), physical: &function.physical, queue }
    }
}
