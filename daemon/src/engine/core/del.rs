//! DEL: what is on record is taken down; of what is not, only what the configuration implies and what is provably
//! nobody else's.

use fairlead_cni::CniError;
use fairlead_host::{Link, NetnsError, Op};
use fairlead_kube::PodRef;

use super::{Answer, Core};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::Network;
use crate::engine::netdev::gone_is_fine;
use crate::store::{Attachment, LinkRecord, Namespace, Phase};

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
            if self.is_newer_than_spooled(&attachment, request) {
                return Ok(());
            }
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
        CniError::all(errors)
    }

    /// Removes `CNI_IFNAME` from the pod's namespace if it is of the configuration's kind, or the host's device that the configuration
    /// names, and no attachment holds it.
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
        if held {
            return Ok(());
        }
        if network.made(&link) {
            return gone_is_fine(pod.batch(&[Op::DeleteLink(link.index)])).map_err(told);
        }
        let Some(moved) = network.moved_by_another(&self.kinds, &link)? else {
            if network.may_be_lost(&self.kinds, &link)? {
                warn_of_loss(request, &link);
            }
            return Ok(());
        };
        let netns = self.namespace(request, pod.as_mut())?;
        // The removal enters the namespace by itself.
        drop(pod);
        self.bring_home(request, netns, moved)
    }

    /// Brings home what another plugin has moved into the pod. It is put on record first, and is the one removal's then, which may be begun
    /// again at any step.
    fn bring_home(
        &self,
        request: &AttachmentRequest<'_>,
        netns: Namespace,
        moved: LinkRecord,
    ) -> Result<(), CniError> {
        let (key, id) = (request.key, self.store.next_id());
        let attachment = Attachment {
            phase: Phase::Removing,
            namespace: request.namespace.cloned(),
            pod: PodRef::of_args(request.args),
            parked: Some(self.kinds.ids.parked_name()),
            ..Attachment::new(id, key.clone(), netns, moved, request.conf.raw.clone())
        };
        let (what, _) = self.kinds.describe(&attachment);
        tracing::info!(container = %key.container, network = %key.network, ifname = %key.ifname, what,
            "what another plugin has moved into the pod comes home");
        let attachment = self.store.begin(attachment).map_err(|e| errors::store(&e))?;
        self.remove_for(&attachment, Answer::WhenGone)
    }
}

fn warn_of_loss(request: &AttachmentRequest<'_>, link: &Link) {
    let (key, pod) = (request.key, PodRef::of_args(request.args));
    let pod = pod.map(|pod| pod.to_string()).unwrap_or_default();
    tracing::warn!(container = %key.container, network = %key.network, ifname = %key.ifname, pod, alias = ?link.alias,
        kind = link.kind.name(),
        "an interface of the pod may be a device of the host that another plugin has moved there, and goes with the pod's namespace: \
         nothing says that the pod has not made it. Move it back by hand before that, or make it anew on the host");
}
