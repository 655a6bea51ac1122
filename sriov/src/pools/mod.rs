//! Pools of VFs that are ready before a pod asks: which VFs they have, who does the slow work, what an ADD
//! gets from them and what becomes of a VF afterwards.
//!
//! All that may take time happens on threads of the reconciler's and of the work queue. A VF is at one place only: with its
//! owner (as long as the caller's store says so), at work, or in the pool. One lock guards what all threads share; it is held
//! for no longer than a look at that, and never while a file is read or a device is asked.
//!
//! This module knows nothing of CNI, of kubelet or of the daemon: who owns a VF comes in by [`VfOwners`], what kubelet is to
//! see goes out by [`Offer`].

mod adopt_vfs;
mod bounded_number;
mod configuration;
mod create_vfs;
mod device_events;
mod foreign_use;
mod kubelet_allocation;
mod member_scan;
mod member_snapshot;
mod membership;
mod metrics;
mod offers;
mod operator_commands;
mod original_state;
mod owners;
mod per_scan_cache;
mod pool_definition;
mod prepare_member;
mod provision_error;
mod provisioner;
mod reconciler;
mod records;
mod reservation;
mod resource_offer;
mod restore_netdev_names;
mod scan_scope;
mod shared;
pub mod state;
mod target;
#[cfg(test)]
mod tests;
mod verify;
mod vhost_net_nodes;
mod work_queue;
mod workers;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::{DevlinkDevice, Kernel};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub use bounded_number::Bounded;
pub use configuration::{DevicePluginFile, PoolsConfiguration};
pub use metrics::PoolMetrics;
pub use operator_commands::{UnknownPool, Verb};
pub use owners::{SriovCniOwners, VfOwners};
pub use pool_definition::{Allocator, AtRest, PoolSettings, Profile, deserialize_pools};
pub use reconciler::SLOW;
pub use records::unreadable as unreadable_records;
pub use reservation::{DrawError, Refused, Reservation};
pub use resource_offer::{AnnouncedResource, Offer, OfferedVf, OfferedVfs, VfAccess, VfioNode};
pub use scan_scope::Look;
pub use target::ReadyVf;

use crate::udev::Udev;
use crate::{Administrator, Inventory, PciAddr};
use provisioner::Provisioner;
use records::{Record, Records};
use shared::{RecordChange, Shared};
use state::Mark;
use vhost_net_nodes::VhostNetNodes;

/// The pools of one node, shared by all threads that ask for a VF or work on one.
pub struct Pools {
    provisioner: Provisioner,
    state: Mutex<Shared>,
    /// Notified with every change of the shared state.
    changed: Condvar,
    metrics: PoolMetrics,
    random: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Held by whoever writes a member's mark, so that the newest mark is the last one written.
    marking: Mutex<()>,
    vhost_net_nodes: VhostNetNodes,
}

/// Everything that pools are built on.
pub struct PoolsContext<'a> {
    /// The directory whose files outlive the boot.
    pub state_dir: &'a Path,
    /// The directory whose files do not outlive the boot.
    pub run_dir: &'a Path,
    /// The identity of this boot: what was recorded in another one is not so any more.
    pub boot_id: &'a str,
    /// The kernel that all changes go through.
    pub kernel: Arc<dyn Kernel>,
    /// Reads and writes the settings of VFs through their PF.
    pub admin: Arc<Administrator>,
    /// Finds VFs in sysfs.
    pub inventory: Inventory,
    /// The directory of the host's udev, which need not be there.
    pub udev: PathBuf,
    /// The host's `/dev`, which need not be there.
    pub dev: PathBuf,
    /// Where work and failures are counted.
    pub metrics: PoolMetrics,
    /// The source of each member's lasting MAC address.
    pub random: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Pools {
    /// Reads what is on record. Nothing is compared with the machine yet.
    ///
    /// # Errors
    /// When a directory cannot be made or read.
    pub fn open(context: PoolsContext<'_>) -> io::Result<Pools> {
        let provisioner = Provisioner {
            kernel: context.kernel,
            admin: context.admin,
            inventory: context.inventory,
            records: Records::open(context.state_dir, context.run_dir)?,
            udev: Udev::new(context.udev),
            boot_id: context.boot_id.to_owned(),
            devlink: Mutex::default(),
        };
        Ok(Pools {
            provisioner,
            state: Mutex::default(),
            changed: Condvar::new(),
            metrics: context.metrics,
            random: context.random,
            marking: Mutex::default(),
            vhost_net_nodes: VhostNetNodes::new(context.dev),
        })
    }

    /// Has the metrics count the members of these pools whenever they are read.
    pub fn count(self: &Arc<Pools>) {
        self.metrics.count(Arc::downgrade(self));
    }

    /// What devlink reported to the last scan; `None` for a VF of no pool, which no scan is for.
    pub fn devlink_of(&self, vf: PciAddr) -> Option<Arc<[DevlinkDevice]>> {
        let is_member = self.lock().member(vf).is_some();
        is_member.then(|| self.provisioner.devlink())
    }

    /// Takes a configuration; the reconciler acts on it with its next look, which is at once.
    pub fn configure(self: &Arc<Pools>, configuration: impl Into<PoolsConfiguration>) {
        let declaration = configuration.into().declaration();
        let mut state = self.lock();
        if state.declare(declaration) {
            state.arrange_offers(&Arc::downgrade(self));
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.state.lock()
    }

    /// Waits while `waits` holds, for at most `limit`; the lock is held again when this returns.
    fn wait_while<'s>(
        &self,
        mut state: MutexGuard<'s, Shared>,
        limit: Duration,
        waits: impl FnMut(&mut Shared) -> bool,
    ) -> MutexGuard<'s, Shared> {
        let _ = self.changed.wait_while_for(&mut state, waits, limit);
        state
    }

    /// The one way to change the shared state: what is due afterwards is queued, what holds a member is put on record, and
    /// everybody who waits looks again.
    fn update<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        self.update_at(Instant::now(), change)
    }

    fn update_at<T>(&self, now: Instant, change: impl FnOnce(&mut Shared) -> T) -> T {
        let mut state = self.lock();
        let answer = change(&mut state);
        // Before `note_changes`: members that get work here change their state, and with it their marks.
        state.queue_what_is_due(now);
        let boot_id = &self.provisioner.boot_id;
        let owes = |address| self.provisioner.record(address).is_ok_and(|r| r.original_in(boot_id).is_some());
        let forgotten = state.forget_dismissed(owes);
        for address in &forgotten {
            // Before another pool may have it, which begins a record of its own.
            self.provisioner.records.forget(*address);
            state.look = state.look.max(Some(Look::Quick));
        }
        let changes = state.note_changes();
        drop(state);
        self.changed.notify_all();
        // Files are written without the lock: a slow disk keeps no ADD waiting.
        for address in forgotten {
            self.log_unwritten(address, self.provisioner.records.settle(address));
        }
        for RecordChange { address, marked, held } in changes {
            if marked {
                self.log_unwritten(address, self.mark(address));
            }
            if held {
                let written = self.provisioner.records.change(address, |record| self.record_hold(record));
                self.log_unwritten(address, written);
            }
        }
        answer
    }

    /// Puts what holds a member on its record, as it stands when that is written: of two writers the later one knows.
    fn record_hold(&self, record: &mut Record) {
        if let Some(standing) = self.lock().standings.get(&record.address) {
            record.held.clone_from(&standing.held);
            record.unclean.clone_from(&standing.unclean);
        }
    }

    /// Writes in whose hands a member is, as it stands when that is written. A pod has a VF only when its mark says so.
    fn mark(&self, address: PciAddr) -> io::Result<()> {
        let _marking = self.marking.lock();
        // Nobody knows that a VF is clean which is no member.
        let mark = self.lock().standings.get(&address).map_or(Mark::Soiled, |standing| standing.mark);
        self.provisioner.records.mark(address, mark)
    }

    /// Logs that a record could not be written; the work goes on without it.
    fn log_unwritten(&self, address: PciAddr, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::error!(pci = %address, %error,
                "what is on record of a pool's VF cannot be changed; make room in the state directory, or make it writable");
        }
    }

    /// Ends the threads of the reconciler and of the work queue. What they had still to do is done after the next start.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}
