//! The engine: carries calls out.
//!
//! One way through for all: read and validate → look at the host and plan (pure) → intent on record → apply → commit →
//! answer. What is on record before a step is enough to undo it. The engine is synchronous; the server gives it threads.

mod add;
mod addresses;
mod broken;
mod chance;
mod check;
mod claims;
mod conf_cache;
mod del;
mod device_info;
mod devices;
mod errors;
mod executed;
pub mod failpoint;
mod vfs;
mod gc;
mod given;
mod granted;
mod homecoming;
mod inherited;
mod job;
mod link;
mod lists;
mod nearness;
mod paths;
pub mod plug;
mod pooled;
mod reaper;
mod reconcile;
mod records;
mod removal;
mod start;
mod status;
mod tables;
mod timing;
mod validated;
mod wellbeing;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniVersion, Code};
use fairlead_host::announce::Announcer;
use fairlead_host::{Kernel, NetnsId};
use fairlead_kubelet::PodResources;
use fairlead_sriov::{Administrator, Inventory};

use crate::call::{Call, Lane, Reply, Service};
use crate::delegate::Delegates;
use crate::device_offers::DeviceOffers;
use crate::metrics;
use crate::netconf::Networks;
use crate::networks::interface::Dad;
use crate::networks::{BUILT_IN, Network};
use crate::pools::{Pools, Verb};
use crate::settings::Settings;
use crate::sriov_cni::Predecessor;
use crate::store::Store;
use fairlead_host::host_root::HostRoot;
use fairlead_ipam::HostLocal;

use chance::Chance;
use claims::Claims;
use conf_cache::ConfCache;
use job::{Job, Waiting};
use reaper::Reaper;
use records::Records;
use status::Kinds;
use validated::Validated;
use wellbeing::LookOut;

pub(crate) use records::unreadable as unreadable_records;
pub use start::{Beside, StartError};

/// Everything on record is looked through this often, for what no event has told.
const SWEEP: Duration = Duration::from_secs(30);

/// Where the engine lives.
#[derive(Debug, Clone)]
pub struct Places {
    /// What dies with the boot.
    pub run_dir: PathBuf,
    /// What outlives it.
    pub state_dir: PathBuf,
    /// The host's root as the daemon sees it.
    pub host_root: PathBuf,
    /// Where sysfs is mounted.
    pub sysfs: PathBuf,
    /// Kubelet's directory on the host.
    pub kubelet: PathBuf,
}

/// What the configuration can change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// DEL waits until the link is gone.
    pub del_waits: bool,
    /// Duplicate address detection of IPv6.
    pub dad: Dad,
    /// Time limit of one executed plugin.
    pub delegate_timeout: Duration,
    /// How long a silenced link waits for its namespace to take it along.
    pub reap_after: Duration,
    /// How long an ADD waits for a VF that is coming home or at work in its pool.
    pub function_wait: Duration,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            del_waits: false,
            dad: Dad::Fast,
            delegate_timeout: Duration::from_secs(30),
            reap_after: Duration::from_millis(1500),
            function_wait: Duration::from_secs(10),
        }
    }
}

/// The engine.
pub struct Engine {
    kernel: Arc<dyn Kernel>,
    host_id: NetnsId,
    policy: RwLock<Arc<Policy>>,
    store: Store,
    records: Records,
    claims: Claims,
    /// VFs that an ADD is about to put on record.
    reserved: Claims,
    inventory: Inventory,
    admin: Arc<Administrator>,
    pools: Arc<Pools>,
    device_offers: DeviceOffers,
    sysfs: PathBuf,
    pod_resources: PodResources,
    reaper: Reaper,
    host_local: HostLocal,
    root: HostRoot,
    predecessor: Predecessor,
    kinds: Kinds,
    look_out: LookOut,
    delegates: Delegates,
    networks: Arc<Networks>,
    announcer: Option<Announcer>,
    confs: ConfCache,
    validated: Validated,
    chance: Arc<Chance>,
    calls: metrics::Calls,
}

impl Engine {
    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a changed configuration.
    pub fn configure(&self, settings: &Settings) {
        self.set_policy(Policy::from(settings));
        self.pools.configure(settings);
        self.offer_to_kubelet();
    }

    fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    fn call<'a>(
        &self,
        request: &'a Request,
        waiting: &Waiting,
        inner: bool,
    ) -> (CniVersion, Result<(String, Job<'a>), CniError>) {
        let removal = matches!(request.command, Command::Del | Command::Gc);
        let conf = match self.confs.get(&request.config, removal) {
            Ok(conf) => conf,
            Err(e) => return (crate::glance::of(&request.config).version, Err(e)),
        };
        let version = conf.version;
        let done = Job::read(request, conf, waiting, inner).and_then(|mut job| {
            job.timing.end("parse");
            let answer = self.dispatch(&mut job).map_err(|e| errors::of_call(&job, e))?;
            Ok((answer, job))
        });
        (version, done)
    }

    fn dispatch(&self, job: &mut Job) -> Result<String, CniError> {
        if job.key.plugin == lists::TYPE {
            return self.own(job);
        }
        if !BUILT_IN.contains(&job.key.plugin.as_str()) {
            return Err(crate::networks::not_built_in(&job.key.plugin));
        }
        match job.request.command {
            Command::Add => self.add(job),
            Command::Del => self.del(job).map(|()| String::new()),
            Command::Check => self.check(job).map(|()| String::new()),
            Command::Gc => self.gc(job).map(|()| String::new()),
            Command::Status => self.status(job).map(|()| String::new()),
        }
    }
}

impl Service for Engine {
    fn lane(&self, request: &Request) -> Lane {
        let removal = matches!(request.command, Command::Del | Command::Gc);
        let Ok(conf) = self.confs.get(&request.config, removal) else { return Lane::Fast };
        let executes = !matches!(conf.ipam_type.as_deref(), None | Some("host-local" | "static"));
        let waits = match request.command {
            Command::Del => {
                let early = fairlead_cni::args::Args::parse(&request.args)
                    .ok()
                    .and_then(|args| Network::validate(&conf, &args).ok())
                    .is_some_and(|n| n.silent_is_gone() && conf.ipam_type.is_some());
                let lent = conf.plugin_type != "sriov" || self.is_lent(&conf, request);
                !early || !lent || self.policy().del_waits || !self.kernel.renames_while_up()
            }
            Command::Gc => true,
            Command::Add => {
                let waits_for_device = match conf.plugin_type.as_str() {
                    "host-device" => true,
                    "sriov" => !self.has_ready(&conf, request),
                    _ => false,
                };
                self.policy().dad == Dad::Wait || waits_for_device
            }
            // The settings of VFs are dear to read.
            Command::Check => conf.plugin_type == "sriov",
            Command::Status => false,
        };
        if executes || waits || conf.plugin_type == lists::TYPE { Lane::Slow } else { Lane::Fast }
    }

    fn serve(&self, call: &Call) -> Reply {
        let (version, done) = self.call(&call.request, &Waiting::from(call), false);
        let outcome = done.map(|(answer, job)| {
            let kind = metrics::kind_label(&job.key.plugin);
            for (phase, took) in job.timing.phases() {
                self.calls.phase(call.request.command, kind, phase, *took);
            }
            answer
        });
        Reply { version, outcome }
    }

    fn answered(&self, call: &Call, delivered: bool) {
        if call.request.command != Command::Add || !delivered {
            return;
        }
        let Ok(conf) = self.confs.get(&call.request.config, false) else { return };
        let Ok(job) = Job::read(&call.request, conf, &Waiting::from(call), false) else { return };
        if let Some(attachment) = self.store.find(&job.key)
            && !attachment.answered
            && let Err(e) = self.store.answered(attachment.id)
        {
            tracing::warn!(error = %e, "the delivery of an answer could not be put on record");
        }
    }

    fn table(&self, name: &str) -> Option<serde_json::Value> {
        tables::table(self, name)
    }

    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError> {
        self.with_holders(|holders| self.pools.order(verb, of, holders)).map_err(|unknown| {
            CniError::new(Code::BadEnvironment, unknown.to_string()).with("fairleadd pools lists them")
        })
    }

    fn collect(&self, orphans: bool) -> serde_json::Value {
        tables::collect(self, orphans)
    }
}

/// Code 999 for what should not happen.
fn internal(what: impl Into<String>) -> CniError {
    CniError::new(Code::Internal, what)
}

#[cfg(test)]
mod tests;
