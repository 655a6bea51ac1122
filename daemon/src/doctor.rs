//! Says what on this node is missing or wrong, with one sentence of remedy for each finding.
//!
//! It only looks and never changes anything. A daemon that does not answer is one finding; the others are made
//! all the same.

mod api_server;
mod definitions;
mod directories;
mod node_network;
mod runtime_directories;
mod sriov_cni_leftovers;
mod switches;
mod vfio;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_cni::args::Args;
use fairlead_cni::config::ConfList;
use fairlead_host::NetKernel;
use fairlead_host::capabilities::{EffectiveCapabilities, OWN_STATUS};
use fairlead_host::host_root::below;
use fairlead_host::kernel_console;
use fairlead_host::real::RealKernel;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::capabilities::{Capability, NEEDED, USEFUL, USEFUL_IN_CONTAINER};
use crate::conf_dir::{ConfDirError, Directories, Networks};
use crate::engine::kinds::made::KERNEL_KINDS;
use crate::engine::kinds::{BUILT_IN, Network, module_of};
use crate::engine::start_for_daemon::VFIO_NODES;
use crate::install;
use crate::metrics::Node;
use crate::network_checks::{self, OtherNetworks};
use crate::node_paths::NodePaths;
use crate::operator_client::{ClientError, get};
use crate::run_dir::SOCKET;
use crate::validate::settings;

/// Whether a thing is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is as it should be.
    Good,
    /// It works, with less than could be.
    Less,
    /// It does not work.
    Wrong,
}

/// One thing that was examined, and the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the thing, the same for all findings about it.
    pub about: &'static str,
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// What was found, for a person.
    pub seen: String,
    /// What a person should do about it; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

const DAEMON: &str = "daemon";

pub(crate) fn good(about: &'static str, seen: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Good, seen: seen.into(), remedy: String::new() }
}

pub(crate) fn less(about: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Less, seen: seen.into(), remedy: remedy.into() }
}

pub(crate) fn wrong(about: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Wrong, seen: seen.into(), remedy: remedy.into() }
}

/// The paths that the daemon of this run directory says it uses; `own` for those that it does not name.
fn in_use(own: NodePaths, status: &Value) -> NodePaths {
    let text = |key: &str| status["daemon"][key].as_str().map(str::to_owned);
    let path = |key: &str, own: PathBuf| text(key).map_or(own, PathBuf::from);
    NodePaths {
        state_dir: path("stateDir", own.state_dir),
        host_root: path("hostRoot", own.host_root),
        config: path("config", own.config),
        conf_dir: text("confDir").or(own.conf_dir),
        plugin_dir: text("pluginDir").or(own.plugin_dir),
        ..own
    }
}

/// The paths that the daemon of this run directory uses; `own` where none answers.
pub(crate) fn paths_in_use(own: NodePaths) -> NodePaths {
    match get(&own.run_dir.join(SOCKET), "/v1/status") {
        Ok(status) => in_use(own, &status),
        Err(_) => own,
    }
}

/// Looks at everything, at the paths that the daemon of this run directory reports; at `own` where none answers.
pub fn examine(own: NodePaths) -> Vec<Finding> {
    let socket = own.run_dir.join(SOCKET);
    let status = get(&socket, "/v1/status");
    let paths = match &status {
        Ok(status) => in_use(own, status),
        Err(_) => own,
    };
    let directories =
        Directories::new(&paths.host_root, paths.conf_dir.as_deref(), paths.plugin_dir.as_deref());
    let mut findings = not_root();
    findings.extend(kernel());
    findings.extend(capabilities(paths.host_root != Path::new("/")));
    findings.extend(kinds());
    match &status {
        Ok(status) => findings.extend(daemon(&socket, status)),
        Err(error) => findings.push(unanswered(error)),
    }
    findings.extend(directories::findings(&paths));
    findings.extend(sriov_cni_leftovers::findings(&paths.host_root));
    findings.push(settings(&paths.config));
    findings.extend(api_server::findings(&paths.config));
    let networks_here = Networks::new(directories.clone(), &BUILT_IN, Node::default());
    findings.extend(node_network::findings(&networks_here, &paths.config));
    let of_cluster = status.as_ref().map(|status| (definitions::of_daemon(&socket), is_ready(status)));
    let others = match &of_cluster {
        Ok((Ok(rows), is_ready)) => definitions::names_in(rows, *is_ready),
        _ => OtherNetworks::default(),
    };
    findings.extend(networks(&networks_here, &paths.host_root, others));
    if let Ok((rows, _)) = of_cluster {
        let known = rows.as_deref().unwrap_or_default();
        findings.extend(definitions::judged(known, &networks_here, &paths));
        let lists = networks_here
            .in_file_order()
            .into_iter()
            .map(|list| (list.name.clone(), Arc::unwrap_or_clone(list)));
        findings.extend(switches::findings(&socket, lists.chain(definitions::lists_of(known))));
        findings.extend(rows.err());
    }
    findings.extend(directories.plugins.iter().map(|d| executables(d)));
    findings.extend(runtime_directories::findings(&paths.host_root, &directories));
    findings.extend(vfio::findings(&paths.sysfs, &below(&paths.host_root, Path::new(VFIO_NODES))));
    findings.push(mounts());
    findings
}

/// Formats findings for a person: what is wrong comes with its remedy.
pub fn report(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.about.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { about, verdict, seen, remedy } in findings {
        let mark = match verdict {
            Verdict::Good => "ok   ",
            Verdict::Less => "less ",
            Verdict::Wrong => "WRONG",
        };
        text.push_str(&format!("{mark}  {about:width$}  {seen}\n"));
        if !remedy.is_empty() {
            text.push_str(&format!("{:pad$}→ {remedy}\n", "", pad = width + 9));
        }
    }
    text
}

/// What is not root's cannot be looked at: without this the other findings would blame the node.
fn not_root() -> Vec<Finding> {
    match nix::unistd::geteuid().is_root() {
        true => Vec::new(),
        false => vec![wrong(
            "user",
            "not root: much of what follows can't be looked at",
            "run it as root: sudo fairleadd doctor",
        )],
    }
}

fn kernel() -> Vec<Finding> {
    const ABOUT: &str = "kernel";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let kernel = match RealKernel::new() {
        Ok(kernel) => kernel,
        Err(error) => {
            return vec![wrong(ABOUT, error.to_string(), "netlink sockets must be allowed (seccomp, LSM)")];
        }
    };
    let mut findings = Vec::new();
    if kernel.own_id().cookie.is_some() {
        findings.push(good(ABOUT, format!("{release}: namespaces are known by their cookie")));
    } else {
        let seen = format!("{release}: namespaces have no cookie, they are known by inode, index and MAC");
        findings.push(less(ABOUT, seen, "Linux 5.14 or later knows them for certain"));
    }
    if !kernel.renames_while_up() {
        let seen = format!(
            "{release}: a link that is up can't be renamed, so every DEL waits until its link is gone"
        );
        findings.push(less(ABOUT, seen, "Linux 6.2 or later answers DEL early"));
    }
    if let Some(console) = kernel_console::tells_of_renamed_links() {
        let seen =
            format!("the kernel tells {console} of each link that is renamed, and a DEL waits for that");
        findings.push(less(ABOUT, seen, "`sysctl -w kernel.printk=4`, and no `ignore_loglevel`"));
    }
    findings
}

fn capabilities(in_container: bool) -> Vec<Finding> {
    const ABOUT: &str = "capabilities";
    let effective = match EffectiveCapabilities::read(Path::new(OWN_STATUS)) {
        Ok(effective) => effective,
        Err(error) => return vec![wrong(ABOUT, format!("{OWN_STATUS}: {error}"), "mount /proc")],
    };
    let finding = |finding: fn(_, String, String) -> Finding,
                   Capability { name, purpose, .. }: &Capability| {
        finding(
            ABOUT,
            format!("{name} is missing: {purpose}"),
            format!("run as root, with {name} not dropped"),
        )
    };
    let of_container = USEFUL_IN_CONTAINER.iter().filter(|_| in_container);
    let all = NEEDED.iter().chain(&USEFUL).chain(of_container);
    let (there, missing): (Vec<_>, Vec<_>) = all.partition(|capability| capability.is_in(effective));
    let lacking = missing.into_iter().map(|c| finding(if NEEDED.contains(c) { wrong } else { less }, c));
    there.into_iter().map(|capability| good(ABOUT, capability.name)).chain(lacking).collect()
}

fn kinds() -> Vec<Finding> {
    const ABOUT: &str = "link kinds";
    let finding = |kind: &'static str| match RealKernel::new().and_then(|kernel| kernel.knows(kind)) {
        Ok(true) => good(ABOUT, kind),
        Ok(false) => {
            let remedy = format!("modprobe {}, if a network uses it", module_of(kind));
            less(ABOUT, format!("the kernel has no {kind}"), remedy)
        }
        Err(error) => wrong(ABOUT, format!("{kind} can't be tried: {error}"), "run as root"),
    };
    KERNEL_KINDS.map(finding).into()
}

/// Whether this program runs in a pod, where nobody installs or starts anything by hand.
fn in_a_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn unanswered(error: &ClientError) -> Finding {
    let remedy = match error {
        ClientError::SocketGone { .. } if in_a_pod() => "delete this pod: its DaemonSet makes a new one",
        _ if in_a_pod() => {
            "see why its container does not answer: kubectl logs of this pod, with --previous after a restart"
        }
        ClientError::Silent { .. } => "kill -CONT and its pid, or systemctl restart fairleadd",
        ClientError::SocketGone { .. } => "systemctl restart fairleadd",
        ClientError::Unreachable { .. } | ClientError::Strange { .. } | ClientError::Refused(_) => {
            "systemctl start fairleadd"
        }
    };
    wrong(DAEMON, error.to_string(), remedy)
}

/// Whether the daemon knows all that it waits for at its start, the cluster's objects included.
fn is_ready(status: &Value) -> bool {
    status["readiness"].as_array().is_some_and(|all| all.iter().all(|condition| condition["met"] == true))
}

fn daemon(socket: &Path, status: &Value) -> Vec<Finding> {
    let ours = env!("CARGO_PKG_VERSION");
    let theirs = status["version"].as_str().unwrap_or("?");
    let mut findings = vec![match theirs == ours {
        true => good(DAEMON, format!("version {theirs} answers at {}", socket.display())),
        false => wrong(
            DAEMON,
            format!("it is version {theirs}, this program {ours}"),
            "restart the daemon after an upgrade",
        ),
    }];
    let all = ["readiness", "health"].into_iter().flat_map(|k| status[k].as_array().into_iter().flatten());
    for unmet in all.filter(|c| c["met"] == false) {
        let text = |key: &str| unmet[key].as_str().unwrap_or("?").to_owned();
        findings.push(wrong(DAEMON, format!("{}: {}", text("name"), text("reason")), "its log says more"));
    }
    findings.extend(metrics_port(status));
    findings.extend(failing_removals(status));
    findings.extend(left_to_newer(status));
    findings.push(orphans(socket));
    findings.extend(pools(socket));
    findings
}

/// A port for metrics that is configured and does not listen.
fn metrics_port(status: &Value) -> Option<Finding> {
    let reason = status["daemon"]["metricsPort"]["failing"].as_str()?;
    Some(wrong(
        "metrics port",
        format!("metrics are not served: {reason}"),
        "correct `metrics` in the configuration, or the files that it names; the daemon tries it again every few seconds",
    ))
}

/// Removals that have failed, each with its count and age.
fn failing_removals(status: &Value) -> Vec<Finding> {
    const ABOUT: &str = "removals";
    let rows = status["removals"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return vec![good(ABOUT, "none fails")];
    }
    let one = |row: &Value| {
        let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let (container, ifname, network) = (word("container"), word("ifname"), word("network"));
        let pod = row["pod"].as_str().map_or_else(String::new, |pod| format!("{pod}, "));
        let seen = format!(
            "that of {ifname} of {pod}container {container} (network {network}) has failed {} times in {}: {}",
            row["failures"],
            word("for"),
            word("reason")
        );
        let remedy = format!(
            "mend that, it is tried again by itself; to give it up: fairleadd forget {container} {ifname}"
        );
        wrong(ABOUT, seen, remedy)
    };
    rows.iter().map(one).collect()
}

/// Attachments that a newer version has on record.
fn left_to_newer(status: &Value) -> Vec<Finding> {
    let one = |row: &Value| {
        let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let seen = format!("the record of {} was {}", word("label"), word("broken"));
        wrong("records", seen, "start that version of fairleadd again; until then its DEL gets code 11")
    };
    status["newer"].as_array().into_iter().flatten().map(one).collect()
}

/// VFs and ports of pools that no pod can get, and faults in the pools' configuration.
fn pools(socket: &Path) -> Vec<Finding> {
    const ABOUT: &str = "pools";
    let answer = match get(socket, "/v1/pools") {
        Ok(answer) => answer,
        Err(error) => return vec![less(ABOUT, error.to_string(), "ask again when the daemon is ready")],
    };
    let list = |key: &str| answer[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |value: &Value, key: &str| value[key].as_str().unwrap_or("?").to_owned();
    let notice = |notice: &Value| {
        let finding = if notice["wrong"] == true { wrong } else { less };
        finding(ABOUT, word(notice, "seen"), word(notice, "remedy"))
    };
    let mut findings: Vec<Finding> = list("notices").iter().map(notice).collect();
    for row in list("functions") {
        let (vf, pool, reason) = (word(row, "function"), word(row, "pool"), word(row, "reason"));
        match row["state"].as_str() {
            Some("quarantined") => findings.push(wrong(
                ABOUT,
                format!("{vf} of pool {pool} is quarantined: {reason}"),
                format!("when the cause is gone: fairleadd pools release {vf}"),
            )),
            Some("foreign") => findings.push(less(
                ABOUT,
                format!("{vf} of pool {pool} is left alone: {reason}"),
                "take it from whoever uses it, or leave it out of the pool's selectors",
            )),
            Some("preparing" | "draining") if !reason.is_empty() => findings.push(less(
                ABOUT,
                format!("{vf} of pool {pool} is not ready: {reason}"),
                "it is tried again by itself; fairleadd pools fill, and its address, tries it now",
            )),
            _ => {}
        }
    }
    for row in list("ports").iter().filter(|row| row["state"] == "broken") {
        let (port, pool, reason) = (word(row, "port"), word(row, "pool"), word(row, "reason"));
        let seen = format!("port {port} of pool {pool} is kept from pods: {reason}");
        findings.push(wrong(ABOUT, seen, "make room in the run directory; it is tried again by itself"));
    }
    let stock = |pool: &Value| good(ABOUT, format!("{}: {}", word(pool, "name"), word(pool, "functions")));
    findings.extend(list("pools").iter().map(stock));
    findings
}

/// Asks for orphans on their own: host-local's directories are read for them, which may take longer than the
/// status did.
fn orphans(socket: &Path) -> Finding {
    match get(socket, "/v1/orphans").as_ref().map(Value::as_array) {
        Ok(Some(orphans)) if orphans.is_empty() => good("addresses", "no orphans"),
        Ok(Some(orphans)) => {
            let seen =
                format!("{} host-local allocations belong to no container that is known here", orphans.len());
            less(
                "addresses",
                seen,
                "fairleadd gc --orphans lists them and asks; not if another plugin uses them",
            )
        }
        Ok(None) => less("addresses", "the daemon gave no list of orphans", "use programs of one release"),
        Err(ClientError::Silent { patience, .. }) => {
            let seen = format!("the daemon did not list the orphans within {} s", patience.as_secs());
            less("addresses", seen, "see whether host-local's directories lie on a file system that hangs")
        }
        Err(error) => less("addresses", error.to_string(), "ask again when the daemon is ready"),
    }
}

fn networks(networks: &Networks, host_root: &Path, others: OtherNetworks) -> Vec<Finding> {
    const ABOUT: &str = "networks";
    let node = network_checks::Node::new(networks, host_root, others);
    let text_of = |file: &Path| fs::read_to_string(file).unwrap_or_default();
    let told = |refused: &ConfDirError| {
        let seen = format!("{refused}{}", network_checks::meant_by(&text_of(refused.file())));
        wrong(ABOUT, seen, "put the file right; the other networks are not affected")
    };
    let mut findings: Vec<Finding> = networks.refused().iter().map(told).collect();
    let list = networks.list();
    for network in list["networks"].as_array().into_iter().flatten() {
        let name = network["name"].as_str().unwrap_or("?");
        let Some(list) = networks.find(name) else { continue };
        let text = network["file"].as_str().map(Path::new).map(text_of).unwrap_or_default();
        let mut of_list = node.of_network(&text, &list, name);
        let masters = missing_masters(&list);
        if !masters.is_empty() {
            let seen = format!("{name}: the host has no interface {}, its master", masters.join(", "));
            of_list.push(wrong(ABOUT, seen, "create the interface, or correct `master`"));
        }
        match of_list.is_empty() {
            true => findings.push(good(ABOUT, name)),
            false => findings.extend(of_list),
        }
    }
    findings
}

/// The masters that the plugins of a list name and the host does not have.
fn missing_masters(list: &ConfList) -> Vec<String> {
    let master = |index| {
        let conf = list.plugin_conf(index, None, &Map::new()).ok()?;
        let parent = Network::validate(&conf, &Args::default()).ok()?.parent()?;
        Some(parent.names).filter(|names| !parent.in_container && !names.is_empty())
    };
    let absent = |name: &String| {
        let there =
            RealKernel::new().and_then(|kernel| kernel.host()?.link_by_name(name).map(|l| l.is_some()));
        matches!(there, Ok(false))
    };
    // Of several one is enough.
    let none_there = |names: &Vec<String>| names.iter().all(absent);
    (0..list.len()).filter_map(master).filter(none_there).flatten().collect()
}

/// Compares the installed executables with this release's, which lies beside this program.
fn executables(directory: &Path) -> Finding {
    const ABOUT: &str = "executables";
    let names = install::installed(directory);
    let place = directory.display();
    if names.is_empty() {
        let remedy = match in_a_pod() {
            true => "`install: {cni: present}` in the ConfigMap has the daemon put it there",
            false => "fairleadd install --as fairlead,macvlan,…",
        };
        return less(ABOUT, format!("none of ours in {place}"), remedy);
    }
    let own = std::env::current_exe().ok().and_then(|exe| fs::read(exe.with_file_name("fairlead")).ok());
    let Some(own) = own else {
        return less(
            ABOUT,
            format!("in {place}: {}", names.join(", ")),
            "keep `fairlead` beside fairleadd to compare them",
        );
    };
    let other = |name: &&String| fs::read(directory.join(name)).map_or(true, |there| there != own);
    let others: Vec<&str> = names.iter().filter(other).map(String::as_str).collect();
    if others.is_empty() {
        return good(ABOUT, format!("in {place}, of this release: {}", names.join(", ")));
    }
    let remedy = match in_a_pod() {
        true => "`install: {cni: present}` in the ConfigMap has the daemon replace `fairlead`; others were put there by hand".to_owned(),
        false => format!("fairleadd install --bin-dir {place} --as {}", others.join(",")),
    };
    wrong(ABOUT, format!("in {place}, of another release: {}", others.join(", ")), remedy)
}

/// Checks mount propagation: in a container, namespaces that the runtime mounts later must become visible here.
fn mounts() -> Finding {
    const ABOUT: &str = "mount propagation";
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Where namespaces are mounted, or the closest mount above it: the last line wins, as the kernel's order has it.
    let covering =
        |line: &&str| line.split(' ').nth(4).is_some_and(|p| Path::new("/run/netns").starts_with(p));
    let above = table.lines().filter(covering).max_by_key(|l| l.split(' ').nth(4).map_or(0, str::len));
    match above {
        Some(line) if line.contains(" shared:") || line.contains(" master:") => {
            good(ABOUT, "new namespaces become visible")
        }
        _ => {
            let seen = "the mount that holds /run/netns is private";
            less(
                ABOUT,
                seen,
                "in a container: mountPropagation HostToContainer; on the host itself it does not matter",
            )
        }
    }
}

#[cfg(test)]
mod tests;
