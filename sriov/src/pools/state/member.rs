//! One member of a pool: what it is in, and every view of that.
//!
//! [`MemberState`] holds all that belongs to a state and nothing of another one; what the operator sees, the mark on disk,
//! whether kubelet is told that it is healthy and whether it may be lent are derived here and stored nowhere. Beside it stands
//! only [`Hold`], an order about the member: that outlives every state.

use std::time::{Duration, Instant};

use fairlead_host::backoff::Backoff;

use super::{FAILURES, Refusal, Task};
use crate::PciAddr;

/// Between a try that did not succeed and the next one.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Why one that is to be given back is not.
const ALLOCATED: &str =
    "it was given to a pod, and no ADD has come for it: release it by its address when no pod has it";

/// What a member is in, with all that belongs to that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberState {
    /// It is as it was found: nothing was done to it, and nothing is needed of it.
    Idle,
    /// It waits to be prepared, or to be given back where there are enough.
    Due(Pending),
    /// It is being prepared.
    Preparing(Pending),
    /// It is clean and set up.
    Ready {
        /// Its allocator has given it to a pod, and no ADD has come for it since: the pod may have it in its hands.
        allocated: bool,
        /// Nothing has put its being ready in doubt.
        verified: bool,
    },
    /// It is a pod's, or on its way to or from one.
    Lent {
        /// Its allocator has given it to the next pod already.
        allocated: bool,
        /// It was ready before, and nothing has put that in doubt.
        verified: bool,
        /// Before that a pod had left something on its interface, and nothing was done to it since.
        left_behind: bool,
    },
    /// It is being put back as it was.
    Restoring(Pending),
    /// Somebody else uses it.
    Foreign {
        /// Who that is, in words.
        who: String,
        /// What is to be gone on with when nobody uses it any more.
        pending: Pending,
    },
    /// It is not in the machine.
    Gone,
}

/// What is known of a member that is on its way from one state to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pending {
    /// Its allocator has given it to a pod, which has it when it is ready.
    pub allocated: bool,
    /// It was ready once, and nothing has put that in doubt since.
    pub verified: bool,
    /// A pod that it was allocated to is gone, and nothing was done to it since: what is on its interface is nobody's.
    pub left_behind: bool,
    /// An ADD has named it when nothing was done to it yet: it is prepared whatever the stock.
    pub named: bool,
    /// Failures of its own in a row.
    pub failures: u32,
    /// What keeps it waiting for the next try.
    pub setback: Option<Setback>,
}

/// What keeps a member from being given to pods, whatever it is in. It outlives the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// The operator wants it as it was.
    Drained,
    /// It does not work, or the operator says so.
    Quarantined(String),
    /// A pod has left on it what could not be undone, in words: until it was bound anew and verified, whoever it belongs to then.
    Unclean(String),
    /// It is no member any more, as soon as it is as it was; and what held it until then, if it is one again before.
    Dismissed(Option<Box<Hold>>),
}

/// Why the last try did not make a member what it was to be, and when the next one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// What went wrong, in words.
    pub why: String,
    /// The next try is not before this.
    pub until: Instant,
    /// It is not the member's own fault: its PF was not there to be asked.
    pub hindered: bool,
    /// So many of the kind in a row.
    times: u32,
}

/// In whose hands a member is, as it is written down for the next daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It is nobody's: clean and ready.
    Clean,
    /// Kubelet has allocated it to a pod, and no ADD has come for it.
    Given,
    /// The same, and it is to be prepared before the pod has it.
    Awaited,
    /// It is somebody's, or at work, and was verified before that.
    Verified,
    /// It is somebody's, or at work, and not verified.
    Soiled,
}

/// A VF that belongs to a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its PCI address.
    pub address: PciAddr,
    /// The PCI address of its PF.
    pub pf: PciAddr,
    /// Its NUMA node, where the machine reports one.
    pub numa_node: Option<u32>,
    /// What it is in now.
    pub state: MemberState,
    /// What keeps it from pods.
    pub hold: Option<Hold>,
    /// When its allocator last gave it to a pod, or was answered so; `None`: not since the daemon's start.
    pub allocated_at: Option<Instant>,
}

impl MemberState {
    /// Whether it is ready, or on the way there by itself.
    pub(super) fn supplies(&self) -> bool {
        matches!(self, MemberState::Preparing(_) | MemberState::Ready { .. })
    }

    /// Whether a thread is at work on it, or will be as soon as one is free.
    pub fn is_at_work(&self) -> bool {
        matches!(self, MemberState::Due(_) | MemberState::Preparing(_) | MemberState::Restoring(_))
    }

    /// Whether the allocator has given it to a pod whose ADD has yet to come, when some pod has it by now: the ADD of one that
    /// was ready has come, if not by us; for another one the next pod's may.
    pub fn is_allocated_to_the_next(&self) -> bool {
        !matches!(self, MemberState::Ready { .. }) && self.is_allocated()
    }

    /// Whether its allocator has given it to a pod, and no ADD has come for it since.
    pub fn is_allocated(&self) -> bool {
        match self {
            MemberState::Ready { allocated, .. } | MemberState::Lent { allocated, .. } => *allocated,
            other => other.pending().is_some_and(|pending| pending.allocated),
        }
    }

    /// What of it goes over into the next state.
    pub(super) fn into_pending(self) -> Pending {
        match self {
            MemberState::Idle | MemberState::Gone => Pending::default(),
            MemberState::Due(pending)
            | MemberState::Preparing(pending)
            | MemberState::Restoring(pending)
            | MemberState::Foreign { pending, .. } => pending,
            MemberState::Ready { allocated, verified } => {
                Pending { allocated, verified, ..Pending::default() }
            }
            MemberState::Lent { allocated, verified, left_behind } => {
                Pending { allocated, verified, left_behind, ..Pending::default() }
            }
        }
    }

    fn pending(&self) -> Option<&Pending> {
        match self {
            MemberState::Due(pending)
            | MemberState::Preparing(pending)
            | MemberState::Restoring(pending)
            | MemberState::Foreign { pending, .. } => Some(pending),
            _ => None,
        }
    }

    pub(super) fn pending_mut(&mut self) -> Option<&mut Pending> {
        match self {
            MemberState::Due(pending)
            | MemberState::Preparing(pending)
            | MemberState::Restoring(pending)
            | MemberState::Foreign { pending, .. } => Some(pending),
            _ => None,
        }
    }
}

impl Pending {
    /// What was is over: the next try is at once, and the first one.
    pub(super) fn forget_failures(&mut self) {
        self.failures = 0;
        self.setback = None;
    }

    /// Has the next try, if one is waited for, at once.
    pub(super) fn forget_setback(&mut self) {
        self.setback = None;
    }

    /// If it waits for its PF, the next try is at once, and the first one; how that ends nobody knows yet.
    pub(super) fn retry_if_hindered(&mut self, now: Instant) -> bool {
        let Some(setback) = self.setback.as_mut().filter(|setback| setback.hindered) else { return false };
        setback.until = now;
        setback.times = 0;
        true
    }

    /// The next try is after a pause that grows.
    fn set_back(&mut self, why: &str, hindered: bool, now: Instant) {
        // Failures of the VF and of its PF are counted apart: after the other kind the pause begins short again.
        let before = self.setback.take().filter(|before| before.hindered == hindered);
        let times = before.map_or(0, |before| before.times) + 1;
        let until = now + PAUSES.after(times);
        self.setback = Some(Setback { why: why.to_owned(), until, hindered, times });
        self.verified = false;
    }
}

impl Member {
    /// A VF to which nothing was done.
    pub fn new(address: PciAddr, pf: PciAddr, numa_node: Option<u32>) -> Member {
        Member { address, pf, numa_node, state: MemberState::Idle, hold: None, allocated_at: None }
    }

    /// How it stands, in one word of [`Member::STATE_NAMES`].
    pub fn state_name(&self) -> &'static str {
        match (&self.state, &self.hold) {
            (MemberState::Lent { .. }, _) => "lent",
            (MemberState::Gone, _) => "gone",
            (MemberState::Foreign { .. }, _) => "foreign",
            (MemberState::Restoring(_), _) => "draining",
            (_, Some(Hold::Quarantined(_) | Hold::Unclean(_))) => "quarantined",
            (MemberState::Idle, Some(_)) => "drained",
            (_, Some(_)) => "draining",
            (MemberState::Idle, None) => "idle",
            (MemberState::Due(_) | MemberState::Preparing(_), None) => "preparing",
            (MemberState::Ready { allocated: true, .. }, None) => "given",
            (MemberState::Ready { allocated: false, .. }, None) => "ready",
        }
    }

    /// Every word of [`Member::state_name`].
    pub const STATE_NAMES: [&'static str; 10] = [
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
        match (&self.state, &self.hold) {
            (MemberState::Foreign { who, .. }, _) => who,
            (_, Some(Hold::Quarantined(why) | Hold::Unclean(why))) => why,
            (MemberState::Ready { allocated: true, .. }, Some(_)) => ALLOCATED,
            (state, _) if state.is_at_work() => self.setback().map_or("", |setback| &setback.why),
            _ => "",
        }
    }

    /// In whose hands it is.
    pub fn mark(&self) -> Mark {
        match &self.state {
            MemberState::Ready { allocated: true, .. } => Mark::Given,
            _ if self.is_allocated() => Mark::Awaited,
            MemberState::Ready { .. } if self.hold.is_none() => Mark::Clean,
            _ if self.is_verified() => Mark::Verified,
            _ => Mark::Soiled,
        }
    }

    /// Whether its allocator has given it to a pod, and no ADD has come for it since.
    pub fn is_allocated(&self) -> bool {
        self.state.is_allocated()
    }

    /// Whether it was ready once, and nothing has put that in doubt since.
    pub fn is_verified(&self) -> bool {
        match &self.state {
            MemberState::Ready { verified, .. } | MemberState::Lent { verified, .. } => *verified,
            other => other.pending().is_some_and(|pending| pending.verified),
        }
    }

    /// Whether what is on its interface is nobody's, because a pod that is gone has left it there.
    pub fn is_left_behind(&self) -> bool {
        match &self.state {
            MemberState::Lent { left_behind, .. } => *left_behind,
            other => other.pending().is_some_and(|pending| pending.left_behind),
        }
    }

    /// What keeps it waiting for the next try.
    pub fn setback(&self) -> Option<&Setback> {
        self.state.pending()?.setback.as_ref()
    }

    /// Whether it may be given to a pod, as it is or, where nothing was done to it yet, when it was prepared.
    pub fn lendable(&self) -> Result<(), Refusal> {
        match (&self.state, &self.hold) {
            (MemberState::Gone, _) => Err(Refusal::Gone),
            (MemberState::Lent { .. }, _) => Err(Refusal::Lent),
            (MemberState::Foreign { who, .. }, _) => Err(Refusal::Foreign(who.clone())),
            (_, Some(Hold::Quarantined(why))) => Err(Refusal::Quarantined(why.clone())),
            (MemberState::Idle, Some(Hold::Drained)) => Err(Refusal::Drained),
            (MemberState::Ready { .. } | MemberState::Idle, None) => Ok(()),
            // The pod that it was allocated to is there already.
            (MemberState::Ready { allocated: true, .. }, _) => Ok(()),
            _ => Err(self.not_yet()),
        }
    }

    pub(super) fn not_yet(&self) -> Refusal {
        Refusal::NotYet(match self.reason() {
            "" => self.state_name().to_owned(),
            why => format!("{}: {why}", self.state_name()),
        })
    }

    /// Whether the allocator may give it to a pod: it is ready, or on its way home to be so.
    pub fn givable(&self) -> Result<(), Refusal> {
        let comes_home = matches!(
            self.state,
            MemberState::Ready { .. }
                | MemberState::Lent { .. }
                | MemberState::Due(_)
                | MemberState::Preparing(_)
        );
        match comes_home && self.is_verified() && self.hold.is_none() {
            true => Ok(()),
            false => Err(self.lendable().err().unwrap_or_else(|| self.not_yet())),
        }
    }

    /// Whether it waits for its PF, and not for a turn of its own.
    pub fn is_hindered(&self) -> bool {
        self.setback().is_some_and(|setback| setback.hindered)
    }

    /// Whether it cannot be given now, and will be without anybody's doing.
    pub fn is_awaited(&self) -> bool {
        self.lendable().is_err_and(|why| why.passes())
    }

    /// Whether it is to be given back, for as long as it is so held.
    pub fn is_leaving(&self) -> bool {
        matches!(self.hold, Some(Hold::Drained | Hold::Dismissed(_)))
    }

    /// Whether it waits for the operator.
    pub fn is_quarantined(&self) -> bool {
        matches!(self.hold, Some(Hold::Quarantined(_)))
    }

    /// Whether its allocator has given it to a pod as it was ready, which may have it in its hands.
    pub fn is_given(&self) -> bool {
        matches!(self.state, MemberState::Ready { allocated: true, .. })
    }

    /// Whether it is what a draw may give.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, MemberState::Ready { allocated: false, .. }) && self.hold.is_none()
    }

    /// Whether it is to be no member any more.
    pub(super) fn is_dismissed(&self) -> bool {
        matches!(self.hold, Some(Hold::Dismissed(_)))
    }

    /// Whether what was tried with it can have come to nothing: not with one that a pod has by now, or that is gone.
    pub(super) fn can_fail(&self) -> bool {
        !matches!(self.state, MemberState::Lent { .. } | MemberState::Gone)
    }

    /// Whether the pause after the last try is not over.
    pub(super) fn is_pausing(&self, now: Instant) -> bool {
        self.setback().is_some_and(|setback| setback.until > now)
    }

    /// Takes the state that `next` makes of what goes over from the one before.
    pub(super) fn pass_on(&mut self, next: impl FnOnce(Pending) -> MemberState) {
        let before = std::mem::replace(&mut self.state, MemberState::Gone);
        self.state = next(before.into_pending());
    }

    /// A try has come to nothing; the next one is after a pause that grows.
    pub(super) fn set_back(&mut self, why: &str, hindered: bool, now: Instant) {
        self.pass_on(|mut pending| {
            pending.failures += u32::from(!hindered);
            pending.set_back(why, hindered, now);
            MemberState::Due(pending)
        });
    }

    /// The pod that it was allocated to is gone.
    pub(super) fn leave_behind(&mut self) {
        self.pass_on(|pending| MemberState::Due(Pending { left_behind: true, ..pending }));
    }

    /// The next try, if one is waited for, is at once, and the first one.
    pub(super) fn forget_failures(&mut self) {
        self.state.pending_mut().into_iter().for_each(Pending::forget_failures);
    }

    /// Whether it has failed so often that it is not tried again, unless it has to be given back to others.
    pub(super) fn is_given_up(&self) -> bool {
        self.state.pending().is_some_and(|pending| pending.failures >= FAILURES) && !self.is_dismissed()
    }

    pub(super) fn set_allocated(&mut self, now: bool) {
        match &mut self.state {
            MemberState::Ready { allocated, .. } | MemberState::Lent { allocated, .. } => *allocated = now,
            other => other.pending_mut().into_iter().for_each(|pending| pending.allocated = now),
        }
    }

    /// Something has put in doubt that it is, or was, ready.
    pub fn doubt(&mut self) {
        match &mut self.state {
            MemberState::Ready { verified, .. } | MemberState::Lent { verified, .. } => *verified = false,
            other => other.pending_mut().into_iter().for_each(|pending| pending.verified = false),
        }
    }

    pub(super) fn prepare(&mut self) -> Task {
        self.pass_on(MemberState::Preparing);
        Task::Prepare(self.address)
    }

    pub(super) fn give_back(&mut self) -> Task {
        self.pass_on(|pending| MemberState::Restoring(Pending { allocated: false, named: false, ..pending }));
        Task::GiveBack(self.address)
    }
}
