//! How many VFs a PF has, where the configuration of a pool says so. VFs are created where there are none, and their number is
//! never changed while there is one: the kernel would remove all of them first, and somebody may use one.

use std::collections::BTreeSet;

use super::membership::Notice;
use super::pool_definition::PoolSettings;
use super::work_queue::{VfCreation, Work};
use super::{Look, Pools};
use crate::{PciAddr, Scan, ScannedPf};

impl Pools {
    /// Has missing VFs created; the next look finds them. Answers what the operator is to know.
    pub(super) fn create_missing_vfs(&self, declared: &[PoolSettings], scan: &Scan) -> Vec<Notice> {
        let wanted_of = |physical: &ScannedPf| {
            let wants = |pool: &&PoolSettings| pool.numvfs.is_some() && pool.selectors.names(physical);
            declared.iter().find(wants)
        };
        let wanting = scan.physical.iter().filter(|physical| wanted_of(physical).is_some());
        let wanting: BTreeSet<PciAddr> = wanting.map(|physical| physical.address).collect();
        self.lock().failed_creations.retain(|physical, _| wanting.contains(physical));
        let notices = scan.physical.iter().filter_map(|physical| {
            let pool = wanted_of(physical)?;
            self.missing(pool, pool.numvfs?.get(), physical)
        });
        notices.collect()
    }

    fn missing(&self, pool: &PoolSettings, wanted: usize, physical: &ScannedPf) -> Option<Notice> {
        let (address, name, has) = (physical.address, &pool.name, physical.has);
        if has > 0 {
            self.lock().failed_creations.remove(&address);
        }
        if has == wanted {
            return None;
        }
        let notice = |wrong, seen, remedy: &str| Some(Notice { wrong, seen, remedy: remedy.to_owned() });
        if has > 0 {
            let seen = format!("{address} has {has} VFs, and pool {name:?} wants {wanted}");
            let remedy = "their number is changed only where there are none: drain them, and write 0 to its sriov_numvfs";
            return notice(false, seen, remedy);
        }
        let made = u32::try_from(wanted).ok().filter(|count| *count <= physical.most);
        let Some(count) = made else {
            let seen = format!("{address} can have {} VFs, and pool {name:?} wants {wanted}", physical.most);
            return notice(true, seen, "correct numvfs");
        };
        let mut state = self.lock();
        // The driver takes seconds for it, and looks go on meanwhile: the same VFs are not ordered twice.
        if state.creating.insert(address) {
            let creation = VfCreation { pool: name.clone(), physical: address, count };
            state.work_queue.push(address, Work::Create(creation));
        }
        None
    }

    /// Creates VFs; takes as long as the driver does.
    pub(super) fn create(&self, creation: VfCreation) {
        let VfCreation { pool, physical, count } = creation;
        let made = self.provisioner.kernel.create_vfs(&physical.to_string(), count);
        self.update(|state| {
            // After a failure too: the next look tries again.
            state.creating.remove(&physical);
            state.failed_creations.remove(&physical);
            match made {
                Ok(()) => {
                    tracing::info!(%physical, pool, count, "VFs were made");
                    state.look = state.look.max(Some(Look::Quick));
                }
                Err(error) => {
                    let seen = format!("pool {pool:?} wants {count} VFs: {error}");
                    let remedy = "see the kernel's log for what its driver says".to_owned();
                    state.failed_creations.insert(physical, Notice { wrong: true, seen, remedy });
                }
            }
        });
    }
}
