//! The engine's core: what every attachment goes through, whatever its kind.
//!
//! One way through for all: validate → lock the container → look at the host and plan → intent on record → apply → commit → answer.
//! What is on record before a step is enough to undo it. There is one removal, used by DEL, by the undo of ADD, after a restart and
//! when a namespace dies. The core knows no kind: what differs it asks of [`crate::engine::kinds`].

mod add;
mod check;
mod collected_by_gc;
mod command_dispatch;
mod del;
mod delegate_records;
mod executed_removals;
mod forget;
mod gc;
mod ipam;
mod issue_time;
mod newer_attachments;
mod nodes_addresses;
mod orphaned_addresses;
mod pod_visit;
mod reconcile;
mod removal;
mod removal_queue;
mod running_collections;
mod set_aside_records;
mod spooled_netns;
mod start_steps;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kernel, NetnsId};
use parking_lot::RwLock;

use super::attachment_request::AttachmentRequest;
use super::call_settings::{CallSettings, CurrentCallSettings};
use super::keyed_locks::{KeyedLock, KeyedLocks};
use super::kinds::{HolderRemovals, Kinds};
use crate::store::{Attachment, Phase, Store};

pub(crate) use collected_by_gc::CollectedByGc;
#[cfg(test)]
pub(crate) use delegate_records::RecordedAttachment;
pub(crate) use delegate_records::{DelegateRecords, unreadable as unreadable_records};
pub(crate) use executed_removals::{ExecutedRemoval, ExecutedRemovals};
pub(crate) use ipam::{Ipam, executes_ipam, parameters};
pub(crate) use pod_visit::{PodNet, PodVisit, SharedVisit, enter_again};
pub(crate) use removal::Answer;
pub(crate) use removal_queue::{Failures, Rank, RemovalQueue, Task};
pub(crate) use running_collections::RunningCollections;
pub(crate) use set_aside_records::SetAsidePlaces;
pub(crate) use start_steps::{StartStep, StartSteps};

/// Everything on record is looked through this often, for what no event has reported.
pub(crate) const SWEEP: std::time::Duration = std::time::Duration::from_secs(30);

/// How a conflist that is on record is removed: it stands above the core, which only knows its text.
pub(crate) type ConflistRemoval = fn(&Core, &Attachment, &str) -> Result<(), CniError>;

/// What every attachment goes through.
pub(crate) struct Core {
    pub(crate) kinds: Kinds,
    pub(crate) host_id: NetnsId,
    pub(crate) call_settings: Arc<CurrentCallSettings>,
    pub(crate) store: Arc<Store>,
    pub(crate) records: DelegateRecords,
    /// One call at a time for one container.
    pub(crate) containers: KeyedLocks,
    pub(crate) removals: RemovalQueue,
    pub(crate) executed_removals: ExecutedRemovals,
    /// Networks that plugins are collecting.
    pub(crate) collections: RunningCollections,
    /// What the runtime's GC has removed.
    pub(crate) collected: CollectedByGc,
    pub(crate) start: StartSteps,
    /// Where what cannot be read is set aside.
    pub(crate) set_aside: SetAsidePlaces,
    pub(crate) ipam: Ipam,
    pub(crate) remove_conflist: ConflistRemoval,
    /// Containers that Multus has made, as they were last looked for: what they hold is no orphan's.
    pub(crate) of_multus: RwLock<BTreeSet<String>>,
}

impl Core {
    pub(crate) fn call_settings(&self) -> Arc<CallSettings> {
        self.call_settings.get()
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        self.kinds.kernel.as_ref()
    }

    /// Waits for the container; the runtime's own order makes that rare.
    pub(crate) fn lock_container(
        &self,
        request: &AttachmentRequest<'_>,
    ) -> Result<Option<KeyedLock<'_>>, CniError> {
        // The call that this one is part of has the lock already: this one would wait for it until the deadline.
        if request.nested {
            return Ok(None);
        }
        match self.containers.take(&request.key.container, request.waiting.deadline) {
            Some(lock) => Ok(Some(lock)),
            None => Err(CniError::new(
                Code::TryAgain,
                format!("another call of container {} did not end in time", request.key.container),
            )),
        }
    }

    /// Finishes the removals that may hold what an ADD wants; true when one was finished.
    fn finish_pending(&self, wanted: impl Fn(&Attachment) -> bool) -> bool {
        let waiting = self.store.silenced().into_iter().filter(|a| wanted(a));
        let mut finished = false;
        for attachment in waiting {
            if finished {
                // The next ADD will want the next one: the queue's threads get ahead of it.
                self.removals.expect(attachment.id, Instant::now());
            } else {
                // One is enough for this ADD, and each deletion of a link takes 16–30 ms.
                match self.reap_from_home(attachment.id) {
                    Ok(()) => finished = true,
                    Err(_) => self.removals.hurried_in_vain(attachment.id),
                }
            }
        }
        finished
    }

    /// An ADD hurries a removal from within its pod's namespace. The removal may have to enter one too, and a thread is in one at a time.
    fn reap_from_home(&self, id: u64) -> Result<(), CniError> {
        let mut reaped = Ok(());
        self.kernel().at_home(&mut || reaped = self.reap(id));
        reaped
    }
}

impl HolderRemovals for Core {
    fn hurry(&self, wanted: &dyn Fn(&Attachment) -> bool) -> bool {
        self.finish_pending(wanted)
    }

    fn advance(&self, holder: &Attachment) {
        match holder.phase {
            Phase::Removing => self.removals.expect(holder.id, Instant::now()),
            _ => self.collect_if_dead(holder, None),
        }
    }

    fn removal_failure(&self, id: u64) -> Option<CniError> {
        self.removals.failure(id)
    }
}
