//! STATUS: whether an ADD of this network could succeed now. Looks at the host, waits for nothing.
//!
//! It is refused for what lasts until somebody mends it: a kind of link that the kernel does not have, no room for
//! records or allocations, an IPAM plugin that says so. A missing master is no reason: a runtime takes the whole node
//! out of service for one network's error, and the reference plugins don't refuse it either. It is logged, and
//! `doctor` tells it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use fairlead_cni::config::HostLocal;
use fairlead_cni::{CniError, Code};
use fairlead_host::{Kernel, NetError};

use super::gc::below_1_1;
use super::job::Job;
use super::{Engine, errors};
use crate::networks::{Network, module_of};

/// Kinds of links that the kernel was seen to have. One that it had not is asked for again: a module may have come.
#[derive(Debug, Default)]
pub(super) struct Kinds(Mutex<BTreeSet<&'static str>>);

impl Kinds {
    fn has(&self, kernel: &dyn Kernel, kind: &'static str) -> Result<bool, NetError> {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(kind) {
            return Ok(true);
        }
        let known = kernel.knows(kind)?;
        if known {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
        }
        Ok(known)
    }
}

impl Engine {
    pub(super) fn status(&self, job: &mut Job) -> Result<(), CniError> {
        below_1_1(&job.conf, "STATUS")?;
        self.networks.rescan();
        let network = Network::validate(&job.conf, &job.args)?;
        self.kind_is_there(job, &network)?;
        self.store_status(job)?;
        self.ipam_status(job)?;
        self.look_for_master(job, &network)?;
        job.timing.end("look");
        Ok(())
    }

    /// Whether the record that an ADD begins with could be taken.
    pub(super) fn store_status(&self, job: &Job) -> Result<(), CniError> {
        if self.store.writable(job.request.config.len()) {
            return Ok(());
        }
        Err(not_available(job, "the daemon's store has no space left")
            .with("make space on the file system of the run directory"))
    }

    fn kind_is_there(&self, job: &Job, network: &Network) -> Result<(), CniError> {
        let Some(kind) = self.missing_kind(network).map_err(|e| looking(job, &e))? else { return Ok(()) };
        let module = module_of(kind);
        Err(not_available(job, format!("the kernel has no {kind}")).with(format!(
            "modprobe {module}, and name {module} in /etc/modules-load.d; if there is no such module, the node needs another kernel"
        )))
    }

    /// The kind of link that the network needs, if the kernel does not have it.
    pub(super) fn missing_kind(&self, network: &Network) -> Result<Option<&'static str>, NetError> {
        match network.kind_name() {
            Some(kind) if !self.kinds.has(self.kernel.as_ref(), kind)? => Ok(Some(kind)),
            _ => Ok(None),
        }
    }

    /// host-local: its configuration, and whether its files can be made. How full its ranges are is not looked at.
    pub(super) fn host_local_status(&self, job: &Job) -> Result<(), CniError> {
        let config = HostLocal::parse(&job.conf, &job.args)?;
        let directory = Path::new(&config.data_dir).join(&job.key.network);
        self.root.writable(&directory).map_err(|error| {
            not_available(
                job,
                format!("host-local's directory {} can't be written: {error}", directory.display()),
            )
            .with("make it a directory on a file system that can be written and has space, or correct `dataDir`")
        })
    }

    fn look_for_master(&self, job: &Job, network: &Network) -> Result<(), CniError> {
        if let Some(master) = self.missing_master(network).map_err(|e| looking(job, &e))? {
            tracing::warn!(
                network = job.key.network,
                master,
                "the host has no interface of the master's name: an ADD of this network would fail"
            );
        }
        Ok(())
    }

    /// The master by name, if it should be in the host's namespace and is not.
    pub(super) fn missing_master(&self, network: &Network) -> Result<Option<String>, NetError> {
        let named = network.parent().filter(|p| !p.in_container).and_then(|p| p.name);
        let Some(master) = named else { return Ok(None) };
        let there = self.kernel.host().and_then(|mut host| host.link_by_name(&master))?;
        Ok(there.is_none().then_some(master))
    }
}

fn not_available(job: &Job, what: impl std::fmt::Display) -> CniError {
    CniError::new(Code::NotAvailable, format!("network {:?}: {what}", job.key.network))
}

fn looking(job: &Job, error: &NetError) -> CniError {
    CniError { code: Code::NotAvailable, ..errors::kernel(&job.key.network, "looking at the host", error) }
}
