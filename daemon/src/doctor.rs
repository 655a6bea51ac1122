//! What on this node is missing or wrong, and the remedy, in one sentence each.
//!
//! Looks only; changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use fairlead_cni::args::Args;
use fairlead_cni::config::ConfList;
use fairlead_host::Kernel;
use fairlead_host::real::RealKernel;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::capabilities::{Capability, Effective, NEEDED, OWN_STATUS, USEFUL};
use crate::cli::ask;
use crate::daemon::Places;
use crate::install;
use crate::lifecycle::SOCKET;
use crate::metrics::Node;
use crate::netconf::{Directories, Networks};
use crate::networks::{BUILT_IN, Network, module_of};
use crate::settings::Settings;
use crate::spool;
use crate::store;

/// How it stands with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, with less than could be.
    Less,
    /// Does not work.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub about: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What to do; empty where nothing is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

fn good(about: &'static str, seen: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Good, seen: seen.into(), remedy: String::new() }
}

fn less(about: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Less, seen: seen.into(), remedy: remedy.into() }
}

fn wrong(about: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Wrong, seen: seen.into(), remedy: remedy.into() }
}

/// Where things lie as the daemon of this run directory says; as given where none answers.
pub fn places_in_use(given: Places) -> Places {
    let Ok(status) = ask(&given.run_dir.join(SOCKET), "GET", "/v1/status") else { return given };
    let told = |key: &str, given: PathBuf| status["daemon"][key].as_str().map_or(given, PathBuf::from);
    let told_text =
        |key: &str, given: Option<String>| status["daemon"][key].as_str().map(str::to_owned).or(given);
    Places {
        state_dir: told("stateDir", given.state_dir),
        host_root: told("hostRoot", given.host_root),
        config: told("config", given.config),
        conf_dir: told_text("confDir", given.conf_dir),
        plugin_dir: told_text("pluginDir", given.plugin_dir),
        run_dir: given.run_dir,
    }
}

/// Looks at everything.
pub fn examine(places: &Places) -> Vec<Finding> {
    let directories =
        Directories::new(&places.host_root, places.conf_dir.as_deref(), places.plugin_dir.as_deref());
    let mut findings = kernel();
    findings.extend(capabilities());
    findings.extend(kinds());
    findings.extend(daemon(&places.run_dir.join(SOCKET)));
    findings.push(run_dir(&places.run_dir));
    findings.push(store(&places.run_dir));
    findings.push(state_dir(&places.state_dir));
    findings.push(spooled(&places.state_dir));
    findings.push(configuration(&places.config));
    findings.extend(networks(&directories));
    findings.extend(directories.plugins.iter().map(|d| executables(d)));
    findings.push(mounts());
    findings
}

/// For a person: what is wrong comes with its remedy.
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
    findings
}

fn capabilities() -> Vec<Finding> {
    const ABOUT: &str = "capabilities";
    let effective = match Effective::read(Path::new(OWN_STATUS)) {
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
    let (there, missing): (Vec<_>, Vec<_>) =
        NEEDED.iter().chain(&USEFUL).partition(|capability| effective.has(capability));
    let told = missing.into_iter().map(|c| finding(if NEEDED.contains(c) { wrong } else { less }, c));
    there.into_iter().map(|capability| good(ABOUT, capability.name)).chain(told).collect()
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
    ["macvlan", "ipvlan", "vlan"].map(finding).into()
}

fn daemon(socket: &Path) -> Vec<Finding> {
    const ABOUT: &str = "daemon";
    let status = match ask(socket, "GET", "/v1/status") {
        Ok(status) => status,
        Err(error) => return vec![wrong(ABOUT, error.to_string(), "systemctl start fairleadd")],
    };
    let ours = env!("CARGO_PKG_VERSION");
    let theirs = status["version"].as_str().unwrap_or("?");
    let mut findings = vec![match theirs == ours {
        true => good(ABOUT, format!("version {theirs} answers at {}", socket.display())),
        false => wrong(
            ABOUT,
            format!("it is version {theirs}, this program {ours}"),
            "restart the daemon after an upgrade",
        ),
    }];
    let all = ["readiness", "health"].into_iter().flat_map(|k| status[k].as_array().into_iter().flatten());
    for unmet in all.filter(|c| c["met"] == false) {
        let text = |key: &str| unmet[key].as_str().unwrap_or("?").to_owned();
        findings.push(wrong(ABOUT, format!("{}: {}", text("name"), text("reason")), "its log says more"));
    }
    findings.push(match ask(socket, "GET", "/v1/orphans").as_ref().map(Value::as_array) {
        Ok(Some(orphans)) if orphans.is_empty() => good("addresses", "no orphans"),
        Ok(Some(orphans)) => {
            let seen =
                format!("{} host-local allocations belong to no container that is known here", orphans.len());
            less("addresses", seen, "if no other plugin uses them: fairleadd gc --orphans")
        }
        Ok(None) => less("addresses", "the daemon gave no list of orphans", "use programs of one release"),
        Err(error) => less("addresses", error.to_string(), "ask again when the daemon is ready"),
    });
    findings
}

fn run_dir(path: &Path) -> Finding {
    const ABOUT: &str = "run directory";
    match nix::sys::statfs::statfs(path) {
        Ok(stat) if stat.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC => {
            good(ABOUT, format!("{} is on a tmpfs", path.display()))
        }
        Ok(_) => {
            let seen = format!("{} is not on a tmpfs: every call waits for a disk", path.display());
            less(ABOUT, seen, "mount a tmpfs on /run")
        }
        Err(error) => {
            wrong(ABOUT, format!("{}: {error}", path.display()), "start the daemon, it makes the directory")
        }
    }
}

fn store(run_dir: &Path) -> Finding {
    const ABOUT: &str = "store";
    let damaged = store::damaged(run_dir);
    if damaged.is_empty() {
        return good(ABOUT, "no damage was found in this boot");
    }
    let names: Vec<String> = damaged.iter().map(|p| p.display().to_string()).collect();
    let seen = format!("it was damaged, what could be read is kept, the rest is in {}", names.join(", "));
    let remedy = "the daemon's log names what was lost; it goes with the pods' DEL or GC, addresses also with                   `fairleadd gc --orphans`; then remove the file";
    wrong(ABOUT, seen, remedy)
}

fn state_dir(path: &Path) -> Finding {
    const ABOUT: &str = "state directory";
    match nix::unistd::access(path, nix::unistd::AccessFlags::W_OK) {
        Ok(()) => good(ABOUT, format!("{} can be written", path.display())),
        Err(error) => {
            let remedy =
                "a DEL can't be kept there while the daemon is down: make it a writable directory on a disk";
            wrong(ABOUT, format!("{}: {error}", path.display()), remedy)
        }
    }
}

fn spooled(state_dir: &Path) -> Finding {
    const ABOUT: &str = "spool";
    let directory = state_dir.join(fairlead_cni::spool::DIRECTORY);
    let unreadable = spool::unreadable(&directory);
    if unreadable.is_empty() {
        return good(ABOUT, "every entry can be read");
    }
    let names: Vec<String> = unreadable.iter().map(|p| p.display().to_string()).collect();
    let remedy = "each is a DEL or GC that was answered and not done: see what the file names, clean up, remove the file";
    wrong(ABOUT, format!("can't be read: {}", names.join(", ")), remedy)
}

fn configuration(path: &Path) -> Finding {
    const ABOUT: &str = "configuration";
    match Settings::load(path) {
        Ok(_) if path.exists() => good(ABOUT, path.display().to_string()),
        Ok(_) => good(ABOUT, format!("{} is absent: the defaults", path.display())),
        Err(error) => {
            wrong(ABOUT, error.to_string(), "what was in force before goes on until it is put right")
        }
    }
}

fn networks(directories: &Directories) -> Vec<Finding> {
    const ABOUT: &str = "networks";
    let networks = Networks::new(directories.clone(), &BUILT_IN, Node::default());
    let mut findings: Vec<Finding> = networks
        .refused()
        .iter()
        .map(|refused| {
            wrong(ABOUT, refused.to_string(), "put the file right; the other networks are not affected")
        })
        .collect();
    let list = networks.list();
    for network in list["networks"].as_array().into_iter().flatten() {
        let missing: Vec<&str> =
            network["missing"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let name = network["name"].as_str().unwrap_or("?");
        let masters = networks.find(name).map(|list| missing_masters(&list)).unwrap_or_default();
        if !missing.is_empty() {
            let seen = format!("{name}: no executable {} in the plugin directories", missing.join(", "));
            findings.push(wrong(ABOUT, seen, "install the plugin, or correct CNI_PLUGIN_DIR"));
        }
        if !masters.is_empty() {
            let seen = format!("{name}: the host has no interface {}, its master", masters.join(", "));
            findings.push(wrong(ABOUT, seen, "create the interface, or correct `master`"));
        }
        if missing.is_empty() && masters.is_empty() {
            findings.push(good(ABOUT, name));
        }
    }
    findings
}

/// Masters that the plugins of a list name and the host does not have.
fn missing_masters(list: &ConfList) -> Vec<String> {
    let master = |index| {
        let conf = list.plugin_conf(index, None, &Map::new()).ok()?;
        let parent = Network::validate(&conf, &Args::default()).ok()?.parent()?;
        parent.name.filter(|_| !parent.in_container)
    };
    let absent = |name: &String| {
        let there =
            RealKernel::new().and_then(|kernel| kernel.host()?.link_by_name(name).map(|l| l.is_some()));
        matches!(there, Ok(false))
    };
    (0..list.len()).filter_map(master).filter(absent).collect()
}

/// The installed executables must be this release's, which lies beside this program.
fn executables(directory: &Path) -> Finding {
    const ABOUT: &str = "executables";
    let names = install::installed(directory);
    let place = directory.display();
    if names.is_empty() {
        return less(ABOUT, format!("none of ours in {place}"), "fairleadd install --as fairlead,macvlan,…");
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
    let remedy = format!("fairleadd install --bin-dir {place} --as {}", others.join(","));
    wrong(ABOUT, format!("in {place}, of another release: {}", others.join(", ")), remedy)
}

/// In a container, namespaces that the runtime mounts later must become visible here.
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
mod tests {
    use super::*;

    fn places(dir: &Path) -> Places {
        Places {
            run_dir: dir.join("run"),
            state_dir: dir.join("state"),
            host_root: dir.into(),
            config: dir.join("config.yaml"),
            conf_dir: None,
            plugin_dir: None,
        }
    }

    #[test]
    fn on_a_bare_directory_everything_that_is_missing_is_told_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let findings = examine(&places(dir.path()));
        for about in ["daemon", "run directory", "state directory"] {
            let finding = findings.iter().find(|f| f.about == about).unwrap();
            assert_eq!(finding.verdict, Verdict::Wrong, "{finding:?}");
        }
        assert!(findings.iter().all(|f| f.verdict == Verdict::Good || !f.remedy.is_empty()));
        assert!(report(&findings).contains("WRONG  daemon"));
    }

    #[test]
    fn what_was_set_aside_and_what_is_refused_is_told_by_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("state/spool/unreadable")).unwrap();
        fs::write(dir.path().join("state/spool/unreadable/7-1.json"), "?").unwrap();
        fs::write(dir.path().join("config.yaml"), "colour: red\n").unwrap();
        fs::create_dir_all(dir.path().join("etc/cni/net.d")).unwrap();
        fs::write(dir.path().join("etc/cni/net.d/10-bad.conflist"), "{").unwrap();
        let unplugged =
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","master":"unplugged0"}]}"#;
        fs::write(dir.path().join("etc/cni/net.d/20-unplugged.conflist"), unplugged).unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::write(dir.path().join("run/attachments.damaged-6ad4ae67"), "?").unwrap();
        let findings = examine(&places(dir.path()));
        let seen = |about| findings.iter().find(|f: &&Finding| f.about == about).unwrap().seen.clone();
        assert!(seen("spool").contains("7-1.json"));
        assert!(seen("store").contains("attachments.damaged-6ad4ae67"));
        assert!(seen("configuration").contains("colour"));
        assert!(seen("networks").contains("10-bad.conflist"));
        assert!(findings.iter().any(|f| f.seen == "n: the host has no interface unplugged0, its master"));
    }

    #[test]
    fn the_kinds_of_links_that_this_kernel_has_are_told() {
        let findings = kinds();
        assert_eq!(findings.len(), 3, "{findings:?}");
        // Every kernel that this is built on has macvlan (README).
        assert_eq!(findings[0], good("link kinds", "macvlan"));
    }
}
