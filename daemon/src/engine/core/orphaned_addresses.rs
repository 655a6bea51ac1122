//! Addresses whose container is unknown here, and the collection that the operator can order.

use fairlead_cni::CniError;
use fairlead_ipam::{Allocation, Owner};
use serde_json::{Value, json};

use super::{Answer, Core};
use crate::store::{Attachment, Phase};

/// An allocation whose container is unknown here.
#[derive(serde::Serialize)]
pub(crate) struct Orphan {
    pub(crate) network: String,
    #[serde(rename = "dataDir")]
    data_dir: String,
    #[serde(flatten)]
    pub(crate) allocation: Allocation,
}

impl Core {
    fn knows(&self, owner: &Owner) -> bool {
        match owner {
            Owner::Attachment { container_id, ifname } => self.owns(container_id, ifname),
            Owner::Container { container_id } => {
                self.store.all().iter().any(|a| a.key.container == *container_id)
            }
            Owner::Nobody => false,
        }
    }

    /// All allocations whose container is unknown here.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        let host_local = &self.ipam.host_local;
        let mut found = Vec::new();
        for place in host_local.places() {
            match host_local.orphans(&place.data_dir, &place.network, &|owner| self.knows(owner)) {
                Ok(here) => found.extend(here.into_iter().map(|allocation| Orphan {
                    network: place.network.clone(),
                    data_dir: place.data_dir.clone(),
                    allocation,
                })),
                // One directory that cannot be read must not hide what is in the others.
                Err(e) => {
                    tracing::warn!(network = %place.network, error = %e, "allocations cannot be listed");
                }
            }
        }
        found
    }

    /// Removes what is provably dead, and on order the allocations whose container is unknown here. `row` is how a removed
    /// attachment is shown.
    pub(crate) fn collect(&self, with_orphans: bool, row: impl Fn(&Attachment) -> Value) -> Value {
        let (mut removed, mut errors) = (Vec::new(), Vec::<String>::new());
        // Dead attachments enter the phase `removing` here, so that the loop below removes them.
        self.sweep();
        for attachment in self.store.all().into_iter().filter(|a| a.phase == Phase::Removing) {
            // A call that is at work on this container may finish the removal itself. The operator does not wait for it.
            let Some(_lock) = self.containers.try_take(&attachment.key.container) else { continue };
            let unused = self.kinds.must_be_unused(&attachment);
            match unused.and_then(|()| self.remove(&attachment, Answer::WhenGone)) {
                Ok(()) => removed.push(row(&attachment)),
                Err(e) => errors.push(e.to_string()),
            }
        }
        let mut addresses = Vec::new();
        if with_orphans {
            let host_local = &self.ipam.host_local;
            for place in host_local.places() {
                let known = |owner: &Owner| self.knows(owner);
                let here = host_local.release_orphans(&place.data_dir, &place.network, &known);
                addresses.extend(here.allocations);
                errors.extend(here.errors.iter().map(ToString::to_string));
            }
        }
        json!({ "attachments": removed, "addresses": addresses, "errors": errors })
    }
}

/// All that went wrong while one thing after the other was removed.
pub(crate) fn all_errors(errors: Vec<CniError>) -> Result<(), CniError> {
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    let rest: Vec<String> = errors.map(|e| e.to_string()).collect();
    if rest.is_empty() {
        return Err(first);
    }
    // A CNI error has one code only; its text names every failure, as the specification wants it of GC.
    Err(CniError::new(first.code, format!("{first}; {}", rest.join("; "))))
}
