//! A pool of VFs as a value: which members it has, how each stands, what is to be done next, and which one a draw gives. Pure:
//! whoever carries the tasks out reports how they ended.
//!
//! A member that is lent, quarantined, drained or somebody else's is never given to a pod, nor is one that was not prepared.
//! Nothing is ever to be done to one that is lent or somebody else's, or that the allocator has given to a pod as it was ready.

mod allocation;
mod member;
mod member_choice;
#[cfg(test)]
mod tests;
mod unclean;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

pub use member::{Hold, Mark, Member, MemberState, Pending, Setback};
pub use member_choice::Spread;

use crate::PciAddr;

/// So many failures in a row keep a member from being tried again.
pub const FAILURES: u32 = 2;

/// How many members are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stock {
    /// Below this it is filled up; `None`: all members are kept ready.
    pub min: Option<usize>,
    /// Never more than this; what is above is given back. `None`: no limit.
    pub max: Option<usize>,
    /// At least so many are prepared together when it is filled up, as far as `max` lets them; 0 and 1 fill up to `min`.
    pub batch: usize,
}

impl Stock {
    fn min(&self) -> usize {
        self.min.unwrap_or(usize::MAX).min(self.max())
    }

    fn max(&self) -> usize {
        self.max.unwrap_or(usize::MAX)
    }
}

/// What is to be done to a member, by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// The member is reset, set up, bound and verified; ends with [`Pool::prepared`], [`Pool::failed`], [`Pool::hindered`] or [`Pool::taken`].
    Prepare(PciAddr),
    /// The member is put back as it was when it was adopted; ends with [`Pool::given_back`] or, as above, without success.
    GiveBack(PciAddr),
}

impl Task {
    /// The member that it is about.
    pub fn address(self) -> PciAddr {
        match self {
            Task::Prepare(address) | Task::GiveBack(address) => address,
        }
    }
}

/// Why a member is not given to a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It will be ready: waiting for it makes sense.
    #[error("it is not ready yet ({0})")]
    NotYet(String),
    /// A pod has it.
    #[error("it is lent")]
    Lent,
    /// It does not work, or the operator has said so.
    #[error("it is quarantined: {0}")]
    Quarantined(String),
    /// The operator wants it as it was, without what its pool wants of it.
    #[error("it is drained, by order of the operator")]
    Drained,
    /// Somebody else uses it.
    #[error("somebody else uses it: {0}")]
    Foreign(String),
    /// The machine does not have it.
    #[error("the machine does not have it any more")]
    Gone,
    /// It has other nodes than kubelet was told, which are another VF's now or nobody's: it was bound anew since (RDMA), or is in another
    /// IOMMU group since it was made (vfio-pci).
    #[error("its nodes are {now} by now, and kubelet gives its pod's containers {told}, which it had before")]
    OtherNodes {
        /// The nodes that kubelet was told.
        told: String,
        /// The nodes that it has.
        now: String,
    },
}

impl Refusal {
    /// Whether it passes without anybody's doing.
    pub fn passes(&self) -> bool {
        matches!(self, Refusal::NotYet(_) | Refusal::Lent)
    }
}

/// A pool's members, and how many of them are kept ready.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    stock: Stock,
    members: BTreeMap<PciAddr, Member>,
    /// Members that have changed since [`Pool::take_changed`], and those that are no members any more.
    changed: BTreeSet<PciAddr>,
}

impl Pool {
    /// A pool without members.
    pub fn new(stock: Stock) -> Pool {
        Pool { stock, ..Pool::default() }
    }

    /// Takes other numbers of members to keep ready.
    pub fn set_stock(&mut self, stock: Stock) {
        self.stock = stock;
    }

    /// Its members, in the order of their addresses.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The members that have changed since this was last called, and those that are no members any more.
    pub fn take_changed(&mut self) -> BTreeSet<PciAddr> {
        std::mem::take(&mut self.changed)
    }

    /// The member at an address.
    pub fn member(&self, address: PciAddr) -> Option<&Member> {
        self.members.get(&address)
    }

    /// Takes a member in, or again one that had vanished.
    pub fn appeared(&mut self, member: Member) {
        self.changed.insert(member.address);
        match self.members.get_mut(&member.address) {
            Some(known) if known.state == MemberState::Gone => {
                // What the operator ordered, or why it is quarantined, still holds for the VF that is back.
                let hold = known.hold.take().or(member.hold.clone());
                *known = Member { hold, ..member };
            }
            Some(_) => {}
            None => drop(self.members.insert(member.address, member)),
        }
    }

    /// A member is not in the machine any more. One that is lent stays so until it is returned, and one that is at work until
    /// that has ended: nobody else may begin with what is in its place by then.
    pub fn vanished(&mut self, address: PciAddr) {
        self.with(address, |member| match member.state {
            MemberState::Lent { .. } | MemberState::Preparing(_) | MemberState::Restoring(_) => {
                member.doubt();
            }
            _ => member.is_lost(),
        });
    }

    /// A task has found nothing in the member's place.
    pub fn lost(&mut self, address: PciAddr) {
        self.with(address, Member::is_lost);
    }

    /// It is to be no member any more, or (`false`) is one again. [`Pool::forget_dismissed`] ends it.
    pub fn dismiss(&mut self, address: PciAddr, dismissed: bool) {
        if self.member(address).is_none_or(|member| member.is_dismissed() == dismissed) {
            return;
        }
        self.with(address, |member| match member.hold.take() {
            Some(Hold::Dismissed(before)) => member.hold = before.map(|before| *before),
            // It is given back at once, and not when the pause after its last failure is over.
            before => {
                member.hold = Some(Hold::Dismissed(before.map(Box::new)));
                member.forget_failures();
            }
        });
    }

    /// Lets go those that were dismissed and of which nothing is left to be given back; answers which. `owes`: whether something
    /// is left, of one that somebody else uses.
    pub fn forget_dismissed(&mut self, owes: impl Fn(PciAddr) -> bool) -> Vec<PciAddr> {
        let is_over = |m: &&Member| {
            let owes_nothing = match m.state {
                MemberState::Idle | MemberState::Gone => true,
                MemberState::Foreign { .. } => !owes(m.address),
                _ => false,
            };
            m.is_dismissed() && owes_nothing
        };
        let over: Vec<PciAddr> = self.members().filter(is_over).map(|m| m.address).collect();
        for address in &over {
            self.members.remove(address);
            self.changed.insert(*address);
        }
        over
    }

    /// When the next try is due of those that wait for one.
    pub fn next_try(&self) -> Option<Instant> {
        let waits = self.members().filter(|m| matches!(m.state, MemberState::Due(_)) && !m.is_quarantined());
        waits.filter_map(|member| Some(member.setback()?.until)).min()
    }

    /// What is to be done now. Each task is returned once: its member is at work until the caller says how it ended.
    pub fn due(&mut self, now: Instant) -> Vec<Task> {
        let mut tasks = Vec::new();
        let mut supply = self.supply();
        for member in self.members.values_mut() {
            let surplus = supply > self.stock.max();
            match (&member.state, &member.hold) {
                (MemberState::Due(_), _) if member.is_pausing(now) => {}
                // Its pod may have it in its hands.
                (MemberState::Ready { allocated: true, .. }, _) => {}
                (
                    MemberState::Ready { .. } | MemberState::Due(_),
                    Some(Hold::Drained | Hold::Dismissed(_)),
                ) => tasks.push(member.give_back()),
                // Whatever the stock: where nothing was changed of it, giving it back would not bind it anew.
                (MemberState::Ready { .. }, Some(Hold::Unclean(_))) => tasks.push(member.prepare()),
                (MemberState::Due(pending), Some(Hold::Unclean(_))) => {
                    // One that kubelet has given to its next pod already is no supply for others.
                    supply += usize::from(!pending.allocated);
                    tasks.push(member.prepare());
                }
                (MemberState::Ready { .. }, None) if surplus => {
                    supply -= 1;
                    tasks.push(member.give_back());
                }
                // Kubelet has given it to a pod, which waits for it: the stock does not matter.
                (MemberState::Due(pending), None) if pending.allocated => tasks.push(member.prepare()),
                // An ADD that has named it waits for it: above `max` another one is given back instead.
                (MemberState::Due(pending), None) if pending.named || supply < self.stock.max() => {
                    supply += 1;
                    tasks.push(member.prepare());
                }
                // There are `max` already: what comes home from a pod is not prepared.
                (MemberState::Due(_), None) => tasks.push(member.give_back()),
                _ => {}
            }
        }
        tasks.extend(self.refill(supply));
        self.changed.extend(tasks.iter().map(|task| task.address()));
        tasks
    }

    /// Prepares idle members, where too few are ready.
    fn refill(&mut self, supply: usize) -> Vec<Task> {
        if supply >= self.stock.min() {
            return Vec::new();
        }
        // `Stock::min` is never above `max`: neither subtraction goes below zero.
        let wanted = (self.stock.min() - supply).max(self.stock.batch).min(self.stock.max() - supply);
        let is_idle = |m: &&mut Member| m.state == MemberState::Idle && m.hold.is_none();
        self.members.values_mut().filter(is_idle).take(wanted).map(Member::prepare).collect()
    }

    /// How many are ready, or will be without anybody asking, and were allocated to no pod yet.
    fn supply(&self) -> usize {
        let supplies = |m: &&Member| m.is_for_pods() && !m.is_allocated() && m.state.supplies();
        self.members.values().filter(supplies).count()
    }

    /// A member is ready, by a task or because it was found so.
    pub fn prepared(&mut self, address: PciAddr) {
        self.with(address, |member| {
            let allocated = member.is_allocated();
            member.clean();
            member.state = MemberState::Ready { allocated, verified: true };
        });
    }

    /// A member is as it was when it was adopted.
    pub fn given_back(&mut self, address: PciAddr) {
        self.with(address, |member| {
            member.clean();
            member.state = MemberState::Idle;
        });
    }

    /// A task failed, or a member that was ready is not what it should be: it is tried again after a pause, and not a third
    /// time. One that is to be given back for good is tried until it is. Answers whether it is quarantined now.
    pub fn failed(&mut self, address: PciAddr, reason: &str, now: Instant) -> bool {
        let Some(member) = self.member_mut(address).filter(|m| m.can_fail()) else { return false };
        member.set_back(reason, false, now);
        let given_up = member.is_given_up() && !member.is_quarantined();
        if given_up {
            let why = match &member.hold {
                Some(Hold::Unclean(left)) => format!("{left}; {reason}"),
                _ => reason.to_owned(),
            };
            member.hold = Some(Hold::Quarantined(why));
        }
        given_up
    }

    /// A task came to nothing through no fault of its member: its PF was not there to be asked, or not itself. It is tried again
    /// as often as it takes, after ever longer pauses.
    pub fn hindered(&mut self, address: PciAddr, reason: &str, now: Instant) {
        if let Some(member) = self.member_mut(address).filter(|m| m.can_fail()) {
            member.set_back(reason, true, now);
        }
    }

    /// A PF may be itself again: its members that were kept waiting for it are tried at once. Answers whether there are any.
    pub fn try_again(&mut self, pf: PciAddr, now: Instant) -> bool {
        let of_it = self.members.values_mut().filter(|member| member.pf == pf);
        let pending = of_it.filter_map(|member| member.state.pending_mut());
        pending.map(|pending| pending.retry_if_hindered(now)).filter(|is_hindered| *is_hindered).count() > 0
    }

    /// A member that was ready is not what it should be, and may be made so again.
    pub fn spoiled(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if matches!(member.state, MemberState::Ready { .. }) {
                member.pass_on(MemberState::Due);
            }
        });
    }

    /// Somebody else uses a member: it is left alone.
    pub fn taken(&mut self, address: PciAddr, why: &str) {
        self.with(address, |member| {
            if !matches!(member.state, MemberState::Lent { .. }) {
                member.doubt();
                member.pass_on(|pending| MemberState::Foreign { who: why.to_owned(), pending });
            }
        });
    }

    /// Nobody else uses a member any more.
    pub fn left(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if matches!(member.state, MemberState::Foreign { .. }) {
                member.pass_on(MemberState::Due);
            }
        });
    }

    /// Gives a member to a pod, if it may have it. One to which nothing was done is prepared first, whatever the stock: it has neither
    /// the driver nor the settings that its pool wants.
    pub fn lend(&mut self, address: PciAddr) -> Result<(), Refusal> {
        let Some(member) = self.member_mut(address) else { return Err(Refusal::Gone) };
        member.lendable()?;
        if member.state == MemberState::Idle {
            member.state = MemberState::Due(Pending { named: true, ..Pending::default() });
            return Err(member.not_yet());
        }
        let verified = member.is_verified();
        member.state = MemberState::Lent { allocated: false, verified, left_behind: false };
        Ok(())
    }

    /// Takes a member to which nothing was done, for work on it that gives it to no pod; [`Pool::unused`] ends that. Answers whether it
    /// was there to be taken: one that is quarantined is left alone.
    pub fn take_idle(&mut self, address: PciAddr) -> bool {
        let is_idle = |m: &&mut Member| m.state == MemberState::Idle && !m.is_quarantined();
        let Some(member) = self.member_mut(address).filter(is_idle) else { return false };
        member.state = MemberState::Lent { allocated: false, verified: false, left_behind: false };
        true
    }

    /// A member is somebody's whom nobody has lent it.
    pub fn claimed(&mut self, address: PciAddr) {
        self.with(address, |member| {
            let (verified, left_behind) = (member.is_verified(), member.is_left_behind());
            let allocated = member.state.is_allocated_to_the_next();
            member.state = MemberState::Lent { allocated, verified, left_behind };
        });
    }

    /// A lent member was not used after all: it is what it `was`, unless it has vanished or was allocated meanwhile.
    pub fn unused(&mut self, address: PciAddr, was: MemberState) {
        self.with(address, |member| {
            let MemberState::Lent { allocated: again, verified, .. } = member.state else { return };
            member.state = match was {
                MemberState::Ready { allocated, .. } => {
                    MemberState::Ready { allocated: allocated || again, verified }
                }
                was => was,
            };
        });
    }

    /// A lent member is nobody's any more; it is not clean.
    pub fn returned(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if matches!(member.state, MemberState::Lent { .. }) {
                member.pass_on(MemberState::Due);
            }
        });
    }

    /// The operator wants a member ready, whatever `min` says, and now, not when a pause is over.
    pub fn fill(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if member.hold == Some(Hold::Drained) {
                member.hold = None;
            }
            if member.state == MemberState::Idle && member.hold.is_none() {
                member.pass_on(MemberState::Due);
            }
            member.state.pending_mut().into_iter().for_each(Pending::forget_setback);
        });
    }

    /// The operator wants a member as it was; one that is lent when it is returned, one that is allocated when nobody has it.
    pub fn drain(&mut self, address: PciAddr) {
        self.with(address, |member| {
            if !member.is_dismissed() {
                member.hold = Some(Hold::Drained);
                member.forget_failures();
            }
        });
    }

    /// A member is not to be given to pods any more.
    pub fn quarantine(&mut self, address: PciAddr, reason: &str) {
        self.with(address, |member| {
            if !member.is_dismissed() {
                member.hold = Some(Hold::Quarantined(reason.to_owned()));
            }
        });
    }

    /// A quarantined member is tried again; one that is allocated when it is allocated again.
    pub fn release(&mut self, address: PciAddr) {
        self.with(address, |member| match &mut member.hold {
            Some(Hold::Quarantined(_)) => {
                member.hold = None;
                member.forget_failures();
                // What was wrong with it may still be: it is prepared and verified before a pod has it.
                if matches!(member.state, MemberState::Ready { allocated: false, .. } | MemberState::Idle) {
                    member.doubt();
                    member.pass_on(MemberState::Due);
                }
            }
            Some(Hold::Dismissed(before)) => *before = None,
            // It stays held until it was bound anew. That is tried at once, and not when the pause after the last try is over.
            Some(Hold::Unclean(_)) => {
                member.forget_failures();
                if member.state == MemberState::Idle {
                    member.pass_on(MemberState::Due);
                }
            }
            Some(Hold::Drained) | None => {}
        });
    }

    fn with(&mut self, address: PciAddr, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.member_mut(address) {
            change(member);
        }
    }

    /// The one way to a member that is to be changed: whoever derives something from it sees that it has to be derived again.
    fn member_mut(&mut self, address: PciAddr) -> Option<&mut Member> {
        let member = self.members.get_mut(&address)?;
        self.changed.insert(address);
        Some(member)
    }
}
