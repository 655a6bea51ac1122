//! The operator's questions and their tables.

use std::process::ExitCode;

use fairlead_sriov::pools::Verb;
use serde_json::Value;

use super::table::{print, print_json, table};
use super::{CliError, Output, QueryArgs};
use crate::operator_client::{get, post};

fn answer(question: &QueryArgs, path: &str, form: impl FnOnce(&Value) -> String) -> Result<(), CliError> {
    let value = get(&question.socket(), path)?;
    match question.output {
        Output::Json => print_json(&value)?,
        Output::Table => print(&form(&value))?,
    }
    Ok(())
}

pub(super) fn status(question: &QueryArgs) -> Result<(), CliError> {
    answer(question, "/v1/status", |status| {
        let word = |key: &str| if status[key] == true { "yes" } else { "NO" };
        let mut text = format!(
            "fairleadd {} (pid {})\nready: {}\nhealthy: {}\ncalls: {} at work, {} waiting\nspooled: {}\n",
            status["version"].as_str().unwrap_or("?"),
            status["pid"],
            word("ready"),
            word("healthy"),
            status["calls"]["running"],
            status["calls"]["queued"],
            status["daemon"]["spoolEntries"],
        );
        let conditions =
            ["readiness", "health"].into_iter().flat_map(|k| status[k].as_array().into_iter().flatten());
        for unmet in conditions.filter(|c| c["met"] == false) {
            let (name, reason) = (&unmet["name"], &unmet["reason"]);
            text.push_str(&format!("{}: {}\n", name.as_str().unwrap_or("?"), reason.as_str().unwrap_or("?")));
        }
        let refused = status["daemon"]["networksRefused"].as_array().into_iter().flatten();
        for refused in refused.chain([&status["daemon"]["settingsRefused"]]).filter_map(Value::as_str) {
            text.push_str(&format!("refused: {refused}\n"));
        }
        text
    })
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn attachments(question: &QueryArgs) -> Result<(), CliError> {
    const COLUMNS: [&str; 11] = [
        "container",
        "ifname",
        "network",
        "type",
        "phase",
        "broken",
        "mac",
        "addresses",
        "netns",
        "near",
        "passedOver",
    ];
    answer(question, "/v1/attachments", |value| table(rows(value), &COLUMNS))
}

pub(super) fn networks(question: &QueryArgs) -> Result<(), CliError> {
    answer(question, "/v1/networks", |value| {
        let mut text = table(rows(&value["networks"]), &["name", "cniVersion", "plugins", "missing", "file"]);
        for refused in value["refused"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            text.push_str(&format!("refused: {refused}\n"));
        }
        text
    })
}

pub(super) fn pools(question: &QueryArgs) -> Result<(), CliError> {
    answer(question, "/v1/pools", |value| {
        let mut text = vfs(&value["functions"]);
        for notice in rows(&value["notices"]) {
            let words = |key: &str| notice[key].as_str().unwrap_or("?").to_owned();
            text.push_str(&format!("{}\n  → {}\n", words("seen"), words("remedy")));
        }
        text
    })
}

fn vfs(value: &Value) -> String {
    const COLUMNS: [&str; 9] =
        ["pool", "function", "physical", "node", "driver", "state", "for", "attachment", "reason"];
    table(rows(value), &COLUMNS)
}

/// Escapes a text for the query of a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

/// Orders something about a pool or one VF, and prints how they stand then.
pub(super) fn order_pools(question: &QueryArgs, verb: Verb, of: &str) -> Result<(), CliError> {
    let value = post(&question.socket(), &format!("/v1/pools/{}?of={}", verb.name(), escaped(of)))?;
    match question.output {
        Output::Json => print_json(&value)?,
        Output::Table => print(&vfs(&value))?,
    }
    Ok(())
}

/// Orders a collection; the exit status is failure when something could not be removed.
pub(super) fn collect(question: &QueryArgs, orphans: bool) -> Result<ExitCode, CliError> {
    let path = if orphans { "/v1/gc?orphans=true" } else { "/v1/gc" };
    let done = post(&question.socket(), path)?;
    let failed = done["errors"].as_array().is_some_and(|f| !f.is_empty());
    match question.output {
        Output::Json => print_json(&done)?,
        Output::Table => {
            for (what, list) in done.as_object().into_iter().flatten() {
                let lines: Vec<String> = match list {
                    Value::Array(all) => {
                        all.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect()
                    }
                    other => vec![other.to_string()],
                };
                print(&format!(
                    "{what}: {}\n",
                    if lines.is_empty() { "none".into() } else { lines.join("\n  ") }
                ))?;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
