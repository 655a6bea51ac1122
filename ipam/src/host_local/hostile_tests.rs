//! Directories in which somebody else may write, on the real file system: nothing of the host is touched, no call is kept, and
//! memory and descriptors are bounded.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::tests::{Host, in_data, small};
use super::*;
use crate::NothingPending;

/// A longer call hangs.
const HANGS: Duration = Duration::from_secs(20);

/// What a call answers, which it must do by itself.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = channel();
    std::thread::spawn(move || sender.send(work()));
    done.recv_timeout(HANGS).expect("the call hangs")
}

fn refused(host: &Host, add: impl FnOnce(&Host) -> Result<Vec<String>, IpamError>, what: &str) {
    let told = CniError::from(add(host).unwrap_err());
    assert_eq!(told.code, Code::InvalidConfig, "{told}");
    assert!(told.msg.contains(what) && told.details.contains("`dataDir`"), "{told} | {}", told.details);
}

/// Puts something at a path that a tenant can write to; the other path is a file of the host.
type Trick = fn(&Path, &Path);

/// What a tenant can put in its directory, and what it is called.
const TRICKS: [(&str, Trick); 7] = [
    ("is a symbolic link", |at, victim| symlink(victim, at).unwrap()),
    ("is one of 2 names of a file", |at, victim| fs::hard_link(victim, at).unwrap()),
    ("is a FIFO", |at, _| nix::unistd::mkfifo(at, Mode::S_IRWXU).unwrap()),
    ("is a device", |at, _| mknod(at, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).unwrap()),
    ("is a directory", |at, _| fs::create_dir(at).unwrap()),
    ("is a socket", |at, _| drop(UnixListener::bind(at).unwrap())),
    ("is a file of uid 1000", |at, _| {
        fs::write(at, "").unwrap();
        chown(at, Some(1000), None).unwrap();
    }),
];

#[test]
fn whatever_has_the_name_of_the_lock_of_a_cursor_or_of_an_address_no_host_file_changes_and_no_call_waits() {
    for (what, trick) in TRICKS {
        for name in ["lock", "last_reserved_ip.0", "10.0.0.2"] {
            let told = format!("{name:?} {what}");
            within(move || {
                let host = Host::new();
                let victim = host.dir.path().join("victim");
                fs::write(&victim, "of the host").unwrap();
                fs::create_dir_all(host.pods()).unwrap();
                trick(&host.pods().join(name), &victim);
                match name {
                    // The others are in its place for good: the address is somebody's, and the next one is given.
                    "10.0.0.2" => {
                        assert_eq!(host.add(&small(), "a").unwrap(), ["10.0.0.3/29"], "{told}");
                        host.add_requesting(&small(), "b", &["10.0.0.2"]).unwrap_err();
                    }
                    _ => refused(&host, |host| host.add(&small(), "a"), &told),
                }
                let released = host.ipam.release(&in_data("pods"), "a", "eth0");
                let released_ip =
                    host.ipam.release_ips(&in_data("pods"), "a", "eth0", &["10.0.0.2".parse().unwrap()]);
                let both = match name {
                    "lock" => vec![released.unwrap_err(), released_ip.unwrap_err()],
                    "10.0.0.2" => vec![released_ip.unwrap_err()],
                    _ => vec![],
                };
                for error in both {
                    assert!(
                        error.to_string().contains(&told) && error.code() == Code::InvalidConfig,
                        "{error}"
                    );
                }
                assert_eq!(fs::read_to_string(&victim).unwrap(), "of the host", "{told}");
                assert!(!host.pods().join("10.0.0.1").exists());
            });
        }
    }
}

#[test]
fn a_link_on_the_way_to_the_data_dir_is_followed_as_the_administrator_made_it() {
    let host = Host::new();
    let real = host.dir.path().join("run/cni-ipam-state");
    fs::create_dir_all(&real).unwrap();
    fs::create_dir_all(host.dir.path().join("var/lib")).unwrap();
    symlink("/run/cni-ipam-state", host.dir.path().join("var/lib/cni")).unwrap();
    assert_eq!(host.add(&small(), "a").unwrap(), ["10.0.0.2/29"]);
    assert!(real.join("networks/pods/10.0.0.2").exists());
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 1);
}

#[test]
fn below_a_root_neither_a_symbolic_link_nor_a_mount_is_entered_by_any_call_and_the_root_itself_may_be_a_link()
{
    let host = Host::new();
    let at = |name: &str| host.dir.path().join(name);
    for dir in ["real", "outside/net@a"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    symlink("/real", at("root")).unwrap();
    let below = |data_dir: &str| NetworkDir {
        root: Some("/root".into()),
        ..NetworkDir::of_administrator(data_dir, "net@a")
    };
    let add = |directory: &NetworkDir| {
        let request = LeaseRequest { directory, container_id: "a", ifname: "eth0", reserved: &[] };
        host.ipam.allocate(&small(), &request, &NothingPending)
    };
    let tenants = below("/root/radio");
    add(&tenants).unwrap();
    assert!(at("real/radio/net@a/10.0.0.2").exists());
    // After a restart, and by whoever may write below the root: the same place leads elsewhere.
    let host_after = HostLocal::new(host.dir.path().into(), &at("state"), "another boot").unwrap();
    assert_eq!(host_after.places(), std::slice::from_ref(&tenants));
    assert_eq!(host_after.place("/root/radio", "net@a"), Some(tenants.clone()));
    fs::rename(at("real/radio"), at("taken")).unwrap();
    fs::write(at("outside/net@a/10.0.0.2"), "a\r\neth0").unwrap();
    let files = || fs::read_dir(at("outside/net@a")).unwrap().count();
    let every_call = || {
        let request = LeaseRequest { directory: &tenants, container_id: "b", ifname: "eth0", reserved: &[] };
        let ips = ["10.0.0.2".parse().unwrap()];
        let ipam = &host_after;
        let mut errors = vec![
            ipam.allocate(&small(), &request, &NothingPending).unwrap_err(),
            ipam.release(&tenants, "a", "eth0").unwrap_err(),
            ipam.release_ips(&tenants, "a", "eth0", &ips).unwrap_err(),
            ipam.check(&tenants, "a", "eth0").unwrap_err(),
            ipam.list(&tenants).unwrap_err(),
        ];
        errors.extend(ipam.gc(&tenants, &|_| false).errors);
        errors.extend(ipam.release_orphans(&tenants, &|_| false).errors);
        errors.extend(ipam.release_orphaned_by_reboot(&tenants).errors);
        let status = ipam.writable(&tenants).unwrap_err().to_string();
        (errors.into_iter().map(CniError::from).collect::<Vec<_>>(), status)
    };
    symlink("/outside", at("real/radio")).unwrap();
    let by_link = every_call();
    fs::remove_file(at("real/radio")).unwrap();
    fs::create_dir(at("real/radio")).unwrap();
    let none: Option<&str> = None;
    mount(Some(&at("outside")), &at("real/radio"), none, MsFlags::MS_BIND, none).unwrap();
    let by_mount = every_call();
    umount2(&at("real/radio"), MntFlags::MNT_DETACH).unwrap();
    for ((errors, status), what) in [(by_link, "a symbolic link"), (by_mount, "a mount")] {
        assert_eq!(errors.len(), 8, "{what}");
        let told = format!("\"/root/radio\" is {what}, and leads out of \"/root\"");
        assert_eq!(status, told);
        for error in errors {
            assert!(error.msg.contains(&told) && error.msg.contains("network \"net@a\""), "{error}");
            assert!(
                error.code == Code::InvalidConfig && error.details.contains("`policy.dataDirRoots`"),
                "{error:?}"
            );
        }
    }
    assert_eq!(files(), 1, "nothing was made or removed there");
    fs::remove_dir(at("real/radio")).unwrap();
    fs::rename(at("taken"), at("real/radio")).unwrap();
    assert_eq!(host_after.release(&tenants, "a", "eth0").unwrap(), 1);
}

#[test]
fn below_a_root_no_directory_of_another_network_has_a_tenants_in_it() {
    let host = Host::new();
    let of_node = NetworkDir::of_administrator("/root", "storage");
    let add = |directory: &NetworkDir| {
        let request = LeaseRequest { directory, container_id: "a", ifname: "eth0", reserved: &[] };
        host.ipam.allocate(&small(), &request, &NothingPending)
    };
    add(&of_node).unwrap();
    for data_dir in ["/root/storage", "/root/storage/", "/root/storage/deep/er"] {
        let root = Some("/root".into());
        let error = add(&NetworkDir { root, ..NetworkDir::of_administrator(data_dir, "net@a") }).unwrap_err();
        let error = CniError::from(error);
        let told = "is the directory of another network's addresses";
        assert!(error.msg.contains("\"/root/storage") && error.msg.contains(told), "{error}");
        assert_eq!(error.code, Code::InvalidConfig);
    }
    let files = fs::read_dir(host.dir.path().join("root/storage")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["10.0.0.2", "last_reserved_ip.0", "lock"]);
    let root = Some("/root".into());
    add(&NetworkDir { root, ..NetworkDir::of_administrator("/root/others/deep", "net@a") }).unwrap();
}

#[test]
fn the_reference_plugins_files_of_any_mode_are_read_and_written() {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o600, 0o644, 0o750] {
        let host = Host::new();
        for (name, content) in [("lock", ""), ("last_reserved_ip.0", "10.0.0.3"), ("10.0.0.4", "a\r\neth0")] {
            host.write(name, content);
            fs::set_permissions(host.pods().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(host.add(&small(), "b").unwrap(), ["10.0.0.5/29"]);
        assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 1);
    }
}

/// What this process has resident, in bytes.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn of_a_directory_full_of_other_files_none_is_read_and_nothing_is_kept() {
    let host = Host::new();
    fs::create_dir_all(host.pods()).unwrap();
    let long = vec![b'x'; 64 << 10];
    for n in 0..1500 {
        fs::write(host.pods().join(format!("program-{n}")), &long).unwrap();
        fs::write(host.pods().join(format!("10.9.{}.{}", n / 250, n % 250)), &long).unwrap();
    }
    let before = resident();
    assert_eq!(host.add(&small(), "a").unwrap(), ["10.0.0.2/29"]);
    let taken = resident().saturating_sub(before);
    assert!(taken < 48 << 20, "{} MiB of memory for 190 MiB of files", taken >> 20);
    let listed = host.ipam.list(&in_data("pods")).unwrap();
    assert_eq!(listed.len(), 1501, "addresses, and nothing else");
    assert!(listed[1..].iter().all(|other| other.owner == Owner::Nobody), "no allocation is so long");
}

/// The descriptors of this process that lead into a directory.
fn descriptors(dir: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter_map(|fd| fs::read_link(fd.path()).ok()).filter(|path| path.starts_with(dir)).count()
}

/// One range set for each of so many subnets.
fn sets(count: usize) -> Config {
    let set = |n: usize| format!(r#"[{{"subnet":"10.{}.{}.0/29"}}]"#, n / 256, n % 256);
    let sets: Vec<String> = (0..count).map(set).collect();
    test_config::host_local(&format!(r#""ranges":[{}]"#, sets.join(",")))
}

#[test]
fn thousands_of_range_sets_cost_few_descriptors_and_an_idle_directory_costs_none() {
    let host = Host::new();
    assert_eq!(host.add(&sets(2000), "a").unwrap().len(), 2000);
    assert!(descriptors(&host.pods()) < 64, "{}", descriptors(&host.pods()));
    let until = Instant::now() + HANGS;
    while descriptors(&host.pods()) > 0 {
        assert!(Instant::now() < until, "{} descriptors stay", descriptors(&host.pods()));
        std::thread::sleep(Duration::from_millis(50));
    }
    // It goes on where it was.
    assert_eq!(host.add(&sets(1), "b").unwrap(), ["10.0.0.3/29"]);
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 2000);
}

#[test]
fn nothing_stays_open_for_a_store_that_is_gone() {
    let gone = |host: Host| {
        host.add(&small(), "a").unwrap();
        let directories = Arc::downgrade(&host.ipam.directories);
        drop(host.ipam);
        directories.strong_count() == 0
    };
    // The thread may be in the middle of a look once, not each time.
    assert!((0..20).any(|_| gone(Host::new())), "the thread keeps the directories");
}

#[test]
fn what_is_known_of_a_directory_that_is_used_no_more_goes_when_others_need_the_memory() {
    let dirs = NetworkDirs::default();
    let name = |n: usize| NetworkDir::of_administrator("/d", &n.to_string());
    for n in 0..8 {
        let shared = dirs.get(&name(n));
        let mut files = shared.files.take().unwrap();
        files.known.fill_for_test(20 << 20);
        dirs.account(files);
        let sum: usize = dirs.all().iter().map(|one| one.files.take().unwrap().size()).sum();
        assert!(sum <= 84 << 20, "{} MiB", sum >> 20);
    }
}

#[test]
fn k10_an_allocation_of_the_old_form_goes_with_the_del_of_the_add_that_was_ours() {
    let host = Host::new();
    host.add(&small(), "a").unwrap();
    host.write("10.0.0.2", "a");
    host.write("10.0.0.3", "b");
    let ips = ["10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap()];
    assert_eq!(host.ipam.release_ips(&in_data("pods"), "a", "eth0", &ips).unwrap(), 1);
    assert_eq!(host.files(), ["10.0.0.3", "last_reserved_ip.0", "lock"]);
}

#[test]
fn names_that_no_directory_can_have_get_into_no_list() {
    let host = Host::new();
    let longer = format!("/{}", "d".repeat(4096));
    for (data_dir, network) in [(longer.as_str(), "pods"), ("/d", &"n".repeat(256))] {
        let directory = &NetworkDir::of_administrator(data_dir, network);
        let request = LeaseRequest { directory, container_id: "a", ifname: "eth0", reserved: &[] };
        let refused = host.ipam.allocate(&small(), &request, &NothingPending).unwrap_err();
        assert!(matches!(refused, IpamError::BadDirectory { .. }) && refused.to_string().len() < 200);
        assert!(matches!(directory.must_be_possible(), Err(IpamError::BadDirectory { .. })));
        // There is nothing to give back, and no removal may stay for it.
        assert_eq!(host.ipam.release(directory, "a", "eth0").unwrap(), 0);
        assert!(host.ipam.gc(directory, &|_| false).errors.is_empty());
    }
    assert!(host.ipam.places().is_empty());
    refused(&host, |host| host.add(&small(), &"a".repeat(5000)), "the container's id is too long");
}

#[test]
fn what_cannot_be_a_directory_gets_into_no_list_and_has_no_allocations() {
    let host = Host::new();
    fs::write(host.dir.path().join("file"), "of the host").unwrap();
    for data_dir in ["/file", "/file/deep"] {
        let config = Config { data_dir: data_dir.into(), ..small() };
        refused(&host, |host| host.add(&config, "a"), "Not a directory");
        let directory = NetworkDir::of_administrator(data_dir, "pods");
        assert!(host.ipam.list(&directory).unwrap().is_empty());
        assert_eq!(host.ipam.release(&directory, "a", "eth0").unwrap(), 0);
        assert!(host.ipam.release_orphaned_by_reboot(&directory).errors.is_empty());
    }
    assert!(host.ipam.places().is_empty());
    assert_eq!(fs::read_to_string(host.dir.path().join("file")).unwrap(), "of the host");
}

#[test]
fn a_directory_that_a_release_has_opened_is_on_the_list_before_an_address_is_taken_in_it() {
    let host = Host::new();
    fs::create_dir_all(host.pods()).unwrap();
    assert_eq!(host.ipam.release(&in_data("pods"), "a", "eth0").unwrap(), 0);
    assert!(host.ipam.places().is_empty());
    host.add(&small(), "a").unwrap();
    assert_eq!(host.ipam.places(), [in_data("pods")]);
}

/// A file system that never answers: a FUSE without its server. Whoever asks it for anything waits until this is dropped.
struct Silent {
    server: Option<OwnedFd>,
    at: PathBuf,
}

impl Silent {
    /// To be made by a thread with mounts of its own.
    fn mount(at: &Path) -> Silent {
        fs::create_dir_all(at).unwrap();
        let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        mount(Some("silent"), at, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Silent { server: Some(server.into()), at: at.to_owned() }
    }

    fn give_up(&mut self) {
        self.server = None;
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.give_up();
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Runs a test on a thread with mounts that nobody else sees; they go with it.
fn with_own_mounts(test: impl FnOnce() + Send + 'static) {
    let run = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS | nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        test();
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn calls_that_hang_in_the_files_of_one_directory_are_few_and_any_further_is_refused_at_once() {
    with_own_mounts(|| {
        let host = Host::new();
        let mut silent = Silent::mount(&host.dir.path().join("silent"));
        let hung = Config { data_dir: "/silent".into(), ..small() };
        let host = Arc::new(host);
        let (sender, answers) = channel();
        let adds: Vec<_> = (0..68)
            .map(|n| {
                let (host, hung, sender) = (Arc::clone(&host), hung.clone(), sender.clone());
                std::thread::spawn(move || sender.send(host.add(&hung, &format!("c{n}"))).unwrap())
            })
            .collect();
        let next = |answers: &Receiver<_>| -> IpamError {
            let answer: Result<Vec<String>, IpamError> = answers.recv_timeout(HANGS).unwrap();
            answer.unwrap_err()
        };
        // One hangs and eight wait; the others do not.
        for _ in 0..59 {
            let refused = next(&answers);
            assert_eq!(refused.code(), Code::TryAgain, "{refused}");
            assert!(refused.to_string().contains("file work in /silent/pods does not end"), "{refused}");
        }
        let hangs = NetworkDir::of_administrator("/silent", "pods");
        // Once is enough: other work of the machine may slow the others.
        let at_once = (0..50).any(|_| {
            let begun = Instant::now();
            host.add(&hung, "late").unwrap_err();
            host.ipam.release(&hangs, "late", "eth0").unwrap_err();
            host.ipam.writable(&hangs).unwrap_err();
            assert_eq!(host.add(&small(), "other").unwrap().len(), 1);
            assert_eq!(host.ipam.release(&in_data("pods"), "other", "eth0").unwrap(), 1);
            begun.elapsed() < Duration::from_millis(100)
        });
        assert!(at_once);
        let hanging = host.ipam.hanging(Duration::from_millis(250));
        assert_eq!(hanging.iter().map(|(dir, _)| dir.data_dir.as_str()).collect::<Vec<_>>(), ["/silent"]);
        silent.give_up();
        adds.into_iter().for_each(|add| add.join().unwrap());
        assert!(host.ipam.hanging(Duration::ZERO).is_empty());
    });
}

#[test]
fn a_resolv_conf_on_a_file_system_that_hangs_keeps_no_more_calls_than_a_directory_does() {
    with_own_mounts(|| {
        let host = Arc::new(Host::new());
        let silent = Silent::mount(&host.dir.path().join("silent"));
        let config = Config { resolv_conf: Some("/silent/resolv.conf".into()), ..small() };
        let (sender, answers) = channel();
        for n in 0..20 {
            let (host, config, sender) = (Arc::clone(&host), config.clone(), sender.clone());
            std::thread::spawn(move || sender.send(host.add(&config, &format!("c{n}")).unwrap_err()));
        }
        for _ in 0..11 {
            assert_eq!(answers.recv_timeout(HANGS).unwrap().code(), Code::TryAgain);
        }
        drop(silent);
        (0..9).for_each(|_| drop(answers.recv_timeout(HANGS).unwrap()));
    });
}
