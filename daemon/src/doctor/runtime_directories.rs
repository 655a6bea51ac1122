//! Where the container runtime looks for plugins and networks: an install beside that is one that nobody ever calls.
//!
//! containerd's configuration in its versions 1 to 3, and CRI-O's with its drop-ins. Where nothing is written, the runtime's own
//! default holds. What cannot be read is told and not guessed.

use std::fs;
use std::path::{Path, PathBuf};

use fairlead_host::host_root::{below, host_path, unmounted_root};
use toml::{Table, Value};

use crate::conf_dir::{CONF_DIR, Directories, PLUGIN_DIR};
use crate::finding::{Finding, good, less, wrong};
use crate::plugin_installation;

const ABOUT: &str = "runtime";
/// The configurations of containerd, k3s' and RKE2's own among them.
const CONTAINERD: [&str; 3] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
];
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
    value.as_str().filter(|text| !text.is_empty()).map(|text| Path::new(text).components().collect())
}

/// What is to be said of each runtime of this host.
pub(super) fn findings(host_root: &Path, ours: &Directories) -> Vec<Finding> {
    // A container of ours has the runtimes' own files not mounted.
    let unmounted = unmounted_root(host_root);
    let root = unmounted.as_deref().unwrap_or(host_root);
    let containerd = CONTAINERD.iter().map(|path| containerd(root, &below(root, Path::new(path))));
    let looks = containerd.chain([crio(root)]).flatten();
    let judge = |looks| judged(&looks, host_root, ours, unmounted.is_some());
    looks.flat_map(|looks| looks.map_or_else(|unread| vec![unread], judge)).collect()
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
        for pattern in imported.iter().filter_map(Value::as_str) {
            for path in matching(&below(root, Path::new(pattern))) {
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
    let (file, conf) = (file.display(), below(host_root, &looks.conf));
    let mut findings = Vec::new();
    let plugins = looks.plugins.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    if !looks.plugins.iter().any(|dir| !plugin_installation::installed(&below(host_root, dir)).is_empty()) {
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
    if !same(&conf, &ours.conf) {
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
