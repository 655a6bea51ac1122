//! After a start: what the store says is compared with the kernel. Half-done work is undone, what was begun to be
//! removed is removed, what lives is left alone. And while the daemon runs: attachments whose namespace has died are
//! collected without waiting for anyone.

use std::time::Instant;

use fairlead_host::Nsid;

use super::{Answer, Core, SWEEP};
use crate::engine::errors;
use crate::engine::recorded_netns::{self, Reach};
use crate::store::{Attachment, LinkRecord, Lost, Opened, Phase};

/// What the start has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reconciled {
    pub(crate) alive: usize,
    pub(crate) undone: usize,
    pub(crate) finished: usize,
    pub(crate) collected: usize,
    /// Left to the background: other programs have a part in it.
    pub(crate) later: usize,
    pub(crate) failed: usize,
}

impl Core {
    /// Brings store and kernel together. What fails stays on record and is tried again in the background.
    pub(crate) fn reconcile(&self, opened: Opened, of_records: Vec<(bool, Attachment)>) -> Reconciled {
        let mut found = Reconciled::default();
        for attachment in self.store.all() {
            // What a list has removed with it is done.
            let Some(attachment) = self.store.get(attachment.id) else { continue };
            let done = match attachment.phase {
                Phase::Adding | Phase::Removing if self.awaits_others(&attachment) => {
                    found.later += 1;
                    self.remove_later(&attachment)
                }
                // Without a commit the caller has got no answer: nobody relies on it.
                Phase::Adding => self.remove(&attachment, Answer::WhenGone).map(|()| found.undone += 1),
                Phase::Removing => self.remove(&attachment, Answer::WhenGone).map(|()| found.finished += 1),
                // Each may wait 30 ms for its link: nobody needs them before the daemon is ready.
                Phase::Silenced => {
                    found.later += 1;
                    self.removals.expect(attachment.id, Instant::now());
                    Ok(())
                }
                Phase::Attached if !self.is_dead(&attachment, None) => {
                    found.alive += 1;
                    Ok(())
                }
                Phase::Attached if self.awaits_others(&attachment) => {
                    found.later += 1;
                    self.remove_later(&attachment)
                }
                Phase::Attached => self.remove(&attachment, Answer::WhenGone).map(|()| found.collected += 1),
            };
            if let Err(e) = done {
                found.failed += 1;
                tracing::error!(container = %attachment.key.container, network = %attachment.key.network, error = %e,
                    "an attachment could not be reconciled; it is tried again");
                self.removals.expect(attachment.id, Instant::now() + SWEEP);
            }
        }
        self.after_reboot(opened, of_records, &mut found);
        found
    }

    /// Whether a removal cannot be had at once: other programs have a part in it, or have the VF still.
    fn awaits_others(&self, attachment: &Attachment) -> bool {
        attachment.has_delegates() || self.kinds.must_be_unused(attachment).is_err()
    }

    /// Puts the removal on record and leaves it to the removal queue.
    fn remove_later(&self, attachment: &Attachment) -> Result<(), fairlead_cni::CniError> {
        self.store.enter(attachment.id, Phase::Removing).map_err(|e| errors::store(&e))?;
        self.removals.expect(attachment.id, Instant::now());
        Ok(())
    }

    /// X24: what an earlier boot left: its namespaces are gone; local addresses are given back at once, delegates get
    /// their DEL in the background.
    fn after_reboot(&self, opened: Opened, of_records: Vec<(bool, Attachment)>, found: &mut Reconciled) {
        let mut earlier = opened.of_earlier_boot;
        for (of_this_boot, attachment) in of_records {
            // The journal knows the phase, too. A record on the disk always says that it was attached.
            if self.store.get(attachment.id).is_some() {
                continue;
            }
            if of_this_boot {
                self.adopt(attachment, found);
            } else {
                earlier.push(attachment);
            }
        }
        // An attachment with delegates comes twice: from the journal of that boot, and from its record.
        earlier.sort_by_key(|a| a.id);
        earlier.dedup_by_key(|a| a.id);
        for mut attachment in earlier {
            attachment.phase = Phase::Removing;
            // In this boot the path and the number may be another namespace's.
            attachment.netns.path = String::new();
            attachment.netns.nsid = None;
            attachment.link = self.kinds.after_reboot(attachment.link);
            let id = attachment.id;
            // With no space in the store the record of one with delegates stays on the disk, for the next start.
            let Ok(attachment) = self.store.begin(attachment) else { continue };
            // Executed plugins can take seconds, for which no start waits.
            if attachment.has_delegates() {
                self.removals.expect(id, Instant::now());
                continue;
            }
            match self.remove(&attachment, Answer::WhenGone) {
                Ok(()) => found.collected += 1,
                Err(e) => {
                    found.failed += 1;
                    tracing::error!(container = %attachment.key.container, error = %e, "an attachment of an earlier boot could not be given back");
                    self.removals.expect(id, Instant::now() + SWEEP);
                }
            }
        }
        let released = self.ipam.host_local.release_orphaned_by_reboot();
        if !released.allocations.is_empty() {
            tracing::info!(
                addresses = released.allocations.len(),
                "addresses of before the reboot are free again"
            );
        }
        for error in released.errors {
            tracing::warn!(error = %error, "an address of before the reboot could not be given back");
        }
    }

    /// What may be left of attachments that a damaged store has lost, by name. Nothing proves that their pods are dead: their
    /// DEL or GC removes it, or the operator.
    pub(crate) fn log_lost(&self, lost: &[Lost]) {
        for Lost { addresses, answer } in lost {
            tracing::error!(
                ?addresses,
                answer,
                "the store has lost this attachment; it stays until its DEL or GC"
            );
        }
        // Those of an earlier boot are free by now: a label that is left is of this one.
        for orphan in self.orphans().iter().filter(|orphan| orphan.allocation.boot_id.is_some()) {
            tracing::error!(network = orphan.network, file = orphan.allocation.file, owner = ?orphan.allocation.owner,
                "Fairlead gave out this address and does not know its container any more; its DEL or GC frees it, or `fairleadd gc --orphans`");
        }
    }

    /// An attachment of this boot that the store has lost: its record is enough to go on with it, or to take it down.
    fn adopt(&self, attachment: Attachment, found: &mut Reconciled) {
        tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
            "the store has lost an attachment; it is taken from its record");
        // With no space in the store its record stays on the disk, for the next start.
        let Ok(attachment) = self.store.begin(attachment) else { return };
        if !self.is_dead(&attachment, None) {
            found.alive += 1;
        } else if self.remove_later(&attachment).is_ok() {
            found.later += 1;
        }
    }

    /// Whether the attachment's namespace is provably dead. `died`: this number has just been given back by the kernel.
    fn is_dead(&self, attachment: &Attachment, died: Option<Nsid>) -> bool {
        if matches!(attachment.link, LinkRecord::Conflist { .. }) && attachment.netns.nsid.is_none() {
            return false;
        }
        match recorded_netns::reach(self.kernel(), &attachment.netns) {
            Ok(Reach::Dead) => true,
            // The number may have been given to the next namespace at once: then our link is not there.
            Ok(Reach::ByNumber(nsid)) => {
                self.kinds.is_absent_at(attachment, nsid).unwrap_or(died == Some(nsid))
            }
            // What cannot be asked is not taken for dead: a living pod would lose its interface.
            Ok(Reach::Inside(_) | Reach::Unknown) | Err(_) => false,
        }
    }

    /// The kernel has told that a namespace died: what was in it is given back.
    pub(crate) fn namespace_died(&self, nsid: Nsid) {
        for attachment in self.store.all().into_iter().filter(|a| a.netns.nsid == Some(nsid)) {
            self.collect_if_dead(&attachment, Some(nsid));
        }
    }

    /// Looks through everything, for what no event has told.
    pub(crate) fn sweep(&self) {
        for attachment in self.store.all() {
            self.collect_if_dead(&attachment, None);
        }
        self.expect_leftovers_of_the_dead();
    }

    /// Has the queue restore VFs of dead pods that sriov-cni made, for pools that nobody asks for them.
    fn expect_leftovers_of_the_dead(&self) {
        for address in self.kinds.leftovers.vfs() {
            self.removals.expect(address, Instant::now());
        }
    }

    /// Has the attachment removed if its namespace is dead. `died`: this number has just been given back by the kernel.
    pub(crate) fn collect_if_dead(&self, attachment: &Attachment, died: Option<Nsid>) {
        match attachment.phase {
            // Its namespace has taken the link along, or the carrier that its VF waits for may be there by now.
            Phase::Silenced => self.removals.expect(attachment.id, Instant::now()),
            Phase::Attached if self.is_dead(attachment, died) => {
                tracing::info!(container = %attachment.key.container, network = %attachment.key.network,
                    ifname = %attachment.key.ifname, "the namespace is gone: its attachment is collected");
                // Where the store takes no record now, the next sweep finds it again.
                if self.store.enter(attachment.id, Phase::Removing).is_ok() {
                    self.removals.expect(attachment.id, Instant::now());
                }
            }
            // What failed while it lived may succeed now. A DEL that is at work on it is not disturbed.
            Phase::Removing if died.is_some() && self.is_dead(attachment, died) => {
                self.removals.expect(attachment.id, Instant::now());
            }
            // An ADD in flight is its own call's to commit or to undo.
            Phase::Adding | Phase::Attached | Phase::Removing => {}
        }
    }
}
