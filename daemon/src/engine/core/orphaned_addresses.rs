//! Addresses whose container is unknown here, and the collection that the operator can order.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fairlead_cni::CniError;
use fairlead_host::spoken_duration::spoken;
use fairlead_ipam::{Allocation, NetworkDir, Owner};
use serde_json::{Value, json};

use super::Core;
use crate::call::OrphansListed;
use crate::store::{Attachment, Phase};

/// The operator waits so long for the removals that he orders.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at what has become of them.
const LOOKS: Duration = Duration::from_millis(20);

/// An allocation whose container is unknown here.
#[derive(serde::Serialize)]
pub(crate) struct Orphan {
    pub(crate) network: String,
    #[serde(rename = "dataDir")]
    data_dir: String,
    #[serde(flatten)]
    pub(crate) allocation: Allocation,
    /// How long its file is there, for a person.
    #[serde(rename = "for")]
    age: String,
}

impl Orphan {
    fn new(place: &NetworkDir, allocation: Allocation) -> Orphan {
        let made = UNIX_EPOCH + Duration::from_secs(allocation.modified);
        let age = SystemTime::now().duration_since(made).unwrap_or_default();
        Orphan {
            network: place.network.clone(),
            data_dir: place.data_dir.clone(),
            allocation,
            age: spoken(age.as_secs()),
        }
    }
}

impl Core {
    fn knows(&self, owner: &Owner) -> bool {
        match owner {
            Owner::Attachment { container_id, .. } | Owner::Container { container_id }
                if self.of_multus.read().contains(container_id) =>
            {
                true
            }
            Owner::Attachment { container_id, ifname } => self.owns(container_id, ifname),
            Owner::Container { container_id } => {
                self.store.all().iter().any(|a| a.key.container == *container_id)
                    || self.store.newer_of(container_id, None).is_some()
            }
            Owner::Nobody => false,
        }
    }

    /// All allocations whose container is unknown here.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        let host_local = &self.ipam.host_local;
        let mut found = Vec::new();
        for place in host_local.places() {
            match host_local.orphans(&place, &|owner| self.knows(owner)) {
                Ok(here) => found.extend(here.into_iter().map(|allocation| Orphan::new(&place, allocation))),
                // One directory that cannot be read must not hide what is in the others.
                Err(e) => {
                    tracing::warn!(network = %place.network, error = %e, "allocations cannot be listed");
                }
            }
        }
        found
    }

    /// Removes what is provably dead, and on order the allocations whose container is unknown here and that were there when
    /// they were listed. `row` is how a removed attachment is shown.
    pub(crate) fn collect(
        &self,
        orphans: Option<OrphansListed>,
        row: impl Fn(&Attachment) -> Value,
    ) -> Result<Value, CniError> {
        if orphans.is_some() {
            self.all_records_must_be_read()?;
        }
        // Dead attachments enter the phase `removing` here.
        self.sweep();
        let doomed: Vec<_> = self.store.all().into_iter().filter(|a| a.phase == Phase::Removing).collect();
        let (removed, mut errors) = self.hurry_removals(&doomed, row);
        let mut addresses = Vec::new();
        if let Some(OrphansListed { at }) = orphans {
            let host_local = &self.ipam.host_local;
            for place in host_local.places() {
                // What has come since the operator saw the list may be a living pod's.
                let spared = |of: &Allocation| of.modified >= at || self.knows(&of.owner);
                let here = host_local.release_orphans(&place, &spared);
                addresses.extend(here.allocations);
                errors.extend(here.errors.iter().map(ToString::to_string));
            }
        }
        Ok(json!({ "attachments": removed, "addresses": addresses, "errors": errors }))
    }

    /// Has the removal queue work on all of these now, and waits [`PATIENCE`] for the lot: any of them can hang. Answers those that
    /// are done, and why the others are not.
    fn hurry_removals(
        &self,
        doomed: &[Arc<Attachment>],
        row: impl Fn(&Attachment) -> Value,
    ) -> (Vec<Value>, Vec<String>) {
        let times = |id| self.removals.failures(id).map_or(0, |failures| failures.times);
        let mut open: Vec<_> = doomed.iter().map(|attachment| (attachment, times(attachment.id))).collect();
        for attachment in doomed {
            self.removals.expect(attachment.id, Instant::now());
        }
        let (until, mut removed, mut errors) = (Instant::now() + PATIENCE, Vec::new(), Vec::new());
        while !open.is_empty() && Instant::now() < until {
            open.retain(|(attachment, before)| match self.store.get(attachment.id) {
                None => {
                    removed.push(row(attachment));
                    false
                }
                Some(_) if times(attachment.id) > *before => {
                    errors.extend(self.removals.failure(attachment.id).map(|why| why.to_string()));
                    false
                }
                Some(_) => true,
            });
            thread::sleep(LOOKS);
        }
        errors.extend(open.iter().map(|(attachment, _)| {
            let key = &attachment.key;
            let (ifname, container, network) = (&key.ifname, &key.container, &key.network);
            format!(
                "{ifname} of container {container} (network {network}): its removal has not ended in {} s and goes on; see `fairleadd status`",
                PATIENCE.as_secs()
            )
        }));
        (removed, errors)
    }
}
