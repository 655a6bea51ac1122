//! Whose an attachment is, in the log and in tables; tables that fit a terminal.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::rig::Rig;
use super::{call_of, told};

const UID: &str = "0b8e3d0c-8f4c-4c0e-9c8c-2f6f3a1d7e55";

#[test]
fn x14_every_line_that_is_logged_of_a_pods_calls_names_the_pod_and_its_uid() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let begun = rig.log().lines().count();
    let pod = rig.pod("a");
    let call = call_of(&rig, &pod, "c-web-0", ("shop", "web-0", UID), &rig.macvlan("net"));
    call.add().succeeds();
    call.del().succeeds();
    // The kernel refuses this one after the intent: the undo has a line of its own.
    pod.ip("link add taken type veth peer name eth0");
    call.add();
    pod.ip("link del taken");
    let mut wrong = rig.macvlan("net");
    wrong["mode"] = json!("brigde");
    call_of(&rig, &pod, "c-web-0", ("shop", "web-0", UID), &wrong).add();
    super::rig::until("the last call is in the log", || rig.log().contains("brigde"));
    let log = rig.log();
    let lines: Vec<&str> = log.lines().skip(begun).collect();
    assert!(lines.len() >= 4, "{log}");
    for line in lines {
        assert!(line.contains("shop/web-0") && line.contains(UID), "{line}");
    }
}

#[test]
fn without_a_switch_its_tables_are_an_error_and_programs_get_the_answer_too() {
    let rig = Rig::new();
    let _daemon = rig.start();
    for table in ["ports", "stats", "mac-table"] {
        for (form, shown) in [("table", ""), ("wide", ""), ("json", "\"lacks\"")] {
            let out = rig.operator(&["vswitch", table, "-o", form]).output().unwrap();
            let [stdout, stderr] = [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text));
            assert_eq!(out.status.code(), Some(1), "{table} {form}: {out:?}");
            assert!(stderr.contains("the switch has nothing to show: "), "{table} {form}: {out:?}");
            assert!(
                stdout.contains(shown) && stdout.is_empty() == shown.is_empty(),
                "{table} {form}: {out:?}"
            );
        }
    }
}

#[test]
fn x14_attachments_name_pod_uid_and_time_and_the_table_fits_80_columns() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let config = rig.macvlan("a-network-with-a-long-name");
    let (short, long, bare) = (rig.pod("short"), rig.pod("long"), rig.pod("bare"));
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let name = "deployment-with-a-long-name-7d4b9c6f5d-x2x9z";
    call_of(&rig, &short, "c1", ("shop", "web-0", UID), &config).add().succeeds();
    call_of(&rig, &long, "c2", ("namespace-of-a-team", name, "u-2"), &config).add().succeeds();
    rig.call("0123456789abcdef0123", &bare, &config).add().succeeds();
    let rows = rig.attachments();
    let of = |pod: &str| rows.iter().find(|row| row["pod"] == pod).unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!(of("shop/web-0")["podUid"], UID);
    assert!(of("shop/web-0")["addedAt"].as_u64().unwrap() >= before);
    assert_eq!(rows.iter().filter(|row| row["pod"].is_null()).count(), 1);
    let table = told(&mut rig.operator(&["attachments"]));
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    // Each line without the age, which is the machine's.
    let lines: Vec<&str> = table.lines().map(|line| line.rsplit_once(' ').unwrap().0.trim_end()).collect();
    assert_eq!(lines, GOLDEN, "{table}");
    let wide = told(&mut rig.operator(&["attachments", "-o", "wide"]));
    let netns = long.path().display().to_string();
    for part in
        [UID, name, "a-network-with-a-long-name", "fd00:96::", &netns, "0123456789abcdef0123", "PODUID"]
    {
        assert!(wide.contains(part), "{part}: {wide}");
    }
}

/// The table as it is printed, without its last column.
const GOLDEN: [&str; 4] = [
    "POD                    INTERFACE  NETWORK    TYPE     ADDRESS      PHASE",
    "shop/web-0             eth0       a-ne…name  macvlan  10.96.0.2+1  attached",
    "nam…am/deploym…-x2x9z  eth0       a-ne…name  macvlan  10.96.0.3+1  attached",
    "(0123456789ab)         eth0       a-ne…name  macvlan  10.96.0.4+1  attached",
];

#[test]
fn an_empty_list_is_told_in_a_sentence() {
    let rig = Rig::new();
    let _daemon = rig.start();
    for (command, sentence) in [
        ("attachments", "nothing is attached on this node\n"),
        ("networks", "the conf dir has no networks\n"),
        ("pools", "no pool has a VF\n"),
    ] {
        assert_eq!(told(&mut rig.operator(&[command])), sentence);
        let json = told(&mut rig.operator(&[command, "-o", "json"]));
        assert!(!json.contains("no "), "{json}");
    }
}

#[test]
fn ports_of_pools_are_told_with_what_keeps_them_from_pods() {
    let rig = Rig::new();
    let pool = "vhostUser: {pools: [{name: blue, resourceName: example.com/blue, count: 1}]}\n";
    let kubelet = format!("kubelet: {{dir: {}}}\n", rig.path("kubelet").display());
    fs::write(rig.path("config.yaml"), kubelet + pool).unwrap();
    let in_the_way = rig.path("run/vhost-user");
    fs::write(&in_the_way, "").unwrap();
    let _daemon = rig.start();
    assert_eq!(told(&mut rig.operator(&["pools"])), "POOL  PORT     STATE\nblue  blue-00  broken\n");
    let doctor = rig.operator(&["doctor"]).output().unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        text.contains("port blue-00 of pool blue is kept from pods: its directory cannot be made"),
        "{text}"
    );
    fs::remove_file(&in_the_way).unwrap();
    super::rig::until("the port is ready", || told(&mut rig.operator(&["pools"])).contains("ready"));
}

#[test]
fn a_table_that_is_watched_is_printed_again_only_when_it_has_changed() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut watch = rig.operator(&["attachments", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "nothing is attached on this node");
    // Longer than a look: what has not changed is not printed again.
    std::thread::sleep(Duration::from_millis(1500));
    let pod = rig.pod("a");
    call_of(&rig, &pod, "c1", ("shop", "web-0", UID), &rig.layer2()).add().succeeds();
    assert!(lines.next().unwrap().unwrap().starts_with("POD "));
    assert!(lines.next().unwrap().unwrap().starts_with("shop/web-0 "));
    // Whoever reads no more ends it.
    drop(lines);
    pod.ip("link del eth0");
    super::rig::until("the watch has ended", || {
        watch.try_wait().unwrap().is_some_and(|status| status.success())
    });
}
