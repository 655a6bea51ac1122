//! STATUS: whether an ADD of this network could succeed now. Looks at the host, waits for nothing.
//!
//! It is refused for what lasts until somebody mends it: a kind of link that the kernel does not have, a switch in user space that does
//! not run, no room for records or allocations, an IPAM plugin that says so. A missing master is no reason: a runtime takes the whole node
//! out of service for one network's error, and the reference plugins don't refuse it either. It is logged, and
//! `doctor` reports it.

use fairlead_cni::{CniError, Code};
use fairlead_host::NetError;

use super::{Core, executes_ipam};
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::{Network, module_of};

impl Core {
    /// STATUS of a network that has been validated.
    pub(crate) fn status(
        &self,
        request: &mut AttachmentRequest<'_>,
        network: &Network,
    ) -> Result<(), CniError> {
        self.must_have_kernel_kind(request, network)?;
        if let Some(why) = network.unserved(&self.kinds) {
            return Err(not_available(request, why));
        }
        self.store_status(request)?;
        self.ipam.status(request)?;
        self.look_for_master(request, network)?;
        request.timing.end("look");
        Ok(())
    }

    /// Whether the record that an ADD begins with could be taken.
    pub(crate) fn store_status(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        let length = request.conf.raw.len();
        if !self.store.writable(length) {
            return Err(not_available(request, "the daemon's store has no space left")
                .with("make space on the file system of the run directory"));
        }
        match executes_ipam(&request.conf) {
            true => self.records_status(request, length),
            false => Ok(()),
        }
    }

    /// Whether the record of an ADD that executes plugins could be written; `configs`: the length of what is configured.
    pub(crate) fn records_status(
        &self,
        request: &AttachmentRequest<'_>,
        configs: usize,
    ) -> Result<(), CniError> {
        self.records.writable(configs).map_err(|why| {
            not_available(request, why).with("make space on that file system, or make the directory writable")
        })
    }

    fn must_have_kernel_kind(
        &self,
        request: &AttachmentRequest<'_>,
        network: &Network,
    ) -> Result<(), CniError> {
        let missing = network.missing_kernel_kind(&self.kinds).map_err(|e| looking(request, &e))?;
        let Some(kind) = missing else { return Ok(()) };
        let module = module_of(kind);
        Err(not_available(request, format!("the kernel has no {kind}")).with(format!(
            "modprobe {module}, and name {module} in /etc/modules-load.d; if there is no such module, the node needs another kernel"
        )))
    }

    fn look_for_master(&self, request: &AttachmentRequest<'_>, network: &Network) -> Result<(), CniError> {
        if let Some(master) = network.missing_master(&self.kinds).map_err(|e| looking(request, &e))? {
            tracing::warn!(
                network = request.key.network,
                master,
                "the host has no interface of the master's name: an ADD of this network would fail"
            );
        }
        Ok(())
    }
}

/// Code 50 with the network's name.
pub(super) fn not_available(request: &AttachmentRequest<'_>, what: impl std::fmt::Display) -> CniError {
    CniError::new(Code::NotAvailable, format!("network {:?}: {what}", request.key.network))
}

fn looking(request: &AttachmentRequest<'_>, error: &NetError) -> CniError {
    CniError {
        code: Code::NotAvailable,
        ..errors::kernel(&request.key.network, "looking at the host", error)
    }
}
