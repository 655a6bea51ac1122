//! The specification's section on DEL: it is idempotent, and succeeds whatever is already gone.

use serde_json::{Value, json};

use super::{Finding, ID, POD, SpecCase, SpecTestbed, allocated, network};
use crate::implementation::Call;
use crate::node_commands;
use crate::run_row::RowError;
use crate::test_node::TestNode;

const SECTION: &str = "spec: DEL";

pub(super) const CASES: &[SpecCase] = &[
    SpecCase { section: SECTION, name: "del_is_idempotent", judge: idempotent },
    SpecCase { section: SECTION, name: "del_frees_the_address", judge: frees },
    SpecCase { section: SECTION, name: "del_without_netns", judge: without_netns },
    SpecCase { section: SECTION, name: "del_with_a_missing_netns_path", judge: missing_netns },
    SpecCase { section: SECTION, name: "del_after_the_netns_is_gone_frees_the_address", judge: netns_gone },
    SpecCase { section: SECTION, name: "del_of_an_attachment_never_made", judge: never_made },
    SpecCase { section: SECTION, name: "del_when_the_interface_is_already_gone", judge: link_gone },
    SpecCase { section: SECTION, name: "del_when_the_master_is_gone", judge: master_gone },
    SpecCase { section: SECTION, name: "del_without_prev_result", judge: without_prev_result },
    SpecCase { section: SECTION, name: "del_of_another_container_leaves_this_ones_address", judge: another },
    SpecCase { section: SECTION, name: "no_del_error_reads_like_a_success_to_containerd", judge: words },
];

fn added(testbed: &SpecTestbed<'_>) -> Result<(Value, Finding), RowError> {
    let config = network("1.0.0", &json!({}));
    let answer = testbed.call("ADD", &config)?;
    Ok((config, Finding::success(&answer)))
}

fn idempotent(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = added(testbed)?;
    let dels = [testbed.call("DEL", &config)?, testbed.call("DEL", &config)?, testbed.call("DEL", &config)?];
    Ok(Finding::all([add].into_iter().chain(dels.iter().map(Finding::success))))
}

fn frees(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = added(testbed)?;
    let held = allocated(ID).len();
    let del = testbed.call("DEL", &config)?;
    let free = super::in_time(|| Ok(allocated(ID).is_empty()))?;
    Ok(Finding::all([add, Finding::success(&del)])
        .and(held == 1, "there was no allocation to free")
        .and(free, "the address stays taken")
        .and(!testbed.has_interface("eth0")?, "the name is not free"))
}

fn del_with(testbed: &SpecTestbed<'_>, netns: &str) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({})).to_string();
    let call =
        Call { command: "DEL", container_id: ID, netns, ifname: "eth0", args: "", config: config.as_bytes() };
    let answer = testbed.raw(&call)?;
    let free = super::in_time(|| Ok(allocated(ID).is_empty()))?;
    Ok(Finding::success(&answer).and(free, "the address stays taken"))
}

fn without_netns(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (_, add) = added(testbed)?;
    Ok(Finding::all([add, del_with(testbed, "")?]))
}

fn missing_netns(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    del_with(testbed, "/run/netns/nowhere")
}

fn netns_gone(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (_, add) = added(testbed)?;
    testbed.node.remove_pod(POD)?;
    Ok(Finding::all([add, del_with(testbed, &TestNode::netns_path(POD))?]))
}

fn never_made(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::success(&testbed.call("DEL", &network("1.0.0", &json!({})))?))
}

fn link_gone(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = added(testbed)?;
    testbed.node.in_pod(POD, || node_commands::ip("link del eth0"))?;
    Ok(Finding::all([add, Finding::success(&testbed.call("DEL", &config)?)]))
}

fn master_gone(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = added(testbed)?;
    node_commands::ip("link del eth1")?;
    Ok(Finding::all([add, Finding::success(&testbed.call("DEL", &config)?)]))
}

fn without_prev_result(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = added(testbed)?;
    let del = testbed.call("DEL", &config)?;
    Ok(Finding::all([add, Finding::success(&del)])
        .and(!testbed.has_interface("eth0")?, "the interface stays"))
}

fn another(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let (config, add) = added(testbed)?;
    let del = testbed.call_as("DEL", "contest-2", "net1", &config)?;
    let kept = allocated(ID).len() == 1 && testbed.has_interface("eth0")?;
    Ok(Finding::all([add, Finding::success(&del)]).and(kept, "this one's address or interface is gone"))
}

/// containerd takes a DEL error with "not found" for success, and with an empty netns also "no such file or
/// directory".
fn words(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let netns = TestNode::netns_path(POD);
    let ipam = json!({"type": "nobody"});
    let configs = [network("1.0.0", &json!({"ipam": ipam})).to_string(), "{".to_owned(), String::new()];
    let mut said = String::new();
    for config in configs {
        for netns in [netns.as_str(), ""] {
            let call = Call {
                command: "DEL",
                container_id: ID,
                netns,
                ifname: "eth0",
                args: "",
                config: config.as_bytes(),
            };
            let answer = testbed.raw(&call)?;
            said = super::describe(&answer);
            let lower = format!("{said} {}", answer.stderr).to_lowercase();
            if !answer.ok() && (lower.contains("not found") || lower.contains("no such file or directory")) {
                return Ok(Finding::new(false, said));
            }
        }
    }
    Ok(Finding::new(true, said))
}
