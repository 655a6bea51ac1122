//! DEL: what is on record is taken down; of what is not, only what the configuration implies and what is provably
//! nobody else's.

use fairlead_cni::CniError;
use fairlead_host::{NetnsError, Op};

use super::{Core, all_errors};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::Network;
use crate::engine::netdev::gone_is_fine;

impl Core {
    /// DEL for a configuration that may have become any of several networks; `None`: one that cannot be read.
    pub(crate) fn del(
        &self,
        request: &mut AttachmentRequest<'_>,
        networks: &[Option<&Network>],
    ) -> Result<(), CniError> {
        let _lock = self.lock_container(request)?;
        // A removal enters the namespace by itself.
        request.leave_pod();
        let key = request.key;
        // A plugin of a conflist is never meant by a record of another type: the conflist's own record, which may have the same
        // network and interface, would be removed within its own removal.
        let of_any_type = || self.store.find_of_any_type(key).filter(|_| !request.nested);
        let found = match self.store.find(key) {
            Some(attachment) => Some(attachment),
            None => {
                self.must_not_be_newer(request)?;
                of_any_type()
            }
        };
        if let Some(attachment) = found {
            // Of several paths the attachment has the one behind those that were passed over.
            let network = networks.get(attachment.passed_over.len()).copied().flatten();
            let answer = self.answer_of(&attachment, network);
            let done = self.remove_for(&attachment, answer);
            request.timing.end("remove");
            return done;
        }
        // A DEL has answered for it already, and the queue finishes it. To go on here would free its addresses
        // before its link is gone.
        if self.store.silenced().iter().any(|a| a.key == *key) {
            return Ok(());
        }
        let done = self.del_unrecorded(request, networks);
        request.timing.end("remove");
        done
    }

    /// K10: nothing is on record; another plugin may have made it.
    fn del_unrecorded(
        &self,
        request: &AttachmentRequest<'_>,
        networks: &[Option<&Network>],
    ) -> Result<(), CniError> {
        // Its addresses are free when it has left the pod.
        self.kinds.leftovers.del(&self.kinds, request)?;
        let mut errors = Vec::new();
        // Past errors: what one step cannot give back must not keep the others.
        errors.extend(self.ipam.del_unrecorded(request).err());
        for network in networks.iter().flatten() {
            errors.extend(self.unlink_unrecorded(request, network).err());
        }
        all_errors(errors)
    }

    /// Removes `CNI_IFNAME` from the pod's namespace if it is of the configuration's kind and no attachment holds it.
    fn unlink_unrecorded(&self, request: &AttachmentRequest<'_>, network: &Network) -> Result<(), CniError> {
        // From the directory that the daemon is in, a relative path would lead to somebody else.
        if !request.netns().is_absolute() {
            return Ok(());
        }
        let mut pod = match self.kernel().pod(request.netns()) {
            Ok(pod) => pod,
            // The specification: a DEL without a namespace is success. In the host's own one nothing is removed.
            Err(NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. }) => {
                return Ok(());
            }
            Err(e) => return Err(errors::netns(&e)),
        };
        let ifname = &request.key.ifname;
        let told = |e| errors::kernel(&request.key.network, &format!("removing {ifname:?}"), &e);
        let Some(link) = pod.link_by_name(ifname).map_err(told)? else { return Ok(()) };
        // X22: in a namespace that is used again a newer sandbox may have an interface of this name.
        let held = self.store.all().iter().any(|a| a.netns.id.same(pod.id()) && a.key.ifname == *ifname);
        let held = held || self.store.newer_within(pod.id(), ifname);
        if held || !network.made(&link) {
            return Ok(());
        }
        gone_is_fine(pod.batch(&[Op::DeleteLink(link.index)])).map_err(told)
    }
}
