//! What is wrong with a network before a pod asks for it: ADD's own validation, keys that nobody reads, programs that are not there.

use std::collections::BTreeSet;
use std::path::Path;

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::fairlead::{known_ipam_keys, known_keys};
use fairlead_cni::config::sriov::of_old_format;
use fairlead_cni::config::{ConfList, Fairlead, HostLocal, NetConf, StaticIpam};
use fairlead_cni::go_json::folded;
use fairlead_host::host_root::below;
use serde_json::{Map, Value};

use crate::conf_dir::{Directories, executables};
use crate::doctor::{Finding, less, wrong};
use crate::engine::attachment_request::OWN_TYPE;
use crate::engine::kinds::{BUILT_IN, Network, takes_addresses};

const ABOUT: &str = "networks";
/// Where the daemon of IPAM `dhcp` listens unless the configuration says otherwise.
const DHCP_SOCKET: &str = "/run/cni/dhcp.sock";
/// From this likeness on, of at most 1, a key is taken for another one that was mistyped.
const ALIKE: f64 = 0.8;

/// Everything that is wrong with a network. `place` is how it is named to a person.
pub(crate) fn of_list(
    list: &ConfList,
    place: &str,
    directories: &Directories,
    host_root: &Path,
) -> Vec<Finding> {
    let there = executables(&directories.plugins);
    let node = Node { there, directories, host_root };
    let mut findings = Vec::new();
    for (index, kind) in list.plugin_types().enumerate() {
        let place =
            if list.len() == 1 { place.to_owned() } else { format!("{place}: plugins[{index}] {kind}") };
        match list.plugin_conf(index, None, &Map::new()) {
            Ok(conf) => findings.extend(node.of_plugin(&conf, list.declares(index, "ips"), &place)),
            Err(error) => findings.push(refused(&place, &error)),
        }
    }
    findings
}

/// What a network finds on the node.
struct Node<'n> {
    there: BTreeSet<String>,
    directories: &'n Directories,
    host_root: &'n Path,
}

impl Node<'_> {
    /// `given_addresses`: the network lets the runtime say its addresses.
    fn of_plugin(&self, conf: &NetConf, given_addresses: bool, place: &str) -> Vec<Finding> {
        let kind = conf.plugin_type.as_str();
        let mut findings = unknown_keys(conf, place);
        match kind {
            OWN_TYPE => match Fairlead::parse(conf) {
                Ok(Fairlead::Paths { paths, .. }) => {
                    let each =
                        paths.iter().filter_map(|path| Network::validate(path, &Args::default()).err());
                    findings.extend(each.map(|error| refused(place, &error)));
                }
                Ok(Fairlead::ClusterNetwork(_)) => return findings,
                Err(error) => findings.push(refused(place, &error)),
            },
            built_in if BUILT_IN.contains(&built_in) => {
                // Which device it is may come with the call: kubelet's or the meta plugin's choice.
                let named = with_a_device(conf);
                // Where a device is named, the keys of before 2.0 are only unknown ones.
                if let Some(old) = named.as_ref().and_then(of_old_format) {
                    findings.push(wrong(ABOUT, format!("{place}: {}", old.msg), old.details));
                }
                let validated = Network::validate(named.as_ref().unwrap_or(conf), &Args::default());
                findings.extend(validated.err().map(|error| refused(place, &error)));
            }
            executed => findings.extend(self.missing(executed, place)),
        }
        if takes_addresses(kind) {
            findings.extend(self.of_ipam(conf, given_addresses, place));
        }
        findings
    }

    fn of_ipam(&self, conf: &NetConf, given_addresses: bool, place: &str) -> Vec<Finding> {
        let told = |error: CniError| vec![refused(&format!("{place}: ipam"), &error)];
        match conf.ipam_type.as_deref() {
            None => Vec::new(),
            Some("host-local") => HostLocal::parse(conf, &Args::default()).err().map_or_else(Vec::new, told),
            Some("static") => match StaticIpam::parse(conf, &Args::default()) {
                Ok(ipam) if ipam.addresses.is_empty() && !given_addresses => vec![wrong(
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
                let mut findings = self.missing(executed, &format!("{place}: ipam"));
                if executed == "dhcp" {
                    findings.extend(self.dhcp_daemon(conf, place));
                }
                findings
            }
        }
    }

    fn missing(&self, program: &str, place: &str) -> Vec<Finding> {
        if self.there.contains(program) {
            return Vec::new();
        }
        let dirs: Vec<String> =
            self.directories.plugins.iter().map(|dir| dir.display().to_string()).collect();
        let alike = closest(program, self.there.iter().map(String::as_str).chain(BUILT_IN));
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
        let socket = below(self.host_root, Path::new(named.unwrap_or(DHCP_SOCKET)));
        if socket.exists() {
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

/// The configuration with a device where it names none itself.
fn with_a_device(conf: &NetConf) -> Option<NetConf> {
    let keys = conf.value.as_object()?;
    if conf.plugin_type != "sriov"
        || ["deviceid", "resourcename", "pool"].iter().any(|key| keys.contains_key(*key))
    {
        return None;
    }
    let mut named: Map<String, Value> = serde_json::from_str(&conf.raw).ok()?;
    named.insert("deviceID".to_owned(), "0000:00:00.0".into());
    NetConf::parse(&Value::Object(named).to_string()).ok()
}

pub(crate) fn refused(place: &str, error: &CniError) -> Finding {
    let remedy = if error.details.is_empty() { "correct the configuration" } else { &error.details };
    wrong(ABOUT, format!("{place}: every ADD is refused: {}", error.msg), remedy)
}

/// The keys of a plugin that we know and of its IPAM that nobody reads. A plugin that is executed may have keys of its own, and our
/// own type refuses them itself.
fn unknown_keys(conf: &NetConf, place: &str) -> Vec<Finding> {
    let Ok(written) = serde_json::from_str::<Map<String, Value>>(&conf.raw) else { return Vec::new() };
    let of_ipam = conf.ipam_type.as_deref().and_then(known_ipam_keys);
    let ipam = written.iter().find(|(key, _)| folded(key) == "ipam").and_then(|(_, value)| value.as_object());
    let mut findings = Vec::new();
    if let Some(known) = known_keys(&conf.plugin_type) {
        findings.extend(unread(&written, &known, place));
    }
    if let (Some(known), Some(ipam)) = (of_ipam, ipam) {
        findings.extend(unread(ipam, known, &format!("{place}: ipam")));
    }
    findings
}

fn unread(written: &Map<String, Value>, known: &[&str], place: &str) -> Vec<Finding> {
    let is_read = |key: &String| known.iter().any(|known| folded(known) == folded(key));
    let one = |key: &String| match closest(key, known.iter().copied()) {
        Some(meant) => wrong(
            ABOUT,
            format!("{place}: unknown key {key:?}{}", asked(Some(meant))),
            "correct it: what is written under an unknown key has no effect",
        ),
        None => less(ABOUT, format!("{place}: unknown key {key:?}"), "leave it out: it has no effect"),
    };
    written.keys().filter(|key| !is_read(key)).map(one).collect()
}

/// The word that was probably meant.
pub(crate) fn closest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let likeness = |known: &str| strsim::jaro_winkler(&folded(word), &folded(known));
    let best = known.map(|known| (likeness(known), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness >= ALIKE).map(|(_, known)| known)
}

fn asked(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"))
}
