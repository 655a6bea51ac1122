//! The specification's section on CHECK.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Finding, POD, SpecCase, SpecTestbed, network};
use crate::node_commands;
use crate::run_row::RowError;

const SECTION: &str = "spec: CHECK";

pub(super) const CASES: &[SpecCase] = &[
    SpecCase { section: SECTION, name: "check_after_add_succeeds", judge: fresh },
    SpecCase { section: SECTION, name: "check_below_0_4_is_code_1", judge: below_0_4 },
    SpecCase { section: SECTION, name: "check_without_prev_result_fails", judge: without_prev_result },
    SpecCase { section: SECTION, name: "check_of_a_container_never_added_fails", judge: never_added },
    SpecCase { section: SECTION, name: "check_sees_that_the_interface_is_gone", judge: link_gone },
    SpecCase { section: SECTION, name: "check_sees_that_an_address_is_gone", judge: address_gone },
    SpecCase { section: SECTION, name: "check_sees_that_a_route_is_gone", judge: route_gone },
    SpecCase { section: SECTION, name: "check_changes_nothing", judge: changes_nothing },
    SpecCase {
        section: SECTION,
        name: "check_takes_a_prev_result_with_more_interfaces",
        judge: more_interfaces,
    },
];

/// Makes an attachment; returns the configuration with which it is checked.
fn attached(testbed: &SpecTestbed<'_>) -> Result<(Value, Finding), RowError> {
    let mut config = network("1.0.0", &json!({}));
    let added = testbed.call("ADD", &config)?;
    config["prevResult"] = added.body.clone();
    Ok((config, Finding::success(&added)))
}

fn fresh(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = attached(testbed)?;
    Ok(Finding::all([add, Finding::success(&testbed.call("CHECK", &config)?)]))
}

fn below_0_4(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("0.3.1", &json!({}));
    let add = Finding::success(&testbed.call("ADD", &config)?);
    Ok(Finding::all([add, Finding::code(&testbed.call("CHECK", &config)?, &[1])]))
}

fn without_prev_result(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (mut config, add) = attached(testbed)?;
    config["prevResult"] = Value::Null;
    Ok(Finding::all([add, Finding::error(&testbed.call("CHECK", &config)?)]))
}

fn never_added(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = attached(testbed)?;
    Ok(Finding::all([add, Finding::error(&testbed.call_as("CHECK", "contest-2", "eth7", &config)?)]))
}

fn harmed(testbed: &SpecTestbed<'_>, command: &str) -> Result<Finding, RowError> {
    let (config, add) = attached(testbed)?;
    testbed.node.in_pod(POD, || node_commands::ip(command))?;
    Ok(Finding::all([add, Finding::error(&testbed.call("CHECK", &config)?)]))
}

fn link_gone(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    harmed(testbed, "link del eth0")
}

fn address_gone(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    harmed(testbed, "addr flush dev eth0 scope global")
}

fn route_gone(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    harmed(testbed, "route del default dev eth0")
}

fn changes_nothing(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = attached(testbed)?;
    let look =
        || testbed.node.in_pod(POD, || crate::observe::settle().and_then(|_| crate::observe::namespace()));
    let mut before = (look()?, crate::observe::files());
    // A plugin may have a sysctl set after its answer.
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(300));
        let now = (look()?, crate::observe::files());
        let rests = now == before;
        before = now;
        if rests {
            break;
        }
    }
    let check = Finding::success(&testbed.call("CHECK", &config)?);
    let same = before == (look()?, crate::observe::files());
    Ok(Finding::all([add, check]).and(same, "the pod or the files differ after it"))
}

fn more_interfaces(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (mut config, add) = attached(testbed)?;
    if let Some(interfaces) = config["prevResult"]["interfaces"].as_array_mut() {
        interfaces.push(json!({"name": "veth1234", "mac": "02:00:5e:00:09:09"}));
    }
    Ok(Finding::all([add, Finding::success(&testbed.call("CHECK", &config)?)]))
}
