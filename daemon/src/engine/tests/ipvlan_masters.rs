//! An ipvlan without `master`: ADD finds one for it, and CHECK holds it to that one.

use fairlead_cni::Code;
use fairlead_host::{NetKernel, NewLink, Op, Parent};

use super::nearest_master::stands_on;
use super::*;

const NO_MASTER: &str = r#"{"cniVersion":"1.0.0","name":"net","type":"ipvlan","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#;

fn after(result: &str) -> String {
    format!(r#"{},"prevResult":{result}}}"#, NO_MASTER.strip_suffix('}').unwrap())
}

/// The answer, and behind it an interface of the host, as the plugin `bandwidth` adds one.
fn with_another(answer: &str) -> String {
    let mut whole: serde_json::Value = serde_json::from_str(answer).unwrap();
    whole["interfaces"].as_array_mut().unwrap().push(serde_json::json!({"name": "bwp0"}));
    whole.to_string()
}

#[test]
fn one_on_the_default_routes_interface_is_held_to_the_interface_of_add() {
    let rig = Rig::new();
    rig.route_with_metric("eth0", "0.0.0.0/0", 254, Some(100));
    let answer = rig.add(NO_MASTER).unwrap();
    assert_eq!(stands_on(&rig), "eth0");
    rig.check(NO_MASTER, &answer).unwrap();
    rig.check(NO_MASTER, &with_another(&answer)).unwrap();
    // The host's traffic leaves by another interface from now on.
    rig.route_with_metric("dev0", "0.0.0.0/0", 254, Some(1));
    rig.check(NO_MASTER, &answer).unwrap();

    let made = rig.ops().into_iter().rev().find_map(|op| match op {
        Op::CreateLink(new) => Some(new),
        _ => None,
    });
    let other = rig.kernel.host().unwrap().link_by_name("dev0").unwrap().unwrap().index;
    let elsewhere = NewLink { parent: Parent::Host(other), ..made.unwrap() };
    rig.in_pod(|index| vec![Op::DeleteLink(index), Op::CreateLink(elsewhere.clone())]);
    let told = rig.check(NO_MASTER, &answer).unwrap_err();
    assert_eq!(told.code, Code::Changed, "{told}");
    assert!(told.msg.contains(&format!("stands on the interface with index {other} instead of")), "{told}");
}

#[test]
fn one_behind_another_plugin_stands_on_its_interface_and_is_whole_with_the_lists_own_result() {
    let rig = Rig::new();
    let before = rig.state();
    let two = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"dev0"},{"name":"eth0"}]}"#;
    let told = rig.add(&after(two)).unwrap_err();
    assert!(told.msg.contains(r#"ipvlan has no "master", and "prevResult" has 2 interfaces"#), "{told}");
    assert_eq!(rig.state(), before);

    let answer = rig.add(&after(r#"{"cniVersion":"1.0.0","interfaces":[{"name":"dev0"}]}"#)).unwrap();
    assert_eq!(stands_on(&rig), "dev0");
    rig.check(NO_MASTER, &answer).unwrap();
    rig.check(NO_MASTER, &with_another(&answer)).unwrap();
    rig.del(&after(&with_another(&answer))).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}
