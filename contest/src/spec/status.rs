//! The specification's sections on STATUS and VERSION.

use serde_json::{Value, json};

use super::{Finding, SpecCase, SpecTestbed, network};
use crate::implementation::{Answer, Call, CallError};
use crate::run_row::RowError;

const STATUS: &str = "spec: STATUS";
const VERSION: &str = "spec: VERSION";

pub(super) const CASES: &[SpecCase] = &[
    SpecCase { section: STATUS, name: "status_of_a_working_network_succeeds", judge: works },
    SpecCase { section: STATUS, name: "status_answers_nothing_on_success", judge: silent },
    SpecCase { section: STATUS, name: "status_below_1_1_is_code_1", judge: below_1_1 },
    SpecCase { section: STATUS, name: "status_when_the_ipam_plugin_is_missing_is_50", judge: no_ipam },
    SpecCase { section: VERSION, name: "version_lists_every_version", judge: versions },
    SpecCase { section: VERSION, name: "version_answers_in_the_callers_version", judge: callers_version },
    SpecCase { section: VERSION, name: "version_needs_no_network_and_no_environment", judge: bare_version },
];

fn ask(testbed: &SpecTestbed<'_>, command: &str, config: &Value) -> Result<Answer, CallError> {
    let text = config.to_string();
    testbed.raw(&Call { command, config: text.as_bytes(), ..Call::default() })
}

fn works(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::success(&ask(testbed, "STATUS", &network("1.1.0", &json!({})))?))
}

fn silent(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let answer = ask(testbed, "STATUS", &network("1.1.0", &json!({})))?;
    Ok(Finding::success(&answer).and(answer.body.is_null(), "it printed something"))
}

fn below_1_1(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(&ask(testbed, "STATUS", &network("1.0.0", &json!({})))?, &[1]))
}

fn no_ipam(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    Ok(Finding::code(
        &ask(testbed, "STATUS", &network("1.1.0", &json!({"ipam": {"type": "nobody"}})))?,
        &[50],
    ))
}

fn versions(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let answer = ask(testbed, "VERSION", &json!({"cniVersion": "1.1.0"}))?;
    let all = json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
    let listed = &answer.body["supportedVersions"];
    Ok(Finding::success(&answer).and(*listed == all, &format!("it lists {listed}")))
}

fn callers_version(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let answer = ask(testbed, "VERSION", &json!({"cniVersion": "0.4.0"}))?;
    let version = &answer.body["cniVersion"];
    // libcni's own plugins answer in the newest version that they know, whatever the caller's: both are read.
    Ok(Finding::success(&answer).and(version.is_string(), "there is no cniVersion"))
}

fn bare_version(testbed: &mut SpecTestbed<'_>) -> Result<Finding, RowError> {
    let answer = testbed.raw(&Call { command: "VERSION", config: b"{}", ..Call::default() })?;
    Ok(Finding::success(&answer))
}
