//! The specification's section on GC.

use serde_json::{Value, json};

use super::{Finding, SpecCase, SpecTestbed, allocated, network};
use crate::implementation::{Answer, Call, CallError};
use crate::run_row::RowError;

const SECTION: &str = "spec: GC";

pub(super) const CASES: &[SpecCase] = &[
    SpecCase { section: SECTION, name: "gc_removes_only_unlisted", judge: only_unlisted },
    SpecCase { section: SECTION, name: "gc_with_both_keys_as_libcni_sends_them", judge: both_keys },
    SpecCase { section: SECTION, name: "gc_without_a_list_removes_nothing", judge: without_list },
    SpecCase { section: SECTION, name: "gc_with_an_empty_list_removes_all", judge: empty_list },
    SpecCase { section: SECTION, name: "gc_with_a_null_list_removes_all", judge: null_list },
    SpecCase { section: SECTION, name: "gc_looks_at_id_and_interface_name", judge: other_ifname },
    SpecCase { section: SECTION, name: "gc_of_one_network_leaves_the_others", judge: other_network },
    SpecCase { section: SECTION, name: "gc_below_1_1_is_code_1", judge: below_1_1 },
    SpecCase { section: SECTION, name: "gc_twice_succeeds", judge: twice },
];

/// Makes two attachments of one network, `a` and `b`.
fn two(testbed: &SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.1.0", &json!({"ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}}));
    let a = testbed.call_as("ADD", "a", "eth0", &config)?;
    let b = testbed.call_as("ADD", "b", "net1", &config)?;
    Ok(Finding::all([&a, &b].map(Finding::success)).and(held() == (1, 1), "host-local keeps no files"))
}

fn held() -> (usize, usize) {
    (allocated("a").len(), allocated("b").len())
}

fn gc(testbed: &SpecTestbed<'_>, version: &str, more: &Value) -> Result<Answer, CallError> {
    let mut config = network(version, &json!({"ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}}));
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        config.extend(more.clone());
    }
    let text = config.to_string();
    testbed.raw(&Call { command: "GC", config: text.as_bytes(), ..Call::default() })
}

/// Calls GC with these keys; then so many addresses of `a` and of `b` must be left, and their interfaces.
fn leaves(testbed: &SpecTestbed<'_>, keys: &Value, wanted: (usize, usize)) -> Result<Finding, RowError> {
    let made = two(testbed)?;
    let answer = gc(testbed, "1.1.0", keys)?;
    let right = super::in_time(|| Ok(held() == wanted))?;
    let links = super::in_time(|| {
        Ok(testbed.has_interface("eth0")? == (wanted.0 == 1)
            && testbed.has_interface("net1")? == (wanted.1 == 1))
    })?;
    let (a, b) = held();
    Ok(Finding::all([made, Finding::success(&answer)])
        .and(right, &format!("{a} and {b} addresses are left instead of {} and {}", wanted.0, wanted.1))
        .and(links, &format!("the pod has {}", testbed.interfaces()?.join(" "))))
}

fn only_unlisted(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    leaves(testbed, &json!({"cni.dev/valid-attachments": [{"containerID": "b", "ifname": "net1"}]}), (0, 1))
}

fn both_keys(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let list = json!([{"containerID": "a", "ifname": "eth0"}]);
    leaves(testbed, &json!({"cni.dev/valid-attachments": list, "cni.dev/attachments": list}), (1, 0))
}

fn without_list(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    leaves(testbed, &json!({}), (1, 1))
}

fn empty_list(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    leaves(testbed, &json!({"cni.dev/valid-attachments": []}), (0, 0))
}

fn null_list(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    leaves(testbed, &json!({"cni.dev/valid-attachments": null}), (0, 0))
}

fn other_ifname(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let list = json!([{"containerID": "a", "ifname": "eth9"}, {"containerID": "b", "ifname": "net1"}]);
    leaves(testbed, &json!({"cni.dev/valid-attachments": list}), (0, 1))
}

fn other_network(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    leaves(testbed, &json!({"name": "another", "cni.dev/valid-attachments": []}), (1, 1))
}

fn below_1_1(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(&gc(testbed, "1.0.0", &json!({"cni.dev/valid-attachments": []}))?, &[1]))
}

fn twice(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let list = json!({"cni.dev/valid-attachments": []});
    let calls = [gc(testbed, "1.1.0", &list)?, gc(testbed, "1.1.0", &list)?];
    Ok(Finding::all(calls.iter().map(Finding::success)))
}
