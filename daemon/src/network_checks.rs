//! What is wrong with a network before a pod asks for it: ADD's own validation, keys that nobody reads, programs that are not there.

mod addresses_and_routes;
mod named_networks;
mod unread_keys;

use std::collections::BTreeSet;
use std::path::Path;

use fairlead_cni::args::Args;
use fairlead_cni::config::sriov::{is_of_old_format, of_old_format};
use fairlead_cni::config::{ConfList, Fairlead, HostDevice, HostLocal, NetConf, StaticIpam};
use fairlead_cni::{CniError, CniVersion};
use fairlead_host::host_root::HostRoot;
use fairlead_ipam::NetworkDir;
use serde_json::{Map, Value};

use self::addresses_and_routes::{of_ranges, of_routes};
pub(crate) use self::named_networks::OtherNetworks;
use self::unread_keys::asked;
pub(crate) use self::unread_keys::{closest, meant_by, unread_exactly};
use crate::conf_dir::Networks;
use crate::engine::attachment_request::OWN_TYPE;
use crate::engine::kinds::{Addressing, BUILT_IN, Network, takes_addresses};
use crate::finding::{Finding, less, wrong};

const ABOUT: &str = "networks";
/// The IPAMs that are part of the daemon.
const BUILT_IN_IPAM: [&str; 2] = ["host-local", "static"];
/// Where the daemon of IPAM `dhcp` listens unless the configuration says otherwise.
const DHCP_SOCKET: &str = "/run/cni/dhcp.sock";

/// What a plugin lets the runtime say.
#[derive(Clone, Copy)]
struct Given {
    /// Its addresses.
    addresses: bool,
    /// Ranges of host-local.
    ranges: bool,
    /// The device that it takes.
    device: bool,
}

/// The node that networks are judged for.
pub(crate) struct Node<'n> {
    there: BTreeSet<String>,
    networks: &'n Networks,
    host_root: &'n Path,
    others: OtherNetworks,
}

impl<'n> Node<'n> {
    pub(crate) fn new(networks: &'n Networks, host_root: &'n Path, others: OtherNetworks) -> Node<'n> {
        Node { there: networks.directories().executables(), networks, host_root, others }
    }

    /// Everything that is wrong with a network. `text` is what the list was read from, `place` how it is named to a person.
    pub(crate) fn of_network(&self, text: &str, list: &ConfList, place: &str) -> Vec<Finding> {
        if list.is_empty() {
            let seen = format!(
                "{place}: every ADD is refused: it has neither \"type\" nor \"plugins\"{}",
                meant_by(text)
            );
            let remedy = "give the list its \"plugins\", or one plugin its \"type\"; of the conf dir's networks they may also be *.conf in a directory of the network's name";
            return vec![wrong(ABOUT, seen, remedy)];
        }
        let mut findings = unread_keys::of_list(text, place);
        for (index, kind) in list.plugin_types().enumerate() {
            let place =
                if list.len() == 1 { place.to_owned() } else { format!("{place}: plugins[{index}] {kind}") };
            match list.plugin_conf(index, None, &Map::new()) {
                Ok(conf) => {
                    let given = Given {
                        addresses: list.declares(index, "ips"),
                        ranges: list.declares(index, "ipRanges"),
                        device: list.declares(index, "deviceID"),
                    };
                    findings.extend(self.of_plugin(&conf, (index > 0, given), &place));
                }
                Err(error) => findings.push(refused(&place, &error)),
            }
        }
        findings
    }

    /// `chained`: other plugins of its list come before it.
    fn of_plugin(&self, conf: &NetConf, (chained, given): (bool, Given), place: &str) -> Vec<Finding> {
        let kind = conf.plugin_type.as_str();
        // Which device it is may come with the call: kubelet's or the meta plugin's choice.
        let named = with_a_device(conf, given.device);
        // Where a device is named, the keys of before 2.0 are only unknown ones.
        let old = named.as_ref().filter(|named| named.plugin_type == "sriov").and_then(of_old_format);
        let is_told = |key: &str| old.is_some() && is_of_old_format(key);
        let mut findings = unread_keys::of_plugin(conf, place, &is_told);
        match kind {
            OWN_TYPE => match Fairlead::parse(conf) {
                Ok(Fairlead::Paths { paths, .. }) => {
                    // One that is given no device makes room for the next.
                    let of_path = |path: &NetConf| {
                        of_built_in(with_a_device(path, true).as_ref().unwrap_or(path), chained, place)
                    };
                    findings.extend(paths.iter().filter_map(of_path));
                    // They all have the IPAM of the whole.
                    findings.extend(paths.iter().find_map(|path| of_routes(path, given, place)));
                }
                Ok(Fairlead::ClusterNetwork(names)) => {
                    findings.extend(self.of_cluster_network(&names, place));
                    return findings;
                }
                Err(CniError { msg, code, details }) => {
                    let msg = format!("{msg}{}", unread_keys::meant_in_own_type(conf));
                    findings.push(refused(place, &CniError { msg, code, details }));
                }
            },
            built_in if BUILT_IN.contains(&built_in) => {
                if let Some(old) = &old {
                    findings.push(wrong(ABOUT, format!("{place}: {}", old.msg), &old.details));
                }
                findings.extend(of_built_in(named.as_ref().unwrap_or(conf), chained, place));
            }
            executed => {
                let built_in = BUILT_IN.iter().copied().chain([OWN_TYPE]);
                findings.extend(self.missing(executed, built_in, place));
            }
        }
        if takes_addresses(kind) {
            findings.extend(self.of_ipam(conf, given, place));
            findings.extend(of_routes(conf, given, place));
        }
        findings
    }

    fn of_ipam(&self, conf: &NetConf, given: Given, place: &str) -> Vec<Finding> {
        let told = |error: CniError| vec![refused(&format!("{place}: ipam"), &error)];
        match conf.ipam_type.as_deref() {
            None => Vec::new(),
            Some("host-local") => match HostLocal::parse(conf, &Args::default()) {
                Ok(ipam) => of_directory(&ipam.data_dir, &conf.name, place)
                    .into_iter()
                    .chain(of_ranges(&ipam, given, place))
                    .collect(),
                Err(error) => told(error),
            },
            Some("static") => match StaticIpam::parse(conf, &Args::default()) {
                Ok(ipam) if ipam.addresses.is_empty() && !given.addresses => vec![wrong(
                    ABOUT,
                    format!(
                        "{place}: IPAM static has no \"addresses\": every ADD is refused unless the call brings one"
                    ),
                    "add {\"address\": \"10.1.2.3/24\"} to them, or declare \"capabilities\": {\"ips\": true}",
                )],
                Ok(_) => Vec::new(),
                Err(error) => told(error),
            },
            Some(executed) => {
                let mut findings =
                    self.missing(executed, BUILT_IN_IPAM.into_iter(), &format!("{place}: ipam"));
                if executed == "dhcp" {
                    findings.extend(self.dhcp_daemon(conf, place));
                }
                findings
            }
        }
    }

    /// `built_in`: what needs no executable.
    fn missing<'w>(
        &'w self,
        program: &str,
        built_in: impl Iterator<Item = &'w str>,
        place: &str,
    ) -> Vec<Finding> {
        if self.there.contains(program) {
            return Vec::new();
        }
        let dirs: Vec<String> =
            self.networks.directories().plugins.iter().map(|dir| dir.display().to_string()).collect();
        let alike = closest(program, self.there.iter().map(String::as_str).chain(built_in));
        let seen = format!(
            "{place}: no executable {program} in the plugin directories ({}){}",
            dirs.join(", "),
            asked(alike)
        );
        vec![wrong(ABOUT, seen, "install the plugin, or correct CNI_PLUGIN_DIR")]
    }

    fn dhcp_daemon(&self, conf: &NetConf, place: &str) -> Option<Finding> {
        let named = conf
            .value
            .pointer("/ipam/daemonsocketpath")
            .and_then(Value::as_str)
            .filter(|path| !path.is_empty());
        let socket = Path::new(named.unwrap_or(DHCP_SOCKET));
        // Connected to by the executed plugin, in the host's mount namespace: a container need not have it mounted.
        if HostRoot::new(self.host_root.to_owned()).exists(socket).is_ok() {
            return None;
        }
        let seen = format!("{place}: IPAM dhcp needs its daemon, and there is none at {}", socket.display());
        Some(wrong(
            ABOUT,
            seen,
            "start it on this node: the plugin itself with the argument `daemon`, best as a service",
        ))
    }
}

/// What every ADD says of a configuration of a built-in type.
fn of_built_in(conf: &NetConf, chained: bool, place: &str) -> Option<Finding> {
    match Network::validate(conf, &Args::default()) {
        Ok(network) if conf.ipam_type.is_none() => without_addresses(conf, &network, chained, place),
        Ok(_) => None,
        Err(error) => Some(refused(place, &error)),
    }
}

/// What every ADD says of a network without an IPAM, where its type or its version wants an address.
fn without_addresses(conf: &NetConf, network: &Network, chained: bool, place: &str) -> Option<Finding> {
    let (kind, version) = (&conf.plugin_type, conf.version);
    let (seen, remedy) = match network.addressing() {
        // In a chain it takes over those of the plugin before it.
        Addressing::RequiredUnlessChained if chained => return None,
        Addressing::Required | Addressing::RequiredUnlessChained => (
            format!("{kind} needs an \"ipam\" with a \"type\""),
            "host-local and static are built in; any other is executed",
        ),
        Addressing::Optional if version < CniVersion::V0_3_0 => (
            format!("{kind} without addresses has no result of CNI version {version}"),
            "write \"cniVersion\" 0.3.0 or later (without one it is 0.1.0), or give \"ipam\" a \"type\"",
        ),
        Addressing::Optional | Addressing::Never => return None,
    };
    Some(wrong(ABOUT, format!("{place}: every ADD is refused: {seen}"), remedy))
}

/// What is wrong with the directory of a network's addresses.
fn of_directory(data_dir: &str, network: &str, place: &str) -> Option<Finding> {
    if let Err(error) = NetworkDir::of_administrator(data_dir, network).must_be_possible() {
        return Some(refused(&format!("{place}: ipam"), &error.into()));
    }
    // ADD takes it as the reference plugin does for runtimes, which work in the root: nodes may have addresses there.
    let relative = !data_dir.is_empty() && !Path::new(data_dir).is_absolute();
    let seen =
        format!("{place}: ipam: \"dataDir\" {data_dir:?} is no absolute path, and taken for one below /");
    relative.then(|| less(ABOUT, seen, "write the whole path"))
}

/// The configuration with a device where it names none itself and the call may bring one: to `sriov` by `CNI_ARGS` too, to `host-device`
/// only where it is `given` one.
fn with_a_device(conf: &NetConf, given: bool) -> Option<NetConf> {
    let keys = conf.value.as_object()?;
    let is_there = |key: &&str| keys.contains_key(*key);
    let key = match conf.plugin_type.as_str() {
        "sriov" if !["deviceid", "resourcename", "pool"].iter().any(is_there) => "deviceID",
        "host-device" if given && matches!(HostDevice::read(conf), Ok(None)) => "pciBusID",
        _ => return None,
    };
    let mut named: Map<String, Value> = serde_json::from_str(&conf.raw).ok()?;
    named.insert(key.to_owned(), "0000:00:00.0".into());
    NetConf::parse(&Value::Object(named).to_string()).ok()
}

pub(crate) fn refused(place: &str, error: &CniError) -> Finding {
    let remedy = if error.details.is_empty() { "correct the configuration" } else { &error.details };
    wrong(ABOUT, format!("{place}: every ADD is refused: {}", error.msg), remedy)
}
