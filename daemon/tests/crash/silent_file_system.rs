//! A host-local directory on a file system that never answers: its network is refused, the others do not notice, `/healthz` tells
//! it, and neither a start nor the end of a daemon waits for it. A watch that hangs in one ends the reports to systemd's watchdog.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::{scope, spawn};
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, median, until};

/// A FUSE without its server: whoever asks it for anything waits until this is dropped.
struct Silent {
    server: Option<OwnedFd>,
    at: PathBuf,
}

impl Silent {
    fn mount(at: &Path) -> Silent {
        fs::create_dir_all(at).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        mount(Some("silent"), at, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Silent { server: Some(server.into()), at: at.to_owned() }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.server = None;
        umount2(&self.at, MntFlags::MNT_DETACH).unwrap();
    }
}

fn in_directory(mut config: Value, directory: &Path) -> Value {
    config["ipam"]["dataDir"] = json!(directory);
    config
}

/// The condition `files` of `/healthz`.
fn files(rig: &Rig) -> Value {
    let told: Value = serde_json::from_str(&rig.get("/healthz").body).unwrap();
    told["conditions"].as_array().unwrap().iter().find(|c| c["name"] == "files").unwrap().clone()
}

#[test]
fn sixty_eight_calls_that_hang_in_one_directory_delay_no_other_network_and_healthz_and_the_next_start_say_so()
{
    let rig = Rig::new();
    let (hung, other) = (in_directory(rig.macvlan("net"), &rig.path("silent")), rig.macvlan("other"));
    let pod = rig.pod("pod");
    let daemon = rig.start();
    let call = |container: &str, config| {
        let mut call = rig.call(container, &pod, config);
        call.ifname = container.to_owned();
        call
    };
    let served = |n: u32| {
        let begun = Instant::now();
        let free = call(&format!("free{n}"), &other);
        free.add().succeeds();
        let took = begun.elapsed();
        free.del().succeeds();
        took
    };
    let quiet = median((0..20).map(served));
    // An attachment whose address lies where nobody will answer.
    let lost = call("lost", &hung);
    lost.add().succeeds();
    // The daemon had the directory open as it was before.
    daemon.kill();
    let silent = Silent::mount(&rig.path("silent"));
    let daemon = rig.start();
    let hanging: Vec<_> = (0..68).map(|n| call(&format!("h{n}"), &hung)).collect();
    scope(|s| {
        let replies: Vec<_> = hanging.iter().map(|call| s.spawn(|| call.add())).collect();
        until("all but those that wait are refused", || {
            replies.iter().filter(|r| r.is_finished()).count() >= 59
        });
        // Other work of the machine, which was not there before, slows some rounds; what hangs would slow all of them.
        let limit = 4 * quiet + Duration::from_millis(100);
        let mut rounds = (0..5).map(|_| median((0..20).map(served)));
        assert!(
            rounds.any(|meanwhile| meanwhile < limit),
            "five times not within {limit:?}, before {quiet:?}"
        );
        until("healthz tells it", || files(&rig)["met"] == false);
        let told = files(&rig)["reason"].to_string();
        assert!(told.contains("silent/net since"), "{told}");
        assert_eq!((rig.get("/healthz").status, rig.get("/livez").status), (503, 200));
        daemon.kill();
        for reply in replies {
            match reply.join().unwrap() {
                Reply::Refused(error) => {
                    assert_eq!(error.code.number(), 11, "{error:?}");
                    assert!(error.msg.contains("does not end"), "{error}");
                }
                reply => assert!(matches!(reply, Reply::Lost), "{reply:?}"),
            }
        }
    });
    // The DEL is spooled, and those that were killed are to be undone: both in the directory that hangs.
    lost.execute(Command::Del).end().succeeds();
    let begun = Instant::now();
    let daemon = rig.start();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let free = call("after", &other);
    free.add().succeeds();
    free.del().succeeds();
    drop(silent);
    until("what was to be removed is", || rig.attachments().is_empty());
    drop(daemon);
}

#[test]
fn k18_sigterm_ends_a_daemon_of_which_an_operators_look_up_hangs() {
    let rig = Rig::new();
    let pod = rig.pod("pod");
    let mut daemon = rig.start();
    let hung = in_directory(rig.macvlan("net"), &rig.path("silent"));
    rig.call("c1", &pod, &hung).add().succeeds();
    // The daemon has the directory open, and opens it anew when it is gone.
    fs::remove_dir_all(rig.path("silent")).unwrap();
    let _silent = Silent::mount(&rig.path("silent"));
    scope(|s| {
        let asked = s.spawn(|| rig.try_get("/v1/orphans"));
        until("the look-up hangs in the directory", || files(&rig)["met"] == false);
        kill(Pid::from_raw(daemon.pid().try_into().unwrap()), Signal::SIGTERM).unwrap();
        until("the daemon has ended", || daemon.ended().is_some());
        assert_eq!(daemon.ended(), Some(Some(0)));
        assert!(asked.join().unwrap().is_none(), "it was never answered");
    });
}

#[test]
fn a_watch_that_hangs_ends_the_reports_to_systemds_watchdog_until_it_goes_on() {
    let rig = Rig::new();
    let (sender, reports) = channel();
    let socket = UnixDatagram::bind(rig.path("notify")).unwrap();
    // On a thread of its own: whoever reports waits while a few reports are unread.
    spawn(move || {
        let mut report = [0; 64];
        while let Ok(length) = socket.recv(&mut report) {
            if report[..length].starts_with(b"WATCHDOG=1") && sender.send(()).is_err() {
                return;
            }
        }
    });
    let comes = || reports.recv_timeout(Duration::from_secs(3)).is_ok();
    let daemon = rig.start_with_watchdog(Duration::from_millis(600), &rig.path("notify"));
    assert!(comes());
    let silent = Silent::mount(&rig.path("net.d"));
    until("the reports end", || !comes());
    assert_eq!(rig.get("/livez").status, 503);
    drop(silent);
    until("they come again", comes);
    drop(daemon);
}
