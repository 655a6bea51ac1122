//! GC: everything of one network that the runtime no longer counts as attached.

use std::collections::HashSet;

use fairlead_cni::CniError;
use fairlead_cni::wire::Command;
use fairlead_ipam::Owner;

use super::newer_attachments::left_to_newer;
use super::{Answer, Core, executes_ipam};
use crate::boot_time::BootTime;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::logging;
use crate::store::{Attachment, Phase};

impl Core {
    /// Removes the network's attachments that are not in the list; goes past errors and answers with all of them.
    /// Never touches an ADD in flight, an attachment that was made after the caller had made the GC, nor one that is part of another.
    pub(crate) fn gc(&self, request: &mut AttachmentRequest<'_>) -> Result<(), CniError> {
        request.conf.version.must_have(Command::Gc)?;
        let conf = std::sync::Arc::clone(&request.conf);
        // Older callers send no list. Taken for an empty one, it would cost every pod its interface.
        let Some(valid) = &conf.valid_attachments else { return Ok(()) };
        let valid: HashSet<(&str, &str)> =
            valid.iter().map(|a| (a.container_id.as_str(), a.ifname.as_str())).collect();
        let issued = self.issued(request);
        let mut errors = Vec::new();
        let all = self.store.all();
        for attachment in &all {
            let key = &attachment.key;
            // Each plugin of a conflist gets the GC, and collects what is of its own type.
            // A tenant's network may have the name of an administrator's, and the runtime's list says nothing of it.
            let meant = key.network == request.key.network
                && key.plugin == request.key.plugin
                && attachment.namespace.as_ref() == request.namespace;
            if !meant
                || valid.contains(&(key.container.as_str(), key.ifname.as_str()))
                || !settled_before(attachment, issued, request)
                // The runtime of a part is Fairlead: no list of the caller's can name it, and it goes with the whole.
                || all.iter().any(|whole| whole.has_part(attachment))
            {
                continue;
            }
            errors.extend(self.collect_one(attachment, request).err());
        }
        // Asked under the network's lock: an ADD that takes an address now is on record before it does.
        let keep = |owner: &Owner| match owner {
            Owner::Attachment { container_id, ifname } => {
                valid.contains(&(container_id.as_str(), ifname.as_str())) || self.owns(container_id, ifname)
            }
            // host-local before 0.7 wrote no interface.
            Owner::Container { container_id } => {
                valid.iter().any(|(c, _)| c == container_id)
                    || self.store.newer_of(container_id, None).is_some()
            }
            // The list says nothing of a file that names nobody. `fairleadd gc --orphans` frees it.
            Owner::Nobody => true,
        };
        // An IPAM plugin that is executed would free what it has of attachments that are not in the list.
        match self.newer_of_network(request).filter(|_| executes_ipam(&request.conf)) {
            Some(newer) => errors.push(left_to_newer(&request.key.network, &newer)),
            None if executes_ipam(&request.conf) => errors.extend(self.gc_of_executed_ipam(request).err()),
            None => errors.extend(self.ipam.gc(request, &keep)),
        }
        request.timing.end("remove");
        CniError::all(errors)
    }

    /// Such a plugin frees what it has of attachments that it is not told of: it is told of those, too, that are on record by now.
    fn gc_of_executed_ipam(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        let network = &request.key.network;
        let valid = || {
            let of_runtime = request.conf.valid_attachments.iter().flatten().cloned();
            let on_record = self.store.all().into_iter();
            // What is silenced has had its DEL from the plugin.
            let on_record = on_record.filter(|a| a.phase != Phase::Silenced && a.key.network == *network);
            let on_record = on_record.map(|a| a.reference());
            of_runtime.chain(on_record).collect::<Vec<_>>()
        };
        let collect = |valid: Vec<_>| self.ipam.gc_executed(request, &valid);
        match request.nested {
            // The collection is the list's, which is under way.
            true => collect(valid()),
            false => self.collections.collect(network, valid, collect),
        }
    }

    fn collect_one(&self, attachment: &Attachment, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        let container = &attachment.key.container;
        let Some(_lock) = self.containers.take(container, request.waiting.deadline) else {
            return Err(errors::too_late(&format!("container {container}")));
        };
        // Read again: a DEL may have come first while the lock was waited for.
        match self.store.get(attachment.id) {
            Some(now) if now.phase == Phase::Attached => {
                self.tell_of_collected(&now);
                self.remove_for(&now, Answer::WhenGone)
            }
            _ => Ok(()),
        }
    }

    /// A pod that loses its interface while it runs must find out who took it.
    fn tell_of_collected(&self, attachment: &Attachment) {
        let key = &attachment.key;
        let _in_log = logging::of_pod(attachment.pod.clone());
        tracing::info!(container = %key.container, network = %key.network, ifname = %key.ifname,
            "the runtime's GC counts it no longer: it is collected");
        self.collected.add(attachment);
    }

    /// Whether anything on record is of this container's interface.
    pub(crate) fn owns(&self, container: &str, ifname: &str) -> bool {
        self.store.all().iter().any(|a| a.key.container == container && a.key.ifname == ifname)
            || self.store.newer_of(container, Some(ifname)).is_some()
    }
}

/// Whether an attachment was there when the runtime made its list: no ADD in flight or committed since can be in that.
fn settled_before(
    attachment: &Attachment,
    issued: Option<BootTime>,
    request: &AttachmentRequest<'_>,
) -> bool {
    let is_older = match attachment.committed {
        Some(committed) => issued.is_some_and(|issued| committed < issued),
        // A release before wrote it, or its commit is lost. A call of just now has a list of just now, and takes what a spooled one leaves.
        None => request.sandbox.spooled.is_none(),
    };
    attachment.phase == Phase::Attached && is_older
}
