//! What ADD, CHECK and STATUS do while no daemon runs.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

mod rig;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use fairlead_cni::wire::Request;
use rig::{Daemon, RESULT, Rig, Running, not_begun, ok};

const LATE: Duration = Duration::from_millis(250);

fn serves(_: usize, _: &Request, mut connection: UnixStream) {
    connection.write_all(ok(RESULT).as_bytes()).unwrap();
}

/// Writes an executable script, by way of another process: while this one had the file open for writing, another test could fork and
/// keep it so, and the script could not be executed ("text file busy").
fn write_script(path: &Path, body: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"printf '%s\n' '#!/bin/sh' "$1" >"$0" && chmod 700 "$0""#]).arg(path).arg(body);
    assert!(shell.status().unwrap().success());
}

/// Voluntary context switches so far: how often it went to sleep.
fn sleeps(call: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", call.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn k03_with_no_daemon_add_and_check_are_code_11_at_the_deadline_with_a_remedy() {
    let rig = Rig::new();
    for command in ["ADD", "CHECK"] {
        let outcome = rig.call(command).set("FAIRLEAD_TIMEOUT", "0.3").run();
        assert_eq!(outcome.refused(), 11);
        outcome.took_at_least(300);
        outcome.took_less_than(10_000);
        let error = outcome.error();
        assert!(error.msg.contains("no daemon listens there"), "{}", error.msg);
        assert!(error.details.contains("systemctl start fairleadd"), "{}", error.details);
    }
}

#[test]
fn x01_an_add_that_waits_is_served_as_soon_as_the_daemon_listens() {
    let rig = Rig::new();
    let calls: Vec<_> = ["ADD", "CHECK", "ADD"].map(|command| rig.call(command).start()).into();
    thread::sleep(LATE);
    let _daemon = Daemon::listen(&rig.socket(), serves);
    for call in calls {
        let outcome = call.end();
        assert!(outcome.ok, "{outcome:?}");
        outcome.took_less_than(10_000);
    }
}

#[test]
fn x01_a_daemon_that_binds_in_place_and_listens_later_is_met_too() {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
    let rig = Rig::new();
    let call = rig.call("ADD").start();
    thread::sleep(LATE);
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(&rig.socket()).unwrap()).unwrap();
    thread::sleep(Duration::from_millis(20));
    listen(&fd, Backlog::new(8).unwrap()).unwrap();
    let _daemon = Daemon::serve(UnixListener::from(fd), serves);
    assert!(call.end().ok);
}

#[test]
fn x01_an_add_waits_through_the_making_of_the_socket_s_directories() {
    let rig = Rig::new();
    let directory = rig.path("run/fairlead");
    let call = rig.call("ADD").set("FAIRLEAD_SOCKET", directory.join("d.sock")).start();
    thread::sleep(LATE);
    fs::create_dir(rig.path("run")).unwrap();
    thread::sleep(Duration::from_millis(30));
    fs::create_dir(&directory).unwrap();
    thread::sleep(Duration::from_millis(30));
    let _daemon = Daemon::listen(&directory.join("d.sock"), serves);
    let outcome = call.end();
    assert!(outcome.ok, "{outcome:?}");
    outcome.took_less_than(10_000);
}

#[test]
fn x01_an_add_waits_through_directories_that_are_made_at_once_or_made_anew() {
    for _ in 0..20 {
        let rig = Rig::new();
        let directory = rig.path("run/a/b/c");
        fs::create_dir_all(&directory).unwrap();
        let call = rig.call("ADD").set("FAIRLEAD_SOCKET", directory.join("d.sock")).start();
        fs::remove_dir_all(rig.path("run")).unwrap();
        thread::sleep(Duration::from_millis(5));
        fs::create_dir_all(&directory).unwrap();
        let _daemon = Daemon::listen(&directory.join("d.sock"), serves);
        let outcome = call.end();
        assert!(outcome.ok, "{outcome:?}");
        outcome.took_less_than(10_000);
    }
}

#[test]
fn x01_a_dead_daemons_socket_is_waited_at_and_the_next_daemon_s_is_met() {
    let rig = Rig::new();
    drop(UnixListener::bind(rig.socket()).unwrap());
    let call = rig.call("ADD").start();
    thread::sleep(LATE);
    let _daemon = Daemon::listen(&rig.socket(), serves);
    let outcome = call.end();
    assert!(outcome.ok, "{outcome:?}");
    outcome.took_less_than(10_000);
}

#[test]
fn waiting_is_asleep_and_not_polling() {
    let rig = Rig::new();
    drop(UnixListener::bind(rig.socket()).unwrap());
    let call = rig.call("ADD").start();
    thread::sleep(LATE);
    let before = sleeps(&call);
    thread::sleep(Duration::from_millis(1000));
    assert_eq!(sleeps(&call), before);
    assert_eq!(call.end().refused(), 11);
}

#[test]
fn x01_an_add_that_gets_no_inotify_instance_is_served_all_the_same() {
    let rig = Rig::new();
    let script = rig.path("limited");
    let exec =
        format!("echo 0 >/proc/sys/user/max_inotify_instances && exec {}", env!("CARGO_BIN_EXE_fairlead"));
    write_script(&script, &format!("exec unshare --user --map-root-user sh -c '{exec}'"));
    let call = rig.call("ADD").program(&script).set("PATH", "/usr/bin:/bin").start();
    thread::sleep(LATE);
    let _daemon = Daemon::listen(&rig.socket(), serves);
    let outcome = call.end();
    assert!(outcome.ok, "{outcome:?}");
    outcome.took_less_than(10_000);
}

#[test]
fn a_socket_that_is_not_for_us_is_an_error_with_its_reason_at_once() {
    let rig = Rig::new();
    fs::write(rig.path("file"), "").unwrap();
    for (command, code) in [("ADD", 5), ("DEL", 5), ("STATUS", 50)] {
        let outcome = rig.call(command).set("FAIRLEAD_SOCKET", rig.path("file/d.sock")).run();
        assert_eq!(outcome.refused(), code);
        assert!(outcome.error().msg.contains("Not a directory"), "{outcome:?}");
        outcome.took_less_than(10_000);
    }
    assert!(rig.entries().is_empty());
}

#[test]
fn k03_status_with_no_daemon_is_50_at_once() {
    let outcome = Rig::new().call("STATUS").run();
    assert_eq!(outcome.refused(), 50);
    outcome.took_less_than(10_000);
}

#[test]
fn x01_status_within_ten_seconds_of_an_announced_stop_is_success_and_after_it_is_50() {
    let rig = Rig::new();
    let marker = File::create(rig.path("stopping")).unwrap();
    rig.call("STATUS").run().silent_success();
    for (age, code) in [(9, None), (11, Some(50)), (3600, Some(50))] {
        marker.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        let outcome = rig.call("STATUS").run();
        assert_eq!(if outcome.ok { None } else { Some(outcome.refused()) }, code, "{age}");
    }
    marker.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(rig.call("STATUS").run().refused(), 50, "a time that is still to come proves nothing");
}

#[test]
fn x01_status_of_a_daemon_that_says_it_is_stopping_goes_by_the_announcement() {
    let rig = Rig::new();
    let _daemon = Daemon::answering(&rig.socket(), not_begun());
    assert_eq!(rig.call("STATUS").run().refused(), 50);
    File::create(rig.path("stopping")).unwrap();
    rig.call("STATUS").run().silent_success();
}
