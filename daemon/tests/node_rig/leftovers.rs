//! Everything that an attachment can leave behind, counted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Pod, Rig};

/// Everything that attachments may leave on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// The names of the node's interfaces.
    node: Vec<String>,
    /// Settings of the VFs of the node's interfaces.
    vfs: Vec<String>,
    /// The names of the interfaces of each pod.
    pods: BTreeMap<PathBuf, Vec<String>>,
    /// host-local's files that hold an address.
    allocations: Vec<PathBuf>,
    /// Records, spooled requests, and what executed plugins hold.
    files: Vec<PathBuf>,
    /// The attachments that the store has on record.
    rows: Vec<String>,
}

impl Rig {
    /// Counts everything on the node, whose daemon must be running.
    pub(crate) fn leftovers(&self, pods: &[&Pod]) -> Leftovers {
        let rows = self.attachments();
        Leftovers {
            node: self.links(),
            vfs: self.vfs(),
            pods: pods.iter().map(|pod| (pod.path().to_owned(), pod.links())).collect(),
            allocations: self.allocations(),
            files: ["state/attachments", "state/spool", "held"]
                .iter()
                .flat_map(|dir| files(&self.path(dir)))
                .filter(|file| file.file_name().is_some_and(|name| name != "lock"))
                .collect(),
            rows: rows
                .iter()
                .map(|r| format!("{} {} {} {}", r["container"], r["network"], r["ifname"], r["phase"]))
                .collect(),
        }
    }

    /// host-local's files that hold an address.
    pub(crate) fn allocations(&self) -> Vec<PathBuf> {
        let bookkeeping = |file: &PathBuf| {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            name == "lock" || name.starts_with("last_reserved_ip.")
        };
        files(&self.path("data")).into_iter().filter(|file| !bookkeeping(file)).collect()
    }

    /// Waits until everything is as before. What was answered early is finished by then.
    pub(crate) fn is_as(&self, before: &Leftovers, pods: &[&Pod], after: &str) {
        let limit = Instant::now() + Duration::from_secs(8);
        loop {
            let now = self.leftovers(pods);
            if now == *before {
                return;
            }
            assert!(
                Instant::now() < limit,
                "{after}: something is left\nnow    {now:#?}\nbefore {before:#?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => found.push(path),
        }
    }
    found.sort();
    found
}

impl Leftovers {
    /// The names of the interfaces that a pod had when this was counted.
    pub(crate) fn links_of(&self, pod: &Pod) -> Vec<String> {
        self.pods.get(pod.path()).cloned().unwrap_or_default()
    }
}
