//! The engine: carries calls out. It is synchronous; the server gives it threads.
//!
//! Three storeys, each of which knows only those below it:
//!
//! - adapters ([`executable_call`], [`tenant_definition`], [`cluster_network`], [`first_available_path`]) make an [`AttachmentRequest`] of what
//!   was asked for;
//! - the [`core`] takes it one way for all: validate → plan (pure) → intent on record → apply → commit → answer;
//! - the [`kinds`] know what differs between links.

mod assembly;
pub(crate) mod attachment_request;
mod call_phases;
mod call_settings;
mod cluster_network;
mod conf_cache;
pub(crate) mod core;
#[cfg(feature = "failpoints")]
mod definition_stand_in;
mod describe;
mod enter_pod_netns;
mod errors;
mod executable_call;
mod failing_removals;
pub mod failpoint;
mod first_available_path;
mod health_probes;
mod idle_memory;
mod keyed_locks;
pub(crate) mod kinds;
mod metrics_of_ports;
mod metrics_of_records;
mod multus_pods;
mod netdev;
mod netns_watch;
mod node_readiness;
mod operator_views;
mod parsed_request;
mod pod_networks;
mod pool_reconciler;
mod random_ids;
mod read_definitions;
mod recent_calls;
mod recorded_netns;
mod removal_threads;
mod runtime_cache;
mod start;
mod start_error;
pub mod start_for_daemon;
mod tenant_definition;
#[cfg(test)]
mod tests;
mod userspace_pods;

use std::path::PathBuf;
use std::sync::Arc;

use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, Code};
use fairlead_kube::Cluster;
use fairlead_sriov::PciAddr;
use fairlead_sriov::pools::{Verb, VfOwners};
use parking_lot::Mutex;

use crate::call::{ChangeOver, NamedAttachment, OrphansListed, PodNetwork, PreparedCall, Service};
use crate::conf_dir::Networks;
use crate::metrics;
use crate::settings::Settings;
use crate::store::Key;

use self::core::Core;
use self::idle_memory::CallsCome;
use self::multus_pods::MultusPods;
use attachment_request::AttachmentRequest;
pub(crate) use attachment_request::OWN_TYPE;
use executable_call::EngineCall;
use netns_watch::NetnsWatch;
use parsed_request::ParsedRequest;
use pod_networks::ImmediateNetworks;
use read_definitions::ReadDefinitions;
use recent_calls::RecentCalls;

pub(crate) use self::core::unreadable_records;
pub use assembly::EngineInputs;
pub use attachment_request::Sandbox;
pub use call_settings::CallSettings;
pub use start_error::StartError;
pub use tenant_definition::DefinitionCall;

/// Carries calls out.
pub struct Engine {
    core: Core,
    networks: Arc<Networks>,
    netns_watch: NetnsWatch,
    calls: metrics::Calls,
    /// The cluster, where the node is one's.
    cluster: Option<Arc<dyn Cluster>>,
    /// The host's root as the daemon sees it.
    host_root: PathBuf,
    recent: RecentCalls,
    calls_come: CallsCome,
    /// Which networks take nothing but the kernel to be attached.
    immediate: ImmediateNetworks,
    /// Tenants' definitions as they were read lately.
    definitions: ReadDefinitions,
    /// Pods that Multus has made, as they were last looked for.
    multus_pods: Mutex<MultusPods>,
}

impl Engine {
    /// Takes a changed configuration.
    pub fn configure(&self, settings: &Settings) {
        self.core.call_settings.set(CallSettings::from(settings));
        if let Some(cluster) = self.cluster.as_deref().filter(|_| settings.policy.goes_by_labels()) {
            cluster.watch_namespace_labels();
        }
        self.core.kinds.sriov.pools.configure(settings);
        self.core.kinds.vhost_user.pools.set_label(&settings.vhost_user.selinux_label);
        self.core.kinds.vhost_user.pools.configure(&settings.vhost_user.pools);
        self.offer_to_kubelet();
    }

    /// Offers kubelet the devices that it allocates, as they are configured.
    fn offer_to_kubelet(&self) {
        self.core.kinds.sriov.offer_to_kubelet(&self.core.kinds.vhost_user.pools);
    }

    /// Carries a request out, of our own type or of a built-in one.
    fn carry_out(
        &self,
        request: &mut AttachmentRequest<'_>,
        parsed: &ParsedRequest,
    ) -> Result<String, CniError> {
        match parsed.wanted.key.plugin == OWN_TYPE {
            true => self.own_type(request),
            false => self.core.carry_out(request, parsed, Some(&self.networks)),
        }
    }

    /// Calls with who has a VF: an attachment of ours, or a pod that sriov-cni made.
    fn with_owners<T>(&self, call: impl FnOnce(VfOwners<'_>) -> T) -> T {
        let leftovers = || self.core.kinds.leftovers.owners();
        self.core.kinds.sriov.with_owners(&leftovers, call)
    }
}

impl Service for Engine {
    fn prepare(self: Arc<Self>, request: Request) -> Arc<dyn PreparedCall> {
        self.calls_come.one_more();
        Arc::new(EngineCall::new(self, request))
    }

    fn table(&self, name: &str) -> Option<serde_json::Value> {
        operator_views::table(self, name)
    }

    fn describe(&self, named: &str) -> serde_json::Value {
        describe::describe(self, named)
    }

    fn pod_networks(&self, first: &Key) -> Vec<PodNetwork> {
        self.attached_with(first)
    }

    fn order_pools(&self, verb: Verb, of: &str) -> Result<serde_json::Value, CniError> {
        self.with_owners(|owners| self.core.kinds.sriov.pools.order(verb, of, owners)).map_err(|unknown| {
            match self.core.kinds.vhost_user.pools.has(of) {
                true => CniError::new(
                    Code::BadEnvironment,
                    format!("{of:?} is a pool of vhost-user ports, or a port of one: all of them are ready at all times, and none is {}", verb.done()),
                )
                .with("change its `count` in `vhostUser.pools` of the configuration, or take it out"),
                false => CniError::new(Code::BadEnvironment, unknown.to_string()).with("fairleadd pools lists them"),
            }
        })
    }

    fn collect(&self, orphans: Option<OrphansListed>) -> Result<serde_json::Value, CniError> {
        operator_views::collect(self, orphans)
    }

    fn change_over(&self, change: ChangeOver, dir: &str) -> Result<(), CniError> {
        Engine::change_over(self, change, dir)
    }

    fn forget(&self, named: &NamedAttachment, carry_out: bool) -> Result<serde_json::Value, CniError> {
        let pools = &self.core.kinds.sriov.pools;
        let quarantine = |vf: PciAddr| {
            let order = |owners: VfOwners<'_>| pools.order(Verb::Quarantine, &vf.to_string(), owners);
            self.with_owners(order).is_ok()
        };
        self.core.forget_named(named, carry_out, &quarantine)
    }
}
