//! What devlink tells of the machine's network cards. Where it cannot be asked, sysfs alone is gone by, and that is logged.

use std::sync::Arc;

use fairlead_host::{DevlinkDevice, Kernel};

/// The devices that devlink reports now; none, with a warning, where it cannot be asked.
pub(crate) fn told(kernel: &dyn Kernel) -> Arc<[DevlinkDevice]> {
    let told = kernel.devlink().unwrap_or_else(|error| {
        tracing::warn!(%error, "devlink cannot be asked; representors are known by sysfs alone");
        Vec::new()
    });
    told.into()
}
