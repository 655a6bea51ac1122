//! What the operator orders to be removed or given up. What cannot be taken back is shown first, and asked about.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::CliError;
use super::arguments::{ForgetArgs, Listing, QueryArgs};
use super::confirmation::confirmed;
use super::listings::attachment_row;
use super::table::{Extent, print, print_json, rows, table};
use crate::operator_client::{escaped, get, post};

/// Orders a collection; the exit status is failure when something could not be removed.
pub(super) fn collect(question: &QueryArgs) -> Result<ExitCode, CliError> {
    collected(question, "/v1/gc")
}

/// The same, and frees the addresses whose container is unknown, once the operator has seen them.
pub(super) fn collect_orphans(question: &QueryArgs, yes: bool) -> Result<ExitCode, CliError> {
    const COLUMNS: [&str; 7] = ["pod", "network", "address", "container", "ifname", "for", "file"];
    // Before the list is made: what comes while it is looked at is not in it.
    let listed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let orphans = get(&question.socket(), "/v1/orphans")?;
    let orphans: Vec<Value> = rows(&orphans).iter().map(orphan_row).collect();
    if !orphans.is_empty() {
        match question.output {
            Listing::Json if yes => {}
            Listing::Json => print_json(&orphans.clone().into())?,
            Listing::Table | Listing::Wide => print(&table(&orphans, &COLUMNS, question.output.extent()))?,
        }
        let ask = format!(
            "Free {} addresses? A pod of another plugin that has one would have to share it.",
            orphans.len()
        );
        if !confirmed(&ask, yes)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    collected(question, &format!("/v1/gc?orphans=true&listed={listed}"))
}

/// An orphan as it is shown: its owner's words are in columns of their own.
fn orphan_row(orphan: &Value) -> Value {
    let mut row = orphan.clone();
    let owner = |key: &str| orphan["owner"][key].clone();
    if let Value::Object(fields) = &mut row {
        fields.insert("address".to_owned(), orphan["ip"].clone());
        fields.insert("container".to_owned(), owner("container_id"));
        fields.insert("ifname".to_owned(), owner("ifname"));
    }
    row
}

fn collected(question: &QueryArgs, path: &str) -> Result<ExitCode, CliError> {
    let done = post(&question.socket(), path)?;
    let failed = done["errors"].as_array().is_some_and(|f| !f.is_empty());
    match question.output {
        Listing::Json => print_json(&done)?,
        Listing::Table | Listing::Wide => print(&what_was_done(&done, question.output.extent()))?,
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What a collection has removed, as tables under their number, and why it could not remove the rest.
fn what_was_done(done: &Value, extent: Extent) -> String {
    const ATTACHMENTS: [&str; 5] = ["pod", "interface", "network", "type", "address"];
    const ADDRESSES: [&str; 4] = ["address", "container", "ifname", "file"];
    let attachments: Vec<Value> = rows(&done["attachments"]).iter().map(attachment_row).collect();
    let addresses: Vec<Value> = rows(&done["addresses"]).iter().map(orphan_row).collect();
    let mut text = String::new();
    for (what, removed, columns) in
        [("attachments", attachments, &ATTACHMENTS[..]), ("addresses", addresses, &ADDRESSES[..])]
    {
        match removed.as_slice() {
            [] => text.push_str(&format!("{what}: none\n")),
            removed => text.push_str(&format!(
                "{what}: {} removed\n{}",
                removed.len(),
                table(removed, columns, extent)
            )),
        }
    }
    match rows(&done["errors"]) {
        [] => text.push_str("errors: none\n"),
        errors => {
            text.push_str("errors:\n");
            for error in errors.iter().filter_map(Value::as_str) {
                text.push_str(&format!("  {error}\n"));
            }
        }
    }
    text
}

/// Says what may be left of an attachment, and gives it up if the operator still wants that.
pub(super) fn forget(args: &ForgetArgs) -> Result<ExitCode, CliError> {
    let ForgetArgs { ask, container, ifname, network, yes } = args;
    let mut path = format!("/v1/forget?container={}&ifname={}", escaped(container), escaped(ifname));
    if let Some(network) = network {
        path.push_str(&format!("&network={}", escaped(network)));
    }
    let plan = get(&ask.socket(), &path)?;
    match ask.output {
        Listing::Json if *yes => {}
        Listing::Json => print_json(&plan)?,
        Listing::Table | Listing::Wide => print(&left_behind(&plan))?,
    }
    if !confirmed("Give it up? Nothing removes any of this afterwards.", *yes)? {
        return Ok(ExitCode::FAILURE);
    }
    let done = post(&ask.socket(), &path)?;
    match ask.output {
        Listing::Json => print_json(&done)?,
        Listing::Table | Listing::Wide => print("given up\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn left_behind(plan: &Value) -> String {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("?").to_owned();
    let mut text = String::new();
    for row in rows(plan) {
        let whose = [word(row, "ifname"), word(row, "container"), word(row, "network")];
        let [ifname, container, network] = whose;
        text.push_str(&format!(
            "{ifname} of container {container}, network {network}. It may leave behind:\n"
        ));
        let left: Vec<&str> = rows(&row["left"]).iter().filter_map(Value::as_str).collect();
        for left in if left.is_empty() { vec!["nothing"] } else { left } {
            text.push_str(&format!("  {left}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_person_is_told_in_words_what_was_removed() {
        let allocation =
            |ip: &str, owner: Value| json!({ "file": ip, "ip": ip, "owner": owner, "modified": 7 });
        let owner = json!({ "kind": "attachment", "container_id": "dead-pod", "ifname": "eth7" });
        let done = json!({
            "attachments": [{ "pod": "shop/web-0", "ifname": "eth0", "network": "net", "type": "macvlan", "addresses": ["10.1.0.2/24"] }],
            "addresses": [allocation("10.1.0.9", owner), allocation("10.1.0.10", json!({ "kind": "nobody" }))],
            "errors": ["it hangs"],
        });
        assert_eq!(
            what_was_done(&done, Extent::Narrow),
            "attachments: 1 removed\n\
             POD         INTERFACE  NETWORK  TYPE     ADDRESS\n\
             shop/web-0  eth0       net      macvlan  10.1.0.2\n\
             addresses: 2 removed\n\
             ADDRESS    CONTAINER  IFNAME  FILE\n\
             10.1.0.9   dead-pod   eth7    10.1.0.9\n\
             10.1.0.10                     10.1.0.10\n\
             errors:\n  it hangs\n"
        );
        let nothing = json!({ "attachments": [], "addresses": [], "errors": [] });
        assert_eq!(
            what_was_done(&nothing, Extent::Wide),
            "attachments: none\naddresses: none\nerrors: none\n"
        );
    }
}
