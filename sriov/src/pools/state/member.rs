//! One member of a pool, and how it stands.

use std::time::{Duration, Instant};

use super::{FAILURES, Refusal, Task};
use crate::PciAddr;

/// Between the first try that did not succeed and the next one; it doubles with every further one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// And never longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Why one that is to be given back is not.
const GIVEN: &str =
    "it was given to a pod, and no ADD has come for it: release it by its address when no pod has it";

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
    /// It is no member any more, as soon as it is as it was; and what held it until then, if it is one again before.
    Dismissed(Option<Box<Hold>>),
}

/// Why the last try did not make a member what it was to be, and when the next one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// Why.
    pub why: String,
    /// Not before this.
    pub until: Instant,
    /// It is not the member's own fault: its physical function was not there to be asked.
    pub hindered: bool,
    /// So many of the kind in a row.
    times: u32,
}

impl Setback {
    /// The next try is at once, and the first one; how that ends nobody knows yet.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        self.until = now;
        self.times = 0;
    }
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
    /// What keeps it waiting for the next try.
    pub setback: Option<Setback>,
    /// Its allocator has given it to a pod, and no ADD has come for it since: the pod may have it in its hands all the same.
    pub given: bool,
    /// It was ready once, and nothing has put that in doubt since: it is ready, a pod's, or on its way home from one.
    pub verified: bool,
    /// A pod that it was given to is gone, and nothing was done to it since: what is on its interface is nobody's.
    pub left: bool,
}

impl Member {
    /// One that nothing was done to.
    pub fn new(address: PciAddr, physical: PciAddr, numa_node: Option<u32>) -> Member {
        Member {
            address,
            physical,
            numa_node,
            condition: Condition::Idle,
            hold: None,
            failures: 0,
            setback: None,
            given: false,
            verified: false,
            left: false,
        }
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
            (Condition::Ready, None) if self.given => "given",
            (Condition::Ready, None) => "ready",
        }
    }

    /// Every word of [`Member::state`].
    pub const STATES: [&'static str; 10] = [
        "ready",
        "given",
        "lent",
        "preparing",
        "idle",
        "quarantined",
        "foreign",
        "draining",
        "drained",
        "gone",
    ];

    /// Why it stands so; empty where there is nothing to say.
    pub fn reason(&self) -> &str {
        match (&self.condition, &self.hold) {
            (Condition::Foreign(why), _) => why,
            (_, Some(Hold::Quarantined(why))) => why,
            (Condition::Ready, Some(_)) if self.given => GIVEN,
            (Condition::Due | Condition::Preparing | Condition::Leaving, _) => {
                self.setback.as_ref().map_or("", |setback| &setback.why)
            }
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
            // The pod that it was given to is there already.
            (Condition::Ready, _) if self.given => Ok(()),
            _ => Err(self.not_yet()),
        }
    }

    pub(super) fn not_yet(&self) -> Refusal {
        Refusal::NotYet(match self.reason() {
            "" => self.state().to_owned(),
            why => format!("{}: {why}", self.state()),
        })
    }

    /// Whether the allocator may give it to a pod: it is ready, or on its way home to be so.
    pub fn givable(&self) -> Result<(), Refusal> {
        let comes_home = matches!(
            self.condition,
            Condition::Ready | Condition::Lent | Condition::Due | Condition::Preparing
        );
        match comes_home && self.verified && self.hold.is_none() {
            true => Ok(()),
            false => Err(self.lendable().err().unwrap_or_else(|| self.not_yet())),
        }
    }

    /// Whether it waits for its physical function, and not for a turn of its own.
    pub fn is_hindered(&self) -> bool {
        self.setback.as_ref().is_some_and(|setback| setback.hindered)
    }

    /// Whether it cannot be given now, and will be without anybody's doing.
    pub fn is_awaited(&self) -> bool {
        self.lendable().is_err_and(|why| why.passes())
    }

    /// Whether it is to be given back, for as long as it is so held.
    pub fn is_leaving(&self) -> bool {
        self.hold.is_some() && !self.is_quarantined()
    }

    /// Whether it waits for the operator.
    pub fn is_quarantined(&self) -> bool {
        matches!(self.hold, Some(Hold::Quarantined(_)))
    }

    /// Whether it is what a draw may give.
    pub fn is_ready(&self) -> bool {
        self.condition == Condition::Ready && self.hold.is_none() && !self.given
    }

    /// Whether it is to be no member any more.
    pub(super) fn is_dismissed(&self) -> bool {
        matches!(self.hold, Some(Hold::Dismissed(_)))
    }

    /// Whether what was tried with it can have come to nothing: not with one that a pod has by now, or that is gone.
    pub(super) fn can_fail(&self) -> bool {
        !matches!(self.condition, Condition::Lent | Condition::Gone)
    }

    /// Whether the pause after the last try is not over.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.setback.as_ref().is_some_and(|setback| setback.until > now)
    }

    /// The next try is after a pause that grows.
    pub(super) fn set_back(&mut self, why: &str, hindered: bool, now: Instant) {
        let before = self.setback.take().filter(|before| before.hindered == hindered);
        let times = before.map_or(0, |before| before.times) + 1;
        let pause = FIRST_PAUSE.saturating_mul(1 << (times - 1).min(10)).min(LONGEST_PAUSE);
        self.setback = Some(Setback { why: why.to_owned(), until: now + pause, hindered, times });
        self.verified = false;
        self.condition = Condition::Due;
    }

    /// The pod that it was given to is gone.
    pub(super) fn leave_behind(&mut self) {
        self.left = true;
        self.condition = Condition::Due;
    }

    /// What was is over: the next try is at once, and the first one.
    pub(super) fn begin_anew(&mut self) {
        self.failures = 0;
        self.setback = None;
    }

    /// Whether it has failed so often that it is not tried again, unless it has to be given back to others.
    pub(super) fn is_given_up(&self) -> bool {
        self.failures >= FAILURES && !self.is_dismissed()
    }

    pub(super) fn prepare(&mut self) -> Task {
        self.condition = Condition::Preparing;
        Task::Prepare(self.address)
    }

    pub(super) fn leave(&mut self) -> Task {
        self.given = false;
        self.condition = Condition::Leaving;
        Task::GiveBack(self.address)
    }
}
