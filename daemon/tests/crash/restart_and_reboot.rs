//! What happens around a start: callers while the daemon is down, two daemons at once, a reboot.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use fairlead_cni::wire::Command;
use rustix::fs::{XattrFlags, setxattr};

use super::rig::{Rig, until};

#[test]
fn x01_an_add_before_the_daemon_is_up_waits_and_succeeds_when_it_comes() {
    let rig = Rig::new();
    let (pod, config) = (rig.pod("pod"), rig.macvlan("net"));
    let call = rig.call("c1", &pod, &config);
    let mut add = call.execute(Command::Add);
    sleep(Duration::from_millis(300));
    assert!(add.is_at_work(), "it did not wait");
    let _daemon = rig.start();
    pod.has_what_was_answered("eth0", &add.end().result());
    call.execute(Command::Del).end().succeeds();
}

#[test]
fn x02_a_del_with_the_daemon_down_is_answered_kept_and_carried_out_at_the_restart() {
    let rig = Rig::new();
    let (pod, config) = (rig.pod("pod"), rig.macvlan("net"));
    let call = rig.call("c1", &pod, &config);
    let daemon = rig.start();
    let before = rig.leftovers(&[&pod]);
    call.execute(Command::Add).end().result();
    daemon.kill();
    call.execute(Command::Del).end().succeeds();
    assert!(fs::read_dir(rig.path("state/spool")).unwrap().count() > 1, "nothing was spooled");
    let _daemon = rig.start();
    rig.is_as(&before, &[&pod], "the restart");
    pod.has_what_was_answered("eth0", &call.execute(Command::Add).end().result());
    call.execute(Command::Del).end().succeeds();
    rig.is_as(&before, &[&pod], "ADD and DEL again");
}

#[test]
fn x02_a_spooled_del_whose_replay_is_killed_at_any_step_is_still_carried_out() {
    let rig = Rig::new();
    let (pod, config) = (rig.pod("pod"), rig.macvlan("net"));
    let call = rig.call("c1", &pod, &config);
    let before = {
        let _daemon = rig.start();
        rig.leftovers(&[&pod])
    };
    for step in ["del.removing", "del.silent", "del.silenced", "del.unlinked", "del.released", "del.removed"]
    {
        let daemon = rig.start();
        call.add().succeeds();
        daemon.kill();
        call.execute(Command::Del).end().succeeds();
        rig.launch(Some(step)).dies();
        let _daemon = rig.start();
        rig.is_as(&before, &[&pod], step);
    }
}

#[test]
fn of_two_daemons_started_at_once_one_serves_and_the_other_is_refused_by_name() {
    let rig = Rig::new();
    for _ in 0..5 {
        let mut both = [rig.launch(None), rig.launch(None)];
        let mut refused = None;
        until("one is refused", || {
            refused = both.iter_mut().position(|daemon| daemon.ended().is_some());
            refused.is_some()
        });
        let refused = refused.unwrap();
        let other = both[1 - refused].pid();
        assert_eq!(both[refused].ended(), Some(Some(1)));
        let name = format!("another fairleadd (pid {other}) serves");
        assert!(rig.log().contains(&name), "{name}: {}", rig.log());
        until("the other serves", || rig.is_ready());
        assert!(rig.attachments().is_empty());
        assert_eq!(both[1 - refused].ended(), None);
    }
}

#[test]
fn x24_after_a_reboot_the_addresses_of_before_are_free_with_nobodys_help() {
    let rig = Rig::new();
    let config = rig.macvlan("net");
    let pods: Vec<_> = (0..3).map(|n| rig.pod(&format!("pod{n}"))).collect();
    let daemon = rig.start();
    let before = rig.leftovers(&[]);
    for (n, pod) in pods.iter().enumerate() {
        rig.call(&format!("c{n}"), pod, &config).add().succeeds();
    }
    daemon.kill();
    let foreign = rig.path("data/net/10.73.0.200");
    fs::write(&foreign, "another\r\neth0").unwrap();
    assert_eq!(rig.allocations().len(), 7);
    // As a reboot leaves it: the namespaces are gone, and everything is of another boot. First with the run directory
    // kept, then without.
    drop(pods);
    for run_directory_survives in [true, false] {
        let mine = rig.allocations().into_iter().filter(|file| *file != foreign);
        mine.for_each(|file| setxattr(&file, "user.fairlead.boot", b"another", XattrFlags::empty()).unwrap());
        fs::write(rig.path("run/boot-id"), "another").unwrap();
        if !run_directory_survives {
            fs::remove_dir_all(rig.path("run")).unwrap();
        }
        let daemon = rig.start();
        // What another plugin allocated is not ours to free.
        until("the addresses are free", || rig.allocations() == [foreign.clone()]);
        assert!(rig.attachments().is_empty());
        let pod = rig.pod("new");
        rig.call("new", &pod, &config).add().succeeds();
        daemon.kill();
    }
    fs::remove_file(foreign).unwrap();
    let _daemon = rig.start();
    rig.is_as(&before, &[], "the end");
}
