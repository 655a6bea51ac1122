//! The suite itself, run small against Debian's reference plugin on the real kernel: needs root and
//! `containernetworking-plugins`.

#![allow(clippy::unwrap_used, reason = "the VFs that the tests share are test code too")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The suite without ours, whose daemon is not this crate's to build.
fn suite(arguments: &[&str]) -> Output {
    let reference = Path::new("/usr/lib/cni/macvlan");
    assert!(
        reference.is_file(),
        "the reference plugin {} is missing; `apt-get install -y containernetworking-plugins`",
        reference.display()
    );
    Command::new(env!("CARGO_BIN_EXE_fairlead-bench"))
        .args(["--quick", "--without", "ours", "--empty", env!("CARGO_BIN_EXE_fairlead-empty")])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn all_cases_run_against_the_reference_and_the_floor_and_every_interface_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let (json, html) = (dir.path().join("report.json"), dir.path().join("report.html"));
    let output = suite(&["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let table = text(&output.stdout);
    for case in
        ["add-one", "del-one", "burst-100", "add-under-del", "add-standing", "silence", "storm-500", "idle"]
    {
        assert!(table.contains(&format!("\n{case} — ")), "{table}");
    }
    assert!(table.contains("nothing failed"), "{table}");

    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let figure = |case: &str, subject: &str, what: &str| {
        let figures = report["figures"].as_array().unwrap();
        figures
            .iter()
            .find(|f| f["case"] == case && f["subject"] == subject && f["what"] == what)
            .unwrap()
            .clone()
    };
    let (debian, floor) = (figure("add-one", "debian", "ADD"), figure("add-one", "floor", "ADD"));
    assert_eq!(debian["latency"]["calls"], 4);
    assert!(debian["latency"]["min_ms"].as_f64() > floor["latency"]["min_ms"].as_f64(), "{debian} {floor}");
    assert!(debian["plugins_cpu_per_call_ms"].as_f64() > Some(0.0), "{debian}");
    assert!(debian["histogram"]["data"].as_str().unwrap().len() > 40, "{debian}");
    assert!(figure("burst-100", "debian", "ADD")["plugins_peak_kib"].as_u64() > Some(0));
    let (whole, spawn) = (figure("del-one", "floor", "DEL"), figure("del-one", "floor", "of it: spawn"));
    assert!(whole["latency"]["min_ms"].as_f64() > spawn["latency"]["min_ms"].as_f64(), "{whole} {spawn}");
    // The bare program is spawned in the place of the floor's, for the same calls.
    assert_eq!(figure("add-one", "bare", "ADD")["latency"]["calls"], 4);
    assert_eq!(figure("del-one", "bare", "of it: spawn")["latency"]["calls"], 4);
    let subjects = report["subjects"].as_array().unwrap();
    let path_of = |name: &str| subjects.iter().find(|s| s["name"] == name).unwrap()["path"].clone();
    assert_eq!(path_of("raw-at-once"), path_of("bare"));
    assert_ne!(path_of("floor"), path_of("bare"));
    let mut rounds = report["rounds"].as_array().unwrap().iter();
    let burst = rounds.find(|r| r["case"] == "burst-100").unwrap();
    assert_eq!(burst["made"], 3, "debian's, that of the raw calls, and that of their limits: {burst}");
    for limit in
        ["spawn alone, at once", "kernel calls alone, at once", "spawn and kernel calls, at once (its ADD)"]
    {
        let mut readings = report["readings"].as_array().unwrap().iter();
        let reading = readings.find(|r| r["case"] == "burst-100" && r["what"] == limit).unwrap();
        assert!(reading["values"][0].as_f64() > Some(0.0), "{reading}");
    }
    assert!(report["machine"]["data_dir_fs"].as_str().unwrap().contains("/var/lib"), "{report}");
    assert_eq!(report["targets"], serde_json::json!([]), "a smoke test is held against no target");

    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("href="));
    assert!(
        page.contains("<h2>8 ADDs at once, then 8 DELs at once") && page.contains("raw-at-once ADD"),
        "{page}"
    );
    assert!(page.find("Every interface was verified") < page.find("<h2>"), "the verdict comes first");
}

#[test]
fn what_a_daemon_does_after_its_answers_is_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let output = suite(&[
        "--only=add-one",
        "--only=del-one",
        "--without=floor",
        "--peer=busy=/usr/lib/cni/macvlan",
        "--peer-daemon=busy=sh -c 'while :; do :; done'",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let of_busy = figures.iter().filter(|f| f["subject"] == "busy");
    let soon: f64 = of_busy.filter_map(|f| f["daemon_cpu_per_call_ms"].as_f64()).sum();
    let readings = report["readings"].as_array().unwrap();
    let [whole] = readings.as_slice() else { panic!("only what has a daemon is read: {readings:?}") };
    assert!(whole["case"] == "del-one" && whole["subject"] == "busy", "{whole}");
    assert!(soon > 0.0 && whole["values"][0].as_f64() > Some(soon), "{soon} {whole}");
}

#[test]
fn a_plugin_that_answers_without_making_the_interface_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let liar = dir.path().join("liar");
    let answer = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.88.9.9/16"}]}"#;
    fs::write(&liar, format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")).unwrap();
    fs::set_permissions(&liar, fs::Permissions::from_mode(0o755)).unwrap();
    let peer = format!("liar={}", liar.display());
    let output = suite(&["--only", "add-one", "--without", "floor", "--peer", &peer]);
    assert!(!output.status.success());
    let table = text(&output.stdout);
    assert!(
        table.contains("add-one: liar: ADD liar-") && table.contains("answered for and is not there"),
        "{table}"
    );
    assert!(!table.contains("liar ADD"), "a wrong call is no latency: {table}");
}

#[test]
fn a_subject_that_is_missing_is_named_with_the_remedy() {
    let output = suite(&["--debian", "/nonexistent"]);
    assert!(!output.status.success());
    let told = text(&output.stderr);
    assert!(told.contains("/nonexistent/macvlan") && told.contains("containernetworking-plugins"), "{told}");
}

#[test]
fn the_host_keeps_no_trace_of_a_run() {
    let before = leftovers();
    let output = suite(&["--only", "burst-100"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(leftovers().iter().all(|name| before.contains(name) || is_of_a_running_suite(name)));
    let links = text(&Command::new("ip").args(["-o", "link"]).output().unwrap().stdout);
    assert!(!links.contains("wire0"), "{links}");
}

fn leftovers() -> Vec<String> {
    let of = |dir| fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    of("/run").chain(of("/var/lib")).filter(|name| name.starts_with("fairlead-bench-")).collect()
}

/// The tests of this file run side by side, each with directories named after its process.
fn is_of_a_running_suite(name: &str) -> bool {
    name.split('-').nth(2).is_some_and(|pid| Path::new("/proc").join(pid).exists())
}
