//! The findings on a node on which much is wrong.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::finding::{Verdict, report};

fn paths(dir: &Path) -> NodePaths {
    NodePaths::new(dir.join("run"), dir.join("state"), dir.into(), dir.join("config.yaml"))
}

#[test]
fn on_a_bare_directory_everything_that_is_missing_is_told_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let findings = examine(paths(dir.path()), TypedPaths::default());
    for about in ["daemon", "run directory", "state directory", "spool"] {
        let finding = findings.iter().find(|f| f.about == about).unwrap();
        assert_eq!(finding.verdict, Verdict::Wrong, "{finding:?}");
    }
    assert!(findings.iter().all(|f| f.verdict == Verdict::Good || !f.remedy.is_empty()));
    assert!(report(&findings).contains("WRONG  daemon"));
}

#[test]
fn what_was_set_aside_and_what_is_refused_is_told_by_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("state/spool/unreadable")).unwrap();
    fs::write(dir.path().join("state/spool/unreadable/7-1.json"), "?").unwrap();
    fs::create_dir_all(dir.path().join("state/attachments")).unwrap();
    fs::write(dir.path().join("state/attachments/0f.unreadable"), "?").unwrap();
    fs::write(dir.path().join("config.yaml"), "colour: red\n").unwrap();
    fs::create_dir_all(dir.path().join("etc/cni/net.d")).unwrap();
    fs::write(dir.path().join("etc/cni/net.d/10-bad.conflist"), "{").unwrap();
    let unplugged =
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","master":"unplugged0"}]}"#;
    fs::write(dir.path().join("etc/cni/net.d/20-unplugged.conflist"), unplugged).unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    fs::write(dir.path().join("run/attachments.damaged-6ad4ae67"), "?").unwrap();
    let noted = dir.path().join("var/lib/cni/sriov/pci");
    fs::create_dir_all(&noted).unwrap();
    fs::write(noted.join("0000:21:10.0"), "/run/netns/p").unwrap();
    fs::write(noted.join("../c1-net1"), "{").unwrap();
    let findings = examine(paths(dir.path()), TypedPaths::default());
    let of_sriov_cni: Vec<_> = findings.iter().filter(|f| f.about == "sriov-cni").collect();
    assert_eq!(of_sriov_cni[0].seen, "VFs that it noted as pods': 1: 0000:21:10.0 (/run/netns/p)");
    assert!(of_sriov_cni[1].seen.starts_with("can't be read: /var/lib/cni/sriov/c1-net1 ("));
    let seen = |about| findings.iter().find(|f: &&Finding| f.about == about).unwrap().seen.clone();
    assert!(seen("spool").contains("7-1.json"));
    assert!(seen("store").contains("attachments.damaged-6ad4ae67"));
    assert!(seen("records").contains("attachments/0f.unreadable"));
    assert!(report(&findings).contains("never get their DEL"));
    assert!(!findings.iter().any(|f| f.remedy.contains("  ")), "{findings:?}");
    assert!(seen("configuration").contains("colour"));
    assert!(seen("networks").contains("10-bad.conflist"));
    assert!(findings.iter().any(|f| f.seen == "n: the host has no interface unplugged0, its master"));
}

#[test]
fn directories_that_are_not_the_hosts_are_told_and_nothing_in_them_is_called_good() {
    let (dir, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for directory in ["etc/cni/net.d", "opt/cni/bin"] {
        for root in [&dir, &host] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
    }
    fs::create_dir_all(dir.path().join("proc/1")).unwrap();
    let root = dir.path().join("proc/1/root");
    let told = |about: &str| -> Vec<Finding> {
        let findings = examine(paths(dir.path()), TypedPaths::default());
        findings.into_iter().filter(|finding| finding.about == about).collect()
    };
    symlink(host.path(), &root).unwrap();
    for (about, directories) in
        [("executables", &["/opt/cni/bin"][..]), ("runtime", &["/etc/cni/net.d", "/opt/cni/bin"][..])]
    {
        let found = told(about);
        assert_eq!(found.len(), directories.len(), "{found:?}");
        for (finding, directory) in found.iter().zip(directories) {
            let seen = format!("is not the directory that the host has at {directory}: ");
            assert!(finding.verdict == Verdict::Wrong && finding.seen.contains(&seen), "{finding:?}");
            assert!(finding.remedy.contains("restart the container"), "{finding:?}");
        }
    }
    fs::remove_file(&root).unwrap();
    symlink(dir.path(), &root).unwrap();
    let found = [told("executables"), told("runtime")].concat();
    assert!(found.iter().all(|finding| finding.verdict != Verdict::Wrong), "{found:?}");
}

#[test]
fn the_kinds_of_links_that_this_kernel_has_are_told() {
    let findings = kinds();
    assert_eq!(findings.len(), KERNEL_KINDS.len(), "{findings:?}");
    // Every kernel that this is built on has macvlan (README).
    assert_eq!(findings[0], good("link kinds", "macvlan"));
}

#[test]
fn x02_a_spool_that_is_no_directory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("state")).unwrap();
    let spool = |findings: &[Finding]| findings.iter().find(|f| f.about == "spool").unwrap().clone();
    for what in ["state/spool", "state/spool/unreadable"] {
        fs::write(dir.path().join(what), "?").unwrap();
        let told = spool(&examine(paths(dir.path()), TypedPaths::default()));
        assert_eq!(told.verdict, Verdict::Wrong, "{told:?}");
        assert!(told.seen.contains("Not a directory"), "{told:?}");
        fs::remove_file(dir.path().join(what)).unwrap();
        fs::create_dir_all(dir.path().join("state/spool")).unwrap();
    }
    assert_eq!(spool(&examine(paths(dir.path()), TypedPaths::default())).verdict, Verdict::Good);
}

#[test]
fn k19_a_daemon_that_never_answers_is_one_finding_among_the_others_and_soon_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    fs::write(dir.path().join("run/lock"), "4711\n").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(dir.path().join("run").join(SOCKET)).unwrap();
    let full = || {
        let begun = std::time::Instant::now();
        let findings = examine(paths(dir.path()), TypedPaths::default());
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
        let told = findings.iter().find(|f| f.about == "daemon").unwrap();
        assert!(told.seen.contains("fairleadd (pid 4711) does not answer"), "{told:?}");
        assert!(told.remedy.contains("kill -CONT"), "{told:?}");
        assert!(findings.iter().any(|f| f.about == "configuration" && f.verdict == Verdict::Good));
    };
    full();
    // Nor when its queue of connections is full: the one of before is still in it.
    nix::sys::socket::listen(&socket, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    full();
}

/// VFs under vfio-pci by number and IOMMU group.
fn vfs(sysfs: &Path, vfs: &[(u32, u32)]) {
    let devices = sysfs.join("bus/pci/devices");
    let pf = devices.join("0000:21:00.0");
    fs::create_dir_all(&pf).unwrap();
    for (file, text) in
        [("sriov_totalvfs", "7"), ("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x10c9")]
    {
        fs::write(pf.join(file), text).unwrap();
    }
    for (number, group) in vfs {
        let address = format!("0000:21:10.{number}");
        let vf = devices.join(&address);
        let members = sysfs.join("kernel/iommu_groups").join(group.to_string()).join("devices");
        fs::create_dir_all(&vf).unwrap();
        fs::create_dir_all(&members).unwrap();
        fs::write(vf.join("vendor"), "0x8086").unwrap();
        fs::write(vf.join("device"), "0x10ca").unwrap();
        symlink("../0000:21:00.0", vf.join("physfn")).unwrap();
        symlink("../../../bus/pci/drivers/vfio-pci", vf.join("driver")).unwrap();
        symlink(format!("../../../../kernel/iommu_groups/{group}"), vf.join("iommu_group")).unwrap();
        symlink(&vf, members.join(&address)).unwrap();
        symlink(format!("../{address}"), pf.join(format!("virtfn{number}"))).unwrap();
    }
}

#[test]
fn what_pods_that_are_not_root_need_for_vfio_is_told_and_what_no_pod_can_have() {
    let dir = tempfile::tempdir().unwrap();
    let (sysfs, nodes) = (dir.path().join("sys"), dir.path().join("vfio"));
    fs::create_dir_all(&nodes).unwrap();
    fs::create_dir_all(sysfs.join("bus/pci/devices")).unwrap();
    assert_eq!(vfio::findings(&sysfs, &nodes), []);
    vfs(&sysfs, &[(0, 19), (2, 20), (4, 21), (6, 22)]);
    fs::write(nodes.join("19"), "").unwrap();
    fs::set_permissions(nodes.join("19"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(nodes.join("20"), "").unwrap();
    fs::set_permissions(nodes.join("20"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::write(nodes.join("noiommu-21"), "").unwrap();
    let findings = vfio::findings(&sysfs, &nodes);
    let seen: Vec<_> =
        findings.iter().map(|f| (f.verdict, f.seen.replace(dir.path().to_str().unwrap(), ""))).collect();
    assert_eq!(
        seen,
        [
            (
                Verdict::Less,
                "0000:21:10.4 is behind no IOMMU (noiommu-21): only a pool may give it out".to_owned()
            ),
            (Verdict::Wrong, "0000:21:10.6 has no node /dev/vfio/22".to_owned()),
            (Verdict::Less, "/dev/vfio/19: root's alone".to_owned()),
        ]
    );
    assert!(findings[2].remedy.contains("memlock") && findings.iter().all(|f| !f.remedy.contains("  ")));
}
