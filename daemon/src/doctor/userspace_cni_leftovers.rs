//! What userspace-cni has left on the node beside its ports of OVS. No DEL of ours takes it away: a pod that it attached may still use it.

use std::path::Path;

use fairlead_host::HostRoot;

use crate::few_names::a_few_of;
use crate::finding::{Finding, less};

const ABOUT: &str = "userspace-cni";
/// Where it mounts a pod's volume whose own path is too long for a socket, by the pod's uid. Others keep sockets there as well.
const MOUNTS: &str = "/var/lib/vhost_sockets";
/// Where it notes of each interface which port it made, in a file `local-<first 12 of the container's id>-<interface>.json`.
const NOTES: &str = "/var/lib/cni/usrspcni/data";
/// So many entries of each are looked at.
const MOST: usize = 10_000;

pub(super) fn findings(host_root: &Path) -> Vec<Finding> {
    // A container of ours has the directory of the mounts not mounted.
    let root = HostRoot::whole(host_root);
    let told = |directory: &str, is_its: fn(&str) -> bool, what: &str, remedy: &str| {
        // There is none where that plugin never was.
        let names = root.names_in(Path::new(directory), MOST).unwrap_or_default();
        let left: Vec<String> =
            names.iter().filter(|name| is_its(name)).map(|name| format!("{directory}/{name}")).collect();
        (!left.is_empty()).then(|| less(ABOUT, format!("{what}: {}", a_few_of(&left)), remedy))
    };
    let mounts = told(
        MOUNTS,
        is_uid,
        "directories by which OVS reaches pods' sockets",
        "leave that of a pod that is there; of one that is no more umount it and remove it (docs/vhost-user.md)",
    );
    let notes = told(
        NOTES,
        is_note,
        "notes of pods' ports",
        "leave that of a pod that is there; of one that is no more remove the port that it names (vhostname) and the file (docs/vhost-user.md)",
    );
    mounts.into_iter().chain(notes).collect()
}

/// Whether it is a pod's uid, or that of a static pod, which has no hyphens.
fn is_uid(name: &str) -> bool {
    matches!(name.len(), 32 | 36) && name.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn is_note(name: &str) -> bool {
    name.strip_prefix("local-").is_some_and(|rest| rest.strip_suffix(".json").is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fairlead_host::host_root::below;

    use super::*;

    #[test]
    fn its_mounts_and_notes_are_told_by_path_and_sockets_of_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(findings(dir.path()).is_empty());
        let [mounts, notes] = [MOUNTS, NOTES].map(|path| below(dir.path(), Path::new(path)));
        fs::create_dir_all(mounts.join("0c5f3a1e-7a58-4a0e-9a0f-0d6a1f2b3c4d")).unwrap();
        fs::write(mounts.join("vhu0a1b2c3d-4e"), "").unwrap();
        fs::create_dir_all(&notes).unwrap();
        fs::write(notes.join("local-0958c8871b32-net1.json"), "{}").unwrap();
        let told = findings(dir.path());
        let seen: Vec<&str> = told.iter().map(|finding| finding.seen.as_str()).collect();
        let wanted = [
            format!(
                "directories by which OVS reaches pods' sockets: {MOUNTS}/0c5f3a1e-7a58-4a0e-9a0f-0d6a1f2b3c4d"
            ),
            format!("notes of pods' ports: {NOTES}/local-0958c8871b32-net1.json"),
        ];
        assert_eq!(seen, wanted);
    }
}
