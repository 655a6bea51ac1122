//! What the operations of kinds use (the kernel, the announcer, the VF services), and what they ask of the core above them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_host::announce::Announcer;
use fairlead_host::{Kernel, NetError, NetnsId};
use fairlead_sriov::PciAddr;
use parking_lot::Mutex;

use super::sriov::SriovServices;
use super::sriov_cni_import::SriovCniImport;
use crate::engine::random_ids::RandomIds;
use crate::store::Attachment;

/// What the operations of kinds stand on.
pub(crate) struct Kinds {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// Where sysfs is mounted.
    pub(crate) sysfs: PathBuf,
    pub(crate) ids: Arc<RandomIds>,
    pub(crate) announcer: Option<Announcer>,
    pub(crate) sriov: SriovServices,
    /// VFs that sriov-cni gave to pods that still run.
    pub(crate) leftovers: SriovCniImport,
    /// Kinds of links that the kernel was seen to have. One that it had not is asked for again: a module may have come.
    pub(super) kernel_kinds: Mutex<BTreeSet<&'static str>>,
}

impl Kinds {
    /// Stands the kinds on what the engine was started with.
    pub(crate) fn new(
        kernel: Arc<dyn Kernel>,
        sysfs: PathBuf,
        ids: Arc<RandomIds>,
        announcer: Option<Announcer>,
        sriov: SriovServices,
        leftovers: SriovCniImport,
    ) -> Kinds {
        Kinds { kernel, sysfs, ids, announcer, sriov, leftovers, kernel_kinds: Mutex::default() }
    }

    /// Whether the kernel has a kind of link (`IFLA_INFO_KIND`).
    pub(crate) fn kernel_has(&self, kind: &'static str) -> Result<bool, NetError> {
        if self.kernel_kinds.lock().contains(kind) {
            return Ok(true);
        }
        // The lock is not held here: the kernel may load a module before it answers.
        let known = self.kernel.knows(kind)?;
        if known {
            self.kernel_kinds.lock().insert(kind);
        }
        Ok(known)
    }

    /// Ends what the announcer still does for a link: no socket of ours in a pod's namespace may outlive the link.
    pub(crate) fn quiet(&self, index: u32, netns: &NetnsId) {
        if let Some(announcer) = &self.announcer {
            announcer.cancel(index, netns);
        }
    }
}

/// What a restored VF cannot have back before its NIC has a carrier, as a sentence for a person.
#[derive(Debug)]
pub(crate) struct AwaitsCarrier(pub(crate) CniError);

impl AwaitsCarrier {
    /// For whom nothing may wait: it is an error then.
    pub(crate) fn refuse(waits: Option<AwaitsCarrier>) -> Result<(), CniError> {
        waits.map_or(Ok(()), |AwaitsCarrier(why)| Err(why))
    }
}

/// Who has what, as the core knows it: what a kind asks where another attachment holds what it wants.
pub(crate) trait Owners {
    /// Finishes answered removals whose attachments hold what is wanted; true when one was finished.
    fn hurry(&self, wanted: &dyn Fn(&Attachment) -> bool) -> bool;

    /// Sees to an attachment that holds what is wanted: a removal of it is begun again at once, and it is collected where its
    /// namespace is dead.
    fn advance(&self, holder: &Attachment);

    /// Why the last attempt at an attachment's removal failed, if one did.
    fn removal_failure(&self, id: u64) -> Option<CniError>;
}

/// What another plugin left of VFs, as the attachment of one asks for it.
pub(crate) trait Leftovers {
    /// Settles what another plugin left of a VF: restored where its pod is dead, refused (code 11) while its pod lives.
    fn settle(&self, vf: PciAddr) -> Result<(), CniError>;

    /// The pod of another plugin that has a VF, as that plugin's files say.
    fn owner(&self, vf: PciAddr) -> Result<Option<String>, CniError>;
}
