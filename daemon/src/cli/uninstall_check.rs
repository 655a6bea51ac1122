//! Whether the executable which is to be uninstalled is needed: by interfaces of pods, or because the daemon is to keep it on the node. And
//! what the daemon still has of the node when no executable is left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::table::rows;
use crate::conf_dir::Directories;
use crate::engine::attachment_request::OWN_TYPE;
use crate::node_installation::conflist_without_executable;
use crate::node_paths::NodePaths;
use crate::operator_client::{ClientError, get};
use crate::plugin_installation::OWN_NAME;
use crate::run_dir::SOCKET;
use crate::store::JOURNAL;

/// So many of them are named.
const NAMED: usize = 5;

/// Why nothing was uninstalled.
#[derive(Debug, thiserror::Error)]
pub enum StillNeeded {
    /// The daemon would install it again.
    #[error(
        "nothing was uninstalled: {config} says `install: {{cni: present}}`, so the daemon would put {OWN_NAME} back within seconds; say `install: {{cni: absent}}` there first, and the daemon takes it away itself; or --force"
    )]
    Wanted {
        /// The daemon's configuration.
        config: String,
    },
    /// The runtime would look for it.
    #[error(
        "nothing was uninstalled: {file} names {OWN_NAME}, so no pod of this node would start; with `install: {{cni: absent}}` in its configuration a \
         running daemon takes both away, or remove that file first; or --force", file = .file.display()
    )]
    Named {
        /// Our configuration in the conf dir.
        file: PathBuf,
    },
    /// Pods have interfaces of these types.
    #[error(
        "nothing was uninstalled: {number} of the pods' interfaces are on record with Fairlead ({shown}); delete those pods first (fairleadd attachments lists them). --force leaves them to the restored plugins, which take down links of the types macvlan, ipvlan, vlan and dummy; VFs, devices of host-device, vhost-user ports and pods' networks only Fairlead can undo"
    )]
    Attached {
        /// How many there are.
        number: usize,
        /// The first of them.
        shown: String,
    },
    /// Nobody can tell.
    #[error(
        "nothing was uninstalled: {journal} may have interfaces of pods on record, and the daemon can't tell: {source}; start it, or say --force"
    )]
    Unknown {
        /// The journal of attachments.
        journal: PathBuf,
        /// Why the daemon can't be asked.
        source: ClientError,
    },
}

/// Why the executable under its own name has to stay in this directory, whoever has interfaces by it; `None`: it does not, or is not one of
/// the names. `paths`: those of the daemon that runs here, else the usual ones.
pub(super) fn needed_by_node(paths: &NodePaths, bin_dir: &Path, names: &[String]) -> Option<StillNeeded> {
    if !names.iter().any(|name| name == OWN_NAME) {
        return None;
    }
    // The daemon of a container has the host's root elsewhere than this program, which may run on the host.
    let host_root = if paths.host_root.is_dir() { &paths.host_root } else { Path::new("/") };
    let Directories { conf, plugins, .. } =
        Directories::new(host_root, paths.conf_dir.as_deref(), paths.plugin_dir.as_deref());
    let is_bin_dir = |directory: &PathBuf| is_same(directory, bin_dir);
    if plugins.first().is_some_and(is_bin_dir) && is_wanted(&paths.run_dir) {
        return Some(StillNeeded::Wanted { config: paths.config.display().to_string() });
    }
    let others: Vec<PathBuf> = plugins.into_iter().filter(|directory| !is_bin_dir(directory)).collect();
    conflist_without_executable(&conf, &others).map(|file| StillNeeded::Named { file })
}

/// Whether two paths are of one directory.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Whether a daemon runs here that is to keep the executable on the node.
fn is_wanted(run_dir: &Path) -> bool {
    let status = get(&run_dir.join(SOCKET), "/v1/status");
    status.is_ok_and(|status| status["daemon"]["settings"]["install"]["cni"] == "present")
}

/// Refuses where an attachment of one of these types is on record.
pub(super) fn must_not_be_needed(run_dir: &Path, names: &[String]) -> Result<(), StillNeeded> {
    let attachments = match get(&run_dir.join(SOCKET), "/v1/attachments") {
        Ok(attachments) => attachments,
        Err(source) => {
            let journal = run_dir.join(JOURNAL);
            // Without a journal nothing was attached since the boot.
            return if journal.exists() { Err(StillNeeded::Unknown { journal, source }) } else { Ok(()) };
        }
    };
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("?").to_owned();
    // A network of our own type may have been handed on to any of the others.
    let needs = |row: &&Value| names.iter().any(|name| row["type"] == name.as_str() || name == OWN_TYPE);
    let mut needing: Vec<&Value> = rows(&attachments).iter().filter(needs).collect();
    // A pod's interface is on record of the list that it was asked by, and of each plugin of the list that made something.
    let mut seen = BTreeSet::new();
    needing.retain(|row| seen.insert((word(row, "container"), word(row, "ifname"))));
    if needing.is_empty() {
        return Ok(());
    }
    let whose = |row: &&Value| match row["pod"].as_str() {
        Some(pod) => format!("{} of {pod}", word(row, "ifname")),
        None => format!("{} of container {}", word(row, "ifname"), word(row, "container")),
    };
    let shown: Vec<String> = needing.iter().take(NAMED).map(whose).collect();
    let more = if needing.len() > NAMED { ", …" } else { "" };
    Err(StillNeeded::Attached { number: needing.len(), shown: shown.join(", ") + more })
}

/// What is to be done about VFs of pools before the daemon is stopped; `None`: it has none, or does not answer.
pub(super) fn about_pools(run_dir: &Path) -> Option<String> {
    vfs_in_pools(&get(&run_dir.join(SOCKET), "/v1/pools").ok()?)
}

fn vfs_in_pools(pools: &Value) -> Option<String> {
    let number = rows(&pools["functions"]).len();
    (number > 0).then(|| {
        format!(
            "VFs that are still in pools: {number}. Only a daemon that runs gives them back as they were: before it is stopped, take \
             `pools` and `devicePluginConfig` out of its configuration, and wait until `fairleadd pools` lists no VF\n"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vfs_that_are_still_in_pools_are_told_with_what_is_to_be_done_before_the_daemon_is_stopped() {
        let told = vfs_in_pools(&json!({ "functions": [{ "function": "0000:3b:02.0" }] })).unwrap();
        for words in ["in pools: 1.", "take `pools`", "before it is stopped"] {
            assert!(told.contains(words), "{told}");
        }
        for none in [json!({ "functions": [], "ports": [{ "port": "p0" }] }), json!([])] {
            assert_eq!(vfs_in_pools(&none), None, "{none}");
        }
    }
}
