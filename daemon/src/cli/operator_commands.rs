//! How the daemon is, and what all questions to it have in common.

use std::process::ExitCode;

use serde_json::Value;

use super::table::{print, print_json};
use super::{CliError, Listing, StatusArgs};
use crate::operator_client::get;

pub(super) fn status(args: &StatusArgs) -> Result<ExitCode, CliError> {
    let status = get(&args.ask.socket(), "/v1/status")?;
    match args.ask.output {
        Listing::Json => print_json(&status)?,
        Listing::Table | Listing::Wide => print(&spelled_out(&status))?,
    }
    let asked = [(args.ready, "ready"), (args.healthy, "healthy")];
    let not_so = asked.iter().any(|(asked, key)| *asked && status[key] != true);
    Ok(if not_so { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn spelled_out(status: &Value) -> String {
    let word = |key: &str| if status[key] == true { "yes" } else { "NO" };
    let mut text = format!(
        "fairleadd {} (revision {}, pid {})\nready: {}\nhealthy: {}\ncalls: {} at work, {} waiting\nspooled: {}\n",
        status["version"].as_str().unwrap_or("?"),
        status["revision"].as_str().unwrap_or("unknown"),
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
    text.push_str(&removals_and_newer(status));
    text
}

/// The removals that fail, and what is left to a newer version.
fn removals_and_newer(status: &Value) -> String {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("?").to_owned();
    let whose = |row: &Value| {
        let pod = row["pod"].as_str().map_or_else(String::new, |pod| format!("{pod}, container "));
        format!(
            "{} of {pod}{} (network {})",
            word(row, "ifname"),
            word(row, "container"),
            word(row, "network")
        )
    };
    let mut text = String::new();
    for row in rows(&status["removals"]) {
        let (age, why) = (word(row, "for"), word(row, "reason"));
        text.push_str(&format!("removal fails: {}, {} times in {age}: {why}\n", whose(row), row["failures"]));
    }
    for row in rows(&status["newer"]) {
        let known = row["container"] != "?";
        let which = if known { whose(row) } else { word(row, "label") };
        text.push_str(&format!("left alone: {which}: {}\n", word(row, "broken")));
    }
    text
}

pub(super) fn rows(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Escapes a text for the query of a URL.
pub(super) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}
