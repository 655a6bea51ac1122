//! Definitions that tenants write, through a real daemon on the real kernel: what the policy allows is made and removed like any other
//! network, what it forbids changes nothing.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::rig::{Call, Pod, Reply, Rig, until};

/// A node whose policy lets the namespaces `radio-*` have macvlans on `eth0` with addresses of 10.9.0.0/16.
fn node() -> Rig {
    let rig = Rig::new();
    let policy = json!({
        "dataDirRoots": [rig.path("data")],
        "rules": [{
            "namespaces": ["radio-*"], "types": ["macvlan"], "masters": ["eth0"],
            "ipamTypes": ["host-local"], "ranges": ["10.9.0.0/16"],
        }],
    });
    fs::write(rig.path("config.yaml"), format!("reapAfter: 30ms\npolicy: {policy}\n")).unwrap();
    rig
}

/// A macvlan with an address of 10.9.0.0/24.
fn macvlan(data_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "macvlan", "master": "eth0",
        "ipam": { "type": "host-local", "dataDir": data_dir, "subnet": "10.9.0.0/24" },
    })
}

/// The call for a definition of a namespace.
fn call<'r>(rig: &'r Rig, container: &str, pod: &Pod, namespace: &str, definition: &Value) -> Call<'r> {
    let wrapper = json!({
        "cniVersion": definition["cniVersion"], "name": definition["name"], "type": definition["type"],
        "tenantsDefinition": { "namespace": namespace, "text": definition.to_string() },
    });
    rig.call(container, pod, &wrapper)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|found| found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

fn refused(reply: &Reply) -> (u32, String) {
    match reply {
        Reply::Refused(error) => (error.code.number(), error.to_string()),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn networks_of_one_name_in_two_namespaces_and_the_administrators_never_share_a_directory_across_a_kill() {
    let rig = node();
    let daemon = rig.start();
    let (a, b, own) = (rig.pod("a"), rig.pod("b"), rig.pod("own"));
    let before = rig.leftovers(&[&a, &b, &own]);
    let data = rig.path("data");
    let calls = [
        call(&rig, "c-a", &a, "radio-a", &macvlan(&data)),
        call(&rig, "c-b", &b, "radio-b", &macvlan(&data)),
        rig.call("c-own", &own, &macvlan(&data)),
    ];
    for (call, pod) in calls.iter().zip([&a, &b, &own]) {
        let result = call.add().result();
        pod.has_what_was_answered("eth0", &result);
        assert_eq!(result["ips"][0]["address"], "10.9.0.2/24", "none sees what another has taken");
    }
    assert_eq!(names(&data), ["net", "net@radio-a", "net@radio-b"]);
    daemon.kill();
    let daemon = rig.start();
    assert_eq!(rig.attachments().len(), 3);
    calls[0].del().succeeds();
    until("the address of radio-a is free", || !data.join("net@radio-a/10.9.0.2").exists());
    assert!(data.join("net/10.9.0.2").exists() && data.join("net@radio-b/10.9.0.2").exists());
    daemon.kill();
    let _daemon = rig.start();
    calls[1].del().succeeds();
    calls[2].del().succeeds();
    rig.is_as(&before, &[&a, &b, &own], "the DELs");
}

#[test]
fn a_killed_add_of_a_tenants_definition_is_undone_by_the_next_daemon() {
    for step in ["add.allocated", "add.linked", "add.configured"] {
        let rig = node();
        let pod = rig.pod("p");
        let daemon = rig.start();
        let before = rig.leftovers(&[&pod]);
        daemon.kill();
        let daemon = rig.start_dying_at(step);
        let call = call(&rig, "c1", &pod, "radio-a", &macvlan(&rig.path("data/deep/er")));
        assert!(matches!(call.add(), Reply::Lost), "{step}");
        daemon.dies();
        let _daemon = rig.start();
        rig.is_as(&before, &[&pod], step);
        call.add().succeeds();
        call.del().succeeds();
        rig.is_as(&before, &[&pod], "DEL");
    }
}

#[test]
fn what_a_tenants_definition_may_not_have_is_refused_and_changes_nothing() {
    let rig = node();
    let _daemon = rig.start();
    let pod = rig.pod("p");
    let before = rig.leftovers(&[&pod]);
    let data = rig.path("data");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut definition = macvlan(&data);
        change(&mut definition);
        definition
    };
    let cases = [
        (with(&|d| d["master"] = json!("wire0")), "\"master\": \"wire0\""),
        (with(&|d| (d["master"], d["ma\u{17f}ter"]) = (json!("eth0"), json!("wire0"))), "wire0"),
        (with(&|d| d["ipam"]["subnet"] = json!("10.8.0.0/24")), "10.8.0.0/24"),
        (with(&|d| d["ipam"]["dataDir"] = json!(rig.path("bin"))), "\"ipam.dataDir\""),
        (with(&|d| d["ipam"]["dataDir"] = json!(data.join("../bin"))), "\"ipam.dataDir\""),
        (json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge" }), "\"type\": \"bridge\""),
        (
            json!({ "cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "eth0" }),
            "\"type\": \"host-device\"",
        ),
        (with(&|d| d["mode"] = json!("passthru")), "passthru"),
        (with(&|d| d["runtimeConfig"] = json!({ "CNIDeviceInfoFile": "/evil" })), "\"runtimeConfig\""),
        (with(&|d| d["prevResult"] = json!({})), "\"prevResult\""),
    ];
    for (definition, told) in cases {
        let (code, text) = refused(&call(&rig, "c1", &pod, "radio-a", &definition).add());
        assert!(code == 7 && text.contains(told) && text.contains("radio-a"), "{code} {text} | {told}");
    }
    let (code, text) = refused(&call(&rig, "c1", &pod, "other", &macvlan(&data)).add());
    assert!(code == 7 && text.contains("other"), "{text}");
    assert_eq!(rig.leftovers(&[&pod]), before);
    assert_eq!(names(&data), [] as [&str; 0]);
}

#[test]
fn no_tenant_executes_a_plugin_whose_place_fairlead_has_taken() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let pod = rig.pod("p");
    let before = rig.leftovers(&[&pod]);
    let (kept, ran) = (rig.path("bin/host-device.fairlead-original"), rig.path("ran"));
    fs::write(&kept, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o755)).unwrap();
    let original = "host-device.fairlead-original";
    for definition in [
        json!({ "cniVersion": "1.0.0", "name": "net", "type": original, "device": "eth0" }),
        json!({
            "cniVersion": "1.0.0", "name": "net", "type": "macvlan", "master": "eth0", "device": "eth0",
            "ipam": { "type": original },
        }),
    ] {
        let (code, text) = refused(&call(&rig, "c1", &pod, "radio-a", &definition).add());
        assert!(code == 7 && text.contains(original) && text.contains("Fairlead serves"), "{code} {text}");
    }
    assert!(!ran.exists(), "it was executed");
    assert_eq!(rig.leftovers(&[&pod]), before);
}

#[test]
fn the_hosts_end_of_a_pods_veth_carries_no_tenants_link_and_goes_to_none() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let (pod, victim) = (rig.pod("p"), rig.pod("victim"));
    rig.ip(&format!("link add cali1 type veth peer name eth9 netns {}", victim.path().display()));
    rig.ip("link set cali1 up");
    rig.ip("link add link cali1 name over1 type macvlan mode bridge");
    let before = rig.leftovers(&[&pod, &victim]);
    let of = |kind: &str, more: Value| {
        let mut definition = json!({ "cniVersion": "1.0.0", "name": "net", "type": kind });
        definition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        definition
    };
    let ipam = json!({ "type": "static", "addresses": [{ "address": "10.9.0.1/24" }] });
    let macvlan = |master: &str| of("macvlan", json!({ "master": master, "ipam": ipam }));
    let definitions = ["cali1", "over1"].into_iter().flat_map(|master| {
        [
            macvlan(master),
            of("ipvlan", json!({ "master": master, "ipam": ipam })),
            of("vlan", json!({ "master": master, "vlanId": 7, "ipam": ipam })),
            of("macvlan", json!({ "master": master, "mode": "passthru", "ipam": {} })),
            of("host-device", json!({ "device": master, "ipam": {} })),
        ]
    });
    for definition in definitions {
        // Twice: the master can be remembered from the first look.
        for _ in 0..2 {
            let (code, text) = refused(&call(&rig, "c1", &pod, "radio-a", &definition).add());
            assert!(code == 7 && text.contains("leads into another network namespace"), "{code} {text}");
        }
    }
    // The administrator's is taken, and a tenant's on a wire whose other end is the node's.
    let taken =
        [rig.call("c2", &pod, &macvlan("cali1")), call(&rig, "c3", &pod, "radio-a", &macvlan("eth0"))];
    for call in taken {
        call.add().succeeds();
        call.del().succeeds();
    }
    rig.is_as(&before, &[&pod, &victim], "the DELs");
}

/// A bind mount, undone when it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(source: &Path, at: PathBuf) -> Mounted {
        fs::create_dir(&at).unwrap();
        let none: Option<&str> = None;
        mount(Some(source), &at, none, MsFlags::MS_BIND, none).unwrap();
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_link_or_a_mount_below_a_root_is_entered_by_no_add() {
    let rig = node();
    let _daemon = rig.start();
    let pod = rig.pod("p");
    let outside = rig.path("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, rig.path("data/link")).unwrap();
    let _mounted = Mounted::new(&outside, rig.path("data/mounted"));
    for (name, what) in [("link", "is a symbolic link"), ("mounted", "is a mount")] {
        let place = rig.path("data").join(name);
        let (code, text) = refused(&call(&rig, "c1", &pod, "radio-a", &macvlan(&place)).add());
        let told = format!("{place:?} {what}, and leads out of");
        assert!(code == 7 && text.contains(&told) && text.contains("policy.dataDirRoots"), "{code} {text}");
        assert_eq!(names(&outside), [] as [&str; 0]);
        until("nothing is on record", || rig.attachments().is_empty());
    }
    // The administrator's is followed, as ever.
    rig.call("c2", &pod, &macvlan(&rig.path("data/link"))).add().succeeds();
    assert_eq!(names(&outside), ["net"]);
}

#[test]
fn a_directory_that_was_replaced_by_a_link_is_touched_by_no_removal_also_after_a_kill_and_a_changed_policy() {
    let rig = node();
    let daemon = rig.start();
    let (pod, place, away, outside) =
        (rig.pod("p"), rig.path("data/radio"), rig.path("data/away"), rig.path("outside"));
    let call = call(&rig, "c1", &pod, "radio-a", &macvlan(&place));
    call.add().succeeds();
    daemon.kill();
    fs::create_dir_all(outside.join("net@radio-a")).unwrap();
    fs::copy(place.join("net@radio-a/10.9.0.2"), outside.join("net@radio-a/10.9.0.2")).unwrap();
    fs::rename(&place, &away).unwrap();
    symlink(&outside, &place).unwrap();
    // The root is on record: what the policy says by now does not matter.
    fs::write(rig.path("config.yaml"), "reapAfter: 30ms\n").unwrap();
    let daemon = rig.start();
    call.del().succeeds();
    until("the removal has failed", || rig.log().contains("is a symbolic link, and leads out of"));
    assert_eq!(rig.attachments().len(), 1);
    assert_eq!(names(&outside.join("net@radio-a")), ["10.9.0.2"]);
    daemon.kill();
    fs::remove_file(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    let _daemon = rig.start();
    until("nothing is on record", || rig.attachments().is_empty());
    assert_eq!(rig.allocations(), [] as [PathBuf; 0]);
}
