//! Taking an attachment down: by DEL, as the undo of an ADD, after a restart, or when its namespace has died. One way
//! for all, from the record alone, and it may be begun again at any step.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fairlead_cni::args::Args;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Net, NetError, Op, failpoint};
use nix::errno::Errno;

use super::{Core, ExecutedRemoval, Failures, StartStep, Task};
use crate::engine::errors;
use crate::engine::kinds::{Network, Undone};
use crate::engine::netdev::{self, gone_is_fine};
use crate::engine::recorded_netns::{self, Reach};
use crate::logging;
use crate::store::{Attachment, LinkRecord, Phase};

/// The answer of a DEL has left by then. A restore that began at once would take the processor, and the kernel's lock for
/// links, from it.
const ANSWERED: Duration = Duration::from_millis(25);

/// A removal that has neither ended nor failed for so long hangs: longer than the time limit of a plugin.
const STUCK: Duration = Duration::from_secs(60);
/// A call that works on the same container is waited for in steps of this length.
const CALL_AT_WORK: Duration = Duration::from_secs(1);

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
        // Past errors: what one network cannot give back must not keep the others. This one's record stays until all are gone.
        let others = self.remove_made_with(attachment);
        // The reference plugins have the same order: the IPAM gets its DEL before the link goes.
        let executed = self.delegates_del(attachment);
        if let Err(refused) = CniError::all([others, executed].into_iter().filter_map(Result::err)) {
            // No pod has been answered for it, and a device of the host would be away for as long as the IPAM is. Of what was attached
            // the link waits for the IPAM: `dhcp` gives a lease back by it.
            let unlinked = if self.was_answered(attachment) { Ok(()) } else { self.unlink(attachment) };
            return CniError::all([Err(refused), unlinked].into_iter().filter_map(Result::err));
        }
        self.remove_link(attachment, answer)
    }

    /// The rest of a removal whose executed plugins have had their DEL.
    fn remove_link(&self, attachment: &Attachment, answer: Answer) -> Result<(), CniError> {
        let told = |e: NetError| removing(attachment, &e);
        let reach = recorded_netns::reach(self.kernel(), &attachment.netns).map_err(told)?;
        let reach = match reach {
            Reach::Inside(mut pod) if answer == Answer::WhenSilent => {
                if self.silence(attachment, pod.as_mut()).map_err(told)? {
                    // containerd removes the namespace right after the answer: nothing of ours may keep it alive.
                    drop(pod);
                    failpoint::pass("del.silent");
                    return self.park(attachment);
                }
                Reach::Inside(pod)
            }
            other => other,
        };
        self.quiet_recorded(attachment);
        // No error: the pod would stay in Terminating for as long as a cable is out, or for ever where it has deleted what it was lent.
        let (why, waits) = match self.take_down(attachment, reach)? {
            Undone::Whole => return Ok(()),
            Undone::AwaitsCarrier(why) => (why, "a VF is home, and waits for the carrier of its NIC"),
            Undone::Quarantined { why, .. } => (why, "a VF is home, and is nobody's before it is clean"),
            Undone::Away(why) => (why, "what was lent to a pod cannot be had yet: it stays on record"),
        };
        tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
            ifname = %attachment.key.ifname, error = %why, waits);
        self.removals.again(attachment.id, &why);
        Ok(())
    }

    /// Whether a runtime may have been answered for it: its own ADD was committed, and that of the list and the pod that it is part of.
    fn was_answered(&self, attachment: &Attachment) -> bool {
        // Collected first: the store is locked for as long as it is looked through.
        let wholes = self.store.filter_map(|of| of.has_part(attachment).then(|| of.clone()));
        attachment.answer.is_some() && wholes.iter().all(|whole| self.was_answered(whole))
    }

    /// Takes the link down of an attachment whose IPAM refuses its DEL. What stays on record is the IPAM's alone: nobody's way to the
    /// device is barred by it, and the next attempt finds no link to undo. What the undo has to leave keeps the link on record, too.
    fn unlink(&self, attachment: &Attachment) -> Result<(), CniError> {
        // A list has no link of its own.
        let known = self.store.get(attachment.id);
        let is_list = matches!(attachment.link, LinkRecord::Conflist { .. });
        let Some(known) = known.filter(|_| !is_list) else { return Ok(()) };
        let bare = Attachment {
            link: LinkRecord::None,
            taken_device: None,
            device_info: None,
            parked: None,
            ..Attachment::clone(&known)
        };
        if bare == *known {
            return Ok(()); // it is tried again and again
        }
        let reach = recorded_netns::reach(self.kernel(), &known.netns).map_err(|e| removing(&known, &e))?;
        self.quiet_recorded(&known);
        match self.undo_link(&known, reach)? {
            Undone::Whole => {}
            Undone::AwaitsCarrier(why) | Undone::Away(why) | Undone::Quarantined { why, .. } => {
                return Err(why);
            }
        }
        self.kinds.release(&known)?;
        // Before the journal: a start that finds the link in the journal undoes it once more, while the device is nobody else's.
        self.records.keep(&bare)?;
        tracing::warn!(container = %known.key.container, network = %known.key.network, ifname = %known.key.ifname,
            "the interface is gone; the attachment stays on record until its IPAM takes the DEL");
        self.kinds.forget(&known, || self.store.unlinked(bare).map_err(|e| errors::store(&e)))
    }

    /// The announcer lets go of a made link that is about to go.
    fn quiet_recorded(&self, attachment: &Attachment) {
        if let Some(index) = self.kinds.recorded_index(attachment) {
            self.kinds.quiet(index, &attachment.netns.id);
        }
    }

    /// Makes the attachment's interface silent. False where that cannot be, so that all of it goes before the answer: it is gone already,
    /// or its name cannot be freed.
    fn silence(&self, attachment: &Attachment, pod: &mut dyn Net) -> Result<bool, NetError> {
        let Some(link) = self.kinds.find(attachment, pod)? else { return Ok(false) };
        // The announcer's socket would keep the namespace alive after the answer.
        self.kinds.quiet(link.index, &attachment.netns.id);
        match netdev::silence(pod, &link, &self.kinds.ids) {
            Err(e) if e.errno() == Some(Errno::EEXIST) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Takes down what was made with the attachment of a pod's default network, the last one first.
    fn remove_made_with(&self, attachment: &Attachment) -> Result<(), CniError> {
        if !matches!(attachment.link, LinkRecord::Conflist { .. }) {
            return Ok(());
        }
        let of_one = |other: &Attachment| {
            // What its configuration does not say by itself (`paths`, a list) is waited for.
            let conf = self.ipam.confs.get(&other.config, true).ok();
            let network = conf.and_then(|conf| Network::validate(&conf, &Args::default()).ok());
            self.remove_for(other, self.answer_of(other, network.as_ref()))
        };
        // One that is silenced is the removal queue's already.
        let others = self.made_with(attachment).into_iter().rev().filter(|a| a.phase != Phase::Silenced);
        CniError::all(others.filter_map(|other| of_one(&other).err()))
    }

    /// What was made with the attachment of a pod's default network, in the order in which it was made.
    pub(crate) fn made_with(&self, attachment: &Attachment) -> Vec<Arc<Attachment>> {
        let id = Some(attachment.id);
        self.store.all_after(attachment.id).into_iter().filter(|other| other.made_with == id).collect()
    }

    /// The DEL of the plugins of a list, and of everything that was executed for an attachment, from its record alone.
    fn delegates_del(&self, attachment: &Attachment) -> Result<(), CniError> {
        if attachment.has_delegates() {
            self.ipam.wait_for_earlier_delegates();
        }
        match &attachment.link {
            LinkRecord::Conflist { conflist, .. } => (self.remove_conflist)(self, attachment, conflist),
            _ if !attachment.has_delegates() => Ok(()),
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

    /// The link goes for good, or is restored, and with it all that the attachment held. A VF that waits for a carrier, or is not clean,
    /// stays on record as the removal queue's, and is nobody else's for that long.
    fn take_down(&self, attachment: &Attachment, reach: Reach<'_>) -> Result<Undone, CniError> {
        let undone = self.undo_link(attachment, reach)?;
        match &undone {
            // A link that the pod has hidden, or that its VM still drives, may answer for its addresses: they stay taken.
            Undone::Away(_) => {
                self.store.enter(attachment.id, Phase::Silenced).map_err(|e| errors::store(&e))?;
            }
            // After the link: as long as that is there it may answer for the addresses, and nobody else may get them.
            Undone::AwaitsCarrier(_) => self.release_all_but_the_vf(attachment, None)?,
            Undone::Quarantined { left, .. } => self.release_all_but_the_vf(attachment, Some(left))?,
            Undone::Whole => {
                self.release(attachment)?;
                self.forget(attachment)?;
            }
        }
        Ok(undone)
    }

    /// The link alone: what else the attachment holds stays held.
    fn undo_link(&self, attachment: &Attachment, mut reach: Reach<'_>) -> Result<Undone, CniError> {
        if let Reach::Inside(pod) = &mut reach {
            self.delete_renumbered(attachment, pod.as_mut()).map_err(|e| removing(attachment, &e))?;
        }
        let undone = self.kinds.undo(attachment, reach)?;
        failpoint::pass("del.unlinked");
        Ok(undone)
    }

    /// A pod that takes its link out of the namespace and back can give it another index: it would still answer for its addresses.
    fn delete_renumbered(&self, attachment: &Attachment, pod: &mut dyn Net) -> Result<(), NetError> {
        let renumbered = self.renumbered(attachment, pod)?;
        if renumbered.is_empty() {
            return Ok(());
        }
        tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
            ifname = %attachment.key.ifname, ?renumbered, "the pod has given its interface another index");
        renumbered.into_iter().try_for_each(|index| gone_is_fine(pod.batch(&[Op::DeleteLink(index)])))
    }

    /// Links of the pod that may be the attachment's under another index: like it, and no other attachment's.
    pub(super) fn renumbered(
        &self,
        attachment: &Attachment,
        pod: &mut dyn Net,
    ) -> Result<Vec<u32>, NetError> {
        let in_this_netns = self.store.all().into_iter().filter(|a| a.netns.id.same(&attachment.netns.id));
        let known: Vec<u32> = in_this_netns.filter_map(|a| self.kinds.recorded_index(&a)).collect();
        self.kinds.renumbered(attachment, &known, pod)
    }

    fn release_all_but_the_vf(
        &self,
        attachment: &Attachment,
        quarantined: Option<&str>,
    ) -> Result<(), CniError> {
        self.release(attachment)?;
        self.store.released(attachment, quarantined).map_err(|e| errors::store(&e))?;
        self.records.forget(attachment.id);
        Ok(())
    }

    /// The removal is on record and answered; the rest is the removal queue's.
    fn park(&self, attachment: &Attachment) -> Result<(), CniError> {
        // On record before the DEL is answered: the runtime does not call again after a success.
        self.store.enter(attachment.id, Phase::Silenced).map_err(|e| errors::store(&e))?;
        failpoint::pass("del.silenced");
        let soon = self.kinds.leaves_the_pod(attachment);
        let wait = if soon { ANSWERED } else { self.call_settings().reap_after };
        self.removals.expect_once_answered(attachment.id, Instant::now() + wait);
        Ok(())
    }

    /// Gives back what the attachment held, once its link is gone.
    fn release(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.ipam.release(attachment)?;
        self.kinds.release(attachment)?;
        failpoint::pass("del.released");
        Ok(())
    }

    /// Nothing is left of it.
    pub(super) fn forget(&self, attachment: &Attachment) -> Result<(), CniError> {
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
        let Some(_turn) = self.removals.turn(id) else {
            return Err(errors::too_late("another that works on the same removal"));
        };
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
        match self.take_down(&attachment, reach)? {
            Undone::Whole => Ok(()),
            Undone::AwaitsCarrier(why) | Undone::Away(why) | Undone::Quarantined { why, .. } => Err(why),
        }
    }

    /// Removes by order of a caller, who may never come again: what fails is tried again without him.
    pub(crate) fn remove_for(&self, attachment: &Attachment, answer: Answer) -> Result<(), CniError> {
        self.remove(attachment, answer).inspect_err(|e| {
            self.removals.again(attachment.id, e);
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

    /// An ADD failed with `error`, of which nothing is left: a removal would fail for ever on the plugin that could not be started.
    pub(crate) fn forget_undone(&self, attachment: &Attachment, error: &CniError) {
        tracing::info!(container = %attachment.key.container, network = %attachment.key.network, ifname = %attachment.key.ifname,
            error = %error, "ADD has left nothing");
        // The file that describes its device was begun by ourselves.
        if self.kinds.release(attachment).and_then(|()| self.forget(attachment)).is_err() {
            self.undo(attachment, error);
        }
    }

    /// How the attachment's removal has failed so far. One that is under way for [`STUCK`] without an end counts as failing.
    pub(crate) fn failing(&self, attachment: &Attachment) -> Option<Failures> {
        self.removals.failures(attachment.id).or_else(|| {
            let first = UNIX_EPOCH + Duration::from_secs(attachment.removing_since?);
            let begun = matches!(attachment.phase, Phase::Removing | Phase::Silenced);
            let stuck = begun && first.elapsed().is_ok_and(|age| age >= STUCK);
            let why =
                || CniError::new(Code::TryAgain, "it is at work or waits for its turn, and does not end");
            stuck.then(|| Failures { times: 0, first, why: why() })
        })
    }

    /// The removal that this task is, if programs are executed in it.
    pub(crate) fn executes(&self, task: Task) -> Option<ExecutedRemoval> {
        let Task::Attachment(id) = task else { return None };
        ExecutedRemoval::of(self.store.get(id)?.as_ref())
    }

    /// What the removal queue's threads do when the time of something has come.
    pub(crate) fn attend(&self, task: Task) {
        match task {
            Task::Attachment(id) => {
                self.finish(id);
                self.start.end(StartStep::Removal(id));
            }
            Task::Leftover(address) => self.kinds.leftovers.settle_dead(&self.kinds, address),
        }
    }

    fn finish(&self, id: u64) {
        let Some(attachment) = self.store.get(id) else { return self.removals.done(id) };
        let _in_log = logging::of_pod(attachment.pod.clone());
        let done = match attachment.phase {
            Phase::Silenced => self.reap(id),
            // One that is still to be added is an ADD whose undo the store has refused to take down.
            Phase::Removing | Phase::Adding => self.try_remove(&attachment),
            Phase::Attached => return,
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
            // That call may well finish it: nothing has failed.
            self.removals.expect(attachment.id, Instant::now() + CALL_AT_WORK);
            return Ok(());
        };
        self.kinds.must_be_unused(attachment)?;
        // Read again under the lock: a DEL may have silenced or removed it meanwhile, or its ADD have committed it.
        match self.store.get(attachment.id) {
            Some(now) if matches!(now.phase, Phase::Adding | Phase::Removing) => {
                self.remove(&now, Answer::WhenGone)
            }
            _ => Ok(()),
        }
    }

    /// When the DEL of this attachment may be answered.
    pub(crate) fn answer_of(&self, attachment: &Attachment, network: Option<&Network>) -> Answer {
        // Without an address there is nothing by whose removal the interface falls silent. Before 6.2 a link must be down
        // to be renamed, and to set it down holds the kernel's lock for links for 11–20 ms.
        let early = self.kinds.can_be_silenced(attachment)
            && !attachment.addresses.is_empty()
            && !self.call_settings().del_waits
            && self.kernel().renames_while_up()
            && network.is_some_and(Network::silent_is_gone);
        if early { Answer::WhenSilent } else { Answer::WhenGone }
    }
}

fn removing(attachment: &Attachment, error: &NetError) -> CniError {
    errors::kernel(&attachment.key.network, &format!("removing {:?}", attachment.key.ifname), error)
}
