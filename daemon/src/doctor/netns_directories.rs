//! Whether the daemon sees the namespaces that a runtime makes later: it opens each by the path that the runtime names.

use std::fs;
use std::path::Path;

use fairlead_host::host_root::{HostRoot, unmounted_root};

use crate::finding::{Finding, good, less, wrong};

const ABOUT: &str = "mount propagation";
/// Where runtimes make namespaces. On most nodes the second leads to the first; on some (Talos) it is a directory of its own.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// In a container each has to be the host's, and what the runtime mounts there later must become visible.
pub(super) fn findings(host_root: &Path) -> Vec<Finding> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let host = unmounted_root(host_root).map(HostRoot::new);
    let judge = |directory: &str| judged(Path::new(directory), host.as_ref(), &mounts);
    let mut findings: Vec<Finding> = DIRECTORIES.into_iter().filter_map(judge).collect();
    // Of both names of one directory.
    findings.dedup();
    if findings.is_empty() {
        findings.push(good(ABOUT, "new namespaces become visible"));
    }
    findings
}

/// What is wrong with a directory. `host`: the host's root, where this is a container; `mounts`: what is mounted here, as the kernel
/// lists it in `mountinfo`.
fn judged(directory: &Path, host: Option<&HostRoot>, mounts: &str) -> Option<Finding> {
    if host.is_some_and(|host| host.is_same(directory, directory) == Some(false)) {
        let seen = format!("{} here is not the host's: no namespace in it is seen", directory.display());
        let remedy = "mount the host's at the same path, with mountPropagation HostToContainer";
        return Some(wrong(ABOUT, seen, remedy));
    }
    let real = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    is_private(&real, mounts).then(|| {
        let seen = format!("the mount that holds {} is private", real.display());
        less(
            ABOUT,
            seen,
            "in a container: mountPropagation HostToContainer; on the host itself it does not matter",
        )
    })
}

/// Whether what is mounted at a directory, or at the closest one above it, gets no mounts of the host's.
fn is_private(directory: &Path, mounts: &str) -> bool {
    let above = mounts.lines().filter(|line| directory.starts_with(mounted_at(line)));
    // The last line wins, as the kernel's order has it.
    let closest = above.max_by_key(|line| mounted_at(line).len());
    closest.is_none_or(|line| !line.contains(" shared:") && !line.contains(" master:"))
}

fn mounted_at(line: &str) -> &str {
    line.split(' ').nth(4).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    const MOUNTS: &str = "20 1 0:1 / / rw master:1 - overlay overlay rw\n\
                          21 20 0:2 /netns /run/netns rw master:2 - tmpfs tmpfs rw\n\
                          22 20 0:2 /netns /var/run/netns rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_directory_of_namespaces_whose_mount_is_private_is_told_by_name_and_the_other_is_not() {
        assert!(!is_private(Path::new("/run/netns"), MOUNTS));
        assert!(is_private(Path::new("/var/run/netns"), MOUNTS));
        let (closest, _) = MOUNTS.split_once("21 ").unwrap();
        assert!(!is_private(Path::new("/var/run/netns"), closest), "the mount above it counts");
        assert!(is_private(Path::new("/run/netns"), ""));
    }

    #[test]
    fn a_directory_of_namespaces_that_is_another_one_on_the_host_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let (here, host) = (dir.path().join("netns"), dir.path().join("host"));
        let on_host = host.join(here.strip_prefix("/").unwrap());
        let told = |root: &Path| judged(&here, Some(&HostRoot::new(root.to_owned())), MOUNTS);
        fs::create_dir(&host).unwrap();
        assert_eq!(told(&host), None, "the host has none");
        fs::create_dir_all(&on_host).unwrap();
        assert_eq!(told(&host).unwrap().verdict, Verdict::Wrong, "the container has none");
        fs::create_dir(&here).unwrap();
        let other = told(&host).unwrap();
        assert!(
            other.verdict == Verdict::Wrong && other.seen.ends_with("no namespace in it is seen"),
            "{other:?}"
        );
        assert_eq!(told(Path::new("/")), None, "the same");
    }
}
