//! One member of a pool, and how it stands.

use super::{Refusal, Task};
use crate::PciAddr;

/// What a member is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// As it was found: nothing was done to it, and nothing is needed of it.
    Idle,
    /// To be prepared, or given back where there are enough.
    Due,
    /// At work.
    Preparing,
    /// Clean, set up, verified.
    Ready,
    /// A pod's, or on its way to or from one.
    Lent,
    /// Being put back as it was.
    Leaving,
    /// Used by somebody else, and by whom.
    Foreign(String),
    /// Not in the machine.
    Gone,
}

impl Condition {
    /// Ready, or on the way there by itself.
    pub(super) fn supplies(&self) -> bool {
        matches!(self, Condition::Preparing | Condition::Ready)
    }
}

/// What keeps a member from being given, whatever it is in. It outlives the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// The operator wants it as it was.
    Drained,
    /// It does not work, or the operator says so.
    Quarantined(String),
    /// It is no member any more, as soon as it is as it was.
    Dismissed,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its PCI address.
    pub address: PciAddr,
    /// Its physical function's.
    pub physical: PciAddr,
    /// Its NUMA node, where the machine tells.
    pub numa_node: Option<u32>,
    /// What it is in.
    pub condition: Condition,
    /// What keeps it.
    pub hold: Option<Hold>,
    /// Failures in a row.
    pub failures: u32,
}

impl Member {
    /// One that nothing was done to.
    pub fn new(address: PciAddr, physical: PciAddr, numa_node: Option<u32>) -> Member {
        Member { address, physical, numa_node, condition: Condition::Idle, hold: None, failures: 0 }
    }

    /// How it stands, in one word of a closed set.
    pub fn state(&self) -> &'static str {
        match (&self.condition, &self.hold) {
            (Condition::Lent, _) => "lent",
            (Condition::Gone, _) => "gone",
            (Condition::Foreign(_), _) => "foreign",
            (Condition::Leaving, _) => "draining",
            (_, Some(Hold::Quarantined(_))) => "quarantined",
            (Condition::Idle, Some(_)) => "drained",
            (_, Some(_)) => "draining",
            (Condition::Idle, None) => "idle",
            (Condition::Due | Condition::Preparing, None) => "preparing",
            (Condition::Ready, None) => "ready",
        }
    }

    /// Every word of [`Member::state`].
    pub const STATES: [&'static str; 9] =
        ["ready", "lent", "preparing", "idle", "quarantined", "foreign", "draining", "drained", "gone"];

    /// Why it stands so; empty where there is nothing to say.
    pub fn reason(&self) -> &str {
        match (&self.condition, &self.hold) {
            (Condition::Foreign(why), _) => why,
            (_, Some(Hold::Quarantined(why))) => why,
            _ => "",
        }
    }

    /// Whether it may be given to a pod.
    pub fn lendable(&self) -> Result<(), Refusal> {
        match (&self.condition, &self.hold) {
            (Condition::Gone, _) => Err(Refusal::Gone),
            (Condition::Lent, _) => Err(Refusal::Lent),
            (Condition::Foreign(why), _) => Err(Refusal::Foreign(why.clone())),
            (_, Some(Hold::Quarantined(why))) => Err(Refusal::Quarantined(why.clone())),
            // One that nothing was done to is a function like any other.
            (Condition::Ready, None) | (Condition::Idle, _) => Ok(()),
            _ => Err(Refusal::NotYet(self.state())),
        }
    }

    /// Whether it cannot be given now, and will be without anybody's doing.
    pub fn is_awaited(&self) -> bool {
        self.lendable().is_err_and(|why| why.passes())
    }

    /// Whether it waits for the operator.
    pub fn is_quarantined(&self) -> bool {
        matches!(self.hold, Some(Hold::Quarantined(_)))
    }

    /// Whether it is what a draw may give.
    pub fn is_ready(&self) -> bool {
        self.condition == Condition::Ready && self.hold.is_none()
    }

    pub(super) fn prepare(&mut self) -> Task {
        self.condition = Condition::Preparing;
        Task::Prepare(self.address)
    }

    pub(super) fn leave(&mut self) -> Task {
        self.condition = Condition::Leaving;
        Task::GiveBack(self.address)
    }
}
