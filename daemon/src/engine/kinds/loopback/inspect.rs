//! Whether `lo` is up.

use fairlead_cni::CniError;
use fairlead_host::Net;

use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::Checked;
use crate::engine::netdev;

/// CHECK: `lo` is there and up. Its addresses are the kernel's.
pub(crate) fn check(request: &AttachmentRequest<'_>, pod: &mut dyn Net) -> Result<Checked, CniError> {
    match netdev::check(request, pod, true, |_| Ok(()))? {
        Checked::Netdev(_) => Ok(Checked::Whole),
        other => Ok(other),
    }
}
