//! Network configurations: what all of them have ([`NetConf`]), and one file for each plugin type and each IPAM.
//!
//! A configuration is validated here as far as its text alone allows. Whether a master exists or an MTU fits is for the daemon
//! to find out. Nothing in here changes the text: delegates get what the runtime wrote.

pub mod cluster_network;
pub mod conflist;
pub mod fairlead;
pub mod host_device;
pub mod host_local;
pub mod ipvlan;
pub mod known_keys;
pub mod loopback;
pub mod macvlan;
mod netconf;
pub mod resolv_conf;
pub mod sriov;
pub mod static_ipam;
pub mod userspace;
pub mod vhost_user;
pub mod vlan;

pub use cluster_network::ClusterNetwork;
pub use conflist::ConfList;
pub use fairlead::Fairlead;
pub use host_device::HostDevice;
pub use host_local::HostLocal;
pub use ipvlan::Ipvlan;
pub use loopback::Loopback;
pub use macvlan::Macvlan;
pub use netconf::{AttachmentRef, NetConf, RuntimeConfig};
pub use sriov::Sriov;
pub use static_ipam::StaticIpam;
pub use vhost_user::VhostUser;
pub use vlan::Vlan;

use crate::error::{CniError, Code};
use crate::go_json::Fields;

/// So many masters may be named: each of them is looked for at every ADD.
const MOST_MASTERS: usize = 16;

/// The longest alternative name of an interface, in bytes (`ALTIFNAMSIZ` less its terminator): a master may be named by one.
const LONGEST_MASTER: usize = 127;

/// The largest MTU that a configuration may ask for, in bytes. The kernel and the master have limits of their own.
const MAX_MTU: u32 = i32::MAX as u32;

/// Reads `mtu`. 0 and an absent key leave the choice to the kernel.
fn mtu(fields: &Fields<'_>) -> Result<Option<u32>, CniError> {
    Ok(fields.within("mtu", 0, MAX_MTU)?.filter(|mtu| *mtu != 0))
}

/// Reads `master`: the host's interface that the new one stands on; none: that of the default route. A list, which is ours alone, names
/// those of which the one nearest to the pod's processors is taken.
fn masters(fields: &Fields<'_>) -> Result<Vec<String>, CniError> {
    let mut masters = fields.item("master").map_or_else(|| Ok(Vec::new()), |item| item.text_or_texts())?;
    masters.retain(|name| !name.is_empty());
    let refused = |why: String| Err(CniError::new(Code::InvalidConfig, format!("\"master\" {why}")));
    if let Some(name) = masters.iter().find(|name| name.len() > LONGEST_MASTER) {
        return refused(too_long(name));
    }
    match masters.len() {
        0 | 1 => Ok(masters),
        n if n > MOST_MASTERS => {
            refused(format!("names {n} interfaces, at most {MOST_MASTERS} are looked for"))
        }
        // Which of the pod's own interfaces is near it, nobody can tell.
        _ if fields.flag("linkInContainer")? => {
            refused("is a list, and \"linkInContainer\" wants one interface of the pod".to_owned())
        }
        _ => Ok(masters),
    }
}

/// The words that follow the key of a master that no interface can have as its name.
fn too_long(master: &str) -> String {
    format!("is {} bytes long, and no interface has a name of more than {LONGEST_MASTER}", master.len())
}

#[cfg(test)]
mod tests;
