//! The engine: carries calls out. It is synchronous; the server gives it threads.
//!
//! Three storeys, each of which knows only those below it:
//!
//! - adapters ([`executable_call`], [`cluster_network`], [`first_available_path`]) make an [`AttachmentRequest`] of what was asked for;
//! - the [`core`] takes it one way for all: validate → plan (pure) → intent on record → apply → commit → answer;
//! - the [`kinds`] know what differs between links.

mod attachment_request;
mod cluster_network;
mod conf_cache;
pub(crate) mod core;
mod enter_pod_netns;
mod errors;
mod executable_call;
pub mod failpoint;
mod first_available_path;
mod health_probes;
mod keyed_locks;
pub(crate) mod kinds;
mod live_policy;
mod netdev;
mod operator_views;
mod parsed_request;
mod pool_reconciler;
mod random_ids;
mod recorded_netns;
mod start;
pub mod start_for_daemon;
#[cfg(test)]
mod tests;
mod timing;

use std::sync::Arc;

use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, Code};
use fairlead_sriov::pools::{Owners, Verb};

use crate::call::{PreparedCall, Service};
use crate::conf_dir::Networks;
use crate::metrics;
use crate::settings::Settings;

use self::core::Core;
use executable_call::EngineCall;
use health_probes::NetnsWatch;

pub(crate) use self::core::unreadable_records;
pub use live_policy::Policy;
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

    /// Calls with who has a VF: an attachment of ours, or a pod that sriov-cni made.
    fn with_owners<T>(&self, call: impl FnOnce(Owners<'_>) -> T) -> T {
        let leftovers = || self.core.kinds.leftovers.owners();
        self.core.kinds.sriov.with_owners(&leftovers, call)
    }
}

impl Service for Engine {
    fn prepare(self: Arc<Self>, request: Request) -> Arc<dyn PreparedCall> {
        Arc::new(EngineCall::new(self, request))
    }

    fn table(&self, name: &str) -> Option<serde_json::Value> {
        operator_views::table(self, name)
    }

    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError> {
        self.with_owners(|owners| self.core.kinds.sriov.pools.order(verb, of, owners)).map_err(|unknown| {
            CniError::new(Code::BadEnvironment, unknown.to_string()).with("fairleadd pools lists them")
        })
    }

    fn collect(&self, orphans: bool) -> serde_json::Value {
        operator_views::collect(self, orphans)
    }
}
