//! Plugins of others on an attachment's behalf: its IPAM plugin, and the plugins of a list.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniResult};

use super::Engine;
use super::job::Job;
use super::link::{self, Reach};
use super::removal::harmless;
use crate::delegate::{DelegateCall, Parameters};
use crate::install;
use crate::store::{Attachment, IpamRecord, LinkRecord};

/// Our executable is smaller than this, so a larger file need not be read.
const LARGEST_OF_OURS: u64 = 1 << 20;

/// Whether a plugin's file is our own executable under whatever name.
pub(super) fn is_ours(file: &File) -> bool {
    let small = file.metadata().is_ok_and(|m| m.len() <= LARGEST_OF_OURS);
    let mut bytes = Vec::new();
    let mut reader = file;
    small && reader.read_to_end(&mut bytes).is_ok() && install::is_ours(&bytes)
}

impl Engine {
    /// Calls the IPAM plugin of a configuration.
    pub(super) fn delegate(
        &self,
        job: &Job,
        plugin: &str,
        command: Command,
    ) -> Result<Option<CniResult>, CniError> {
        let goes_on = matches!(command, Command::Del | Command::Gc);
        let left =
            if goes_on { Duration::MAX } else { job.deadline.saturating_duration_since(Instant::now()) };
        let call = DelegateCall {
            command,
            plugin,
            config: &job.conf.raw,
            parameters: Parameters::from(job.request),
            time_limit: self.policy().delegate_timeout.min(left),
            cancelled: &|| !goes_on && job.gone.get(),
            is_ours: &is_ours,
        };
        self.delegates
            .ipam(&call, job.conf.version)
            .map_err(|e| told(&job.key.network, e.to_cni_error(command)))
    }

    pub(super) fn delegate_add(&self, job: &Job, plugin: &str) -> Result<CniResult, CniError> {
        self.delegate(job, plugin, Command::Add).map(Option::unwrap_or_default)
    }

    /// The DEL of everything that was executed for an attachment, from its record alone.
    pub(super) fn delegates_del(&self, attachment: &Attachment) -> Result<(), CniError> {
        if !attachment.has_delegates() {
            return Ok(());
        }
        self.delegates.wait_for_earlier(self.policy().delegate_timeout);
        if let LinkRecord::List { conflist } = &attachment.link {
            return self.list_del(attachment, conflist);
        }
        let IpamRecord::Delegate { plugin } = &attachment.ipam else { return Ok(()) };
        let conf = self.confs.get(&attachment.config, true)?;
        let netns = self.netns_for_delegates(attachment);
        let call = DelegateCall {
            command: Command::Del,
            plugin,
            config: &attachment.config,
            parameters: parameters(attachment, &netns),
            time_limit: self.policy().delegate_timeout,
            cancelled: &|| false,
            is_ours: &is_ours,
        };
        let done = self.delegates.ipam(&call, conf.version);
        done.map(drop).map_err(|e| harmless(&told(&attachment.key.network, e.to_cni_error(Command::Del))))
    }

    /// The namespace's path if it still leads there, else empty, as the specification wants it.
    pub(super) fn netns_for_delegates(&self, attachment: &Attachment) -> String {
        match link::reach(self.kernel.as_ref(), &attachment.netns) {
            Ok(Reach::Inside(_)) => attachment.netns.path.clone(),
            _ => String::new(),
        }
    }
}

/// What a plugin gets of an attachment whose caller is long gone.
pub(super) fn parameters<'a>(attachment: &'a Attachment, netns: &'a str) -> Parameters<'a> {
    Parameters {
        container_id: &attachment.key.container,
        netns,
        ifname: &attachment.key.ifname,
        args: &attachment.caller.args,
        path: &attachment.caller.path,
        env: &attachment.caller.env,
    }
}

fn told(network: &str, error: CniError) -> CniError {
    CniError { msg: format!("network {network:?}: {}", error.msg), ..error }
}
