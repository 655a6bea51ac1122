//! A full run directory: ADD is refused clean, DEL goes on, and so does a restart.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use super::rig::{Reply, Rig, until};

/// A small tmpfs, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path) -> Small {
        let none: Option<&str> = None;
        mount(none, path, Some("tmpfs"), MsFlags::empty(), Some("size=2m")).unwrap();
        Small(path.to_owned())
    }

    /// Takes every byte that is left.
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
    let before = rig.inventory(&[&pod]);
    run.fill();
    let mut added = 0;
    let refused = loop {
        let with = rig.inventory(&[&pod]);
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
    let before = rig.inventory(&[&pod]);
    let call = rig.call("c1", &pod, &config);
    state.fill();
    match call.add() {
        Reply::Refused(error) => assert_eq!(error.code.number(), 11, "{error:?}"),
        reply => panic!("{reply:?}"),
    }
    rig.is_as(&before, &[&pod], "the refused ADD");
    fs::remove_file(state.0.join("filler")).unwrap();
    pod.has_what_was_answered("eth0", &call.add().result());
    call.del().succeeds();
    rig.is_as(&before, &[&pod], "DEL");
}
