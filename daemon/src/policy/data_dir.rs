//! Which address directories a tenant's definition may name, decided on the path alone. That no link or mount leads elsewhere from
//! there is seen to when the directory is opened, by the root that is found here.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The parts of an absolute path, without empty ones and `.`; `None` for any other path and for one with `..`, whose parts
/// would say nothing about where it leads.
pub(super) fn components(path: &str) -> Option<Vec<&str>> {
    let relative = path.strip_prefix('/')?;
    let parts: Vec<&str> = relative.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let plain = |part: &&str| *part != ".." && !part.chars().any(char::is_control);
    parts.iter().all(plain).then_some(parts)
}

/// The root that the directory is or lies below, at no place where a network, an address or host-local's own files could be: a
/// directory there would stand in the way of somebody else's. Of several the nearest, which the administrator has named with
/// whatever leads to it.
pub(super) fn root_of<'r>(data_dir: &str, roots: &'r [PathBuf]) -> Option<&'r Path> {
    let wanted = components(data_dir)?;
    let below = |root: &Path| Some(wanted.strip_prefix(components(root.to_str()?)?.as_slice())?.len());
    let roots = roots.iter().filter_map(|root| Some((below(root)?, root.as_path())));
    let (depth, root) = roots.min_by_key(|(depth, _)| *depth)?;
    wanted.iter().rev().take(depth).all(is_free).then_some(root)
}

fn is_free(part: &&str) -> bool {
    let of_host_local = *part == "lock" || part.starts_with("last_reserved_ip.");
    !(of_host_local || part.contains('@') || part.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_dir_is_decided_part_by_part_on_the_normalised_path() {
        let roots = [PathBuf::from("/var/lib/cni/networks"), PathBuf::from("/data/")];
        for good in ["/var/lib/cni/networks", "//var/./lib/cni/networks/", "/data/radio", "/data/a/b"] {
            assert!(root_of(good, &roots).is_some(), "{good}");
        }
        let nested = [PathBuf::from("/data"), PathBuf::from("/data/disk/"), PathBuf::from("/data/disk/x/y")];
        assert_eq!(root_of("/data/disk/x", &nested), Some(Path::new("/data/disk/")));
        let bad = [
            "",
            "/",
            "/usr/bin",
            "data",
            "/database",
            "/var/lib/cni/networks-of-others",
            "/data/../etc",
            "/data/x/..",
            "/data/a\0b",
        ];
        for bad in bad {
            assert!(root_of(bad, &roots).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_data_dir_is_never_where_an_address_a_lock_or_another_namespaces_network_would_be() {
        let roots = [PathBuf::from("/data")];
        for bad in [
            "net/10.1.0.5",
            "net/fd00::5",
            "net/lock",
            "net/last_reserved_ip.0",
            "net@other/10.1.0.5",
            "net@other",
        ] {
            assert!(root_of(&format!("/data/{bad}"), &roots).is_none(), "{bad}");
        }
    }
}
