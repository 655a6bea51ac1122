//! "Why has my pod no interface" is answered by one command.

use serde_json::{Value, json};

use super::rig::{Reply, Rig, until};
use super::{call_of, told};

#[test]
fn x14_describe_tells_of_a_pod_what_it_has_and_where_the_time_went() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let pod = rig.pod("a");
    let mut macvlan = rig.macvlan("net");
    macvlan.as_object_mut().unwrap().remove("master");
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "fairlead", "ipam": macvlan["ipam"],
        "paths": [{ "type": "macvlan", "master": "none0" }, { "type": "macvlan", "master": "eth0" }],
    });
    let call = call_of(&rig, &pod, "0123456789abcdef", ("shop", "web-0", "u-1"), &config);
    call.add().succeeds();
    // The timing is remembered when the answer has left.
    let describe = |of: &str| told(&mut rig.operator(&["describe", of]));
    until("the timing is told", || describe("shop/web-0").contains("took"));
    let text = describe("shop/web-0");
    for part in [
        "pod        shop/web-0\n",
        "uid        u-1\n",
        "eth0       network net by macvlan: attached, ",
        "passed over  macvlan: ",
        "none0",
        "addresses    10.73.0.2/22, fd00:73::2/64\n",
        "routes       0.0.0.0/0\n",
        "no call has failed since the daemon was started\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let took = text.lines().find(|line| line.contains("took")).unwrap();
    for phase in ["queue", "parse", "namespace", "plan", "intent", "ipam", "link", "configure", "commit"] {
        assert!(took.contains(&format!("{phase} ")), "{took}");
    }
    // By any of its names.
    for of in ["web-0", "u-1", "0123456789abcdef", "01234567"] {
        assert_eq!(describe(of).lines().count(), text.lines().count(), "{of}");
    }
    let out = rig.operator(&["describe", "shop/web-1"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8(out.stdout).unwrap().starts_with("nothing is attached to \"shop/web-1\""));
}

#[test]
fn x14_describe_tells_why_a_pod_has_no_interface_and_counts_what_is_tried_again() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut config = rig.macvlan("net");
    config["master"] = json!("eth7");
    for container in ["c1", "c2", "c3"] {
        let pod = rig.pod(container);
        let call = call_of(&rig, &pod, container, ("shop", "web-0", "u-1"), &config);
        assert!(matches!(call.add(), Reply::Refused(_)));
    }
    let pod = rig.pod("b");
    let unreadable = json!({ "cniVersion": "1.0.0", "name": "net", "type": "macvlan", "mtu": "big" });
    call_of(&rig, &pod, "c4", ("shop", "web-0", "u-1"), &unreadable).add();
    let json: Value =
        serde_json::from_str(&told(&mut rig.operator(&["describe", "shop/web-0", "-o", "json"]))).unwrap();
    let failures = json["failures"].as_array().unwrap();
    assert_eq!((failures.len(), json["attachments"].as_array().unwrap().len()), (2, 0), "{json}");
    let of = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    assert!(of(&failures[0], "error").contains("mtu"), "{json}");
    let missing = &failures[1];
    assert_eq!((missing["times"].as_u64(), of(missing, "container").as_str()), (Some(3), "c3"), "{json}");
    assert!(of(missing, "error").contains("eth7") && of(missing, "after") == "namespace", "{json}");
    let text = told(&mut rig.operator(&["describe", "web-0"]));
    let line = text.lines().find(|line| line.contains("3 times in ")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with("  ADD eth0 in network net (macvlan): code "), "{text}");
    assert!(line.contains("after its phase \"namespace\""), "{text}");
}
