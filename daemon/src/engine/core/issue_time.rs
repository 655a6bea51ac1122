//! Which attachments are newer than a call. A call that met no daemon, or one that was killed, is carried out later than it was meant:
//! by the time at which its caller made it.

use super::Core;
use crate::boot_time::BootTime;
use crate::engine::attachment_request::AttachmentRequest;
use crate::store::Attachment;

impl Core {
    /// When the caller made the request, at the latest. `None` of a spooled one: in another boot, or by the executable of a release that
    /// did not say it.
    pub(super) fn issued(&self, request: &AttachmentRequest<'_>) -> Option<BootTime> {
        let sandbox = &request.sandbox;
        match sandbox.spooled {
            Some(spooled) => sandbox.issued.filter(|_| self.records.is_of_this_boot(&spooled.boot_id)),
            None => sandbox.issued.or_else(|| BootTime::of(request.waiting.arrived)),
        }
    }

    /// Whether an attachment came after the spooled DEL of the same name. That DEL was carried out before: its entry could not be removed
    /// from the disk.
    pub(crate) fn is_newer_than_spooled(
        &self,
        attachment: &Attachment,
        request: &AttachmentRequest<'_>,
    ) -> bool {
        let issued = request.sandbox.spooled.and_then(|_| self.issued(request));
        let is_newer = attachment.begun.zip(issued).is_some_and(|(begun, issued)| begun > issued);
        if is_newer {
            let key = &attachment.key;
            tracing::info!(container = %key.container, network = %key.network, ifname = %key.ifname,
                "a spooled DEL is older than the attachment, which stays");
        }
        is_newer
    }
}
