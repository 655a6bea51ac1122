//! What happens to a DEL or GC that finds no daemon.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

mod rig;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_cni::spool::{EntryName, LOCK_FILE, MAX_BYTES, MAX_ENTRIES, parse};
use fairlead_cni::wire;
use nix::fcntl::{Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};
use rig::{CONFIG, Daemon, Rig, not_begun, ok};

#[test]
fn x02_with_no_daemon_del_and_gc_are_spooled_whole_and_answered_with_success() {
    let rig = Rig::new();
    rig.call("DEL").run().silent_success();
    rig.call("GC").unset("CNI_CONTAINERID").unset("CNI_IFNAME").unset("CNI_NETNS").run().silent_success();
    let entries = rig.entries();
    assert_eq!(
        entries.iter().map(|e| e.command).collect::<Vec<_>>(),
        [wire::Command::Del, wire::Command::Gc]
    );
    let del = &entries[0];
    assert_eq!((del.container_id.as_str(), del.ifname.as_str(), del.config.as_str()), ("c1", "eth0", CONFIG));
    assert!(del.netns_inode.is_some() && del.env.contains(&("CNI_PATH".into(), "/opt/cni/bin".into())));
    let spooled = del.spooled.as_ref().unwrap();
    assert_eq!(spooled.boot_id, fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    assert!(spooled.at > 1_700_000_000);
    assert_eq!(entries[1].spooled.as_ref().unwrap().cookie, None);
}

#[test]
fn x02_the_entry_has_the_namespace_s_cookie() {
    let rig = Rig::new();
    let cookies = || rig.entries().iter().map(|e| e.spooled.as_ref().unwrap().cookie).collect::<Vec<_>>();
    rig.call("DEL").run().silent_success();
    rig.call("DEL").run().silent_success();
    let mut other = Command::new("unshare").args(["--net", "sleep", "10"]).spawn().unwrap();
    let path = format!("/proc/{}/ns/net", other.id());
    let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
    while fs::metadata(&path).map_or(own, |there| there.ino()) == own {
        thread::sleep(Duration::from_millis(5));
    }
    rig.call("DEL").set("CNI_NETNS", &path).run().silent_success();
    other.kill().unwrap();
    other.wait().unwrap();
    rig.call("DEL").set("CNI_NETNS", "/etc/hostname").run().silent_success();
    let cookies = cookies();
    assert!(cookies[0].is_some() && cookies[0] == cookies[1], "{cookies:?}");
    assert!(cookies[2].is_some() && cookies[2] != cookies[0], "{cookies:?}");
    assert_eq!(cookies[3], None, "no namespace");
}

/// The time of `CLOCK_MONOTONIC`, in nanoseconds.
fn nanoseconds_of_this_boot() -> u64 {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
    u64::try_from(now.as_nanos()).unwrap()
}

#[test]
fn x03_the_entry_tells_when_the_executable_was_started_however_late_it_is_written() {
    for command in ["DEL", "GC"] {
        let rig = Rig::new();
        fs::create_dir_all(rig.spool()).unwrap();
        let lock = exclusive(&rig);
        let started = (nanoseconds_of_this_boot(), SystemTime::now());
        let call = rig.call(command).set("FAIRLEAD_TIMEOUT", "30").start();
        thread::sleep(Duration::from_millis(1500));
        let released = (nanoseconds_of_this_boot(), SystemTime::now());
        drop(lock);
        call.end().silent_success();
        let entry = rig.entries().remove(0);
        let issued = entry.issued_ns.unwrap();
        assert!((started.0..released.0).contains(&issued), "{started:?} {issued} {released:?}");
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let at = entry.spooled.unwrap().at;
        assert!((seconds(started.1)..seconds(released.1)).contains(&at), "{started:?} {at} {released:?}");
    }
}

#[test]
fn x03_a_gc_tells_each_daemon_when_the_executable_was_started_and_a_del_does_not() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), not_begun());
    let before = nanoseconds_of_this_boot();
    rig.call("GC").run().silent_success();
    let issued: Vec<_> = daemon.arrived.try_iter().map(|arrived| arrived.request.issued_ns).collect();
    assert_eq!(issued, [rig.entries()[0].issued_ns; 2], "sent twice, and spooled");
    assert!(issued[0].is_some_and(|at| before < at && at < nanoseconds_of_this_boot()));
    rig.call("DEL").run().silent_success();
    let issued: Vec<_> = daemon.arrived.try_iter().map(|arrived| arrived.request.issued_ns).collect();
    assert_eq!(issued, [None; 2], "sent twice");
}

#[test]
fn x04_a_status_tells_the_daemon_when_the_executable_was_started() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), ok("{}"));
    let before = nanoseconds_of_this_boot();
    rig.call("STATUS").run().silent_success();
    let issued = daemon.arrived.recv().unwrap().request.issued_ns;
    assert!(issued.is_some_and(|at| before < at && at < nanoseconds_of_this_boot()));
}

#[test]
fn x02_the_spool_is_for_root_alone() {
    let rig = Rig::new();
    rig.call("DEL").run().silent_success();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(rig.path("state")), mode(rig.spool())), (0o700, 0o700));
    assert_eq!(rig.files().len(), 2);
    for file in rig.files() {
        assert_eq!(mode(rig.spool().join(file)), 0o600);
    }
}

#[test]
fn x02_entries_are_in_order_even_when_the_clock_was_set_back() {
    let rig = Rig::new();
    fs::create_dir_all(rig.spool()).unwrap();
    let future = EntryName { sequence: 9_000_000_000_000_000_000, pid: 1 };
    fs::write(rig.spool().join(future.partial()), "").unwrap();
    for id in ["a", "b", "c"] {
        rig.call("DEL").set("CNI_CONTAINERID", id).run().silent_success();
    }
    assert_eq!(rig.entries().iter().map(|e| e.container_id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(rig.files().iter().filter_map(|f| EntryName::parse_whole(f)).all(|name| name > future));
}

#[test]
fn x02_a_hundred_at_once_are_a_hundred_entries() {
    let rig = Rig::new();
    let calls: Vec<_> = (0..100)
        .map(|n| {
            rig.call("DEL").set("CNI_CONTAINERID", format!("c{n}")).set("FAIRLEAD_TIMEOUT", "30").start()
        })
        .collect();
    for call in calls {
        call.end().silent_success();
    }
    let mut ids: Vec<_> = rig.entries().into_iter().map(|e| e.container_id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), rig.files().len()), (100, 101));
}

#[test]
fn x02_a_full_spool_is_code_11_so_that_the_runtime_retries() {
    let rig = Rig::new();
    fs::create_dir_all(rig.spool()).unwrap();
    let name = |sequence| rig.spool().join(EntryName { sequence, pid: 1 }.whole());
    for sequence in 0..MAX_ENTRIES as u64 {
        File::create(name(sequence)).unwrap();
    }
    full(&rig, "4096 entries");
    fs::remove_file(name(0)).unwrap();
    rig.call("DEL").run().silent_success();
    full(&rig, "4096 entries");
    for sequence in 1..MAX_ENTRIES as u64 {
        fs::remove_file(name(sequence)).unwrap();
    }
    File::create(name(0)).unwrap().set_len(MAX_BYTES).unwrap();
    full(&rig, "67108864");
}

fn full(rig: &Rig, words: &str) {
    let count = || rig.files().iter().filter(|file| *file != LOCK_FILE).count();
    let before = count();
    let error = rig.call("DEL").run().error();
    assert_eq!(error.code.number(), 11);
    assert!(error.msg.contains(words) && error.msg.contains(rig.spool().to_str().unwrap()), "{}", error.msg);
    assert_eq!(count(), before);
}

#[test]
fn x02_an_unwritable_spool_is_code_11_that_names_the_directory_and_no_del_error_reads_like_success() {
    let rig = Rig::new();
    fs::write(rig.path("file"), "").unwrap();
    for state_dir in ["/proc/none", "/proc/self/no such file or directory", "/dev/null"]
        .map(Into::into)
        .into_iter()
        .chain([rig.path("file")])
    {
        for command in ["DEL", "GC"] {
            let outcome = rig.call(command).set("FAIRLEAD_STATE_DIR", &state_dir).run();
            let error = outcome.error();
            assert_eq!(error.code.number(), 11);
            assert!(error.msg.contains("spool directory"), "{}", error.msg);
            if command == "DEL" {
                let text = outcome.stdout.to_lowercase();
                assert!(!text.contains("no such file or directory") && !text.contains("not found"), "{text}");
            }
        }
    }
}

#[test]
fn x02_a_stopping_daemon_s_del_is_spooled_for_the_next_one() {
    let rig = Rig::new();
    let daemon = Daemon::answering(&rig.socket(), not_begun());
    rig.call("DEL").run().silent_success();
    assert_eq!(rig.entries().len(), 1);
    assert_eq!(daemon.arrived.try_iter().count(), 2, "asked once more under the lock");
}

#[test]
fn x02_while_a_daemon_drains_del_waits_and_is_then_served_by_it() {
    let rig = Rig::new();
    fs::create_dir_all(rig.spool()).unwrap();
    let lock = exclusive(&rig);
    let call = rig.call("DEL").start();
    thread::sleep(Duration::from_millis(200));
    let daemon = Daemon::answering(&rig.socket(), ok(""));
    drop(lock);
    call.end().silent_success();
    assert_eq!((daemon.arrived.try_iter().count(), rig.entries().len()), (1, 0));
}

#[test]
fn x02_a_daemon_that_drains_for_longer_than_the_deadline_is_code_11() {
    let rig = Rig::new();
    fs::create_dir_all(rig.spool()).unwrap();
    let _lock = exclusive(&rig);
    let outcome = rig.call("DEL").set("FAIRLEAD_TIMEOUT", "0.3").run();
    assert_eq!(outcome.refused(), 11);
    outcome.took_at_least(300);
    outcome.took_less_than(10_000);
}

fn exclusive(rig: &Rig) -> Flock<File> {
    let file = File::create(rig.spool().join(LOCK_FILE)).unwrap();
    Flock::lock(file, FlockArg::LockExclusive).unwrap()
}

#[test]
fn x02_dels_that_race_with_a_starting_daemon_are_drained_or_served_and_never_forgotten() {
    for round in 0..30 {
        let rig = Rig::new();
        fs::create_dir_all(rig.spool()).unwrap();
        let calls: Vec<_> = ["a", "b"].map(|id| rig.call("DEL").set("CNI_CONTAINERID", id).start()).into();
        thread::sleep(Duration::from_micros(300 * round));
        let lock = exclusive(&rig);
        let drained: Vec<_> = rig.entries().into_iter().map(|entry| entry.container_id).collect();
        let daemon = Daemon::answering(&rig.socket(), ok(""));
        drop(lock);
        for call in calls {
            call.end().silent_success();
        }
        let served = daemon.arrived.try_iter().map(|arrived| arrived.request.container_id);
        let mut all: Vec<_> = drained.iter().cloned().chain(served).collect();
        all.sort();
        assert_eq!(all, ["a", "b"], "round {round}");
        assert_eq!(rig.entries().len(), drained.len(), "nothing was written to a running daemon");
    }
}

#[test]
fn x02_a_kill_before_the_rename_leaves_only_a_partial_entry_which_is_ignored() {
    let rig = Rig::new();
    fs::create_dir_all(rig.spool()).unwrap();
    // The kernel kills the executable at the first byte that it writes to a file.
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -c 0; ulimit -f 0; exec \"$0\"", env!("CARGO_BIN_EXE_fairlead")])
        .env_clear()
        .envs([
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("PATH", "/bin:/usr/bin"),
        ])
        .env("FAIRLEAD_SOCKET", rig.socket())
        .env("FAIRLEAD_STATE_DIR", rig.path("state"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(CONFIG.as_bytes()).unwrap();
    assert_eq!(child.wait().unwrap().code(), None, "killed by a signal");
    let partial = rig.files().iter().filter(|file| EntryName::parse_partial(file).is_some()).count();
    assert_eq!((partial, rig.entries().len()), (1, 0));
    rig.call("DEL").run().silent_success();
    assert_eq!(rig.entries().len(), 1);
}

#[test]
fn x02_killed_at_any_time_every_entry_is_whole_and_every_success_has_its_entry() {
    let rig = Rig::new();
    let mut promised = 0;
    for round in 0..150 {
        let mut call = rig.call("DEL").start();
        thread::sleep(Duration::from_micros(round * 30));
        call.child.kill().unwrap();
        promised += usize::from(call.end().ok);
    }
    // `entries` refuses what is not whole.
    assert!(rig.entries().len() >= promised);
    for file in rig.files() {
        let whole = EntryName::parse_whole(&file).is_some();
        assert!(whole || EntryName::parse_partial(&file).is_some() || file == LOCK_FILE, "{file}");
        assert!(!whole || parse(&fs::read(rig.spool().join(&file)).unwrap()).is_ok());
    }
}

#[test]
fn x02_a_runtime_that_has_gone_does_not_keep_its_del_from_the_spool() {
    let rig = Rig::new();
    fs::create_dir_all(rig.spool()).unwrap();
    let lock = exclusive(&rig);
    let mut call = rig.call("DEL").start();
    drop((call.child.stdout.take(), call.child.stderr.take()));
    drop(lock);
    assert!(call.child.wait().unwrap().success());
    assert_eq!(rig.entries().len(), 1);
}
