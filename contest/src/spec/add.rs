//! The specification's section on ADD.

use serde_json::json;

use super::{Finding, ID, SpecCase, SpecTestbed, allocated, network};
use crate::implementation::Call;
use crate::node_commands;
use crate::run_row::RowError;
use crate::test_node::{self, TestNode};

const SECTION: &str = "spec: ADD";

pub(super) const CASES: &[SpecCase] = &[
    SpecCase { section: SECTION, name: "add_answers_in_the_configs_version", judge: version_kept },
    SpecCase { section: SECTION, name: "a_value_of_cni_args_may_contain_an_equals_sign", judge: equals_sign },
    SpecCase { section: SECTION, name: "add_of_an_existing_interface_fails_and_leaves_it", judge: existing },
    SpecCase {
        section: SECTION,
        name: "add_twice_is_refused_or_answered_alike_and_takes_no_second_address",
        judge: twice,
    },
    SpecCase { section: SECTION, name: "a_failed_add_leaves_no_link_and_no_address", judge: failed },
    SpecCase { section: SECTION, name: "add_then_del_then_add_again_under_the_same_name", judge: again },
    SpecCase { section: SECTION, name: "two_interfaces_of_one_network_in_one_pod", judge: two },
    SpecCase { section: SECTION, name: "add_without_netns_is_code_4", judge: no_netns },
    SpecCase { section: SECTION, name: "add_with_a_netns_path_that_is_missing_fails", judge: missing_netns },
    SpecCase {
        section: SECTION,
        name: "add_with_a_netns_path_that_is_no_namespace_fails",
        judge: no_namespace,
    },
    SpecCase {
        section: SECTION,
        name: "add_into_the_hosts_own_namespace_is_refused_or_harmless",
        judge: own_netns,
    },
];

fn version_kept(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let answer = testbed.call("ADD", &network("0.3.1", &json!({})))?;
    let version = answer.body["cniVersion"].as_str() == Some("0.3.1");
    let shape = answer.body["ips"][0]["version"].as_str() == Some("4");
    Ok(Finding::success(&answer).and(version && shape, "the result is not one of 0.3.1"))
}

fn equals_sign(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({})).to_string();
    let netns = TestNode::netns_path("pod");
    let args = "IgnoreUnknown=1;MAC=02:aa:bb:cc:dd:02;K8S_POD_NAME=a=b";
    let call = Call {
        command: "ADD",
        container_id: ID,
        netns: &netns,
        ifname: "eth0",
        args,
        config: config.as_bytes(),
    };
    let answer = testbed.raw(&call)?;
    let mac = answer.body["interfaces"][0]["mac"] == "02:aa:bb:cc:dd:02";
    Ok(Finding::success(&answer).and(mac, "the MAC of CNI_ARGS was not taken"))
}

fn existing(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    testbed.node.in_pod("pod", || {
        node_commands::ip("link add eth0 address 02:00:5e:00:01:01 type veth peer name other")
    })?;
    let answer = testbed.call("ADD", &network("1.0.0", &json!({})))?;
    let there = testbed.has_interface("eth0")?;
    Ok(Finding::error(&answer)
        .and(there, "the other interface is gone")
        .and(allocated(ID).is_empty(), "an address stays taken"))
}

fn twice(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let first = testbed.call("ADD", &network("1.0.0", &json!({})))?;
    let second = testbed.call("ADD", &network("1.0.0", &json!({})))?;
    let alike = second.ok() && second.body == first.body;
    let right = first.ok() && (alike || !second.ok());
    let finding = Finding::new(right, super::describe(&second));
    let held = allocated(ID).len();
    Ok(finding
        .and(held == 1, &format!("{held} addresses are taken"))
        .and(testbed.has_interface("eth0")?, "the first interface is gone"))
}

fn failed(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let ipam = json!({"type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "192.168.0.0/16",
        "gw": "10.77.0.1"}]});
    let answer = testbed.call("ADD", &network("1.0.0", &json!({"ipam": ipam})))?;
    let links = testbed.interfaces()?;
    Ok(Finding::error(&answer)
        .and(links == ["lo"], &format!("the pod has {}", links.join(" ")))
        .and(allocated(ID).is_empty(), "an address stays taken"))
}

fn again(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({"mac": "02:aa:bb:cc:dd:01"}));
    let calls = [testbed.call("ADD", &config)?, testbed.call("DEL", &config)?, testbed.call("ADD", &config)?];
    Ok(Finding::all(calls.iter().map(Finding::success)))
}

fn two(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({}));
    let first = testbed.call_as("ADD", ID, "eth0", &config)?;
    let second = testbed.call_as(
        "ADD",
        ID,
        "net1",
        &network("1.0.0", &json!({"ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}})),
    )?;
    let gone = testbed.call_as("DEL", ID, "eth0", &config)?;
    let kept = testbed.has_interface("net1")? && super::in_time(|| Ok(allocated(ID).len() == 1))?;
    Ok(Finding::all([&first, &second, &gone].map(Finding::success))
        .and(kept, "DEL of the one took the other, or its address stays taken"))
}

fn no_netns(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({})).to_string();
    let call = Call {
        command: "ADD",
        container_id: ID,
        ifname: "eth0",
        config: config.as_bytes(),
        ..Call::default()
    };
    Ok(Finding::code(&testbed.raw(&call)?, &[4]))
}

fn with_netns(testbed: &SpecTestbed<'_>, netns: &str) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({})).to_string();
    let call =
        Call { command: "ADD", container_id: ID, netns, ifname: "eth0", args: "", config: config.as_bytes() };
    let answer = testbed.raw(&call)?;
    Ok(Finding::error(&answer).and(allocated(ID).is_empty(), "an address stays taken"))
}

fn missing_netns(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    with_netns(testbed, "/run/netns/nowhere")
}

fn no_namespace(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    with_netns(testbed, &format!("{}/resolv.conf", test_node::FILES_DIR))
}

/// The specification leaves the outcome open, but no interface and no address may stay behind.
fn own_netns(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({}));
    let text = config.to_string();
    let netns = "/proc/self/ns/net";
    let call = |command| Call {
        command,
        container_id: ID,
        netns,
        ifname: "pod0",
        args: "",
        config: text.as_bytes(),
    };
    let added = testbed.raw(&call("ADD"))?;
    testbed.raw(&call("DEL"))?;
    let left = crate::observe::interfaces()?.contains_key("pod0");
    let master = crate::observe::interfaces()?.contains_key("eth1");
    Ok(Finding::new(true, super::describe(&added))
        .and(!left && allocated(ID).is_empty(), "something stays behind")
        .and(master, "the master is gone"))
}
