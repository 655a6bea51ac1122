//! On the real file system, beside the real reference plugin.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use fairlead_cni::CniError;
use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;

use super::*;
use crate::NothingPending;

const BOOT: &str = "6ad4ae67-5d19-4a22-b33d-6d09b3d6a2a0";

/// A network of the administrator's in the default directory.
pub(super) fn in_data(network: &str) -> NetworkDir {
    NetworkDir::of_administrator(DEFAULT_DATA_DIR, network)
}

/// A host in a temporary directory.
pub(super) struct Host {
    pub(super) dir: tempfile::TempDir,
    pub(super) ipam: HostLocal,
}

impl Host {
    pub(super) fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let ipam = ipam(dir.path(), BOOT);
        Host { dir, ipam }
    }

    pub(super) fn add(&self, config: &Config, id: &str) -> Result<Vec<String>, IpamError> {
        self.add_in(&NetworkDir::of_administrator(&config.data_dir, "pods"), config, id)
    }

    pub(super) fn add_in(
        &self,
        directory: &NetworkDir,
        config: &Config,
        id: &str,
    ) -> Result<Vec<String>, IpamError> {
        let request = LeaseRequest { directory, container_id: id, ifname: "eth0", reserved: &[] };
        let lease = self.ipam.allocate(config, &request, &NothingPending)?;
        Ok(lease.ips.iter().map(|ip| ip.address.to_string()).collect())
    }

    pub(super) fn add_requesting(
        &self,
        config: &Config,
        id: &str,
        ips: &[&str],
    ) -> Result<Vec<String>, IpamError> {
        let requested = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        self.add(&Config { requested, ..config.clone() }, id)
    }

    pub(super) fn pods(&self) -> PathBuf {
        self.dir.path().join("var/lib/cni/networks/pods")
    }

    pub(super) fn write(&self, name: &str, content: &str) {
        std::fs::create_dir_all(self.pods()).unwrap();
        std::fs::write(self.pods().join(name), content).unwrap();
    }

    pub(super) fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.pods())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn ipam(root: &Path, boot: &str) -> HostLocal {
    let state = root.join("state");
    std::fs::create_dir_all(&state).unwrap();
    HostLocal::new(root.into(), &state, boot).unwrap()
}

pub(super) fn small() -> Config {
    test_config::host_local(r#""ranges":[[{"subnet":"10.0.0.0/29"}]]"#)
}

#[test]
fn an_allocation_is_a_file_as_host_local_writes_it() {
    let host = Host::new();
    assert_eq!(host.add(&small(), "a").unwrap(), ["10.0.0.2/29"]);
    assert_eq!(host.files(), ["10.0.0.2", "last_reserved_ip.0", "lock"]);
    let file = host.pods().join("10.0.0.2");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a\r\neth0");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(host.pods().join("last_reserved_ip.0")).unwrap(), "10.0.0.2");
}

#[test]
fn a_file_is_the_same_where_the_file_system_has_no_nameless_files() {
    let host = Host::new();
    let root = HostRoot::new(host.dir.path().into());
    let background = Background::start(Box::new(|| false)).unwrap();
    let known = KnownFiles::default();
    let mut directory =
        OpenDir::open(&root, Path::new("/d"), BOOT.into(), &background, true, known).unwrap().unwrap();
    directory.without_nameless_files();
    let mut locked = directory.locked().unwrap().unwrap();
    assert!(locked.take("10.0.0.2".parse().unwrap(), "a\r\neth0").unwrap());
    assert!(!locked.take("10.0.0.2".parse().unwrap(), "b\r\neth0").unwrap());
    let ip = "10.0.0.2".parse().unwrap();
    assert_eq!(locked.index().get(ip).unwrap().content, "a\r\neth0");
    assert_eq!(locked.label(ip).as_deref(), Some(BOOT));
    assert_eq!(
        std::fs::metadata(host.dir.path().join("d/10.0.0.2")).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn d07_addresses_go_round_from_the_last_one() {
    let host = Host::new();
    for (id, ip) in [("a", "10.0.0.2/29"), ("b", "10.0.0.3/29"), ("c", "10.0.0.4/29")] {
        assert_eq!(host.add(&small(), id).unwrap(), [ip]);
    }
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 1);
    assert_eq!(host.add(&small(), "d").unwrap(), ["10.0.0.5/29"]);
    assert_eq!(host.add(&small(), "e").unwrap(), ["10.0.0.6/29"]);
    assert_eq!(host.add(&small(), "f").unwrap(), ["10.0.0.2/29"]);
}

#[test]
fn d07_an_exhausted_range_is_told_with_network_ranges_and_use() {
    let host = Host::new();
    for id in ["a", "b", "c", "d", "e"] {
        host.add(&small(), id).unwrap();
    }
    let error = CniError::from(host.add(&small(), "f").unwrap_err());
    assert_eq!(error.code, fairlead_cni::Code::TryAgain);
    assert_eq!(
        error.msg,
        "network \"pods\": failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.6 (5 of 5 in use)"
    );
    assert!(error.details.contains("gc --orphans"), "{}", error.details);
}

#[test]
fn a_second_address_for_the_same_interface_is_refused_as_the_reference_refuses_it() {
    let host = Host::new();
    host.add(&small(), "a").unwrap();
    let error = host.add(&small(), "a").unwrap_err().to_string();
    assert!(
        error.ends_with("10.0.0.2 has been allocated to a, duplicate allocation is not allowed"),
        "{error}"
    );
    host.write("10.0.0.5", "old");
    let error = host.add(&small(), "old").unwrap_err().to_string();
    assert!(error.contains("10.0.0.5 has been allocated to old"), "{error}");
}

#[test]
fn all_range_sets_or_none() {
    let host = Host::new();
    let config = test_config::host_local(
        r#""ranges":[[{"subnet":"10.0.0.0/29"}],[{"subnet":"fd00::/120","rangeStart":"fd00::5","rangeEnd":"fd00::5"}]]"#,
    );
    assert_eq!(host.add(&config, "a").unwrap(), ["10.0.0.2/29", "fd00::5/120"]);
    host.add(&config, "b").unwrap_err();
    assert_eq!(host.files(), ["10.0.0.2", "fd00::5", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
}

#[test]
fn a_failed_allocation_gives_back_what_it_took_and_nothing_else() {
    let host = Host::new();
    let only = test_config::host_local(r#""ranges":[[{"subnet":"10.1.0.0/29"}]]"#);
    host.add(&only, "a").unwrap();
    let both = test_config::host_local(r#""ranges":[[{"subnet":"10.0.0.0/29"}],[{"subnet":"10.1.0.0/29"}]]"#);
    assert!(matches!(host.add(&both, "a").unwrap_err(), IpamError::Duplicate { set: 1, .. }));
    assert_eq!(host.files(), ["10.1.0.2", "last_reserved_ip.0", "lock"]);
}

#[test]
fn requested_addresses_are_given_or_told_why_not() {
    let host = Host::new();
    let config =
        test_config::host_local(r#""ranges":[[{"subnet":"10.0.0.0/29"}],[{"subnet":"fd00::/120"}]]"#);
    assert_eq!(
        host.add_requesting(&config, "a", &["fd00::9", "10.0.0.4"]).unwrap(),
        ["10.0.0.4/29", "fd00::9/120"]
    );
    let told = |ips: &[&str]| host.add_requesting(&config, "b", ips).unwrap_err().to_string();
    assert!(
        told(&["10.0.0.4"]).ends_with(
            "requested IP address 10.0.0.4 is not available in range set 10.0.0.1-10.0.0.6 (it belongs to a eth0)"
        ),
        "{}",
        told(&["10.0.0.4"])
    );
    assert!(told(&["10.0.0.1"]).ends_with("requested ip 10.0.0.1 is subnet's gateway"));
    assert!(told(&["10.9.0.1", "10.0.0.5"]).ends_with("failed to allocate all requested IPs: 10.9.0.1"));
    assert!(told(&["10.0.0.5", "10.0.0.6"]).ends_with("failed to allocate all requested IPs: 10.0.0.6"));
    assert_eq!(host.files(), ["10.0.0.4", "fd00::9", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
}

#[test]
fn name_resolution_and_routes_come_with_the_lease() {
    let host = Host::new();
    std::fs::create_dir(host.dir.path().join("etc")).unwrap();
    std::fs::write(host.dir.path().join("etc/resolv.conf"), "nameserver 10.0.0.53\nsearch a b\n").unwrap();
    let config = test_config::host_local(
        r#""subnet":"10.0.0.0/29","resolvConf":"/etc/resolv.conf","routes":[{"dst":"0.0.0.0/0"}]"#,
    );
    let directory = &in_data("pods");
    let request = LeaseRequest { directory, container_id: "a", ifname: "eth0", reserved: &[] };
    let lease = host.ipam.allocate(&config, &request, &NothingPending).unwrap();
    assert_eq!(lease.dns.nameservers, ["10.0.0.53"]);
    assert_eq!(lease.dns.search, ["a", "b"]);
    assert_eq!(lease.routes.len(), 1);
    let config = test_config::host_local(r#""subnet":"10.0.0.0/29","resolvConf":"/etc/other""#);
    assert!(matches!(
        host.ipam.allocate(&config, &request, &NothingPending),
        Err(IpamError::ResolvConf { .. })
    ));
}

#[test]
fn k10_release_removes_every_file_of_this_interface_and_no_other() {
    let host = Host::new();
    host.write("10.0.0.2", "a\r\neth0");
    host.write("10.0.0.3", "a\r\neth1");
    host.write("10.0.0.4", "a\r\neth0\n");
    host.write("10.0.0.5", "a");
    host.write("10.0.0.6", "ab\r\neth0");
    host.write("note", "a\r\neth0");
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 2);
    assert_eq!(host.files(), ["10.0.0.3", "10.0.0.5", "10.0.0.6", "lock", "note"]);
    assert_eq!(
        host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(),
        1,
        "the old format, now that nothing else is left"
    );
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 0);
    assert_eq!(host.ipam.release(&in_data("other"), "a", "eth0").unwrap(), 0);
    assert!(!host.dir.path().join("var/lib/cni/networks/other").exists());
}

#[test]
fn x22_addresses_that_went_to_another_container_are_not_released() {
    let host = Host::new();
    host.write("10.0.0.2", "new\r\neth0");
    let ips = ["10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap()];
    assert_eq!(host.ipam.release_ips(&in_data("pods"), "old", "eth0", &ips).unwrap(), 0);
    assert_eq!(host.ipam.release_ips(&in_data("pods"), "new", "eth0", &ips).unwrap(), 1);
    assert_eq!(host.files(), ["lock"]);
}

#[test]
fn what_others_do_in_the_directory_is_seen() {
    let host = Host::new();
    assert_eq!(host.add(&small(), "a").unwrap(), ["10.0.0.2/29"]);
    host.write("10.0.0.3", "foreign\r\neth0");
    host.write("last_reserved_ip.0", "10.0.0.4");
    assert_eq!(host.add(&small(), "b").unwrap(), ["10.0.0.5/29"]);
    std::fs::remove_file(host.pods().join("10.0.0.2")).unwrap();
    assert_eq!(
        host.add(&small(), "a").unwrap(),
        ["10.0.0.6/29"],
        "the address of before is no duplicate any more"
    );
    assert_eq!(host.add(&small(), "c").unwrap(), ["10.0.0.2/29"]);
    host.ipam.check(&in_data("pods"), "foreign", "eth0").unwrap();
    let error = host.ipam.check(&in_data("pods"), "foreign", "eth1").unwrap_err();
    assert!(error.to_string().ends_with("host-local: Failed to find address added by container foreign"));
}

#[test]
fn check_sees_that_an_address_is_gone_whatever_time_its_directory_has() {
    let host = Host::new();
    host.add(&small(), "a").unwrap();
    host.ipam.check(&in_data("pods"), "a", "eth0").unwrap();
    let pods = std::fs::File::open(host.pods()).unwrap();
    let before = pods.metadata().unwrap().modified().unwrap();
    std::fs::remove_file(host.pods().join("10.0.0.2")).unwrap();
    pods.set_modified(before).unwrap();
    assert!(host.ipam.check(&in_data("pods"), "a", "eth0").is_err());
}

#[test]
fn a_directory_that_somebody_removed_or_emptied_is_made_anew() {
    let host = Host::new();
    host.add(&small(), "a").unwrap();
    std::fs::remove_dir_all(host.pods()).unwrap();
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 0);
    assert_eq!(host.add(&small(), "b").unwrap(), ["10.0.0.2/29"]);
    for name in host.files() {
        std::fs::remove_file(host.pods().join(name)).unwrap();
    }
    assert_eq!(host.add(&small(), "c").unwrap(), ["10.0.0.2/29"]);
    assert_eq!(host.files(), ["10.0.0.2", "last_reserved_ip.0", "lock"]);
}

#[test]
fn a_pending_removal_that_holds_the_last_address_is_hurried_once() {
    struct Removals<'a>(&'a Host, AtomicUsize);
    impl PendingRemovals for Removals<'_> {
        fn hurry(&self, directory: &NetworkDir, wanted: Option<IpAddr>) -> bool {
            assert_eq!(wanted, None, "none was asked for");
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.ipam.release(directory, "a", "eth0").unwrap() > 0
        }
    }
    let host = Host::new();
    for id in ["a", "b", "c", "d", "e"] {
        host.add(&small(), id).unwrap();
    }
    let directory = &in_data("pods");
    let request = |id| LeaseRequest { directory, container_id: id, ifname: "eth0", reserved: &[] };
    let removals = Removals(&host, AtomicUsize::new(0));
    let lease = host.ipam.allocate(&small(), &request("f"), &removals).unwrap();
    assert_eq!(lease.ips[0].address.to_string(), "10.0.0.2/29");
    assert!(matches!(
        host.ipam.allocate(&small(), &request("g"), &removals),
        Err(IpamError::Exhausted { .. })
    ));
    assert_eq!(removals.1.load(Ordering::Relaxed), 2);
}

#[test]
fn an_address_of_somebody_outside_the_directory_is_passed_over_and_a_range_of_nothing_else_is_exhausted() {
    let host = Host::new();
    let directory = &in_data("pods");
    // The gateway is none of those that a range has to give.
    let reserved: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "10.0.0.4"].map(|ip| ip.parse().unwrap()).into();
    let add = |id| -> Result<String, IpamError> {
        let request = LeaseRequest { directory, container_id: id, ifname: "eth0", reserved: &reserved };
        let lease = host.ipam.allocate(&small(), &request, &NothingPending)?;
        Ok(lease.ips[0].address.to_string())
    };
    for (id, ip) in [("a", "10.0.0.3/29"), ("b", "10.0.0.5/29"), ("c", "10.0.0.6/29")] {
        assert_eq!(add(id).unwrap(), ip);
    }
    let told = add("d").unwrap_err();
    assert!(told.to_string().contains("(5 of 5 in use)"), "{told}");
}

#[test]
fn x24_only_what_fairlead_made_before_the_reboot_is_released() {
    let host = Host::new();
    host.add(&small(), "a").unwrap();
    host.write("10.0.0.3", "reference\r\neth0");
    host.write("10.0.0.4", "");
    let [place] = &host.ipam.places()[..] else { panic!("one directory") };
    assert!(host.ipam.release_orphaned_by_reboot(place).allocations.is_empty(), "the boot is still the same");
    let after = ipam(host.dir.path(), "another-boot");
    assert_eq!(after.places(), std::slice::from_ref(place));
    let removed = after.release_orphaned_by_reboot(place);
    assert!(removed.errors.is_empty());
    assert_eq!(removed.allocations.len(), 1);
    assert_eq!(removed.allocations[0].file, "10.0.0.2");
    assert_eq!(removed.allocations[0].boot_id.as_deref(), Some(BOOT));
    let orphans = after.orphans(&in_data("pods"), &|_| false).unwrap();
    assert_eq!(orphans.iter().map(|o| o.file.as_str()).collect::<Vec<_>>(), ["10.0.0.3", "10.0.0.4"]);
    assert_eq!(orphans[1].owner, Owner::Nobody);
    let known = |owner: &Owner| matches!(owner, Owner::Attachment { container_id, .. } if container_id == "reference");
    assert_eq!(after.release_orphans(&in_data("pods"), &|of| known(&of.owner)).allocations.len(), 1);
    assert_eq!(host.files(), ["10.0.0.3", "last_reserved_ip.0", "lock"]);
}

#[test]
fn a_file_of_nothing_or_of_zeros_is_taken_away_if_it_is_provably_ours_and_told_otherwise() {
    for content in ["", "\0\0\0\0\0\0\0"] {
        let host = Host::new();
        host.write("10.0.0.2", content);
        host.write("10.0.0.3", content);
        let ours = std::fs::File::open(host.pods().join("10.0.0.2")).unwrap();
        rustix::fs::fsetxattr(&ours, boot_label::XATTR, BOOT.as_bytes(), rustix::fs::XattrFlags::empty())
            .unwrap();
        let orphans = host.ipam.orphans(&in_data("pods"), &|_| false).unwrap();
        assert_eq!(
            orphans.iter().map(|o| (o.file.as_str(), &o.owner)).collect::<Vec<_>>(),
            [("10.0.0.3", &Owner::Nobody)]
        );
        assert_eq!(host.add(&small(), "a").unwrap(), ["10.0.0.2/29"]);
        assert_eq!(host.add(&small(), "b").unwrap(), ["10.0.0.4/29"]);
    }
}

#[test]
fn no_error_contains_the_words_that_containerd_takes_for_success() {
    let source = io::Error::from_raw_os_error(2);
    let error = CniError::from(IpamError::Store { network: "n".into(), path: "/x".into(), source });
    assert_eq!(error.msg, "network \"n\": allocations in /x: missing (os error 2)");
}

#[test]
fn with_too_many_files_open_the_disk_is_not_blamed() {
    let source = || io::Error::from_raw_os_error(nix::libc::EMFILE);
    let (network, path) = (String::from("n"), PathBuf::from("/x"));
    for error in [
        IpamError::Store { network: network.clone(), path: path.clone(), source: source() },
        IpamError::UsedDirs { network: network.clone(), path: path.clone(), source: source() },
        IpamError::ResolvConf { network, path, source: source() },
    ] {
        let told = CniError::from(error);
        assert_eq!(told.code, fairlead_cni::Code::TryAgain, "{told:?}");
        assert!(told.details.starts_with("raise LimitNOFILE of fairleadd's service (now "), "{told:?}");
    }
}

#[test]
fn gc_keeps_what_is_valid_and_what_has_no_owner() {
    let host = Host::new();
    host.write("10.0.0.2", "a\r\neth0");
    host.write("10.0.0.3", "a\r\neth1");
    host.write("10.0.0.4", "");
    let valid = |owner: &Owner| matches!(owner, Owner::Attachment { ifname, .. } if ifname == "eth0");
    let removed = host.ipam.gc(&in_data("pods"), &valid);
    assert_eq!(removed.allocations.len(), 1);
    assert_eq!(host.files(), ["10.0.0.2", "10.0.0.4", "lock"]);
    assert!(host.ipam.gc(&in_data("absent"), &valid).errors.is_empty());
}

#[test]
fn a_full_file_system_fails_an_add_clean_and_still_lets_a_release_through() {
    // Threads may have mounts of their own: nobody else sees this one, and it goes with the thread.
    std::thread::spawn(|| {
        use nix::mount::{MsFlags, mount};
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS | nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let host = Host::new();
        std::fs::create_dir_all(host.pods()).unwrap();
        mount(Some("tmpfs"), &host.pods(), Some("tmpfs"), MsFlags::empty(), Some("nr_inodes=20")).unwrap();
        let both =
            test_config::host_local(r#""ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/120"}]]"#);
        let done: Vec<_> = (0..20).map(|n| host.add(&both, &format!("c{n}"))).collect();
        let refused = done.iter().position(Result::is_err).unwrap();
        let error = done[refused].as_ref().unwrap_err().to_string();
        assert!(refused > 2 && error.contains("No space left on device"), "{error}");
        assert_eq!(
            host.files().len(),
            2 * refused + 3,
            "lock, cursors, and two addresses of each that succeeded"
        );
        // A process that another test starts just now has what this one had open until it executes its program: room for two is made.
        for gone in ["c0", "c1"] {
            assert_eq!(host.ipam.release(&in_data("pods"), gone, "eth0").unwrap(), 2);
        }
        host.add(&both, "again").unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn of_many_who_wait_for_a_lock_that_another_process_holds_some_are_told_at_once_and_the_others_served() {
    let host = Host::new();
    host.add(&small(), "a").unwrap();
    let lock = std::fs::File::open(host.pods().join("lock")).unwrap();
    lock.lock().unwrap();
    let network = test_config::host_local(r#""subnet":"10.9.0.0/24""#);
    let (told, answered) = std::sync::mpsc::channel();
    let mut served = 0;
    std::thread::scope(|s| {
        for n in 0..20 {
            let (host, network, told) = (&host, &network, told.clone());
            s.spawn(move || told.send(host.add(network, &format!("w{n}"))).unwrap());
        }
        for _ in 0..12 {
            let error = answered.recv().unwrap().unwrap_err();
            assert_eq!(error.code(), fairlead_cni::Code::TryAgain);
            assert!(error.remedy().contains("lslocks"), "{}", error.remedy());
            let text = error.to_string();
            assert!(
                text.contains("another process has held the lock ") && text.contains("pods/lock for "),
                "{text}"
            );
        }
        lock.unlock().unwrap();
        for _ in 0..8 {
            served += usize::from(answered.recv().unwrap().is_ok());
        }
    });
    assert_eq!(served, 8);
    host.add(&network, "next").unwrap();
}

#[test]
fn names_that_would_leave_the_directory_are_refused() {
    let host = Host::new();
    for network in ["", ".", "..", "a/b", "a\nb"] {
        assert!(
            matches!(host.ipam.list(&in_data(network)), Err(IpamError::BadDirectory { .. })),
            "{network:?}"
        );
    }
    assert!(matches!(
        host.ipam.list(&NetworkDir::of_administrator("/a\tb", "pods")),
        Err(IpamError::BadDirectory { .. })
    ));
}

#[test]
#[ignore = "the process that k14_a_kill_at_any_step_leaves_nothing_after_a_release_by_id starts and kills"]
fn victim_of_a_kill() {
    let root = std::env::var("FAIRLEAD_IPAM_VICTIM").unwrap();
    let ipam = ipam(Path::new(&root), BOOT);
    let config =
        test_config::host_local(r#""ranges":[[{"subnet":"10.0.0.0/29"}],[{"subnet":"fd00::/120"}]]"#);
    let directory = &in_data("pods");
    let request = LeaseRequest { directory, container_id: "a", ifname: "eth0", reserved: &[] };
    ipam.allocate(&config, &request, &NothingPending).unwrap();
    ipam.release(&in_data("pods"), "a", "eth0").unwrap();
    panic!("the step was not reached");
}

#[test]
fn k14_a_kill_at_any_step_leaves_nothing_after_a_release_by_id() {
    for step in kill_steps::ALL {
        let host = Host::new();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "host_local::tests::victim_of_a_kill"])
            .env("FAIRLEAD_IPAM_VICTIM", host.dir.path())
            .env(kill_steps::VARIABLE, step)
            .output()
            .unwrap()
            .status;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{step}: {status}");
        let after = ipam(host.dir.path(), BOOT);
        for allocation in after.list(&in_data("pods")).unwrap() {
            let owner = Owner::Attachment { container_id: "a".into(), ifname: "eth0".into() };
            assert_eq!(allocation.owner, owner, "{step}: no half-written file is ever seen");
        }
        after.release(&in_data("pods"), "a", "eth0").unwrap();
        assert!(after.list(&in_data("pods")).unwrap().is_empty(), "{step}");
        assert!(
            host.files().iter().all(|f| f == "lock" || f.starts_with("last_reserved_ip.")),
            "{step}: {:?}",
            host.files()
        );
    }
}
