//! Says what on this node is missing or wrong, with one sentence of remedy for each finding.
//!
//! It only looks and never changes anything. A daemon that does not answer is one finding; the others are made
//! all the same.

mod api_server;
mod definitions;
mod directories;
mod netns_directories;
mod node_network;
mod running_daemon;
mod runtime_directories;
mod runtime_mounts;
mod sriov_cni_leftovers;
mod switches;
mod userspace_cni_leftovers;
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
use serde_json::{Map, Value};

use crate::capabilities::{Capability, NEEDED, USEFUL, USEFUL_IN_CONTAINER};
use crate::conf_dir::{ConfDirError, Directories, Networks};
use crate::engine::kinds::made::KERNEL_KINDS;
use crate::engine::kinds::{BUILT_IN, Network, module_of};
use crate::finding::{Finding, good, less, wrong};
use crate::metrics::Node;
use crate::network_checks::{self, OtherNetworks};
use crate::node_paths::{NodePaths, TypedPaths, VFIO_NODES};
use crate::operator_client::get;
use crate::plugin_installation;
use crate::run_dir::SOCKET;
use crate::validate::settings;

/// The paths that the daemon of this run directory says it uses; `own` for those that were typed or that it does not name, and where
/// none answers.
fn in_use<E>(own: NodePaths, typed: TypedPaths, status: &Result<Value, E>) -> NodePaths {
    let Ok(status) = status else { return own };
    let text = |key: &str| status["daemon"][key].as_str().map(str::to_owned);
    let path = |key: &str, (own, typed): (PathBuf, bool)| match text(key) {
        Some(used) if !typed => PathBuf::from(used),
        _ => own,
    };
    NodePaths {
        state_dir: path("stateDir", (own.state_dir, typed.state_dir)),
        host_root: path("hostRoot", (own.host_root, typed.host_root)),
        config: path("config", (own.config, typed.config)),
        conf_dir: text("confDir").or(own.conf_dir),
        plugin_dir: text("pluginDir").or(own.plugin_dir),
        ..own
    }
}

/// The paths that the daemon of this run directory uses; `own` for those that were typed, and where none answers.
pub(crate) fn paths_in_use(own: NodePaths, typed: TypedPaths) -> NodePaths {
    let status = get(&own.run_dir.join(SOCKET), "/v1/status");
    in_use(own, typed, &status)
}

/// Looks at everything, at the paths that were typed or that the daemon of this run directory reports; at `own` where none answers.
pub fn examine(own: NodePaths, typed: TypedPaths) -> Vec<Finding> {
    let socket = own.run_dir.join(SOCKET);
    let status = get(&socket, "/v1/status");
    let paths = in_use(own, typed, &status);
    let directories =
        Directories::new(&paths.host_root, paths.conf_dir.as_deref(), paths.plugin_dir.as_deref());
    let mut findings = not_root();
    findings.extend(kernel());
    findings.extend(capabilities(paths.host_root != Path::new("/")));
    findings.extend(kinds());
    match &status {
        Ok(status) => findings.extend(running_daemon::findings(&socket, status)),
        Err(error) => findings.push(running_daemon::unanswered(error)),
    }
    findings.extend(directories::findings(&paths));
    findings.extend(sriov_cni_leftovers::findings(&paths.host_root));
    findings.extend(userspace_cni_leftovers::findings(&paths.host_root));
    findings.push(settings(&paths.config, typed));
    findings.extend(api_server::findings(&paths.config));
    let networks_here = Networks::new(directories.clone(), &BUILT_IN, Node::default());
    findings.extend(node_network::findings(&networks_here, &paths.config));
    let of_cluster =
        status.as_ref().map(|status| (definitions::of_daemon(&socket), running_daemon::is_ready(status)));
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
    findings.extend(directories.plugins.iter().map(|d| executables(&directories, d)));
    findings.extend(runtime_directories::findings(&paths.host_root, &directories));
    findings.extend(runtime_mounts::finding(&paths.host_root, &socket));
    findings.extend(vfio::findings(&paths.sysfs, &below(&paths.host_root, Path::new(VFIO_NODES))));
    findings.extend(netns_directories::findings(&paths.host_root));
    findings
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

/// The finding of a directory that the host has replaced, or that was never mounted: what is in it here says nothing of the node.
fn not_the_hosts(about: &'static str, directories: &Directories, directory: &Path) -> Option<Finding> {
    (directories.is_hosts(directory) == Some(false)).then(|| {
        let (here, there) = (directory.display(), directories.on_host(directory));
        let seen = format!(
            "{here} is not the directory that the host has at {}: the host has replaced it since it was mounted, or a link to it leads \
             elsewhere by now",
            there.display()
        );
        let remedy = "restart the container, which mounts it anew (kubelet does within minutes); if it is so again then, correct its mount";
        wrong(about, seen, remedy)
    })
}

/// Compares the installed executables with this release's, which lies beside this program.
fn executables(directories: &Directories, directory: &Path) -> Finding {
    const ABOUT: &str = "executables";
    if let Some(not_the_hosts) = not_the_hosts(ABOUT, directories, directory) {
        return not_the_hosts;
    }
    let names = plugin_installation::installed(directory);
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

#[cfg(test)]
mod tests;
