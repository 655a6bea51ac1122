//! Taking an attachment down: by DEL, as the undo of an ADD, after a restart, or when its namespace has died. One way
//! for all, from the record alone, and it may be begun again at any step.

use std::time::{Duration, Instant};

use fairlead_cni::{CniError, avoid_containerd_phrases};
use fairlead_host::{NetError, failpoint};

use super::{Core, Task};
use crate::engine::errors;
use crate::engine::kinds::{AwaitsCarrier, Network};
use crate::engine::netdev;
use crate::engine::recorded_netns::{self, Reach};
use crate::store::{Attachment, LinkRecord, Phase};

/// The answer of a DEL has left by then. A restore that began at once would take the processor, and the kernel's lock for
/// links, from it.
const ANSWERED: Duration = Duration::from_millis(25);

/// Whether DEL may be answered before the link is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// When the interface is silent.
    WhenSilent,
    /// When nothing is left.
    WhenGone,
}

impl Core {
    /// Takes an attachment down as far as its answer needs.
    pub(crate) fn remove(&self, attachment: &Attachment, answer: Answer) -> Result<(), CniError> {
        // On record first: a start after a kill would take it for attached, and leave it half removed.
        self.store.enter(attachment.id, Phase::Removing).map_err(|e| errors::store(&e))?;
        failpoint::pass("del.removing");
        // The reference plugins have the same order: the IPAM gets its DEL before the link goes.
        self.delegates_del(attachment)?;
        let told = |e: NetError| removing(attachment, &e);
        let reach = recorded_netns::reach(self.kernel(), &attachment.netns).map_err(told)?;
        let reach = match reach {
            Reach::Inside(mut pod) if answer == Answer::WhenSilent => {
                match self.kinds.find(attachment, pod.as_mut()).map_err(told)? {
                    Some(link) => {
                        // The announcer's socket would keep the namespace alive after the answer.
                        self.kinds.quiet(link.index, &attachment.netns.id);
                        let parked = attachment.parked_name();
                        netdev::silence(pod.as_mut(), link.index, &parked).map_err(told)?;
                        // containerd removes the namespace right after the answer: nothing of ours may keep it alive.
                        drop(pod);
                        failpoint::pass("del.silent");
                        return self.park(attachment);
                    }
                    // The link is gone already: what else the attachment held is given back at once.
                    None => Reach::Inside(pod),
                }
            }
            other => other,
        };
        if let Some(index) = self.kinds.recorded_index(attachment) {
            self.kinds.quiet(index, &attachment.netns.id);
        }
        // No error: the pod would stay in Terminating for as long as a cable is out.
        if let Some(AwaitsCarrier(why)) = self.take_down(attachment, reach)? {
            tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
                ifname = %attachment.key.ifname, error = %why, "a VF is home, and waits for the carrier of its NIC");
            self.removals.again(attachment.id, &why);
        }
        Ok(())
    }

    /// The DEL of everything that was executed for an attachment, from its record alone.
    fn delegates_del(&self, attachment: &Attachment) -> Result<(), CniError> {
        if !attachment.has_delegates() {
            return Ok(());
        }
        self.ipam.wait_for_earlier_delegates();
        match &attachment.link {
            LinkRecord::Conflist { conflist } => (self.remove_conflist)(self, attachment, conflist),
            _ => self.ipam.delegate_del(attachment, &self.netns_for_delegates(attachment)),
        }
    }

    /// The namespace's path if it still leads there, else empty, as the specification wants it.
    pub(crate) fn netns_for_delegates(&self, attachment: &Attachment) -> String {
        match recorded_netns::reach(self.kernel(), &attachment.netns) {
            Ok(Reach::Inside(_)) => attachment.netns.path.clone(),
            _ => String::new(),
        }
    }

    /// The link goes for good, or is restored, and with it all that the attachment held. A VF that waits for a carrier stays on
    /// record as the removal queue's, and is nobody else's for that long.
    fn take_down(
        &self,
        attachment: &Attachment,
        reach: Reach<'_>,
    ) -> Result<Option<AwaitsCarrier>, CniError> {
        let waits = self.kinds.undo(attachment, reach)?;
        failpoint::pass("del.unlinked");
        // After the link: as long as that is there it may answer for the addresses, and nobody else may get them.
        self.release(attachment)?;
        match &waits {
            Some(_) => {
                self.store.released(attachment).map_err(|e| errors::store(&e))?;
                self.records.forget(attachment.id);
            }
            None => self.forget(attachment)?,
        }
        Ok(waits)
    }

    /// The removal is on record and answered; the rest is the removal queue's.
    fn park(&self, attachment: &Attachment) -> Result<(), CniError> {
        // On record before the DEL is answered: the runtime does not call again after a success.
        self.store.enter(attachment.id, Phase::Silenced).map_err(|e| errors::store(&e))?;
        failpoint::pass("del.silenced");
        let soon = self.kinds.leaves_the_pod(attachment);
        let wait = if soon { ANSWERED } else { self.policy().reap_after };
        self.removals.expect(attachment.id, Instant::now() + wait);
        Ok(())
    }

    /// Gives back what the attachment held, once its link is gone.
    fn release(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.ipam.release(attachment).map_err(|e| without_success_phrases(&e))?;
        self.kinds.release(attachment)?;
        failpoint::pass("del.released");
        Ok(())
    }

    /// Nothing is left of it.
    fn forget(&self, attachment: &Attachment) -> Result<(), CniError> {
        // Before the journal's entry: a record that the journal does not know is taken for an attachment that the store has lost.
        self.records.forget(attachment.id);
        self.removals.done(attachment.id);
        let forget = || self.store.removed(attachment.id).map_err(|e| errors::store(&e));
        self.kinds.forget(attachment, forget)?;
        failpoint::pass("del.removed");
        Ok(())
    }

    /// Finishes a silenced attachment: deletes its link unless the namespace has taken it along, and frees what it held.
    /// Holds nothing of the namespace, but for as long as a VF takes to leave it.
    pub(crate) fn reap(&self, id: u64) -> Result<(), CniError> {
        // An ADD that hurries it and a thread of the queue may come at once.
        let Some(_turn) = self.removals.turn(id) else { return Ok(()) };
        let Some(attachment) = self.store.get(id).filter(|a| a.phase == Phase::Silenced) else {
            return Ok(());
        };
        let told = |e: NetError| removing(&attachment, &e);
        let reach = match attachment.netns.nsid {
            // By number alone: whoever enters the namespace keeps it, and the link in it, from dying.
            Some(nsid) if !self.kinds.leaves_the_pod(&attachment) => {
                match self.kernel().nsids().map_err(told)?.contains(&nsid) {
                    true => Reach::ByNumber(nsid),
                    false => Reach::Dead,
                }
            }
            _ => recorded_netns::reach(self.kernel(), &attachment.netns).map_err(told)?,
        };
        AwaitsCarrier::refuse(self.take_down(&attachment, reach)?)
    }

    /// Removes by order of a caller, who may never come again: what fails is tried again without him.
    pub(crate) fn remove_for(&self, attachment: &Attachment, answer: Answer) -> Result<(), CniError> {
        self.remove(attachment, answer).map_err(|e| {
            self.removals.again(attachment.id, &e);
            without_success_phrases(&e)
        })
    }

    /// Undoes an ADD that failed with `error`. What cannot be undone now stays on record and is tried again.
    pub(crate) fn undo(&self, attachment: &Attachment, error: &CniError) {
        tracing::info!(container = %attachment.key.container, network = %attachment.key.network, ifname = %attachment.key.ifname,
            error = %error, "ADD is undone");
        // The caller is told why the ADD failed. What the undo meets is the log's and the queue's.
        if let Err(e) = self.remove(attachment, Answer::WhenGone) {
            tracing::error!(container = %attachment.key.container, network = %attachment.key.network,
                ifname = %attachment.key.ifname, error = %e, "the undo of a failed ADD failed; it is tried again");
            self.removals.again(attachment.id, &e);
        }
    }

    /// What the removal queue's threads do when the time of something has come.
    pub(crate) fn attend(&self, task: Task) {
        match task {
            Task::Attachment(id) => self.finish(id),
            Task::Leftover(address) => self.kinds.leftovers.settle_dead(&self.kinds, address),
        }
    }

    fn finish(&self, id: u64) {
        let Some(attachment) = self.store.get(id) else { return self.removals.done(id) };
        let done = match attachment.phase {
            Phase::Silenced => self.reap(id),
            Phase::Removing => self.try_remove(&attachment),
            Phase::Adding | Phase::Attached => return,
        };
        let Err(e) = done else { return };
        let failures = self.removals.again(id, &e);
        // A process may keep a VF for hours: logged ever more seldom.
        if failures.is_power_of_two() {
            tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
                ifname = %attachment.key.ifname, failures, error = %e, "a removal failed; it is tried again");
        }
    }

    /// Removes an attachment in the background, unless a call works on its container just now, or a process has its VF.
    fn try_remove(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some(_lock) = self.containers.try_take(&attachment.key.container) else {
            return Err(errors::too_late("another call of the same container"));
        };
        self.kinds.must_be_unused(attachment)?;
        // Read again under the lock: a DEL may have silenced or removed it meanwhile.
        match self.store.get(attachment.id) {
            Some(now) if now.phase != Phase::Silenced => self.remove(&now, Answer::WhenGone),
            _ => Ok(()),
        }
    }

    /// When the DEL of this attachment may be answered.
    pub(crate) fn answer_of(&self, attachment: &Attachment, network: Option<&Network>) -> Answer {
        // Without an address there is nothing by whose removal the interface falls silent. Before 6.2 a link must be down
        // to be renamed, and to set it down holds the kernel's lock for links for 11–20 ms.
        let early = self.kinds.can_be_silenced(attachment)
            && !attachment.addresses.is_empty()
            && !self.policy().del_waits
            && self.kernel().renames_while_up()
            && network.is_some_and(Network::silent_is_gone);
        if early { Answer::WhenSilent } else { Answer::WhenGone }
    }
}

fn removing(attachment: &Attachment, error: &NetError) -> CniError {
    errors::kernel(&attachment.key.network, &format!("removing {:?}", attachment.key.ifname), error)
}

/// A DEL error without the phrases that containerd takes for success.
pub(crate) fn without_success_phrases(error: &CniError) -> CniError {
    CniError {
        code: error.code,
        msg: avoid_containerd_phrases(&error.msg),
        details: avoid_containerd_phrases(&error.details),
    }
}
