//! What the callers' threads and the cluster's own thread share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::events::Warnings;
use super::listed::Listed;
use super::object::Object;
use super::pods::Pods;
use super::reports::Reports;
use super::tenant_objects::TenantObjects;
use super::watch_state::{Kind, PerKind, Phase, WatchState};
use crate::cluster::{Definition, LegacyNetwork};

/// What is known of the cluster.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) pods: Pods,
    pub(super) definitions: TenantObjects<Definition>,
    pub(super) legacy_networks: TenantObjects<LegacyNetwork>,
    pub(super) namespaces: Listed<Arc<BTreeMap<String, String>>>,
    watches: PerKind<WatchState>,
}

impl Known {
    pub(super) fn new(wanted: &[Kind]) -> Known {
        Known {
            pods: Pods::default(),
            definitions: TenantObjects::default(),
            legacy_networks: TenantObjects::default(),
            namespaces: Listed::default(),
            watches: PerKind::new(|kind| WatchState::new(wanted.contains(&kind))),
        }
    }

    /// How it stands with the watch of a kind.
    pub(super) fn watch(&self, kind: Kind) -> &WatchState {
        self.watches.of(kind)
    }

    /// The same, to be changed.
    pub(super) fn watch_mut(&mut self, kind: Kind) -> &mut WatchState {
        self.watches.of_mut(kind)
    }

    /// What is watched, or to be.
    pub(super) fn wanted(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| self.watch(*kind).phase != Phase::Off).collect()
    }

    /// A kind is to be watched from now on. True if it was not.
    pub(super) fn want(&mut self, kind: Kind) -> bool {
        let is_new = self.watch(kind).phase == Phase::Off;
        if is_new {
            *self.watch_mut(kind) = WatchState::new(true);
        }
        is_new
    }

    /// How many objects of a kind are known.
    pub(super) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pods => self.pods.len(),
            Kind::Definitions => self.definitions.len(),
            Kind::LegacyNetworks => self.legacy_networks.len(),
            Kind::Namespaces => self.namespaces.len(),
        }
    }

    /// Takes what the API says of an object. Answers whether the snapshot has something else now.
    pub(super) fn apply(&mut self, kind: Kind, object: Object) -> bool {
        let name = (object.metadata.namespace.clone(), object.metadata.name.clone());
        match kind {
            Kind::Pods => self.pods.apply(object.into_pod()),
            Kind::Definitions => self.definitions.apply(name, object.into_definition().map(Arc::new)),
            Kind::LegacyNetworks => {
                self.legacy_networks.apply(name, object.into_legacy_network().map(Arc::new))
            }
            Kind::Namespaces => {
                let labels = Arc::new(object.into_labels());
                self.namespaces.apply(name, Arc::clone(&labels)) != Some(labels)
            }
        }
    }

    /// Takes the deletion of an object. Answers whether the snapshot has something else now.
    pub(super) fn delete(&mut self, kind: Kind, object: Object) -> bool {
        let name = (object.metadata.namespace.clone(), object.metadata.name.clone());
        match kind {
            Kind::Pods => self.pods.delete(object.into_pod()),
            Kind::Definitions => self.definitions.delete(&name),
            Kind::LegacyNetworks => self.legacy_networks.delete(&name),
            Kind::Namespaces => self.namespaces.delete(&name).is_some(),
        }
    }

    /// A list of all objects of a kind begins.
    pub(super) fn begin_list(&mut self, kind: Kind) {
        match kind {
            Kind::Pods => self.pods.begin_list(),
            Kind::Definitions => self.definitions.begin_list(),
            Kind::LegacyNetworks => self.legacy_networks.begin_list(),
            Kind::Namespaces => self.namespaces.begin_list(),
        }
    }

    /// The list is whole.
    pub(super) fn end_list(&mut self, kind: Kind) {
        match kind {
            Kind::Pods => self.pods.end_list(),
            Kind::Definitions => self.definitions.end_list(),
            Kind::LegacyNetworks => self.legacy_networks.end_list(),
            Kind::Namespaces => drop(self.namespaces.end_list()),
        }
        self.watch_mut(kind).list_ended();
    }

    /// Whether objects of a kind that were left out have room by now; asked once, it is forgotten.
    pub(super) fn takes_room(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::Definitions => self.definitions.takes_room(),
            Kind::LegacyNetworks => self.legacy_networks.takes_room(),
            Kind::Pods | Kind::Namespaces => false,
        }
    }
}

/// What was asked of the API server since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) patches: AtomicU64,
    pub(super) creates: AtomicU64,
}

/// A count of its own for each thing that a test, or an operator, asks about.
pub(super) fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// What callers and the cluster's thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) node: String,
    pub(super) known: Mutex<Known>,
    /// Something has become known, or the state of a watch has changed.
    pub(super) news: Condvar,
    pub(super) reports: Mutex<Reports>,
    pub(super) warnings: Mutex<Warnings>,
    pub(super) counts: Arc<Counts>,
    /// Of these namespaces the snapshot does not have everything.
    pub(super) left_out: Mutex<BTreeSet<String>>,
    /// Each wakes one task of the cluster's thread.
    pub(super) wake: Wake,
}

/// What wakes the tasks of the cluster's thread.
#[derive(Debug, Default)]
pub(super) struct Wake {
    /// Somebody waits for what a failing watch would tell. One for each kind.
    watches: PerKind<Notify>,
    /// Another kind is to be watched.
    pub(super) wanted: Notify,
    pub(super) reports: Notify,
    pub(super) warnings: Notify,
    pub(super) snapshot: Notify,
    pub(super) saved_reports: Notify,
    pub(super) stop: Notify,
}

impl Wake {
    /// Wakes, or is waited on by, the watch of a kind.
    pub(super) fn watch(&self, kind: Kind) -> &Notify {
        self.watches.of(kind)
    }
}

impl Shared {
    pub(super) fn new(node: String, wanted: &[Kind]) -> Shared {
        Shared {
            node,
            known: Mutex::new(Known::new(wanted)),
            news: Condvar::new(),
            reports: Mutex::default(),
            warnings: Mutex::default(),
            counts: Arc::default(),
            left_out: Mutex::default(),
            wake: Wake::default(),
        }
    }

    /// Changes what is known, and wakes whoever waits for it.
    pub(super) fn change<T>(&self, what: impl FnOnce(&mut Known) -> T) -> T {
        let result = what(&mut self.known.lock());
        self.news.notify_all();
        result
    }
}
