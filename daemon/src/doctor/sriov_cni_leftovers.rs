//! What sriov-cni has left on the node, as long as something is left of it.

use std::path::Path;

use fairlead_host::host_root::HostRoot;

use crate::engine::kinds::sriov_cni_import::files::{self, DIRECTORY, SriovCniFiles};
use crate::finding::{Finding, less, wrong};

const ABOUT: &str = "sriov-cni";

pub(super) fn findings(host_root: &Path) -> Vec<Finding> {
    match files::read_all(&HostRoot::new(host_root.to_owned())) {
        Ok(left) => [with_pods(&left), unreadable(&left)].into_iter().flatten().collect(),
        Err(error) => {
            let remedy = "no VF is handed out: make it a directory that root can read, or remove it if no pod is left of that plugin";
            vec![wrong(ABOUT, format!("{DIRECTORY}: {error}"), remedy)]
        }
    }
}

fn with_pods(left: &SriovCniFiles) -> Option<Finding> {
    let vfs = left.vfs();
    let listed: Vec<String> = vfs.iter().map(|(device, pod)| format!("{device} ({pod})")).collect();
    let seen = format!("VFs that it noted as pods': {}: {}", vfs.len(), listed.join(", "));
    let remedy = "each is handed out again after its pod's DEL, or when that pod's namespace is gone; nothing is to be done";
    (!vfs.is_empty()).then(|| less(ABOUT, seen, remedy))
}

fn unreadable(left: &SriovCniFiles) -> Option<Finding> {
    let listed: Vec<String> =
        left.unreadable.iter().map(|(name, why)| format!("{DIRECTORY}/{name} ({why})")).collect();
    let remedy = "no DEL brings the VF of such a file home: when its pod is gone, give it its name and settings back by hand and remove the file";
    (!listed.is_empty()).then(|| wrong(ABOUT, format!("can't be read: {}", listed.join(", ")), remedy))
}
