//! Where kubelet and the runtime have a mount namespace of their own: whether the daemon, or what it executes, is in it.

use std::path::Path;

use fairlead_host::runtime_mounts::{EncapsulatedMounts, encapsulated};

use crate::finding::{Finding, good, less, wrong};
use crate::operator_client::living_holder;

const ABOUT: &str = "mount namespace";

/// What is to be said; nothing where kubelet and the runtime are in that of the host's first process.
pub(super) fn finding(host_root: &Path, socket: &Path) -> Option<Finding> {
    let mounts = match encapsulated(host_root) {
        Ok(mounts) => mounts?,
        Err(error) => return Some(less(ABOUT, error.to_string(), "run it as root")),
    };
    if host_root != Path::new("/") {
        let seen =
            format!("plugins are executed in {}, that of kubelet and the runtime", mounts.path.display());
        return Some(good(ABOUT, seen));
    }
    Some(of_daemon(&mounts, living_holder(socket)?))
}

/// The daemon runs as a process of the host: it has the mounts that it was started with.
fn of_daemon(mounts: &EncapsulatedMounts, pid: u32) -> Finding {
    let place = mounts.path.display();
    match mounts.has(pid) {
        Ok(true) => good(ABOUT, format!("the daemon is in {place}, that of kubelet and the runtime")),
        Ok(false) => wrong(
            ABOUT,
            format!(
                "the daemon is not in {place}, that of kubelet and the runtime: it sees no pod's namespace"
            ),
            "have its unit enter it (docs/install.md, \"Mounts of kubelet's own\")",
        ),
        Err(error) => less(ABOUT, format!("that of the daemon (pid {pid}): {error}"), "run it as root"),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_host::scratch_mounts::with_mounts_bound_at;
    use nix::sched::{CloneFlags, setns};
    use nix::unistd::gettid;

    use super::*;
    use crate::finding::Verdict;

    #[test]
    fn kubelets_own_mount_namespace_is_told_and_a_daemon_that_is_not_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let bound = dir.path().join("run/kubens/mnt");
        let looked = || finding(dir.path(), &dir.path().join("fairlead.sock"));
        let judge = || {
            let mounts = encapsulated(dir.path()).unwrap().unwrap();
            let of_this_thread = || of_daemon(&mounts, gettid().as_raw().try_into().unwrap());
            let outside = of_this_thread();
            let of_plugins = looked().unwrap();
            setns(&mounts.namespace, CloneFlags::CLONE_NEWNS).unwrap();
            (of_plugins, outside, of_this_thread())
        };
        assert_eq!(looked(), None);
        let (of_plugins, outside, inside) = with_mounts_bound_at(&bound, judge).unwrap();
        let seen = "plugins are executed in /run/kubens/mnt, that of kubelet and the runtime";
        assert_eq!(of_plugins, good(ABOUT, seen));
        assert_eq!(
            (outside.verdict, inside.verdict),
            (Verdict::Wrong, Verdict::Good),
            "{outside:?} {inside:?}"
        );
        assert_eq!(looked(), None, "the service has stopped, its file is still there");
    }
}
