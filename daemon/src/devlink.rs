//! What devlink reports about the machine's NICs. Where it cannot be asked, a warning is logged and sysfs alone
//! is used.

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
