//! Keeps the daemon off processors that are reserved for somebody (`isolcpus`, `nohz_full`): a pod that polls
//! there must not be interrupted by us, nor by plugins that we execute. The daemon never takes a processor that
//! it was not given.
//!
//! Threads that carry out calls get priority over the callers: in a burst there is one daemon and one executable
//! for every pod, and while the kernel works on one pod's interface, the next call can be prepared.

use std::path::Path;

use fairlead_host::process::{go_first, leave_cpus};
use fairlead_host::topology::isolated;
use tracing::{info, warn};

/// Applies to the calling thread and all threads that it starts later, so it must be called while no other thread
/// exists.
pub(crate) fn stay_off_isolated(sysfs: &Path) {
    let isolated = match isolated(sysfs) {
        Ok(none) if none.is_empty() => return,
        Ok(isolated) => isolated,
        Err(error) => {
            return warn!(%error, "isolated processors can't be told; the daemon runs wherever it may");
        }
    };
    match leave_cpus(&isolated) {
        Ok(Some(left)) => {
            info!(%isolated, on = %left, "the daemon and what it executes stay off isolated processors")
        }
        Ok(None) => {
            info!(%isolated, "the daemon's processors stay as they are: none is isolated, or it was given no other")
        }
        Err(error) => warn!(%isolated, %error, "the daemon can't leave isolated processors"),
    }
}

/// Gives the calling thread, which carries out calls, priority over the callers.
pub(crate) fn go_before_callers() {
    if let Err(error) = go_first() {
        tracing::debug!(%error, "threads for calls keep the usual priority");
    }
}
