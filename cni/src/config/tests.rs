//! Whole configurations, read by the parsers.

mod conflist;
mod ipam;
mod sriov;
mod types;
mod userspace;
mod vhost_user;

use super::NetConf;

/// A configuration of one type with the given keys.
fn conf(plugin_type: &str, keys: &str) -> NetConf {
    NetConf::parse(&text(plugin_type, keys)).unwrap()
}

fn text(plugin_type: &str, keys: &str) -> String {
    let comma = if keys.is_empty() { "" } else { "," };
    format!("{{\"cniVersion\":\"1.1.0\",\"name\":\"net\",\"type\":\"{plugin_type}\"{comma}{keys}}}")
}
