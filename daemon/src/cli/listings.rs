//! The tables of what is on the node: once, or again whenever they have changed.

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_sriov::pools::{Verb, spoken};
use serde_json::{Value, json};

use super::operator_commands::{escaped, rows};
use super::table::{Extent, print, print_json, print_while_read, table};
use super::{CliError, ListArgs, Listing, QueryArgs, VswitchTable};
use crate::operator_client::{get, post};

/// How often a table that is watched is asked for.
const LOOKS: Duration = Duration::from_secs(1);
/// Clears a terminal and begins at its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";
/// So many characters of a container's id are told where there is no pod, as other tools do.
const SHORT_ID: usize = 12;

impl Listing {
    pub(super) fn extent(self) -> Extent {
        match self {
            Listing::Wide => Extent::Wide,
            Listing::Table | Listing::Json => Extent::Narrow,
        }
    }
}

/// Asks for a table and prints it; with `--watch` until the operator or the reader ends it.
fn list(args: &ListArgs, path: &str, form: impl Fn(&Value, Extent) -> String) -> Result<(), CliError> {
    let mut last = None;
    let clear = if args.watch && io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let value = get(&args.ask.socket(), path)?;
        let text = match args.ask.output {
            Listing::Json => format!("{value:#}\n"),
            Listing::Table | Listing::Wide => form(&value, args.ask.output.extent()),
        };
        if last.as_ref() != Some(&text) && !print_while_read(&format!("{clear}{text}"))? {
            return Ok(());
        }
        if !args.watch {
            return Ok(());
        }
        last = Some(text);
        sleep(LOOKS);
    }
}

pub(super) fn attachments(args: &ListArgs) -> Result<(), CliError> {
    list(args, "/v1/attachments", attachments_table)
}

fn attachments_table(value: &Value, extent: Extent) -> String {
    const NARROW: [&str; 7] = ["pod", "interface", "network", "type", "address", "phase", "age"];
    const WIDE: [&str; 16] = [
        "pod",
        "podUid",
        "container",
        "interface",
        "network",
        "namespace",
        "type",
        "link",
        "phase",
        "age",
        "mac",
        "addresses",
        "netns",
        "near",
        "broken",
        "passedOver",
    ];
    if rows(value).is_empty() {
        return "nothing is attached on this node\n".to_owned();
    }
    let shown: Vec<Value> = rows(value).iter().map(attachment_row).collect();
    match extent {
        Extent::Wide => table(&shown, &WIDE, extent),
        Extent::Narrow => {
            let mut text = table(&shown, &NARROW, extent);
            for row in shown.iter().filter(|row| row["broken"].is_string()) {
                let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
                text.push_str(&format!("{} of {}: {}\n", word("interface"), word("pod"), word("broken")));
            }
            text
        }
    }
}

/// An attachment as it is shown: with its age, and where there is no pod with its container.
fn attachment_row(row: &Value) -> Value {
    let mut shown = row.clone();
    let container: String = row["container"].as_str().unwrap_or("?").chars().take(SHORT_ID).collect();
    let pod = row["pod"].as_str().map_or_else(|| format!("({container})"), str::to_owned);
    let addresses: Vec<&str> = rows(&row["addresses"]).iter().filter_map(Value::as_str).collect();
    // Without the length of the subnet's prefix, which is the network's.
    let first = addresses.first().and_then(|address| address.split('/').next()).unwrap_or_default();
    let address = match addresses.len() {
        0 | 1 => first.to_owned(),
        more => format!("{first}+{}", more - 1),
    };
    if let Value::Object(fields) = &mut shown {
        fields.insert("pod".to_owned(), pod.into());
        fields.insert("interface".to_owned(), row["ifname"].clone());
        // An older daemon does not tell the type that was chosen.
        fields.insert(
            "type".to_owned(),
            if row["chosen"].is_string() { &row["chosen"] } else { &row["type"] }.clone(),
        );
        fields.insert("address".to_owned(), address.into());
        fields.insert("age".to_owned(), row["addedAt"].as_u64().map_or(Value::Null, |at| age(at).into()));
    }
    shown
}

/// How long ago a time is, in words.
pub(super) fn age(seconds_since_epoch: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    spoken(now.saturating_sub(seconds_since_epoch))
}

pub(super) fn networks(args: &ListArgs) -> Result<(), CliError> {
    list(args, "/v1/networks", |value, extent| {
        let mut text = match rows(&value["networks"]) {
            [] => "the conf dir has no networks\n".to_owned(),
            networks => table(networks, &["name", "cniVersion", "plugins", "missing", "file"], extent),
        };
        for refused in value["refused"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            text.push_str(&format!("refused: {refused}\n"));
        }
        text
    })
}

pub(super) fn pools(args: &ListArgs) -> Result<(), CliError> {
    list(args, "/v1/pools", |value, extent| {
        let mut text = vfs(&value["functions"], extent);
        for notice in rows(&value["notices"]) {
            let words = |key: &str| notice[key].as_str().unwrap_or("?").to_owned();
            text.push_str(&format!("{}\n  → {}\n", words("seen"), words("remedy")));
        }
        text
    })
}

/// The VFs of pools. Why one is in its state is a line of its own, because no column is wide enough for it.
fn vfs(value: &Value, extent: Extent) -> String {
    const NARROW: [&str; 6] = ["pool", "function", "driver", "state", "for", "attachment"];
    const WIDE: [&str; 9] =
        ["pool", "function", "physical", "node", "driver", "state", "for", "attachment", "reason"];
    if rows(value).is_empty() {
        return "no pool has a VF\n".to_owned();
    }
    if extent == Extent::Wide {
        return table(rows(value), &WIDE, extent);
    }
    let mut text = table(rows(value), &NARROW, extent);
    for row in rows(value) {
        let word = |key: &str| row[key].as_str().filter(|word| !word.is_empty());
        if let (Some(vf), Some(reason)) = (word("function"), word("reason")) {
            text.push_str(&format!("{vf}: {reason}\n"));
        }
    }
    text
}

pub(super) fn vswitch(args: &ListArgs, of: VswitchTable) -> Result<(), CliError> {
    match of {
        VswitchTable::Ports => list(args, "/v1/vswitch-ports", |value, extent| {
            const NARROW: [&str; 6] = ["port", "network", "connected", "received", "sent", "dropped"];
            const WIDE: [&str; 12] = [
                "port",
                "network",
                "vlan",
                "trunk",
                "mac",
                "mtu",
                "queues",
                "connected",
                "received",
                "sent",
                "dropped",
                "drops",
            ];
            let columns: &[&str] = if extent == Extent::Wide { &WIDE } else { &NARROW };
            let shown: Vec<Value> = rows(&value["ports"]).iter().map(port_row).collect();
            of_switch(value, &shown, columns, extent, "the switch has no ports\n")
        }),
        VswitchTable::MacTable => list(args, "/v1/vswitch-addresses", |value, extent| {
            let entries = rows(&value["addresses"]);
            of_switch(
                value,
                entries,
                &["mac", "network", "vlan", "port", "age_s"],
                extent,
                "the switch knows no addresses\n",
            )
        }),
    }
}

/// A table of the switch, or why there is none.
fn of_switch(value: &Value, shown: &[Value], columns: &[&str], extent: Extent, none: &str) -> String {
    match value["lacks"].as_str() {
        Some(why) => format!("{why}\n"),
        None if shown.is_empty() => none.to_owned(),
        None => table(shown, columns, extent),
    }
}

/// A port as it is shown: what the pod received and sent, in frames, and what was dropped for whichever reason.
fn port_row(port: &Value) -> Value {
    let (config, counters) = (&port["config"], &port["counters"]);
    let drops = counters["drops"].as_object();
    let dropped: u64 = drops.into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    let reasons: Vec<String> =
        drops.into_iter().flatten().map(|(reason, count)| format!("{reason} {count}")).collect();
    json!({
        "port": config["name"], "network": config["network"], "vlan": config["vlan"], "trunk": config["trunk"],
        "mac": config["mac"], "mtu": config["mtu"], "queues": port["active_queues"], "connected": port["connected"],
        "received": counters["to_guest_frames"], "sent": counters["from_guest_frames"], "dropped": dropped,
        "drops": reasons.join(", "),
    })
}

/// Orders something about a pool or one VF, and prints how they stand then.
pub(super) fn order_pools(question: &QueryArgs, verb: Verb, of: &str) -> Result<(), CliError> {
    let value = post(&question.socket(), &format!("/v1/pools/{}?of={}", verb.name(), escaped(of)))?;
    match question.output {
        Listing::Json => print_json(&value)?,
        Listing::Table | Listing::Wide => print(&vfs(&value, question.output.extent()))?,
    }
    Ok(())
}
