//! What the operations of kinds use (the kernel, the announcer, the VF services), and what they ask of the core above them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_host::announce::Announcer;
use fairlead_host::{Kernel, NetError, NetnsId};
use fairlead_sriov::PciAddr;
use parking_lot::Mutex;

use super::DeviceInfoFiles;
use super::sriov::SriovServices;
use super::sriov_cni_import::SriovCniImport;
use super::vhost_user::VhostUserServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::call_settings::CurrentCallSettings;
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
    pub(crate) call_settings: Arc<CurrentCallSettings>,
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
    /// Until when a request waits for a VF or a port that is not ready: not past its own deadline, when nobody waits for the answer.
    pub(crate) fn vf_deadline(&self, request: &AttachmentRequest<'_>) -> Instant {
        request.waiting.deadline.min(Instant::now() + self.call_settings.get().vf_wait)
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

    /// The same, and waits for its end: the caller may unmount the namespace's path as soon as it is answered.
    pub(crate) fn quiet_for_good(&self, index: u32, netns: &NetnsId) {
        if let Some(announcer) = &self.announcer {
            announcer.cancel_and_wait(index, netns, ANNOUNCER_ENDS);
        }
    }
}

/// The removals of attachments that hold what a kind wants: the core has them hurried, and knows why one failed.
pub(crate) trait HolderRemovals {
    /// Finishes answered removals whose attachments hold what is wanted; true when one was finished.
    fn hurry(&self, wanted: &dyn Fn(&Attachment) -> bool) -> bool;

    /// Sees to an attachment that holds what is wanted: a removal of it is begun again at once, and it is collected where its
    /// namespace is dead.
    fn advance(&self, holder: &Attachment);

    /// Why the last attempt at an attachment's removal failed, if one did.
    fn removal_failure(&self, id: u64) -> Option<CniError>;
}

/// The VFs that sriov-cni gave to pods, as the attachment of one asks for them.
pub(crate) trait SriovCniVfs {
    /// Settles what sriov-cni left of a VF: restored where its pod is dead, refused (code 11) while its pod lives.
    fn settle(&self, vf: PciAddr) -> Result<(), CniError>;

    /// The pod that has a VF of sriov-cni's, as that plugin's files say.
    fn owner(&self, vf: PciAddr) -> Result<Option<String>, CniError>;
}
