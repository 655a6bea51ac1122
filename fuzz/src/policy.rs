//! Definitions of tenants against a policy: no spelling of what is forbidden passes.
//!
//! What would be done is read anew from the text that the engine would act on, by the parsers by which it acts, and compared with
//! what the policy forbids. None of the policy's own code takes part in that.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use fairlead_cni::args::Args;
use fairlead_cni::config::host_device::Device;
use fairlead_cni::config::macvlan::Mode;
use fairlead_cni::config::{
    Fairlead, HostDevice, HostLocal, Ipvlan, Macvlan, NetConf, Sriov, StaticIpam, VhostUser, Vlan, sriov,
    vhost_user,
};
use fairlead_daemon::policy::{Definition, PolicySettings, Tenant};
use ipnet::IpNet;
use serde_json::Map;

use crate::spelled_definition;

const POLICY: &str = r#"{"execute": ["goodtool", "goodipam"], "rules": [{"namespaces": ["tenant"],
    "types": ["macvlan", "ipvlan", "vlan", "sriov", "host-device", "dummy", "vhost-user", "goodtool"],
    "masters": ["good*"], "pools": ["good*"], "vlans": ["100-199"], "ranges": ["10.9.0.0/16"],
    "ipamTypes": ["host-local", "static", "goodipam"]}]}"#;

/// A definition: the text itself where it looks like one, else one that the bytes choose. True when the policy allows it.
pub fn definition(data: &[u8]) -> bool {
    let text = match std::str::from_utf8(data) {
        Ok(text) if text.trim_start().starts_with('{') => text.to_owned(),
        _ => spelled_definition::write(data),
    };
    let policy: Option<PolicySettings> = serde_json::from_str(POLICY).ok();
    let (Some(policy), Ok(tenant)) = (policy, Tenant::new("tenant", BTreeMap::new())) else {
        unreachable!("the policy above is valid")
    };
    let none = Args::default();
    let Ok(definition) = Definition::read(&tenant, &text, None, &Map::new(), &none) else { return false };
    if definition.judge(&policy).is_err() {
        return false;
    }
    for plugin in definition.plugins() {
        let acted_on = NetConf::parse(&plugin.raw);
        let wrong = acted_on.map(|conf| forbidden_in(&conf, definition.plugins().len() == 1));
        assert_eq!(wrong, Ok(None), "passes: {text}");
    }
    true
}

/// What is forbidden of all that this plugin would do.
fn forbidden_in(conf: &NetConf, whole: bool) -> Option<String> {
    if conf.plugin_type != "fairlead" {
        return forbidden(conf);
    }
    match Fairlead::parse(conf) {
        Ok(Fairlead::Paths { paths, .. }) => paths.iter().find_map(forbidden),
        Ok(Fairlead::ClusterNetwork(network)) => Some(format!("clusterNetwork {}", network.name)),
        // In a list it is refused at ADD, whatever it says.
        Err(error) => whole.then_some(error.msg),
    }
}

fn forbidden(conf: &NetConf) -> Option<String> {
    let runtime = &conf.runtime;
    if runtime.device_info_file.is_some()
        || runtime.device_id.is_some()
        || runtime.mac.is_some()
        || !runtime.ips.is_empty()
    {
        return Some(format!("{runtime:?}"));
    }
    if conf.prev_result.is_some() || conf.valid_attachments.is_some() {
        return Some("what only a runtime adds".to_owned());
    }
    link(conf).or_else(|| addresses(conf))
}

/// The kernel reads a name up to its first NUL.
fn bad_name(name: &str) -> bool {
    !name.starts_with("good") || name.contains('\0')
}

fn bad_vlan(id: u16) -> bool {
    !(100..=199).contains(&id)
}

fn link(conf: &NetConf) -> Option<String> {
    let bad_master = |name: Option<&str>, in_container: bool| !in_container && name.is_none_or(bad_name);
    let bad_masters = |names: &[String], in_container: bool| {
        !in_container && (names.is_empty() || names.iter().any(|name| bad_name(name)))
    };
    let args = Args::default();
    let bad = match conf.plugin_type.as_str() {
        "macvlan" => Macvlan::parse(conf).is_ok_and(|n| {
            bad_masters(&n.masters, n.link_in_container)
                || n.mode == Mode::Passthru
                || n.bcqueuelen.is_some_and(|length| length > 1000)
        }),
        "ipvlan" => Ipvlan::parse(conf).is_ok_and(|n| bad_masters(&n.masters, n.link_in_container)),
        "vlan" => Vlan::parse(conf)
            .is_ok_and(|n| bad_master(Some(&n.master), n.link_in_container) || bad_vlan(n.vlan_id)),
        "host-device" => HostDevice::parse(conf).is_ok_and(|n| match n.device {
            Device::Name(name) => bad_name(&name),
            Device::HwAddr(_) | Device::KernelPath(_) | Device::BusId(_) => true,
        }),
        "sriov" => Sriov::parse(conf).is_ok_and(|n| {
            let device = match n.device(conf, &args) {
                Ok(sriov::Device::OfPool(name) | sriov::Device::OfResource(name)) => bad_name(&name),
                Ok(sriov::Device::Named(_)) => true,
                Err(_) => false,
            };
            device
                || n.vlan.is_some_and(|vlan| bad_vlan(vlan.id))
                || n.trust == Some(true)
                || n.spoofchk == Some(false)
                || n.min_tx_rate.or(n.max_tx_rate).is_some()
                || n.on_host
        }),
        "vhost-user" => VhostUser::parse(conf).is_ok_and(|n| {
            n.vlan.iter().chain(&n.trunk).any(|id| bad_vlan(*id))
                || !n.spoofchk
                || n.max_tx_rate.or(n.max_rx_rate).is_some()
                || matches!(n.place, vhost_user::Place::Directory(_))
        }),
        "dummy" => false,
        // Whatever stands before it, the slash is that of a path from the root. A relative one leads to nothing.
        "goodtool" => conf.raw.contains("/evil"),
        _ => true,
    };
    bad.then(|| format!("the link of {:?}", conf.raw))
}

fn addresses(conf: &NetConf) -> Option<String> {
    let args = Args::default();
    let within = |net: &IpNet| net.to_string().starts_with("10.9.") && net.prefix_len() >= 16;
    let bad = match (conf.plugin_type.as_str(), conf.ipam_type.as_deref()) {
        (_, None) => false,
        ("goodtool", Some(executed)) => executed != "goodipam" && executed != "static",
        (_, Some("host-local")) => HostLocal::parse(conf, &args).is_ok_and(|ipam| {
            let dir = Path::new(&ipam.data_dir);
            !dir.starts_with("/var/lib/cni/networks")
                || dir.components().any(|part| part == Component::ParentDir)
                || ipam.data_dir.contains('@')
                || ipam.resolv_conf.is_some()
                || ipam.ranges.len() > 16
                || !ipam.ranges.iter().flat_map(|set| &set.0).all(|range| within(&range.subnet))
        }),
        (_, Some("static")) => StaticIpam::parse(conf, &args)
            .is_ok_and(|ipam| !ipam.addresses.iter().all(|one| within(&one.address))),
        (_, Some(executed)) => executed != "goodipam" || conf.raw.contains("\"/evil"),
    };
    bad.then(|| format!("the addresses of {:?}", conf.raw))
}
