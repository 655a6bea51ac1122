//! What is done to an attachment before CHECK looks at it, and garbage collection. Each is done to a fresh
//! attachment.

use std::fmt;
use std::fs;

use serde_json::Value;

use crate::node_commands::{self, NodeError};
use crate::observe;

/// One way to disturb an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// Its first address is removed from the interface.
    Address,
    /// The first route through a gateway is removed.
    Route,
    /// The interface is set down.
    Down,
    /// The interface is removed.
    Link,
    /// The allocation file of its address is removed.
    Allocation,
    /// The interface's MTU is changed.
    Mtu,
    /// Nothing is disturbed: GC with the attachment on its list, then with an empty list.
    Collect,
}

/// The disturbances that every network with addresses can be put to.
pub const DISTURBANCES: [Disturbance; 6] = [
    Disturbance::Address,
    Disturbance::Route,
    Disturbance::Down,
    Disturbance::Link,
    Disturbance::Allocation,
    Disturbance::Mtu,
];

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Disturbance::Address => "address gone",
            Disturbance::Route => "route gone",
            Disturbance::Down => "link down",
            Disturbance::Link => "link gone",
            Disturbance::Allocation => "allocation gone",
            Disturbance::Mtu => "mtu changed",
            Disturbance::Collect => "gc",
        })
    }
}

impl Disturbance {
    /// Disturbs the attachment, inside the pod's namespace; `false` when there was nothing to disturb.
    pub fn apply(self, ifname: &str, container_id: &str) -> Result<bool, NodeError> {
        match self {
            Disturbance::Address => remove_address(ifname),
            Disturbance::Route => remove_route(ifname),
            Disturbance::Down => node_commands::ip(&format!("link set {ifname} down")).map(|_| true),
            Disturbance::Link => node_commands::ip(&format!("link del {ifname}")).map(|_| true),
            Disturbance::Mtu => node_commands::ip(&format!("link set {ifname} mtu 1300")).map(|_| true),
            Disturbance::Allocation => Ok(remove_allocation(container_id)),
            Disturbance::Collect => Ok(true),
        }
    }
}

fn remove_address(ifname: &str) -> Result<bool, NodeError> {
    let interfaces = observe::interfaces()?;
    let order =
        interfaces.get(ifname).and_then(|i| i["address order"].as_array()).cloned().unwrap_or_default();
    let Some(first) = order.first().and_then(Value::as_str) else { return Ok(false) };
    node_commands::ip(&format!("addr del {first} dev {ifname}")).map(|_| true)
}

fn remove_route(ifname: &str) -> Result<bool, NodeError> {
    for family in ["-4", "-6"] {
        let routes: Vec<Value> =
            serde_json::from_str(&node_commands::ip(&format!("-j {family} route show dev {ifname}"))?)
                .unwrap_or_default();
        let via = routes.iter().find(|route| route.get("gateway").is_some());
        if let Some(dst) = via.and_then(|route| route["dst"].as_str()) {
            return node_commands::ip(&format!("{family} route del {dst} dev {ifname}")).map(|_| true);
        }
    }
    Ok(false)
}

fn remove_allocation(container_id: &str) -> bool {
    let Value::Object(files) = observe::files() else { return false };
    let mut removed = false;
    for (path, file) in files {
        if file["content"].as_str().is_some_and(|content| content.starts_with(container_id)) {
            removed |= fs::remove_file(path).is_ok();
        }
    }
    removed
}
