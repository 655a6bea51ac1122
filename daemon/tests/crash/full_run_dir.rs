//! A full run directory: ADD is refused clean, DEL goes on, and so does a restart.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use fairlead_cni::CniError;
use fairlead_cni::wire::Command;

use super::rig::{Call, Pod, Reply, Rig, until};

/// A small tmpfs, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path) -> Small {
        Small::with(path, "size=2m")
    }

    fn with(path: &Path, options: &str) -> Small {
        let none: Option<&str> = None;
        mount(none, path, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        Small(path.to_owned())
    }

    /// Fills every byte that is left.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.0.join("filler")).unwrap();
        for size in [65_536, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn x05_with_a_full_run_directory_add_is_refused_clean_and_del_works_also_after_a_restart() {
    let rig = Rig::new();
    let run = Small::mount(&rig.path("run"));
    let pod = rig.pod("pod");
    let mut config = rig.macvlan("net");
    // A record as large as this uses the journal's reserved space up soon.
    config["comment"] = json!("x".repeat(60_000));
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let mut call = rig.call(&format!("c{n}"), &pod, &config);
            call.ifname = format!("net{n}");
            call
        })
        .collect();
    let daemon = rig.start();
    let before = rig.leftovers(&[&pod]);
    run.fill();
    let mut added = 0;
    let refused = loop {
        let with = rig.leftovers(&[&pod]);
        match calls[added].add() {
            Reply::Refused(error) => {
                rig.is_as(&with, &[&pod], "the refused ADD");
                break error;
            }
            reply => reply.succeeds(),
        }
        added += 1;
    };
    assert!(added >= 4, "only {added} ADDs went in");
    assert_eq!(refused.code.number(), 11, "{refused:?}");
    assert!(refused.to_string().contains("make space on that file system"), "{refused}");
    calls[0].del().succeeds();
    run.fill();
    daemon.kill();
    run.fill();
    // It is not ready, since ADD would be refused; DEL is served.
    let daemon = rig.launch(None);
    until("it serves", || matches!(calls[1].del(), Reply::Done(_)));
    run.fill();
    until("the silenced one is finished off the start's way", || rig.attachments().len() == added - 2);
    for call in &calls[2..added] {
        call.del().succeeds();
    }
    rig.is_as(&before, &[&pod], "the DELs with the directory full");
    // What they took up is given back without anybody making space.
    for call in &calls {
        run.fill();
        call.add().succeeds();
        run.fill();
        call.del().succeeds();
        until("it is finished", || rig.attachments().is_empty());
    }
    rig.is_as(&before, &[&pod], "ADDs and DELs with the directory full");
    run.fill();
    fs::remove_file(run.0.join("filler")).unwrap();
    calls[0].add().succeeds();
    calls[0].del().succeeds();
    rig.is_as(&before, &[&pod], "space again");
    drop(daemon);
}

/// The error of a STATUS, if it is one.
fn status(call: &Call<'_>) -> Option<CniError> {
    match call.execute(Command::Status).end() {
        Reply::Refused(error) => Some(error),
        reply => {
            reply.succeeds();
            None
        }
    }
}

/// Fills what is left with small ADDs; true when the next one is refused.
fn small_is_refused(rig: &Rig, pod: &Pod) -> bool {
    let config = rig.macvlan("net");
    (0..40).any(|n| {
        let mut call = rig.call(&format!("small{n}"), pod, &config);
        call.ifname = format!("small{n}");
        matches!(call.add(), Reply::Refused(_))
    })
}

#[test]
fn x05_with_little_space_add_works_and_status_and_readiness_say_when_it_does_not() {
    let rig = Rig::new();
    let run = Small::mount(&rig.path("run"));
    let left = 300 << 10;
    fs::write(run.0.join("filler"), vec![0; (2 << 20) - left]).unwrap();
    let pod = rig.pod("pod");
    let mut config = rig.macvlan("net");
    config["cniVersion"] = json!("1.1.0");
    config["comment"] = json!("x".repeat(4000));
    let daemon = rig.start();
    let mut calls = Vec::new();
    let refused = loop {
        let mut call = rig.call(&format!("c{}", calls.len()), &pod, &config);
        call.ifname = format!("net{}", calls.len());
        let told = status(&call);
        match call.add() {
            Reply::Done(_) if told.is_none() => calls.push(call),
            // The estimate is on the safe side: it may say no a little before.
            Reply::Done(_) => break told.unwrap(),
            Reply::Refused(error) => {
                assert_eq!(error.code.number(), 11, "{error}");
                break told.expect("STATUS succeeds, and ADD is refused");
            }
            Reply::Lost => panic!("no answer"),
        }
    };
    assert!(calls.len() >= 3, "only {} ADDs went in", calls.len());
    assert_eq!(refused.code.number(), 50, "{refused}");
    assert!(refused.msg.contains("no space left"), "{refused}");
    assert!(small_is_refused(&rig, &pod), "there was space for 40 more");
    assert!(!rig.is_ready(), "/readyz is of another opinion than ADD");
    // A restart would make no room, and the DELs that do need this daemon.
    assert_eq!((rig.get("/healthz").status, rig.get("/livez").status), (503, 200));
    let exits = |flag| rig.operator(&["status", flag]).output().unwrap().status.code();
    assert_eq!(["--ready", "--healthy", "--alive"].map(exits), [Some(1), Some(1), Some(0)]);
    calls.iter().for_each(|call| call.del().succeeds());
    drop(daemon);
}

#[test]
fn x04_status_is_50_where_host_locals_file_system_has_no_block_or_no_inode() {
    let rig = Rig::new();
    fs::create_dir_all(rig.path("data")).unwrap();
    let data = Small::with(&rig.path("data"), "size=1m,nr_inodes=20");
    let pod = rig.pod("pod");
    let mut config = rig.macvlan("net");
    config["cniVersion"] = json!("1.1.0");
    let _daemon = rig.start();
    let call = rig.call("c1", &pod, &config);
    assert!(status(&call).is_none());
    data.fill();
    let error = status(&call).unwrap();
    assert!(error.code.number() == 50 && error.msg.contains("no block"), "{error}");
    fs::remove_file(data.0.join("filler")).unwrap();
    assert!(status(&call).is_none());
    let made = (0..).take_while(|n| File::create(data.0.join(format!("f{n}"))).is_ok()).count();
    assert!(made > 0);
    let error = status(&call).unwrap();
    assert!(error.code.number() == 50 && error.msg.contains("no inode"), "{error}");
}

#[test]
fn x05_with_a_full_state_directory_an_add_that_executes_a_plugin_is_refused_clean() {
    let rig = Rig::new();
    let state = Small::mount(&rig.path("state"));
    let pod = rig.pod("pod");
    let mut config = rig.layer2();
    config["ipam"] = json!({ "type": "lease" });
    let lease = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "192.0.2.9/24" }] });
    let script = format!("#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND != ADD ] || echo '{lease}'\n");
    fs::write(rig.path("bin/lease"), script).unwrap();
    fs::set_permissions(rig.path("bin/lease"), fs::Permissions::from_mode(0o755)).unwrap();
    let _daemon = rig.start();
    let before = rig.leftovers(&[&pod]);
    let call = rig.call("c1", &pod, &config);
    state.fill();
    match call.add() {
        Reply::Refused(error) => assert_eq!(error.code.number(), 11, "{error:?}"),
        reply => panic!("{reply:?}"),
    }
    let asked = |mut config: Value| {
        config["cniVersion"] = json!("1.1.0");
        status(&rig.call("c1", &pod, &config))
    };
    let error = asked(config).unwrap();
    assert!(error.code.number() == 50 && error.msg.contains("of its file system"), "{error}");
    assert!(asked(rig.layer2()).is_none(), "its ADD needs no room there");
    rig.is_as(&before, &[&pod], "the refused ADD");
    fs::remove_file(state.0.join("filler")).unwrap();
    pod.has_what_was_answered("eth0", &call.add().result());
    call.del().succeeds();
    rig.is_as(&before, &[&pod], "DEL");
}
