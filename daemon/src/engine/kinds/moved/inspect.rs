//! Whether the netdev in the pod is the one that was moved.

use fairlead_cni::CniError;
use fairlead_host::{Link, Net};

use super::config::{DeviceRef, HostDevice};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::{Checked, Kinds};
use crate::engine::netdev;
use crate::store::{Attachment, LinkRecord};

impl HostDevice {
    /// CHECK: it is the very netdev that was lent. Whether it is up is the pod's own affair.
    pub(crate) fn check(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        attachment: Option<&Attachment>,
        pod: &mut dyn Net,
    ) -> Result<Checked, CniError> {
        if self.is_in_user_space(kinds) {
            return Ok(Checked::Whole);
        }
        let Some((attachment, LinkRecord::Moved(lent))) = attachment.map(|a| (a, &a.link)) else {
            return netdev::check(request, pod, false, |link| self.has_its_alias(link));
        };
        let told = |e| errors::kernel(&request.key.network, "looking for what was lent to the pod", &e);
        let found = kinds.find(attachment, pod).map_err(told)?;
        netdev::check(request, pod, false, |link| match found {
            Some(lent) if lent.index == link.index => Ok(()),
            _ => Err(format!(
                "{:?} is not the host's {:?}, which was lent to the pod",
                link.name, lent.was.name
            )),
        })
    }

    /// One that another plugin has moved: the reference plugin leaves the host's name in its alias.
    fn has_its_alias(&self, link: &Link) -> Result<(), String> {
        match &self.device {
            DeviceRef::Name(name) if link.alias.as_deref() != Some(name) => {
                Err(format!("{:?} is not the host's {name:?}: its alias is {:?}", link.name, link.alias))
            }
            _ => Ok(()),
        }
    }
}
