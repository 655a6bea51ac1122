//! The networks in the runtime's directory, and the plugins that can be executed.
//!
//! Both directories are read at the start, when something in them changes, and at every STATUS. A file that can't
//! be used is refused by name and affects no other; its last good content stays in force. The same holds for a
//! whole directory that can't be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_cni::config::ConfList;
use fairlead_cni::wire::MAX_CONFIG;
use fairlead_host::host_root::{HostRoot, below, host_path};
use parking_lot::RwLock;
use serde_json::{Value, json};
use tracing::{error, info};

use crate::engine::OWN_TYPE;
use crate::metrics::Node;

/// Plugins that attach another network of the conf dir, as we do: none of them can be what we attach.
pub(crate) const META_PLUGINS: [&str; 5] = [OWN_TYPE, "multus", "multus-shim", "danm", "genie"];

/// The directory of network configurations where `CNI_CONF_DIR` is not set.
pub const CONF_DIR: &str = "/etc/cni/net.d";
/// The directory of plugin executables where `CNI_PLUGIN_DIR` is not set.
pub const PLUGIN_DIR: &str = "/opt/cni/bin";

/// Why a file of the conf dir is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfDirError {
    /// The file can't be read.
    #[error("{file}: can't be read: {reason}", file = .file.display())]
    Read {
        /// The file or directory.
        file: PathBuf,
        /// Why it can't be read.
        reason: String,
    },
    /// The file is no network configuration.
    #[error("{file}: {reason}", file = .file.display())]
    Content {
        /// The file that is refused.
        file: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// The network has the name of another file's network.
    #[error("{file}: the network {name:?} is already defined in {first}; give it another name", file = .file.display(), first = .first.display())]
    Twice {
        /// The file that is refused.
        file: PathBuf,
        /// The name that both files give to their network.
        name: String,
        /// The file that is in force.
        first: PathBuf,
    },
}

impl ConfDirError {
    /// The file that is refused, or the directory that can't be read.
    pub(crate) fn file(&self) -> &Path {
        match self {
            ConfDirError::Read { file, .. }
            | ConfDirError::Content { file, .. }
            | ConfDirError::Twice { file, .. } => file,
        }
    }
}

/// The directories of one node, below the host's root.
#[derive(Debug, Clone)]
pub struct Directories {
    /// The directory of network configurations.
    pub conf: PathBuf,
    /// The directories of plugin executables, in order of search.
    pub plugins: Vec<PathBuf>,
    host_root: PathBuf,
}

impl Directories {
    /// Makes the directories from `CNI_CONF_DIR` and `CNI_PLUGIN_DIR`, below the host's root.
    pub fn new(host_root: &Path, conf: Option<&str>, plugins: Option<&str>) -> Directories {
        let set =
            |value: Option<&str>, default| value.filter(|v| !v.is_empty()).unwrap_or(default).to_owned();
        Directories {
            conf: below(host_root, Path::new(&set(conf, CONF_DIR))),
            plugins: set(plugins, PLUGIN_DIR).split(':').map(|p| below(host_root, Path::new(p))).collect(),
            host_root: host_root.to_owned(),
        }
    }

    /// All of these directories, to be watched.
    pub fn all(&self) -> Vec<PathBuf> {
        std::iter::once(&self.conf).chain(&self.plugins).cloned().collect()
    }

    /// Whether one of these directories is the one that the host has at its path. A container keeps what it has mounted, also when the host
    /// has replaced it. `None`: that cannot be said.
    pub(crate) fn is_hosts(&self, directory: &Path) -> Option<bool> {
        HostRoot::whole(&self.host_root).is_same(&self.on_host(directory), directory)
    }

    /// The path that one of these directories has on the host.
    pub(crate) fn on_host(&self, directory: &Path) -> PathBuf {
        host_path(&self.host_root, directory).into_owned()
    }

    /// The names of the plugins that can be executed. Those of k3s and NixOS are links to a directory of the host that a container has not
    /// mounted: they count, as whoever executes them follows them on the host.
    pub(crate) fn executables(&self) -> BTreeSet<String> {
        let root = HostRoot::new(self.host_root.clone());
        let is_program = |file: &Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
        let programs_in = |dir: &PathBuf| -> Vec<String> {
            let dir = host_path(&self.host_root, dir);
            let mut names = root.names_in(&dir, usize::MAX).unwrap_or_default();
            names.retain(|name| root.metadata(&dir.join(name)).is_ok_and(|file| is_program(&file)));
            names
        };
        self.plugins.iter().flat_map(programs_in).collect()
    }
}

/// One network, and the file that it was read from.
#[derive(Debug, Clone)]
struct Network {
    file: PathBuf,
    list: Arc<ConfList>,
}

/// The result of one reading of the directories.
#[derive(Debug, Clone, Default)]
struct Scan {
    networks: BTreeMap<String, Network>,
    /// Those that are refused because another file's network has their name.
    duplicates: Vec<Network>,
    refused: Vec<ConfDirError>,
    plugins: BTreeSet<String>,
    /// Whether the conf dir could ever be read. One that does not exist means a node without networks.
    loaded: bool,
}

/// The networks of the conf dir, as they were last read.
#[derive(Debug)]
pub struct Networks {
    directories: Directories,
    built_in: &'static [&'static str],
    scan: RwLock<Arc<Scan>>,
    node: Node,
}

impl Networks {
    /// Reads the directories. `built_in`: the types that need no executable.
    pub fn new(directories: Directories, built_in: &'static [&'static str], node: Node) -> Networks {
        let networks = Networks { directories, built_in, scan: RwLock::default(), node };
        networks.rescan();
        networks
    }

    /// The directories that are read.
    pub fn directories(&self) -> &Directories {
        &self.directories
    }

    /// Reads the directories again.
    pub fn rescan(&self) {
        // The lock is held all the while: of two readings at once the older one could otherwise come last.
        let mut scan = self.scan.write();
        let new = scan_directories(&self.directories, &scan);
        for refused in new.refused.iter().filter(|r| !scan.refused.contains(r)) {
            error!(reason = %refused, "a network configuration is refused; the others are not affected");
        }
        if new.networks.keys().ne(scan.networks.keys()) {
            let names: Vec<&str> = new.networks.keys().map(String::as_str).collect();
            info!(dir = %self.directories.conf.display(), networks = names.join(","), "networks");
        }
        self.node.networks_refused.set(i64::try_from(new.refused.len()).unwrap_or(i64::MAX));
        *scan = Arc::new(new);
    }

    fn current(&self) -> Arc<Scan> {
        self.scan.read().clone()
    }

    /// The network of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<ConfList>> {
        self.current().networks.get(name).map(|n| n.list.clone())
    }

    /// The network of the file of this name.
    pub fn of_file(&self, name: &str) -> Option<Arc<ConfList>> {
        let scan = self.current();
        let found = scan.networks.values().find(|n| n.file.file_name().is_some_and(|file| file == name));
        found.map(|n| n.list.clone())
    }

    /// The networks in the order of their files' names, in which a runtime looks for its first one.
    pub fn in_file_order(&self) -> Vec<Arc<ConfList>> {
        in_file_order(self.current().networks.values())
    }

    /// The same with those that are refused because another file's network has their name.
    pub(crate) fn with_duplicates_in_file_order(&self) -> Vec<Arc<ConfList>> {
        let scan = self.current();
        in_file_order(scan.networks.values().chain(&scan.duplicates))
    }

    /// The readiness condition: the conf dir has been read, now or earlier.
    pub fn loaded(&self) -> Result<String, String> {
        let scan = self.current();
        if scan.loaded {
            return Ok(format!("{} loaded", scan.networks.len()));
        }
        let refused: Vec<String> = scan.refused.iter().map(ToString::to_string).collect();
        Err(format!("{}; mend it, or correct CNI_CONF_DIR", refused.join("; ")))
    }

    /// The files that are refused, and why.
    pub fn refused(&self) -> Vec<ConfDirError> {
        self.current().refused.clone()
    }

    /// The table for the operator: every network, its file, its plugins, and those that are missing; then what is
    /// refused.
    pub fn list(&self) -> Value {
        let scan = self.current();
        let rows = scan.networks.iter().map(|(name, network)| {
            let types: Vec<&str> = network.list.plugin_types().collect();
            let there = |t: &&str| self.built_in.contains(t) || scan.plugins.contains(*t);
            let missing: Vec<&str> = types.iter().copied().filter(|t| !there(t)).collect();
            let version = network.list.version.as_str();
            json!({ "name": name, "cniVersion": version, "plugins": types, "missing": missing, "file": network.file })
        });
        let refused: Vec<String> = scan.refused.iter().map(ToString::to_string).collect();
        json!({ "networks": rows.collect::<Vec<Value>>(), "refused": refused })
    }
}

/// Whether a network attaches another one of the conf dir instead of making an interface itself.
pub(crate) fn is_meta(list: &ConfList) -> bool {
    list.plugin_types().any(|t| META_PLUGINS.contains(&t))
}

fn in_file_order<'a>(networks: impl Iterator<Item = &'a Network>) -> Vec<Arc<ConfList>> {
    let mut networks: Vec<&Network> = networks.collect();
    networks.sort_by(|a, b| a.file.cmp(&b.file));
    networks.into_iter().map(|network| network.list.clone()).collect()
}

fn scan_directories(directories: &Directories, last: &Scan) -> Scan {
    let plugins = directories.executables();
    let mut scan = Scan { plugins, loaded: last.loaded, ..Scan::default() };
    match files(&directories.conf, &["conflist", "conf", "json"]) {
        Ok(mut files) => {
            scan.loaded = true;
            // Of a list and a single plugin of one name the list counts (multi-net-spec), whatever their files are called.
            files.sort_by_key(|file| file.extension().is_none_or(|ending| ending != "conflist"));
            files.into_iter().for_each(|file| add_file(&mut scan, last, &file));
            scan.refused.sort_by(|one, other| one.file().cmp(other.file()));
        }
        // A directory that never existed means no networks; one that vanishes is being mounted or replaced.
        Err(error) if error.kind() == io::ErrorKind::NotFound && last.networks.is_empty() => {
            scan.loaded = true
        }
        Err(error) => {
            (scan.networks, scan.duplicates) = (last.networks.clone(), last.duplicates.clone());
            scan.refused
                .push(ConfDirError::Read { file: directories.conf.clone(), reason: error.to_string() });
        }
    }
    scan
}

/// Adds the network of one file; of a file that is refused, the last good content.
fn add_file(scan: &mut Scan, last: &Scan, file: &Path) {
    let network = match load(file) {
        Ok(list) => Network { file: file.to_owned(), list: Arc::new(list) },
        Err(refused) => {
            scan.refused.push(refused);
            match last.networks.values().chain(&last.duplicates).find(|n| n.file == file) {
                Some(good) => good.clone(),
                None => return,
            }
        }
    };
    let name = network.list.name.clone();
    let (in_force, duplicate) = match scan.networks.remove(&name) {
        // Multus with `--override-network-name` has the name of the network that it attaches, and is not that network.
        Some(first) if is_meta(&first.list) && !is_meta(&network.list) => (network, Some(first)),
        Some(first) => (first, Some(network)),
        None => (network, None),
    };
    if let Some(duplicate) = duplicate {
        let (file, first) = (duplicate.file.clone(), in_force.file.clone());
        scan.refused.push(ConfDirError::Twice { file, name: name.clone(), first });
        scan.duplicates.push(duplicate);
    }
    scan.networks.insert(name, in_force);
}

/// The regular files with one of these endings in the order of their names, as libcni's `ConfFiles`.
pub(crate) fn files(directory: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|e| e.to_str());
        if ending.is_some_and(|e| endings.contains(&e)) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The network of one file.
pub(crate) fn load(file: &Path) -> Result<ConfList, ConfDirError> {
    let content = |reason: String| ConfDirError::Content { file: file.into(), reason };
    let text = read(file)?;
    let list = ConfList::parse(&text).map_err(|e| content(e.to_string()))?;
    let list = with_plugins_beside(list, file)?;
    if list.is_empty() {
        return Err(content("the list has no plugins".into()));
    }
    Ok(list)
}

/// The list of a file with the plugins of the directory that has the list's name and lies beside the file, unless the list wants none.
pub(crate) fn with_plugins_beside(mut list: ConfList, file: &Path) -> Result<ConfList, ConfDirError> {
    if !list.load_only_inlined_plugins {
        let folder = file.parent().unwrap_or(Path::new("/")).join(&list.name);
        for plugin in files(&folder, &["conf"]).unwrap_or_default() {
            list.push_plugin(&read(&plugin)?)
                .map_err(|e| ConfDirError::Content { file: plugin.clone(), reason: e.to_string() })?;
        }
    }
    Ok(list)
}

fn read(file: &Path) -> Result<String, ConfDirError> {
    let failed = |reason: String| ConfDirError::Read { file: file.into(), reason };
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            failed(format!("{error}; the daemon needs CAP_DAC_OVERRIDE for another user's file"))
        }
        _ => failed(error.to_string()),
    };
    let size = fs::metadata(file).map_err(unread)?.len();
    if size > MAX_CONFIG as u64 {
        return Err(failed(format!("it has {size} bytes, a configuration may have {MAX_CONFIG}")));
    }
    fs::read_to_string(file).map_err(unread)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn network(name: &str, kind: &str) -> String {
        format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"{kind}"}}]}}"#)
    }

    fn over(dir: &Path) -> Networks {
        let directories = Directories::new(dir, Some("/net.d"), Some("/bin"));
        Networks::new(directories, &["macvlan"], Node::default())
    }

    fn names(networks: &Networks) -> Vec<String> {
        networks.current().networks.keys().cloned().collect()
    }

    #[test]
    fn r07_the_environment_names_the_directories_below_the_hosts_root() {
        let default = Directories::new(Path::new("/host"), None, Some(""));
        assert_eq!(default.all(), [Path::new("/host/etc/cni/net.d"), Path::new("/host/opt/cni/bin")]);
        let set = Directories::new(Path::new("/"), Some("/c"), Some("/a:/b"));
        assert_eq!(set.all(), [Path::new("/c"), Path::new("/a"), Path::new("/b")]);
    }

    #[test]
    fn k17_a_plugin_is_there_whose_link_leads_where_the_host_sees_it_and_this_container_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (host, mounted) = (dir.path().join("host"), dir.path().join("mounted"));
        for place in [host.join("data"), mounted.join("proc/1"), mounted.join("etc/cni/net.d")] {
            fs::create_dir_all(place).unwrap();
        }
        symlink(&host, mounted.join("proc/1/root")).unwrap();
        for (name, mode) in [("flannel", 0o755), ("readme", 0o644)] {
            fs::write(host.join("data").join(name), "").unwrap();
            fs::set_permissions(host.join("data").join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        // One directory, as the host and as the container has it.
        for bin in [host.join("opt/cni/bin"), mounted.join("opt/cni/bin")] {
            fs::create_dir_all(&bin).unwrap();
            for name in ["flannel", "readme", "gone"] {
                symlink(Path::new("/data").join(name), bin.join(name)).unwrap();
            }
        }
        let list = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"flannel"},{"type":"readme"},{"type":"gone"}]}"#;
        fs::write(mounted.join("etc/cni/net.d/10-n.conflist"), list).unwrap();
        let networks = Networks::new(Directories::new(&mounted, None, None), &[], Node::default());
        assert_eq!(networks.list()["networks"][0]["missing"], json!(["readme", "gone"]));
    }

    #[test]
    fn r08_a_broken_file_is_refused_by_name_and_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("10-good.conflist"), network("good", "macvlan")).unwrap();
        fs::write(conf.join("20-bad.conflist"), "{").unwrap();
        fs::write(conf.join("30-single.conf"), r#"{"cniVersion":"0.4.0","name":"single","type":"dhcp"}"#)
            .unwrap();
        fs::write(conf.join("40-again.conflist"), network("good", "vlan")).unwrap();
        fs::write(conf.join("50-no-config.txt"), "?").unwrap();
        symlink("/nowhere", conf.join("60-dangling.conf")).unwrap();
        let networks = over(dir.path());
        assert_eq!(names(&networks), ["good", "single"]);
        let refused: Vec<String> = networks.refused().iter().map(ToString::to_string).collect();
        assert_eq!(refused.len(), 3, "{refused:?}");
        for (told, part) in refused.iter().zip(["20-bad.conflist", "already defined in", "60-dangling.conf"])
        {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(networks.list()["networks"][1]["missing"], json!(["dhcp"]));
    }

    #[test]
    fn r08_a_list_counts_before_a_single_plugin_of_its_name_whatever_their_files_are_called() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("10-net.conf"), r#"{"cniVersion":"1.0.0","name":"net","type":"dhcp"}"#).unwrap();
        fs::write(conf.join("20-net.conflist"), network("net", "macvlan")).unwrap();
        let networks = over(dir.path());
        assert_eq!(networks.list()["networks"][0]["plugins"], json!(["macvlan"]));
        let refused: Vec<String> = networks.refused().iter().map(ToString::to_string).collect();
        assert!(matches!(&refused[..], [told] if told.contains("10-net.conf: the network")), "{refused:?}");
    }

    #[test]
    fn r08_a_plugin_that_attaches_another_network_never_stands_for_the_one_whose_name_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("00-multus.conflist"), network("pods", "multus")).unwrap();
        fs::write(conf.join("20-pods.conf"), r#"{"cniVersion":"1.0.0","name":"pods","type":"macvlan"}"#)
            .unwrap();
        fs::write(conf.join("30-shim.conf"), r#"{"cniVersion":"1.0.0","name":"pods","type":"multus-shim"}"#)
            .unwrap();
        let networks = over(dir.path());
        let types = |lists: Vec<Arc<ConfList>>| -> Vec<String> {
            lists.iter().flat_map(|list| list.plugin_types().map(str::to_owned).collect::<Vec<_>>()).collect()
        };
        assert_eq!(types(networks.in_file_order()), ["macvlan"]);
        assert_eq!(
            types(networks.with_duplicates_in_file_order()),
            ["multus", "macvlan", "multus-shim"],
            "what Multus is told can be read"
        );
        let refused: Vec<String> = networks.refused().iter().map(ToString::to_string).collect();
        assert_eq!(refused.len(), 2, "{refused:?}");
        for (told, file) in refused.iter().zip(["00-multus.conflist: the", "30-shim.conf: the"]) {
            assert!(told.contains(file) && told.contains("already defined in"), "{told}");
        }
        // A file that breaks is what it was, in force or not.
        fs::write(conf.join("00-multus.conflist"), "{").unwrap();
        networks.rescan();
        assert_eq!(types(networks.with_duplicates_in_file_order())[0], "multus");
        fs::remove_file(conf.join("20-pods.conf")).unwrap();
        networks.rescan();
        assert_eq!(types(networks.in_file_order()), ["multus"], "the first of those that are left");
    }

    #[test]
    fn m11_a_bad_scan_keeps_the_last_good_one() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("a.conflist"), network("a", "macvlan")).unwrap();
        let networks = over(dir.path());
        fs::write(conf.join("a.conflist"), "not json").unwrap();
        networks.rescan();
        assert!(networks.find("a").is_some());
        assert_eq!(networks.refused().len(), 1);
        fs::rename(&conf, dir.path().join("aside")).unwrap();
        networks.rescan();
        assert!(networks.find("a").is_some());
        fs::create_dir(&conf).unwrap();
        networks.rescan();
        assert_eq!((names(&networks).len(), networks.refused().len()), (0, 0));
    }

    #[test]
    fn k19_networks_are_not_loaded_while_their_directory_can_not_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        fs::write(&conf, "no directory").unwrap();
        let networks = over(dir.path());
        let told = networks.loaded().unwrap_err();
        assert!(told.contains("net.d") && told.contains("CNI_CONF_DIR"), "{told}");
        fs::remove_file(&conf).unwrap();
        networks.rescan();
        assert_eq!(networks.loaded(), Ok("0 loaded".into()), "a node without networks");
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("10-a.conflist"), network("a", "macvlan")).unwrap();
        networks.rescan();
        assert_eq!(networks.loaded(), Ok("1 loaded".into()));
    }

    #[test]
    fn r04_a_network_that_comes_later_is_found_by_the_next_look() {
        let dir = tempfile::tempdir().unwrap();
        let networks = over(dir.path());
        assert_eq!((names(&networks).len(), networks.refused().len()), (0, 0));
        fs::create_dir(dir.path().join("net.d")).unwrap();
        fs::write(dir.path().join("net.d/x.conflist"), network("late", "macvlan")).unwrap();
        networks.rescan();
        assert!(networks.find("late").is_some());
    }

    #[test]
    fn r07_a_config_map_swap_changes_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        for (version, kind) in [("..1", "macvlan"), ("..2", "ipvlan")] {
            fs::create_dir_all(conf.join(version)).unwrap();
            fs::write(conf.join(version).join("n.conflist"), network("n", kind)).unwrap();
        }
        symlink("..1", conf.join("..data")).unwrap();
        symlink("..data/n.conflist", conf.join("n.conflist")).unwrap();
        let networks = over(dir.path());
        let kind = |n: &Networks| n.find("n").unwrap().plugin_types().next().unwrap().to_owned();
        assert_eq!(kind(&networks), "macvlan");
        symlink("..2", conf.join("..data_tmp")).unwrap();
        fs::rename(conf.join("..data_tmp"), conf.join("..data")).unwrap();
        networks.rescan();
        assert_eq!(kind(&networks), "ipvlan");
    }
}
