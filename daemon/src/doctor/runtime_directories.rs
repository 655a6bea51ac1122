//! Where the container runtime looks for plugins and networks: an install beside that is one that nobody ever calls.
//!
//! containerd's configuration in its versions 1 to 3, and CRI-O's with its drop-ins. Where nothing is written, the runtime's own
//! default holds. What cannot be read is told and not guessed, and so is a host on which no such file is found.

use std::fs;
use std::path::{Path, PathBuf};

use fairlead_host::host_root::{HostRoot, below, host_path, unmounted_root};
use toml::{Table, Value};

use super::not_the_hosts;
use crate::conf_dir::{CONF_DIR, Directories, PLUGIN_DIR};
use crate::finding::{Finding, good, less, wrong};
use crate::plugin_installation;

const ABOUT: &str = "runtime";
/// The configurations of containerd, those that k3s, RKE2, MicroK8s and k0s write among them.
const CONTAINERD: [&str; 5] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/k0s/containerd.toml",
];
/// MicroK8s has a directory for each of its revisions in this one, and `current` leads to the one in use.
const MICROK8S: &str = "/var/snap/microk8s";
/// The tables that say it, of versions 3, 2 and 1.
const CNI_TABLES: [[&str; 3]; 3] = [
    ["plugins", "io.containerd.cri.v1.runtime", "cni"],
    ["plugins", "io.containerd.grpc.v1.cri", "cni"],
    ["plugins", "cri", "cni"],
];
const CRIO: &str = "/etc/crio/crio.conf";
const CRIO_DROP_INS: &str = "/etc/crio/crio.conf.d";

/// Where one runtime looks.
#[derive(Debug, PartialEq, Eq)]
struct Looks {
    runtime: &'static str,
    /// The file that says so.
    file: PathBuf,
    plugins: Vec<PathBuf>,
    conf: PathBuf,
}

impl Looks {
    fn by_default(runtime: &'static str, file: PathBuf) -> Looks {
        Looks { runtime, file, plugins: vec![PLUGIN_DIR.into()], conf: CONF_DIR.into() }
    }

    /// Takes what a table says, the list before the older single directory.
    fn read(&mut self, table: &Table, [list, single, conf]: [&str; 3]) {
        let dirs =
            |value: &Value| value.as_array().into_iter().flatten().filter_map(directory).collect::<Vec<_>>();
        let of_list = table.get(list).map(dirs).filter(|dirs| !dirs.is_empty());
        let of_single = || table.get(single).and_then(directory).map(|dir| vec![dir]);
        self.plugins = of_list.or_else(of_single).unwrap_or_else(|| std::mem::take(&mut self.plugins));
        self.conf = table.get(conf).and_then(directory).unwrap_or_else(|| std::mem::take(&mut self.conf));
    }
}

fn directory(value: &Value) -> Option<PathBuf> {
    let text = value.as_str().filter(|text| !text.is_empty())?;
    Some(of_revision_in_use(Path::new(text)).components().collect())
}

/// MicroK8s writes the directory of the revision itself, and who mounts that keeps it when MicroK8s is refreshed to another one.
fn of_revision_in_use(path: &Path) -> PathBuf {
    match path.strip_prefix(MICROK8S) {
        Ok(below) if !below.starts_with("common") => {
            let of_revision: PathBuf = below.iter().skip(1).collect();
            Path::new(MICROK8S).join("current").join(of_revision)
        }
        Ok(_) | Err(_) => path.to_owned(),
    }
}

/// What is to be said of each runtime of this host.
pub(super) fn findings(host_root: &Path, ours: &Directories) -> Vec<Finding> {
    let replaced: Vec<Finding> =
        ours.all().iter().filter_map(|directory| not_the_hosts(ABOUT, ours, directory)).collect();
    if !replaced.is_empty() {
        return replaced;
    }
    // A container of ours has the runtimes' own files not mounted.
    let unmounted = unmounted_root(host_root);
    let root = unmounted.as_deref().unwrap_or(host_root);
    let containerd = CONTAINERD.iter().map(|path| containerd(root, &below(root, Path::new(path))));
    let looks: Vec<Result<Looks, Finding>> = containerd.chain([crio(root)]).flatten().collect();
    if looks.is_empty() && unmounted.is_some() {
        return vec![no_configuration()];
    }
    let judge = |looks| judged(&looks, host_root, ours, unmounted.is_some());
    looks.into_iter().flat_map(|looks| looks.map_or_else(|unread| vec![unread], judge)).collect()
}

/// The finding of a node on which no runtime says where it looks.
fn no_configuration() -> Finding {
    let seen = format!(
        "no configuration of containerd or CRI-O is where we know of one; without any they look in {PLUGIN_DIR} and {CONF_DIR}"
    );
    less(
        ABOUT,
        seen,
        "where the runtime has its configuration elsewhere, compare its directories with CNI_PLUGIN_DIR and CNI_CONF_DIR by hand",
    )
}

/// The configuration of a file; `None` where there is no such file.
fn table(file: &Path) -> Option<Result<Table, Finding>> {
    let unread = |why: String| {
        let seen = format!("{}: {why}; where the runtime looks is not known", file.display());
        less(ABOUT, seen, "correct the file, or compare its directories by hand")
    };
    match fs::read_to_string(file) {
        Ok(text) => Some(text.parse::<Table>().map_err(|error| unread(error.message().to_owned()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(unread(error.to_string()))),
    }
}

fn containerd(root: &Path, file: &Path) -> Option<Result<Looks, Finding>> {
    let read = |main: Table| -> Result<Looks, Finding> {
        let mut looks = Looks::by_default("containerd", host_path(root, file).into_owned());
        let imported = main.get("imports").and_then(Value::as_array).cloned().unwrap_or_default();
        take_containerd(&mut looks, &main);
        // A relative pattern is of files beside this one.
        let beside = looks.file.parent().unwrap_or(Path::new("/")).to_owned();
        for pattern in imported.iter().filter_map(Value::as_str) {
            for path in matching(&below(root, &beside.join(pattern))) {
                if let Some(imported) = table(&path) {
                    take_containerd(&mut looks, &imported?);
                }
            }
        }
        Ok(looks)
    };
    table(file).map(|main| main.and_then(read))
}

fn take_containerd(looks: &mut Looks, config: &Table) {
    let of = |[plugins, cri, cni]: [&str; 3]| config.get(plugins)?.get(cri)?.get(cni)?.as_table();
    if let Some(cni) = CNI_TABLES.into_iter().find_map(of) {
        looks.read(cni, ["bin_dirs", "bin_dir", "conf_dir"]);
    }
}

fn crio(root: &Path) -> Option<Result<Looks, Finding>> {
    let (main, drop_ins) = (below(root, Path::new(CRIO)), below(root, Path::new(CRIO_DROP_INS)));
    let files: Vec<PathBuf> = std::iter::once(main.clone()).chain(matching(&drop_ins.join("*"))).collect();
    let mut looks = None;
    for file in files {
        match table(&file) {
            None => {}
            Some(Err(unread)) => return Some(Err(unread)),
            Some(Ok(config)) => {
                let told = |file: &Path| host_path(root, file).into_owned();
                let looks = looks.get_or_insert_with(|| Looks::by_default("CRI-O", told(&main)));
                let network =
                    config.get("crio").and_then(|crio| crio.get("network")).and_then(Value::as_table);
                if let Some(network) = network {
                    looks.read(network, ["plugin_dirs", "plugin_dir", "network_dir"]);
                    looks.file = told(&file);
                }
            }
        }
    }
    looks.map(Ok)
}

/// The files that a pattern names in its last part, in order.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let name = wildmatch::WildMatch::new(name);
    let fits = |path: &PathBuf| {
        path.is_file() && path.file_name().is_some_and(|n| name.matches(&n.to_string_lossy()))
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = entries.filter(fits).collect();
    paths.sort();
    paths
}

fn judged(looks: &Looks, host_root: &Path, ours: &Directories, in_container: bool) -> Vec<Finding> {
    let Looks { runtime, file, .. } = looks;
    let (file, host) = (file.display(), HostRoot::whole(host_root));
    // On the host a link may lead from one to the other that is not here.
    let is_same = |theirs: &Path, ours: &Path| {
        host.is_same(theirs, ours).unwrap_or_else(|| same(&below(host_root, theirs), ours))
    };
    let has_ours = |theirs: &PathBuf| {
        let here = ours.plugins.iter().find(|ours| is_same(theirs, ours)).cloned();
        !plugin_installation::installed(&here.unwrap_or_else(|| below(host_root, theirs))).is_empty()
    };
    let mut findings = Vec::new();
    let plugins = looks.plugins.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    if !looks.plugins.iter().any(has_ours) {
        let first = looks.plugins.first().map(|dir| dir.display().to_string()).unwrap_or_default();
        let seen = format!(
            "{runtime} looks for plugins in {plugins} ({file}), where none of ours is: nobody calls us"
        );
        let remedy = match in_container {
            false => format!("fairleadd install --bin-dir {first} --as fairlead,macvlan,…"),
            true => format!(
                "mount {first} in the DaemonSet and name it in CNI_PLUGIN_DIR (the chart: directories.plugins)"
            ),
        };
        findings.push(wrong(ABOUT, seen, remedy));
    }
    if !is_same(&looks.conf, &ours.conf) {
        let seen = format!(
            "{runtime} looks for networks in {} ({file}), we in {}",
            looks.conf.display(),
            host_path(host_root, &ours.conf).display()
        );
        let remedy = match in_container {
            false => format!("give the daemon CNI_CONF_DIR={}", looks.conf.display()),
            true => format!(
                "mount it in the DaemonSet, and CNI_CONF_DIR={} (the chart: directories.networks)",
                looks.conf.display()
            ),
        };
        findings.push(wrong(ABOUT, seen, remedy));
    }
    if findings.is_empty() {
        findings
            .push(good(ABOUT, format!("{runtime} looks where we are: {plugins}, {}", looks.conf.display())));
    }
    findings
}

/// Whether two paths are one directory, by whatever links they lead there.
fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.components().collect());
    real(one) == real(other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use fairlead_cni::wire::OUTCOME_HEADER;

    use super::*;
    use crate::finding::Verdict;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The root of a container, and the whole root of its host.
    fn container() -> (tempfile::TempDir, tempfile::TempDir) {
        let (root, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(root.path().join("proc/1")).unwrap();
        symlink(host.path(), root.path().join("proc/1/root")).unwrap();
        (root, host)
    }

    #[test]
    fn microk8s_looks_where_the_link_to_its_revision_leads() {
        let (root, host) = container();
        let revision = host.path().join("var/snap/microk8s/2060");
        let config = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n\
                      bin_dir = \"/var/snap/microk8s/2060/opt/cni/bin\"\n\
                      conf_dir = \"/var/snap/microk8s/2060/args/cni-network\"\n";
        write(revision.join("args/containerd.toml"), config);
        write(revision.join("args/cni-network/cni.yaml"), "");
        write(revision.join("opt/cni/bin/fairlead"), &format!("ELF {OUTCOME_HEADER}"));
        symlink("2060", host.path().join("var/snap/microk8s/current")).unwrap();
        let told = findings(root.path(), &Directories::new(root.path(), None, None));
        assert!(told.len() == 2 && told.iter().all(|one| one.verdict == Verdict::Wrong), "{told:?}");
        for (finding, words) in told.iter().zip([
            "mount /var/snap/microk8s/current/opt/cni/bin in",
            "CNI_CONF_DIR=/var/snap/microk8s/current/args/cni-network",
        ]) {
            assert!(finding.remedy.contains(words), "{finding:?}");
            let file = "(/var/snap/microk8s/current/args/containerd.toml)";
            assert!(finding.seen.contains(file), "{finding:?}");
        }
        // As it is where these are mounted, by whatever name.
        for name in ["var/snap/microk8s/current", "elsewhere"] {
            let mounted = root.path().join(name);
            fs::create_dir_all(mounted.parent().unwrap()).unwrap();
            symlink(&revision, &mounted).unwrap();
            let (conf, plugins) = (format!("/{name}/args/cni-network"), format!("/{name}/opt/cni/bin"));
            let told = findings(root.path(), &Directories::new(root.path(), Some(&conf), Some(&plugins)));
            assert!(told.len() == 1 && told[0].verdict == Verdict::Good, "{told:?}");
        }
    }

    #[test]
    fn what_k0s_imports_lies_beside_its_configuration() {
        let host = tempfile::tempdir().unwrap();
        let config = host.path().join("etc/k0s/containerd.toml");
        write(config, "version = 2\nimports = [\"containerd.d/*.toml\"]\n");
        let cni = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = \"/etc/k0s/net.d\"\n";
        write(host.path().join("etc/k0s/containerd.d/cni.toml"), cni);
        let told = findings(host.path(), &Directories::new(host.path(), None, None));
        assert!(told.iter().any(|one| one.remedy.contains("CNI_CONF_DIR=/etc/k0s/net.d")), "{told:?}");
    }

    #[test]
    fn a_host_without_a_configuration_that_is_known_is_told_where_its_whole_root_is_seen() {
        let (root, _host) = container();
        let ours = Directories::new(root.path(), None, None);
        let told = findings(root.path(), &ours);
        assert!(told.len() == 1 && told[0].verdict == Verdict::Less, "{told:?}");
        assert!(told[0].seen.contains("no configuration of containerd or CRI-O"), "{told:?}");
        fs::remove_file(root.path().join("proc/1/root")).unwrap();
        assert_eq!(findings(root.path(), &ours), [], "nobody can say what the host has");
    }
}
