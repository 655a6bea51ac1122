//! `describe`: everything about one pod or container, for a person who asks why it has no interface.

use std::process::ExitCode;

use serde_json::Value;

use super::CliError;
use super::arguments::{DescribeArgs, Listing};
use super::listings::age;
use super::table::{print, print_json, rows};
use crate::operator_client::{escaped, get};

/// Prints what is known; the exit status is failure where nothing is.
pub(super) fn describe(args: &DescribeArgs) -> Result<ExitCode, CliError> {
    let value = get(&args.ask.socket(), &format!("/v1/describe?of={}", escaped(&args.of)))?;
    match args.ask.output {
        Listing::Json => print_json(&value)?,
        Listing::Table | Listing::Wide => print(&spelled_out(&value))?,
    }
    let known =
        ["attachments", "failures", "asked", "collected"].iter().any(|list| !rows(&value[*list]).is_empty());
    Ok(if known { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn word<'v>(row: &'v Value, key: &str) -> Option<&'v str> {
    row[key].as_str().filter(|word| !word.is_empty())
}

fn spelled_out(value: &Value) -> String {
    let (attachments, failures) = (rows(&value["attachments"]), rows(&value["failures"]));
    let mut text: String = rows(&value["asked"]).iter().map(asked).collect();
    let collected: String = rows(&value["collected"]).iter().map(collected).collect();
    if attachments.is_empty() && failures.is_empty() && collected.is_empty() {
        text.push_str(&format!(
            "nothing is attached to {}, and no call for it has failed since the daemon was started: {}\n\
             → kubectl describe pod tells whether it is on this node; fairleadd doctor, whether the runtime looks where we are\n",
            value["described"],
            word(value, "why").unwrap_or("the runtime has not asked")
        ));
        return text;
    }
    let mut sandbox = None;
    for row in attachments {
        if sandbox.replace(&row["container"]) != Some(&row["container"]) {
            text.push_str(&of_sandbox(row));
        }
        // What a list's plugin has made is told with the list.
        if row["list"].is_null() {
            text.push_str(&attachment(&with_plugins(row, attachments)));
        }
    }
    if !collected.is_empty() {
        text.push_str("taken down, because the runtime's GC counted it no longer, the last one first:\n");
        text.push_str(&collected);
    }
    match failures {
        [] => text.push_str("no call has failed since the daemon was started\n"),
        failures => {
            text.push_str("failed calls, the last one first:\n");
            failures.iter().for_each(|row| text.push_str(&failure(row)));
        }
    }
    text
}

/// What a pod asks for; nothing where it asks for its default network alone.
fn asked(row: &Value) -> String {
    let of = |row: &Value, key: &str| word(row, key).unwrap_or("?").to_owned();
    let mut text = String::new();
    let mut line = |interface: &str, what: String| text.push_str(&format!("  {interface:10} {what}\n"));
    if let Some(refused) = word(row, "refused") {
        line("REFUSED", refused.to_owned());
    }
    if let Some(own) = word(row, "defaultNetwork") {
        line("default", own.to_owned());
    }
    for network in rows(&row["networks"]) {
        let how = match word(network, "phase") {
            Some(phase) => phase.to_owned(),
            None => format!("LACKING: {}", of(network, "why")),
        };
        line(&of(network, "interface"), format!("{}: {how}", of(network, "network")));
    }
    match text.is_empty() {
        true => text,
        false => format!("{} asks for (by {}):\n{text}", of(row, "pod"), of(row, "toldBy")),
    }
}

fn of_sandbox(row: &Value) -> String {
    let mut text = String::new();
    let lines = [("pod", "pod"), ("uid", "podUid"), ("container", "container"), ("netns", "netns")];
    for (name, key) in lines {
        if let Some(word) = word(row, key) {
            text.push_str(&format!("{name:10} {word}\n"));
        }
    }
    text
}

/// The row of a list with what its plugins say of the interface that it does not say itself.
fn with_plugins(row: &Value, all: &[Value]) -> Value {
    let mut whole = row.clone();
    let same = |plugin: &&Value| ["container", "ifname"].iter().all(|key| plugin[*key] == row[*key]);
    for plugin in all.iter().filter(|plugin| !plugin["list"].is_null()).filter(same) {
        for key in ["mac", "link", "near", "broken"] {
            if whole[key].is_null()
                || (key == "link" && !whole[key].as_str().unwrap_or_default().contains(' '))
            {
                whole[key] = plugin[key].clone();
            }
        }
    }
    whole
}

fn attachment(row: &Value) -> String {
    let of = |key| word(row, key).unwrap_or("?");
    let since = row["addedAt"].as_u64().map_or_else(String::new, |at| format!(", {} ago", age(at)));
    let mut text = format!(
        "{:10} network {} by {}: {}{since}\n",
        of("ifname"),
        of("network"),
        of("chosen"),
        of("phase")
    );
    let mut line = |name: &str, what: String| {
        if !what.is_empty() {
            text.push_str(&format!("  {name:12} {what}\n"));
        }
    };
    let words = |key: &str| rows(&row[key]).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    line("addresses", words("addresses").join(", "));
    line("mac", word(row, "mac").unwrap_or_default().to_owned());
    line("device", word(row, "link").filter(|link| link.contains(' ')).unwrap_or_default().to_owned());
    line("near", word(row, "near").unwrap_or_default().to_owned());
    let to = |route: &Value| match word(route, "gw") {
        Some(gateway) => format!("{} via {gateway}", word(route, "dst").unwrap_or("?")),
        None => word(route, "dst").unwrap_or("?").to_owned(),
    };
    line("routes", rows(&row["result"]["routes"]).iter().map(to).collect::<Vec<_>>().join(", "));
    line("took", took(&row["phases"]));
    words("passedOver").into_iter().for_each(|path| line("passed over", path.to_owned()));
    line("broken", word(row, "broken").unwrap_or_default().to_owned());
    text
}

/// The whole, and each phase, in milliseconds; empty where it is not remembered.
fn took(phases: &Value) -> String {
    let of = |row: &Value| row["us"].as_u64().unwrap_or(0);
    let ms = |us: u64| format!("{}.{:02}", us / 1000, us % 1000 / 10);
    let each = |row: &Value| format!("{} {}", word(row, "phase").unwrap_or("?"), ms(of(row)));
    match rows(phases) {
        [] => String::new(),
        phases => {
            let each: Vec<String> = phases.iter().map(each).collect();
            format!("{} ms: {}", ms(phases.iter().map(of).sum()), each.join(", "))
        }
    }
}

/// What the runtime's GC has removed.
fn collected(row: &Value) -> String {
    let of = |key| word(row, key).unwrap_or("?");
    let ago = row["at"].as_u64().map_or_else(|| "?".to_owned(), age);
    format!("  {} in network {}: {ago} ago\n    container {}\n", of("ifname"), of("network"), of("container"))
}

fn failure(row: &Value) -> String {
    let of = |key| word(row, key).unwrap_or("?");
    let ago = |key: &str| row[key].as_u64().map_or_else(|| "?".to_owned(), age);
    let times = match row["times"].as_u64() {
        Some(2..) => format!("{} times in {}, last {} ago", row["times"], ago("first"), ago("last")),
        _ => format!("{} ago", ago("last")),
    };
    let after = word(row, "after").map_or_else(String::new, |phase| format!(", after its phase {phase:?}"));
    let took = row["tookUs"]
        .as_u64()
        .map_or_else(String::new, |us| format!(", {}.{:02} ms", us / 1000, us % 1000 / 10));
    format!(
        "  {} {} in network {} ({}): code {}, {times}{after}{took}\n    {}\n    container {}\n",
        of("command"),
        of("ifname"),
        of("network"),
        of("type"),
        row["code"],
        of("error").replace('\n', " "),
        of("container"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_interface_that_a_list_has_made_is_told_once_with_what_its_plugin_knows() {
        let row = |network: &str, list: Option<&str>, mac: Option<&str>| {
            json!({"container": "c1", "ifname": "eth0", "network": network, "list": list, "type": "fairlead", "chosen": "macvlan",
                   "phase": "attached", "mac": mac, "link": "macvlan"})
        };
        let value = json!({"attachments": [row("net", None, None), row("net", Some("net"), Some("02:00:00:00:00:01"))], "failures": [], "asked": []});
        let text = spelled_out(&value);
        assert_eq!(text.matches("eth0").count(), 1, "{text}");
        assert!(text.contains("network net by macvlan") && text.contains("02:00:00:00:00:01"), "{text}");
        assert!(!text.contains("asked for"), "{text}");
    }

    #[test]
    fn x14_what_a_gc_has_taken_down_is_told_instead_of_that_nobody_has_asked() {
        let value = json!({"described": "c1", "why": null, "attachments": [], "failures": [], "asked": [],
            "collected": [{"container": "c1", "network": "net", "ifname": "eth0", "at": 7}]});
        let text = spelled_out(&value);
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("taken down, because the runtime's GC counted it no longer"), "{text}");
        assert!(text.contains("  eth0 in network net: ") && text.contains("container c1"), "{text}");
        assert!(!text.contains("has not asked"), "{text}");
    }

    #[test]
    fn x14_what_a_pod_lacks_stands_first_and_says_why() {
        let value = json!({"described": "web-0", "why": "the runtime has not asked", "attachments": [], "failures": [], "asked": [{
            "pod": "shop/web-0", "toldBy": "the API", "defaultNetwork": null, "networks": [
                {"interface": "net1", "network": "shop/radio", "phase": "attached", "why": null},
                {"interface": "net2", "network": "shop/oam", "phase": null, "why": "the API has none"}]}]});
        let text = spelled_out(&value);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "shop/web-0 asks for (by the API):",
                "  net1       shop/radio: attached",
                "  net2       shop/oam: LACKING: the API has none"
            ],
            "{text}"
        );
        assert!(
            lines[3].ends_with("the runtime has not asked") && lines[4].starts_with("→ kubectl describe pod"),
            "{text}"
        );
    }
}
