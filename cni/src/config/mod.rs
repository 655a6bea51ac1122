//! Network configurations: what all of them have ([`NetConf`]), and one file for each type and IPAM.
//!
//! A configuration is validated here as far as the text alone can tell; whether a master exists or an MTU fits is
//! the daemon's to find out. Nothing in here changes the text: delegates get what the runtime wrote.

pub mod conflist;
pub mod host_device;
pub mod host_local;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
mod netconf;
pub mod own;
pub mod resolv_conf;
pub mod sriov;
pub mod static_ipam;
pub mod vlan;

pub use conflist::ConfList;
pub use host_device::HostDevice;
pub use host_local::HostLocal;
pub use ipvlan::Ipvlan;
pub use loopback::Loopback;
pub use macvlan::Macvlan;
pub use netconf::{AttachmentRef, NetConf, RuntimeConfig};
pub use own::Own;
pub use sriov::Sriov;
pub use static_ipam::StaticIpam;
pub use vlan::Vlan;

use crate::error::CniError;
use crate::lax::Fields;

/// Largest MTU that a configuration may ask for, in bytes; the kernel and the master know the true limit.
const MAX_MTU: u32 = i32::MAX as u32;

/// `mtu`: 0 and absent leave the choice to the kernel.
fn mtu(fields: &Fields<'_>) -> Result<Option<u32>, CniError> {
    Ok(fields.within("mtu", 0, MAX_MTU)?.filter(|mtu| *mtu != 0))
}

#[cfg(test)]
mod tests;
