//! Whether the netdev in the pod is that of the VF, and the VF is set up as its configuration asks.

use fairlead_cni::CniError;
use fairlead_host::Net;

use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::Checked;
use crate::engine::kinds::sriov::{Sriov, SriovServices};
use crate::engine::netdev;

/// CHECK: the netdev is there and up, it is the VF's, and the VF's settings are those of the configuration.
pub(crate) fn check(
    sriov: &SriovServices,
    wanted: &Sriov,
    request: &AttachmentRequest<'_>,
    pod: &mut dyn Net,
) -> Result<Checked, CniError> {
    let link = match netdev::check(request, pod, false, |link| wanted.is_of_netdev(link))? {
        Checked::Netdev(link) => link,
        other => return Ok(other),
    };
    if let Some(now) = sriov.settings_now(wanted)?
        && let Err(reason) = wanted.check_settings(&now)
    {
        return Ok(Checked::Changed(reason));
    }
    // A netdev that was moved as it is may be set down by its pod; one that was set up for it may not.
    match link.up {
        true => Ok(Checked::Netdev(link)),
        false => Ok(Checked::Changed("the interface is down".to_owned())),
    }
}
