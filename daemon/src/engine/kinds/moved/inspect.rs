//! Whether the netdev in the pod is the one that was moved.

use fairlead_cni::CniError;
use fairlead_host::{Link, Net};

use super::config::{DeviceRef, HostDevice};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::{Checked, Kinds};
use crate::engine::netdev;

impl HostDevice {
    /// CHECK: it carries its host name as alias. Whether it is up is the pod's own affair.
    pub(crate) fn check(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        pod: &mut dyn Net,
    ) -> Result<Checked, CniError> {
        if self.is_in_user_space(kinds) {
            return Ok(Checked::Whole);
        }
        netdev::check(request, pod, false, |link| self.is_as_configured(link))
    }

    fn is_as_configured(&self, link: &Link) -> Result<(), String> {
        match &self.device {
            DeviceRef::Name(name) if link.alias.as_deref() != Some(name) => {
                Err(format!("{:?} is not the host's {name:?}: its alias is {:?}", link.name, link.alias))
            }
            _ => Ok(()),
        }
    }
}
