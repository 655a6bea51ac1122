//! A host-local directory whose lock another process does not let go: its network waits, the others do not notice.

use std::fs::{File, read_dir, read_to_string};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use super::rig::{Daemon, Reply, Rig, until};

/// So long a call waits for the lock.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// The number of the daemon's threads for calls.
fn threads(daemon: &Daemon) -> usize {
    let tasks = read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names = tasks.flatten().map(|task| read_to_string(task.path().join("comm")).unwrap_or_default());
    names.filter(|name| name.starts_with("call-")).count()
}

#[test]
fn x14_a_network_whose_directory_is_locked_by_another_process_holds_up_no_other() {
    let rig = Rig::new();
    let (locked, other) = (rig.macvlan("net"), rig.macvlan("other"));
    let pod = rig.pod("pod");
    let daemon = rig.start();
    let before = rig.leftovers(&[&pod]);
    let call = |container: &str, config| {
        let mut call = rig.call(container, &pod, config);
        call.ifname = container.to_owned();
        call
    };
    let first = call("first", &locked);
    first.add().succeeds();
    // A thread has its name when it first runs.
    until("the threads for calls are there", || threads(&daemon) == 4);
    let lock = File::open(rig.path("data/net/lock")).unwrap();
    lock.lock().unwrap();
    let waiting: Vec<_> = (0..20).map(|n| call(&format!("w{n}"), &locked)).collect();
    let since = Instant::now();
    scope(|s| {
        let replies: Vec<_> = waiting.iter().map(|call| s.spawn(|| call.add())).collect();
        sleep(Duration::from_millis(20));
        for n in 0..3 {
            let begun = Instant::now();
            let free = call(&format!("free{n}"), &other);
            free.add().succeeds();
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            free.del().succeeds();
        }
        until("those that are too many are told", || {
            replies.iter().filter(|r| r.is_finished()).count() >= 12
        });
        lock.unlock().unwrap();
        let waited = since.elapsed();
        let replies: Vec<Reply> = replies.into_iter().map(|reply| reply.join().unwrap()).collect();
        for (call, reply) in waiting.iter().zip(&replies) {
            match reply {
                Reply::Refused(error) => {
                    assert_eq!(error.code.number(), 11, "{error:?}");
                    assert!(error.msg.contains("another process has held the lock"), "{error}");
                    call.add().succeeds();
                }
                reply => reply.succeeds(),
            }
        }
        let done = replies.iter().filter(|reply| matches!(reply, Reply::Done(_))).count();
        // On a machine that took so long, some of those that waited have given up themselves.
        assert!(done == 8 || (done < 8 && waited > GIVEN_UP), "{done} after {waited:?}");
    });
    until("the further threads are gone", || threads(&daemon) == 4);
    waiting.iter().for_each(|call| call.del().succeeds());
    first.del().succeeds();
    rig.is_as(&before, &[&pod], "the DELs");
}
