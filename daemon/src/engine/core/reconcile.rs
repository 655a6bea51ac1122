//! After a start: what the store says is compared with the kernel. Half-done work is undone, what was begun to be
//! removed is removed, what lives is left alone. And while the daemon runs: attachments whose namespace has died are
//! collected without waiting for anyone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::Nsid;
use fairlead_host::time_limit::within;
use fairlead_ipam::{HostLocal, NetworkDir};

use super::delegate_records::RecordedAttachment;
use super::{Core, StartStep};
use crate::engine::errors;
use crate::engine::recorded_netns::{self, Reach};
use crate::store::{Attachment, Key, LinkRecord, Lost, Opened, Phase, StoreError};

/// So long one directory of addresses is waited for.
const ONE_DIRECTORY: Duration = Duration::from_secs(1);

/// So many threads are left behind in directories that hang.
const MOST_HANGING: usize = 16;

/// What the start has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reconciled {
    pub(crate) alive: usize,
    /// To be removed, and waited for before the daemon is ready: half-done ADDs and DELs, and what died.
    pub(crate) begun: usize,
    /// To be removed, and not waited for: other programs have a part in it, or its DEL was answered.
    pub(crate) later: usize,
    /// Not on record as to be removed, for want of space.
    pub(crate) failed: usize,
}

impl Core {
    /// Compares store and kernel, and has the removal queue bring them together. Nothing is removed here: a VF that is not there is
    /// waited for, sysfs can hang, and a directory of addresses can be another's. What fails is tried again in the background.
    pub(crate) fn reconcile(&self, opened: Opened, of_records: Vec<RecordedAttachment>) -> Reconciled {
        let mut found = Reconciled::default();
        for attachment in self.store.all() {
            match attachment.phase {
                // Each may wait 30 ms for its link: nobody needs them before the daemon is ready.
                Phase::Silenced => {
                    found.later += 1;
                    self.removals.expect(attachment.id, Instant::now());
                }
                Phase::Attached if !self.is_dead(&attachment, None) => found.alive += 1,
                // Without a commit the caller of an ADD has got no answer: nobody relies on it.
                Phase::Adding | Phase::Removing | Phase::Attached => {
                    self.begin_removal(&attachment, &mut found)
                }
            }
        }
        self.after_reboot(opened, of_records, &mut found);
        found
    }

    /// Puts the removal on record and leaves it to the removal queue. Executed plugins can take as long as they like, so what has a
    /// part for them is not waited for.
    fn begin_removal(&self, attachment: &Attachment, found: &mut Reconciled) {
        if let Err(error) = self.store.enter(attachment.id, Phase::Removing) {
            not_reconciled(&attachment.key, &error, "it is tried again", found);
            self.removals.again(attachment.id, &errors::store(&error));
            return;
        }
        if attachment.has_delegates() {
            found.later += 1;
        } else {
            found.begun += 1;
            self.start.begin(StartStep::Removal(attachment.id));
        }
        self.removals.expect(attachment.id, Instant::now());
    }

    /// X24: what an earlier boot left: its namespaces are gone.
    fn after_reboot(&self, opened: Opened, of_records: Vec<RecordedAttachment>, found: &mut Reconciled) {
        let mut earlier = opened.of_earlier_boot;
        for record in of_records {
            // The journal knows the phase, too. A record on the disk always says that it was attached.
            if self.store.knows(record.attachment.id) {
                continue;
            }
            if record.of_this_boot {
                self.adopt(record, found);
            } else {
                earlier.push(record.attachment);
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
            // No pod has it any more: whoever wants it waits for no plugin's DEL.
            attachment.taken_device = None;
            let key = attachment.key.clone();
            match self.store.begin(attachment) {
                Ok(attachment) => self.begin_removal(&attachment, found),
                Err(error) => {
                    let next = "where plugins were executed for it, the next start finds its record";
                    not_reconciled(&key, &error, next, found);
                }
            }
        }
    }

    /// X24: gives back the addresses of earlier boots, whoever had them. One directory after the other; of those that hang
    /// [`MOST_HANGING`] at most are left behind.
    pub(crate) fn release_earlier_boots(&self) {
        let (mut freed, mut hanging) = (0, Vec::new());
        let places = self.ipam.host_local.places();
        for place in places.clone() {
            let (host_local, there) = (Arc::clone(&self.ipam.host_local), place.clone());
            match within("old-addresses", ONE_DIRECTORY, move || free_earlier_boots(&host_local, &there)) {
                Ok(Some(here)) => freed += here,
                Ok(None) | Err(_) => hanging.push(place),
            }
            if hanging.len() >= MOST_HANGING {
                break;
            }
        }
        if freed > 0 {
            tracing::info!(addresses = freed, "addresses of before the reboot are free again");
        }
        if hanging.is_empty() {
            let host_local = Arc::clone(&self.ipam.host_local);
            // What it has not done in that time, the next start does.
            let _ = within("unused-addresses", ONE_DIRECTORY, move || host_local.remove_unused(&places));
        } else {
            tracing::warn!(
                ?hanging,
                "directories of host-local do not answer: addresses of before the reboot stay taken there until they do"
            );
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
    fn adopt(&self, record: RecordedAttachment, found: &mut Reconciled) {
        let RecordedAttachment { attachment, written, .. } = record;
        tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
            "the store has lost an attachment; it is taken from its record");
        let key = attachment.key.clone();
        let attachment = match self.store.adopt(attachment, written) {
            Ok(attachment) => attachment,
            Err(error) => return not_reconciled(&key, &error, "the next start finds its record", found),
        };
        if !self.is_dead(&attachment, None) {
            found.alive += 1;
        } else {
            self.begin_removal(&attachment, found);
        }
    }

    /// Whether the attachment's namespace is provably dead. `died`: this number has just been given back by the kernel.
    fn is_dead(&self, attachment: &Attachment, died: Option<Nsid>) -> bool {
        if matches!(attachment.link, LinkRecord::Conflist { .. }) && attachment.netns.nsid.is_none() {
            return false;
        }
        match recorded_netns::reach(self.kernel(), &attachment.netns) {
            Ok(Reach::Dead) => true,
            // The number may have been given to the next namespace at once: then our link is not there. That alone proves nothing, for a
            // pod can hide its link, or give it another index.
            Ok(Reach::ByNumber(nsid)) if died == Some(nsid) || self.is_anothers(nsid, attachment) => {
                self.kinds.is_absent_at(attachment, nsid).unwrap_or(died == Some(nsid))
            }
            Ok(Reach::ByNumber(_)) => false,
            // What cannot be asked is not taken for dead: a living pod would lose its interface.
            Ok(Reach::Inside(_) | Reach::Unknown) | Err(_) => false,
        }
    }

    /// Whether the number is that of another namespace by now, which an attachment that lives there shows.
    fn is_anothers(&self, nsid: Nsid, attachment: &Attachment) -> bool {
        self.store.all().iter().any(|other| {
            other.netns.nsid == Some(nsid)
                && !other.netns.id.same(&attachment.netns.id)
                && matches!(recorded_netns::reach(self.kernel(), &other.netns), Ok(Reach::Inside(_)))
        })
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
            // Each try binds the VF anew: its pauses grow, as the queue has them.
            Phase::Silenced if died.is_none() && attachment.quarantined.is_some() => {}
            // Its namespace has taken the link along, or the carrier that its VF waits for may be there by now.
            Phase::Silenced => self.removals.expect(attachment.id, Instant::now()),
            Phase::Attached if self.is_dead(attachment, died) => {
                // Where the store takes no record now, the next sweep finds it again. Where a DEL has come first, the rest is that one's.
                if self.store.begin_removal_if_attached(attachment.id).unwrap_or(false) {
                    tracing::info!(container = %attachment.key.container, network = %attachment.key.network,
                        ifname = %attachment.key.ifname, "the namespace is gone: its attachment is collected");
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

/// The store takes no record of an attachment, mostly for want of space; `next`: what becomes of it.
fn not_reconciled(key: &Key, error: &StoreError, next: &str, found: &mut Reconciled) {
    found.failed += 1;
    tracing::error!(container = %key.container, network = %key.network, ifname = %key.ifname, %error, next,
        "an attachment could not be reconciled");
}

/// Frees the addresses of earlier boots in one directory; answers how many.
fn free_earlier_boots(host_local: &HostLocal, place: &NetworkDir) -> usize {
    let released = host_local.release_orphaned_by_reboot(place);
    for error in released.errors {
        tracing::warn!(error = %error, "an address of before the reboot could not be given back");
    }
    released.allocations.len()
}
