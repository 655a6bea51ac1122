//! How many functions a physical one has, where the configuration of a pool says so. They are made where there are none, and
//! their number is never changed while there is one: somebody may use it.

use fairlead_sriov::{PhysicalFunction, Scan};

use super::membership::Notice;
use super::{Look, Pools};
use crate::settings::PoolSettings;

impl Pools {
    /// Makes those that are missing; the next look finds them. Answers what the operator is to know.
    pub(super) fn make_functions(&self, declared: &[PoolSettings], scan: &Scan) -> Vec<Notice> {
        let told = scan.physical.iter().filter_map(|physical| {
            let wants = |pool: &&PoolSettings| pool.numvfs.is_some() && pool.selectors.names(physical);
            let pool = declared.iter().find(wants)?;
            self.make(pool, pool.numvfs?.get(), physical)
        });
        told.collect()
    }

    fn make(&self, pool: &PoolSettings, wanted: usize, physical: &PhysicalFunction) -> Option<Notice> {
        let (address, name, has) = (physical.address, &pool.name, physical.has);
        if has == wanted {
            return None;
        }
        let notice = |wrong, seen, remedy: &str| Some(Notice { wrong, seen, remedy: remedy.to_owned() });
        if has > 0 {
            let seen = format!("{address} has {has} functions, and pool {name:?} wants {wanted}");
            let remedy = "their number is changed only where there are none: drain them, and write 0 to its sriov_numvfs";
            return notice(false, seen, remedy);
        }
        let made = u32::try_from(wanted).ok().filter(|count| *count <= physical.most);
        let Some(count) = made else {
            let seen =
                format!("{address} can have {} functions, and pool {name:?} wants {wanted}", physical.most);
            return notice(true, seen, "correct numvfs");
        };
        match self.shop.kernel.make_functions(&address.to_string(), count) {
            Ok(()) => {
                tracing::info!(physical = %address, pool = name, count, "functions were made");
                self.look_soon(Look::Quick);
                None
            }
            Err(error) => {
                let seen = format!("pool {name:?} wants {wanted} functions: {error}");
                notice(true, seen, "see the kernel's log for what its driver says")
            }
        }
    }
}
