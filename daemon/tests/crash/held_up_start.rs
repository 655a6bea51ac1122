//! A start whatever hangs: a directory of addresses whose lock never opens, and plugins that never end, spooled and on record.

use std::fs::{self, File};

use fairlead_cni::wire::Command;
use nix::sys::stat::Mode;

use super::executed_plugins::Ledger;
use super::rig::{Reply, Rig, until};

#[test]
fn a_start_waits_for_no_directory_and_no_plugin_that_hangs_and_all_is_finished_later() {
    let rig = Rig::new();
    let (listed, stuck) = (rig.cluster_network(), rig.macvlan("stuck"));
    let pods: Vec<_> = (0..5).map(|n| rig.pod(&format!("p{n}"))).collect();
    let daemon = rig.start();
    let before = rig.leftovers(&[&pods[0], &pods[1], &pods[2]]);
    let calls = [
        rig.call("listed", &pods[0], &listed),
        rig.call("stuck", &pods[1], &stuck),
        rig.call("undone", &pods[2], &stuck),
        // Nobody knows it: its DEL looks for addresses in the directory.
        rig.call("unknown", &pods[3], &stuck),
    ];
    calls[..2].iter().for_each(|call| call.add().succeeds());
    daemon.kill();
    let daemon = rig.start_dying_at("add.configured");
    assert!(matches!(calls[2].add(), Reply::Lost));
    daemon.dies();
    let lock = rig.path("data/stuck/lock");
    fs::remove_file(&lock).unwrap();
    nix::unistd::mkfifo(&lock, Mode::S_IRWXU).unwrap();
    rig.script(r#"while [ ! -e "$0.free" ]; do sleep 0.1; done"#);
    for call in [&calls[3], &calls[0], &calls[1]] {
        call.execute(Command::Del).end().succeeds();
    }

    let _daemon = rig.start();
    // Others are served meanwhile.
    let other = rig.macvlan("other");
    let call = rig.call("other", &pods[4], &other);
    call.add().succeeds();
    call.del().succeeds();

    // Whoever waits for the FIFO to open goes on, and finds a lock next time.
    let waiting = File::options().read(true).write(true).open(&lock).unwrap();
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, "").unwrap();
    drop(waiting);
    fs::write(rig.path("bin/ledger.free"), "").unwrap();
    rig.is_as(&before, &[&pods[0], &pods[1], &pods[2]], "the start");
    until("the spool is empty", || fs::read_dir(rig.path("state/spool")).unwrap().count() <= 1);
}
