//! GC: everything of one network that the runtime no longer counts as attached.

use std::collections::HashSet;

use fairlead_cni::config::NetConf;
use fairlead_cni::{CniError, CniVersion, Code};

use super::job::Job;
use super::removal::{self, Answer};
use super::{Engine, errors};
use crate::store::{Attachment, Phase};
use fairlead_ipam::Owner;

impl Engine {
    /// Removes the network's attachments that are not in the list; goes past errors and answers with all of them.
    /// Never touches an ADD in flight, nor an attachment that was made after the GC arrived.
    pub(super) fn gc(&self, job: &mut Job) -> Result<(), CniError> {
        below_1_1(&job.conf, "GC")?;
        let Some(valid) = &job.conf.valid_attachments else { return Ok(()) };
        let valid: HashSet<(&str, &str)> =
            valid.iter().map(|a| (a.container_id.as_str(), a.ifname.as_str())).collect();
        let mut errors = Vec::new();
        for attachment in self.store.all() {
            let key = &attachment.key;
            let meant = key.network == job.key.network && key.plugin == job.key.plugin;
            if !meant
                || valid.contains(&(key.container.as_str(), key.ifname.as_str()))
                || !self.settled_before(&attachment, job)
            {
                continue;
            }
            errors.extend(self.collect_one(&attachment, job).err());
        }
        errors.extend(self.gc_addresses(job, &valid));
        errors.extend(self.ipam_gc(job).err());
        job.timing.end("remove");
        removal::all(errors)
    }

    fn settled_before(&self, attachment: &Attachment, job: &Job) -> bool {
        attachment.phase == Phase::Attached
            && self.store.committed_at(attachment.id).is_none_or(|at| at < job.arrived)
    }

    fn collect_one(&self, attachment: &Attachment, job: &Job) -> Result<(), CniError> {
        let Some(_claim) = self.claims.take(&attachment.key.container, job.deadline) else {
            return Err(errors::too_late(&format!("container {}", attachment.key.container)));
        };
        match self.store.get(attachment.id) {
            Some(now) if now.phase == Phase::Attached => self.remove_for(&now, Answer::WhenGone),
            _ => Ok(()),
        }
    }

    /// Allocations in host-local's directory that belong to nobody: not valid, and not on record here.
    fn gc_addresses(&self, job: &Job, valid: &HashSet<(&str, &str)>) -> Vec<CniError> {
        let Ok(Some(config)) = super::addresses::host_local_config(&job.conf, &job.args) else {
            return Vec::new();
        };
        // Asked under the network's lock: an ADD that takes an address now is on record before it does.
        let keep = |owner: &Owner| match owner {
            Owner::Attachment { container_id, ifname } => {
                valid.contains(&(container_id.as_str(), ifname.as_str())) || self.owns(container_id, ifname)
            }
            Owner::Container { container_id } => valid.iter().any(|(c, _)| c == container_id),
            Owner::Nobody => true,
        };
        let removed = self.host_local.gc(&config.data_dir, &job.key.network, &keep);
        removed.errors.into_iter().map(Into::into).collect()
    }

    /// Whether anything on record is of this container's interface.
    pub(super) fn owns(&self, container: &str, ifname: &str) -> bool {
        self.store.all().iter().any(|a| a.key.container == container && a.key.ifname == ifname)
    }
}

/// Code 1 where the network's version has no such command.
pub(super) fn below_1_1(conf: &NetConf, command: &str) -> Result<(), CniError> {
    if conf.version < CniVersion::V1_1_0 {
        let msg = format!("{command} came with 1.1.0; the network's version is {}", conf.version);
        return Err(CniError::new(Code::IncompatibleVersion, msg));
    }
    Ok(())
}
