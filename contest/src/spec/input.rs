//! What comes in from outside: environment, identifiers, and bytes that are no configuration.

use serde_json::json;

use super::{Finding, ID, POD, SpecCase, SpecTestbed, network};
use crate::implementation::{Answer, Call, CallError};
use crate::run_row::RowError;
use crate::test_node::TestNode;

const SECTION: &str = "spec: errors";

pub(super) const CASES: &[SpecCase] = &[
    SpecCase { section: SECTION, name: "no_command_is_code_4", judge: no_command },
    SpecCase { section: SECTION, name: "an_unknown_command_is_code_4", judge: unknown_command },
    SpecCase { section: SECTION, name: "no_container_id_is_code_4", judge: no_id },
    SpecCase { section: SECTION, name: "no_interface_name_is_code_4", judge: no_ifname },
    SpecCase { section: SECTION, name: "a_container_id_out_of_the_grammar_is_code_4", judge: wrong_ids },
    SpecCase {
        section: SECTION,
        name: "an_interface_name_out_of_the_grammar_is_code_4",
        judge: wrong_ifnames,
    },
    SpecCase { section: SECTION, name: "a_network_name_out_of_the_grammar_is_refused", judge: wrong_names },
    SpecCase { section: SECTION, name: "no_input_at_all_is_refused", judge: empty },
    SpecCase { section: SECTION, name: "garbage_is_refused_with_code_6_or_7", judge: garbage },
    SpecCase { section: SECTION, name: "invalid_utf8_is_answered", judge: invalid_utf8 },
    SpecCase { section: SECTION, name: "deep_nesting_is_answered", judge: deep },
    SpecCase { section: SECTION, name: "a_config_over_1_mib_is_answered", judge: large },
    SpecCase { section: SECTION, name: "an_unknown_version_is_code_1", judge: unknown_version },
    SpecCase { section: SECTION, name: "an_error_object_has_version_code_and_sentence", judge: error_object },
];

fn say(
    testbed: &SpecTestbed<'_>,
    command: &str,
    id: &str,
    ifname: &str,
    config: &[u8],
) -> Result<Answer, CallError> {
    let netns = TestNode::netns_path(POD);
    testbed.raw(&Call { command, container_id: id, netns: &netns, ifname, args: "", config })
}

fn good() -> Vec<u8> {
    network("1.0.0", &json!({})).to_string().into_bytes()
}

fn no_command(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(&say(testbed, "", ID, "eth0", &good())?, &[4]))
}

fn unknown_command(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(&say(testbed, "UPDATE", ID, "eth0", &good())?, &[4]))
}

fn no_id(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(&say(testbed, "ADD", "", "eth0", &good())?, &[4]))
}

fn no_ifname(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(&say(testbed, "ADD", ID, "", &good())?, &[4]))
}

fn each<'a>(
    values: impl IntoIterator<Item = &'a str>,
    mut judge: impl FnMut(&str) -> Result<Finding, RowError>,
) -> Result<Finding, RowError> {
    let mut last = Finding::new(true, "");
    for value in values {
        last = judge(value)?;
        if !last.right {
            last.said = format!("{value:?}: {}", last.said);
            break;
        }
    }
    Ok(last)
}

fn wrong_ids(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    each(["../up", "a/b", "-a", ".a", "a b", "a\nb", "ä"], |id| {
        Ok(Finding::code(&say(testbed, "ADD", id, "eth0", &good())?, &[4]))
    })
}

fn wrong_ifnames(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    each(["a/b", "a:b", "a b", ".", "..", "a234567890123456", "a\tb"], |ifname| {
        Ok(Finding::code(&say(testbed, "ADD", ID, ifname, &good())?, &[4]))
    })
}

fn wrong_names(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    each(["a/b", "..", "", "a b", "-a"], |name| {
        let config = network("1.0.0", &json!({"name": name})).to_string();
        Ok(Finding::error(&say(testbed, "ADD", ID, "eth0", config.as_bytes())?))
    })
}

fn empty(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::error(&say(testbed, "ADD", ID, "eth0", b"")?))
}

fn garbage(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    each(["{", "[]", "null", "17", "\"text\"", "}{", "{\"cniVersion\":1}"], |text| {
        Ok(Finding::code(&say(testbed, "ADD", ID, "eth0", text.as_bytes())?, &[6, 7]))
    })
}

/// Any orderly answer is right: success or an error object, in time.
fn orderly(answer: &Answer) -> Finding {
    if answer.ok() { Finding::success(answer) } else { Finding::error(answer) }
}

fn invalid_utf8(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let mut config = good();
    config.pop();
    config.extend_from_slice(b",\"note\":\"\xff\xfe\xc3\"}");
    Ok(orderly(&say(testbed, "ADD", ID, "eth0", &config)?))
}

fn deep(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let mut config = good();
    config.pop();
    config.extend_from_slice(b",\"note\":");
    config.extend(std::iter::repeat_n(b'[', 100_000));
    config.extend(std::iter::repeat_n(b']', 100_000));
    config.push(b'}');
    Ok(orderly(&say(testbed, "ADD", ID, "eth0", &config)?))
}

fn large(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let config = network("1.0.0", &json!({"note": "x".repeat(3 << 20)})).to_string();
    Ok(orderly(&say(testbed, "ADD", ID, "eth0", config.as_bytes())?))
}

fn unknown_version(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    each(["9.9.9", "1.2.0", "0.0.1"], |version| {
        Ok(Finding::code(&testbed.call("ADD", &network(version, &json!({})))?, &[1]))
    })
}

fn error_object(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let answer = testbed.call("ADD", &network("0.4.0", &json!({"master": "nowhere0"})))?;
    let body = &answer.body;
    let sentence = body["msg"].as_str().is_some_and(|msg| !msg.is_empty());
    let version = body["cniVersion"] == "0.4.0";
    Ok(Finding::error(&answer).and(sentence, "msg is empty").and(version, "cniVersion is not the config's"))
}
