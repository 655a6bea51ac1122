//! What the operations of kinds use (the kernel, the announcer, the VF services), and what they ask of the core above them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairlead_cni::CniError;
use fairlead_host::announce::Announcer;
use fairlead_host::{Kernel, NetError, NetnsId};
use fairlead_sriov::PciAddr;
use parking_lot::Mutex;

use super::DeviceInfoFiles;
use super::sriov::SriovServices;
use super::sriov_cni_import::SriovCniImport;
use super::vhost_user::VhostUserServices;
use crate::engine::live_policy::CurrentPolicy;
use crate::engine::random_ids::RandomIds;
use crate::store::Attachment;

/// So long the end of the announcer's work for a lent device is waited for.
const ANNOUNCER_ENDS: Duration = Duration::from_millis(500);

/// What the operations of kinds stand on.
pub(crate) struct Kinds {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// Where sysfs is mounted.
    pub(crate) sysfs: PathBuf,
    pub(crate) ids: Arc<RandomIds>,
    /// The part of the configuration that calls go by.
    pub(crate) policy: Arc<CurrentPolicy>,
    pub(crate) announcer: Option<Announcer>,
    pub(crate) device_info: Arc<DeviceInfoFiles>,
    pub(crate) sriov: SriovServices,
    pub(crate) vhost_user: Arc<VhostUserServices>,
    /// VFs that sriov-cni gave to pods that still run.
    pub(crate) leftovers: SriovCniImport,
    /// Kinds of links that the kernel was seen to have. One that it had not is asked for again: a module may have come.
    pub(crate) kernel_kinds: Mutex<BTreeSet<&'static str>>,
}

impl Kinds {
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

    /// The same, and waits for its end: the caller may unmount the namespace's path as soon as it is answered.
    pub(crate) fn quiet_for_good(&self, index: u32, netns: &NetnsId) {
        if let Some(announcer) = &self.announcer {
            announcer.cancel_and_wait(index, netns, ANNOUNCER_ENDS);
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

/// What the undo of a link has come to.
#[derive(Debug)]
pub(crate) enum Undone {
    /// Nothing of it is left to be done.
    Whole,
    /// All that is left waits for a carrier.
    AwaitsCarrier(CniError),
    /// All else is given back, but on the VF is something of its pod's: the VF is nobody's before it is clean.
    Quarantined {
        /// What is left on it, in words.
        left: String,
        /// The same as a sentence, with the remedy.
        why: CniError,
    },
    /// The link is in no namespace that can be looked into. Its pod lives, and may have hidden it: all that the attachment holds stays
    /// held until the link is found, or its namespace has ended.
    Away(CniError),
}

impl From<Option<AwaitsCarrier>> for Undone {
    fn from(waits: Option<AwaitsCarrier>) -> Undone {
        waits.map_or(Undone::Whole, |AwaitsCarrier(why)| Undone::AwaitsCarrier(why))
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
