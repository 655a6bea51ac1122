//! A daemon on what a newer version has left on record: it keeps that word for word, touches nothing of it, and says so.

use std::fs;
use std::process::Output;

use fairlead_cni::wire::Command;
use fairlead_daemon::store::replay;
use serde_json::{Value, json};

use super::executed_plugins::Ledger;
use super::rig::{Reply, Rig, Way, until};

const FUTURE: &str = r#","by":"9.0.0","needs":2}"#;

/// The journal's frames, each as text.
fn frames(rig: &Rig) -> Vec<String> {
    let payloads = replay(&fs::read(rig.path("run/attachments.journal")).unwrap()).payloads;
    payloads.into_iter().map(|payload| String::from_utf8(payload).unwrap()).collect()
}

/// Writes a journal of these frames, as its format is documented.
fn write_frames(rig: &Rig, frames: &[String]) {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend_from_slice(b"FLJ1");
        bytes.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(frame.as_bytes()).to_le_bytes());
        bytes.extend_from_slice(frame.as_bytes());
    }
    fs::write(rig.path("run/attachments.journal"), bytes).unwrap();
}

/// The frame as a newer version writes it, which uses another word for the link.
fn of_newer(frame: &str) -> String {
    let ours = frame.rfind(r#","by":"#).unwrap();
    format!("{}{FUTURE}", frame[..ours].replace(r#""link":"made""#, r#""link":"crafted""#))
}

/// Runs a command of the operator, with nobody at a terminal.
pub(crate) fn order(rig: &Rig, words: &[&str]) -> (bool, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fairleadd"));
    command.args(words).arg("--run-dir").arg(rig.path("run")).stdin(std::process::Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn refused(reply: &Reply) -> String {
    let Reply::Refused(error) = reply else { panic!("no error: {reply:?}") };
    let text = error.to_string();
    assert_eq!(error.code.number(), 11, "{text}");
    assert!(!text.contains("not found") && !text.contains("no such file"), "{text}");
    text
}

#[test]
fn what_a_newer_version_attached_is_left_alone_by_del_gc_and_kills_until_that_version_is_back() {
    let rig = Rig::new();
    let mut config = rig.macvlan("net");
    config["cniVersion"] = json!("1.1.0");
    let pods = [rig.pod("pod0"), rig.pod("pod1")];
    let all = [&pods[0], &pods[1]];
    let (ours, newer) = (rig.call("c0", &pods[0], &config), rig.call("c1", &pods[1], &config));
    let daemon = rig.start();
    let before = rig.leftovers(&all);
    ours.add().succeeds();
    let result = newer.add().result();
    daemon.kill();
    // A newer version was here meanwhile: it has changed what is on record of the second pod.
    let left = frames(&rig);
    let its: Vec<String> = left
        .iter()
        .map(|frame| if frame.contains(r#""container":"c1""#) { of_newer(frame) } else { frame.clone() })
        .chain([format!(r#"{{"e":"epoch","id":null{FUTURE}"#)])
        .collect();
    write_frames(&rig, &its);
    for round in 0..2 {
        let daemon = rig.start();
        let rows = rig.attachments();
        let row = rows.iter().find(|row| row["container"] == "c1").unwrap();
        assert_eq!((&row["phase"], rows.len()), (&json!("newer"), 3 - round), "{rows:?}");
        assert!(refused(&newer.del()).contains("newer version, 9.0.0"));
        refused(&newer.add());
        // A runtime that counts nobody as attached: the GC is done, past the attachment that is not this version's.
        let mut gc = config.clone();
        gc["cni.dev/valid-attachments"] = json!([]);
        rig.call("", &pods[0], &gc).insist(Command::Gc, Way::Socket).succeeds();
        pods[1].has_what_was_answered("eth0", &result);
        assert_eq!(rig.allocations().len(), 2, "its two addresses are taken, and nobody else's");
        let (done, text) = order(&rig, &["gc", "--orphans", "--yes"]);
        assert!(!done && text.contains("eth0 of container c1") && text.contains("9.0.0"), "{text}");
        let (_, status) = order(&rig, &["status"]);
        assert!(
            status.contains("left alone: eth0 of c1 (network net): written by a newer version"),
            "{status}"
        );
        let (healthy, doctor) = order(&rig, &["doctor"]);
        assert!(!healthy && doctor.contains("the record of eth0 of container c1 was written"), "{doctor}");
        daemon.kill();
    }
    let kept: Vec<_> = frames(&rig).into_iter().filter(|frame| frame.contains("9.0.0")).collect();
    let wanted: Vec<_> = its.into_iter().filter(|frame| frame.contains("9.0.0")).collect();
    assert_eq!(kept, wanted, "word for word");
    // The newer version is back: it reads its own words as this one reads its own.
    let back: Vec<_> = frames(&rig)
        .into_iter()
        .filter(|frame| !frame.contains("epoch"))
        .map(|frame| frame.replace("crafted", "made").replace(FUTURE, "}"))
        .collect();
    write_frames(&rig, &back);
    let _daemon = rig.start();
    newer.del().succeeds();
    rig.is_as(&before, &all, "the DEL");
}

#[test]
fn a_record_of_executed_plugins_that_a_newer_version_wrote_stays_in_its_file() {
    let rig = Rig::new();
    let (config, pod) = (rig.cluster_network(), rig.pod("pod"));
    let call = rig.call("c1", &pod, &config);
    let daemon = rig.start();
    let before = rig.leftovers(&[&pod]);
    call.add().succeeds();
    daemon.kill();
    let records: Vec<_> = fs::read_dir(rig.path("state/attachments")).unwrap().flatten().collect();
    let file = records.iter().map(fs::DirEntry::path).find(|path| path.extension().is_some()).unwrap();
    let ours = fs::read_to_string(&file).unwrap();
    let version = ours.rfind(r#","by":"#).unwrap();
    let newer = format!("{}{FUTURE}", &ours[..version]);
    fs::write(&file, &newer).unwrap();
    let daemon = rig.start();
    assert!(refused(&call.del()).contains("eth0 of container c1 was written by a newer version, 9.0.0"));
    assert_eq!(rig.calls(), ["ADD c1"], "no plugin was executed");
    daemon.kill();
    assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    fs::write(&file, ours).unwrap();
    let _daemon = rig.start();
    call.del().succeeds();
    rig.is_as(&before, &[&pod], "the DEL");
}

#[test]
fn a_newer_versions_attachment_can_be_given_up_and_is_gone_after_a_kill() {
    let rig = Rig::new();
    let (config, pod) = (rig.macvlan("net"), rig.pod("pod"));
    let daemon = rig.start();
    rig.call("c1", &pod, &config).add().succeeds();
    daemon.kill();
    let its: Vec<String> = frames(&rig).iter().map(|frame| of_newer(frame)).collect();
    write_frames(&rig, &its);
    let daemon = rig.start();
    let (done, text) = order(&rig, &["forget", "c1", "eth0"]);
    assert!(!done && text.contains("its addresses stay taken") && text.contains("--yes"), "{text}");
    assert_eq!(rig.attachments().len(), 1);
    let (done, text) = order(&rig, &["forget", "c1", "eth0", "--yes"]);
    assert!(done && text.contains("given up"), "{text}");
    assert_eq!((rig.attachments(), rig.allocations().len()), (Vec::<Value>::new(), 2));
    daemon.kill();
    let _daemon = rig.start();
    until("it is gone", || rig.attachments().is_empty());
}
