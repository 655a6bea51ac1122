//! A journal with damaged bytes in its middle: set aside, the rest kept, the daemon serves.

use std::fs;
use std::process::Command;

use super::rig::{Call, Rig, stored};
use serde_json::json;

/// The place of the n-th frame of the journal that holds `text`.
fn frame_with(bytes: &[u8], text: &str) -> usize {
    let marks: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, w)| w == b"FLJ1").map(|(at, _)| at).collect();
    let ends = marks.iter().skip(1).copied().chain([bytes.len()]);
    let found =
        marks.iter().zip(ends).find(|(at, end)| String::from_utf8_lossy(&bytes[**at..*end]).contains(text));
    *found.unwrap_or_else(|| panic!("no frame with {text}")).0
}

/// Makes three attachments, kills the daemon, damages the frame that holds `text`, and starts the daemon again.
fn damage(text: &str, then: impl FnOnce(&Rig, &[Call<'_>])) {
    let rig = Rig::new();
    let config = rig.macvlan("net");
    let pods: Vec<_> = (0..3).map(|n| rig.pod(&format!("pod{n}"))).collect();
    let all: Vec<_> = pods.iter().collect();
    let calls: Vec<_> =
        pods.iter().enumerate().map(|(n, pod)| rig.call(&format!("c{n}"), pod, &config)).collect();
    let daemon = rig.start();
    let before = rig.leftovers(&all);
    calls.iter().for_each(|call| call.add().succeeds());
    daemon.kill();
    let journal = rig.path("run/attachments.journal");
    let mut bytes = fs::read(&journal).unwrap();
    let at = frame_with(&bytes, text);
    bytes[at + 20..at + 40].fill(0xff);
    fs::write(&journal, bytes).unwrap();
    let links: Vec<_> = pods.iter().map(super::rig::Pod::links).collect();
    let _daemon = rig.start();
    let aside = fs::read_dir(rig.path("run"))
        .unwrap()
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().contains("damaged"));
    assert_eq!(aside.count(), 1, "the damaged journal was not set aside");
    assert_eq!(
        pods.iter().map(super::rig::Pod::links).collect::<Vec<_>>(),
        links,
        "a living attachment was touched"
    );
    then(&rig, &calls);
    calls.iter().for_each(|call| call.del().succeeds());
    rig.is_as(&before, &all, "the DELs");
}

fn doctor(rig: &Rig) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairleadd"));
    let out = command.arg("doctor").arg("--run-dir").arg(rig.path("run")).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn x05_a_damaged_intent_costs_one_row_and_its_del_still_frees_everything() {
    damage(r#""container":"c1""#, |rig, _| {
        assert_eq!(stored(&rig.attachments()), [json!(["c0", "attached"]), json!(["c2", "attached"])]);
        let log = rig.log();
        let lost = log.lines().find(|line| line.contains("the store has lost this attachment")).unwrap();
        assert!(lost.contains("10.73.0.3") && lost.contains("pods/pod1"), "{lost}");
        let address = log.lines().find(|line| line.contains("does not know its container")).unwrap();
        assert!(address.contains("10.73.0.3") && address.contains("c1"), "{address}");
        assert!(doctor(rig).contains("attachments.damaged-"), "doctor says nothing");
    });
}

#[test]
fn x05_a_damaged_commit_does_not_take_a_pods_interface() {
    // The second pod's: only its answer has the path in quoted JSON.
    damage(r#"pods/pod1\""#, |rig, calls| {
        assert_eq!(rig.attachments().len(), calls.len());
    });
}
