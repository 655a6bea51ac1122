//! Whether a made link still is what its configuration asked for, and what the host lacks for one.

use fairlead_cni::CniError;
use fairlead_host::{Link, Net, NetError};

use super::config::Made;
use super::dummy::Dummy;
use super::parent;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds::{Checked, Kinds};
use crate::engine::netdev;
use crate::store::Attachment;

impl Made {
    /// CHECK: the parent is there, the link is of its kind and mode, and up. Where the configuration names no parent, it is the one of
    /// ADD that counts: what leads out of the host by now says nothing about this link.
    pub(crate) fn check(
        &self,
        kinds: &Kinds,
        request: &AttachmentRequest<'_>,
        attachment: Option<&Attachment>,
        pod: &mut dyn Net,
    ) -> Result<Checked, CniError> {
        let named = self.parent().filter(|parent| !parent.names.is_empty());
        let of_add = match &named {
            Some(parent) => {
                parent::parent(kinds.kernel.as_ref(), pod, parent)?;
                None
            }
            None => attachment.and_then(Attachment::parent),
        };
        netdev::check(request, pod, true, |link| {
            self.is_as_configured(link)?;
            stands_on(link, of_add)
        })
    }

    fn is_as_configured(&self, link: &Link) -> Result<(), String> {
        match self {
            Made::Macvlan(n) => n.check(link),
            Made::Ipvlan(n) => n.check(link),
            Made::Vlan(n) => n.check(link),
            Made::Dummy(_) => Dummy::check(link),
        }
    }

    /// The master by its name, if it should be in the host's namespace and is not; of several when none is there.
    pub(crate) fn missing_master(&self, kinds: &Kinds) -> Result<Option<String>, NetError> {
        // A parent inside the pod cannot be looked for before there is a pod.
        let named = self.parent().filter(|parent| !parent.in_container && !parent.names.is_empty());
        let Some(parent) = named else { return Ok(None) };
        let mut host = kinds.kernel.host()?;
        for name in &parent.names {
            if host.link_by_name(name)?.is_some() {
                return Ok(None);
            }
        }
        Ok(Some(parent.named()))
    }
}

/// Whether the link stands on that one of the host's, as far as both are known.
fn stands_on(link: &Link, recorded: Option<u32>) -> Result<(), String> {
    match (link.parent, recorded) {
        (Some(now), Some(recorded)) if now != recorded => {
            Err(format!("{:?} stands on the interface with index {now} instead of {recorded}", link.name))
        }
        _ => Ok(()),
    }
}
