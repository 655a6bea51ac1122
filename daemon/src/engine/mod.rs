//! The engine: carries calls out. It is synchronous; the server gives it threads.
//!
//! Three storeys, each of which knows only those below it:
//!
//! - adapters ([`call`](Engine), [`cluster_network`], [`fallback`]) make an [`AttachmentRequest`] of what was asked for;
//! - the [`core`] takes it one way for all: validate → plan (pure) → intent on record → apply → commit → answer;
//! - the [`kinds`] know what differs between links.

mod cluster_network;
pub mod compose;
mod conf_cache;
pub(crate) mod core;
mod errors;
pub mod failpoint;
mod fallback;
mod health_probes;
mod keyed_locks;
pub(crate) mod kinds;
mod netdev;
mod netns_reach;
mod operator_views;
mod policy;
mod pool_reconciler;
mod random_ids;
mod request;
mod sandbox;
pub(crate) mod sriov_cni_import;
mod start;
#[cfg(test)]
mod tests;
mod timing;

use std::sync::Arc;

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniVersion, Code};

use crate::call::{Call, Lane, Reply, Service};
use crate::conf_dir::Networks;
use crate::metrics;
use crate::settings::Settings;
use fairlead_sriov::pools::{Holders, Verb};

use self::core::{Core, since_0_4, since_1_1};
use health_probes::NetnsWatch;
use kinds::Network;
use request::{AttachmentRequest, Waiting};

pub(crate) use self::core::unreadable_records;
pub use policy::Policy;
pub use start::{Beside, StartError};

/// Carries calls out.
pub struct Engine {
    core: Core,
    networks: Arc<Networks>,
    netns_watch: NetnsWatch,
    calls: metrics::Calls,
}

impl Engine {
    /// Takes a changed configuration.
    pub fn configure(&self, settings: &Settings) {
        self.core.policy.set(Policy::from(settings));
        self.core.kinds.sriov.pools.configure(settings);
        self.core.kinds.sriov.offer_to_kubelet();
    }

    /// Carries the call of an executable out.
    fn call<'a>(
        &self,
        request: &'a Request,
        waiting: Waiting,
    ) -> (CniVersion, Result<(String, AttachmentRequest<'a>), CniError>) {
        let removal = matches!(request.command, Command::Del | Command::Gc);
        let conf = match self.core.ipam.confs.get(&request.config, removal) {
            Ok(conf) => conf,
            Err(e) => return (crate::config_summary::ConfigSummary::of(&request.config).version, Err(e)),
        };
        let version = conf.version;
        let vf_wait = self.core.policy().vf_wait;
        let done = AttachmentRequest::of_call(request, conf, waiting, vf_wait).and_then(|mut request| {
            request.timing.end("parse");
            let answer = self.dispatch(&mut request).map_err(|e| errors::of_call(&request, e))?;
            Ok((answer, request))
        });
        (version, done)
    }

    fn dispatch(&self, request: &mut AttachmentRequest<'_>) -> Result<String, CniError> {
        match request.key.plugin == cluster_network::TYPE {
            true => self.own_type(request),
            false => self.core.carry_out(request, Some(&self.networks)),
        }
    }

    /// Calls with who has a VF: an attachment of ours, or a pod that sriov-cni made.
    fn with_holders<T>(&self, call: impl FnOnce(Holders<'_>) -> T) -> T {
        let leftovers = || self.core.leftovers.owners();
        self.core.kinds.sriov.with_holders(&leftovers, call)
    }
}

impl Core {
    /// Carries a request for a built-in type out. `networks` are looked through anew at a STATUS.
    fn carry_out(
        &self,
        request: &mut AttachmentRequest<'_>,
        networks: Option<&Networks>,
    ) -> Result<String, CniError> {
        if !kinds::BUILT_IN.contains(&request.key.plugin.as_str()) {
            return Err(kinds::not_built_in(&request.key.plugin));
        }
        let network = |request: &AttachmentRequest<'_>| Network::validate(&request.conf, &request.args);
        match request.command {
            Command::Add => {
                let network = network(request)?;
                return self.add(request, network).map_err(|e| e.into_error());
            }
            Command::Del => {
                let network = network(request).ok();
                self.del(request, &[network])?;
            }
            Command::Check => {
                since_0_4(request)?;
                let network = network(request)?;
                self.check(request, network)?;
            }
            Command::Gc => self.gc(request)?,
            Command::Status => {
                since_1_1(&request.conf, "STATUS")?;
                networks.into_iter().for_each(Networks::rescan);
                let network = network(request)?;
                self.status(request, &network)?;
            }
        }
        Ok(String::new())
    }
}

impl Service for Engine {
    fn lane(&self, request: &Request) -> Lane {
        let removal = matches!(request.command, Command::Del | Command::Gc);
        let Ok(conf) = self.core.ipam.confs.get(&request.config, removal) else { return Lane::Fast };
        let executes = !matches!(conf.ipam_type.as_deref(), None | Some("host-local" | "static"));
        if executes || conf.plugin_type == cluster_network::TYPE || request.command == Command::Gc {
            return Lane::Slow;
        }
        let network = || {
            let args = fairlead_cni::args::Args::parse(&request.args).ok()?;
            Network::validate(&conf, &args).ok()
        };
        let policy = self.core.policy();
        let kinds = &self.core.kinds;
        let waits = match request.command {
            Command::Del => match network() {
                Some(network) if network.silent_is_gone() && conf.ipam_type.is_some() => {
                    let key = request::key(&request.container_id, &request.ifname, &conf);
                    let attachment = self.core.store.find(&key);
                    policy.del_waits
                        || !self.core.kernel().renames_while_up()
                        || network.waits(kinds, request.command, attachment.as_deref())
                }
                _ => true,
            },
            Command::Add => {
                policy.dad == netdev::setup::Dad::Wait
                    || network().is_some_and(|network| network.waits(kinds, request.command, None))
            }
            Command::Check => network().is_some_and(|network| network.waits(kinds, request.command, None)),
            Command::Gc | Command::Status => false,
        };
        if waits { Lane::Slow } else { Lane::Fast }
    }

    fn serve(&self, call: &Call) -> Reply {
        let (version, done) = self.call(&call.request, Waiting::from(call));
        let outcome = done.map(|(answer, request)| {
            let kind = metrics::kind_label(&request.key.plugin);
            for (phase, took) in request.timing.phases() {
                self.calls.phase(request.command, kind, phase, *took);
            }
            answer
        });
        Reply { version, outcome }
    }

    fn answered(&self, call: &Call, delivered: bool) {
        let request = &call.request;
        if request.command != Command::Add || !delivered {
            return;
        }
        let Ok(conf) = self.core.ipam.confs.get(&request.config, false) else { return };
        let key = request::key(&request.container_id, &request.ifname, &conf);
        if let Some(attachment) = self.core.store.find(&key)
            && !attachment.answered
            && let Err(e) = self.core.store.answered(attachment.id)
        {
            tracing::warn!(error = %e, "the delivery of an answer could not be put on record");
        }
    }

    fn table(&self, name: &str) -> Option<serde_json::Value> {
        operator_views::table(self, name)
    }

    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError> {
        self.with_holders(|holders| self.core.kinds.sriov.pools.order(verb, of, holders)).map_err(|unknown| {
            CniError::new(Code::BadEnvironment, unknown.to_string()).with("fairleadd pools lists them")
        })
    }

    fn collect(&self, orphans: bool) -> serde_json::Value {
        operator_views::collect(self, orphans)
    }
}
