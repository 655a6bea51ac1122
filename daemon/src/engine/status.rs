//! STATUS: whether an ADD of this network could succeed now. Looks at the host, waits for nothing.

use fairlead_cni::{CniError, Code};

use super::gc::below_1_1;
use super::job::Job;
use super::{Engine, errors};
use crate::networks::Network;

impl Engine {
    pub(super) fn status(&self, job: &mut Job) -> Result<(), CniError> {
        below_1_1(&job.conf, "STATUS")?;
        self.networks.rescan();
        let network = Network::validate(&job.conf, &job.args)?;
        self.ipam_status(job)?;
        if !self.store.writable() {
            return Err(CniError::new(Code::NotAvailable, "the daemon's store has no space left")
                .with("make space on the file system of the run directory"));
        }
        let told = |e| errors::kernel(&job.key.network, "looking at the host", &e);
        let mut host = self.kernel.host().map_err(told)?;
        if let Some(parent) = network.parent().filter(|p| !p.in_container)
            && let Some(name) = &parent.name
            && host.link_by_name(name).map_err(told)?.is_none()
        {
            let msg =
                format!("network {:?}: the host has no interface {name:?}, its master", job.key.network);
            return Err(
                CniError::new(Code::NotAvailable, msg).with("create the interface, or correct `master`")
            );
        }
        job.timing.end("look");
        Ok(())
    }
}
