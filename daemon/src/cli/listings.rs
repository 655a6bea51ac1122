//! The tables of what is on the node: once, or again whenever they have changed.

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_host::spoken_duration::spoken;
use fairlead_sriov::pools::Verb;
use serde_json::Value;

use super::CliError;
use super::arguments::{ListArgs, Listing, QueryArgs};
use super::table::{Extent, print, print_json, print_while_read, rows, sentence, table};
use crate::operator_client::{escaped, get, post};

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
pub(super) fn list(
    args: &ListArgs,
    path: &str,
    form: impl Fn(&Value, Extent) -> String,
) -> Result<(), CliError> {
    list_unless(args, path, |_| Ok(()), form)
}

/// The same where the daemon's answer may be that there is nothing to show, as `judge` finds. A program gets that answer all the same;
/// whoever watches waits for a better one.
pub(super) fn list_unless(
    args: &ListArgs,
    path: &str,
    judge: impl Fn(&Value) -> Result<(), CliError>,
    form: impl Fn(&Value, Extent) -> String,
) -> Result<(), CliError> {
    let mut last = None;
    let clear = if args.watch && io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let value = get(&args.ask.socket(), path)?;
        let judged = if args.watch { Ok(()) } else { judge(&value) };
        let text = match args.ask.output {
            Listing::Json => format!("{value:#}\n"),
            Listing::Table | Listing::Wide if judged.is_err() => String::new(),
            Listing::Table | Listing::Wide => form(&value, args.ask.output.extent()),
        };
        if last.as_ref() != Some(&text) && !print_while_read(&format!("{clear}{text}"))? {
            return Ok(());
        }
        if !args.watch {
            return judged;
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
    const WIDE: [&str; 17] = [
        "pod",
        "podUid",
        "container",
        "interface",
        "network",
        "namespace",
        "list",
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
            // A plugin of a list has made the interface that the list's own row tells.
            let whole: Vec<Value> = shown.iter().filter(|row| row["list"].is_null()).cloned().collect();
            let mut text = table(&whole, &NARROW, extent);
            for row in shown.iter().filter(|row| row["broken"].is_string()) {
                let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
                let broken = sentence(&word("broken"), extent);
                text.push_str(&format!("{} of {}: {broken}\n", word("interface"), word("pod")));
            }
            text
        }
    }
}

/// An attachment as it is shown: with its age, and where there is no pod with its container.
pub(super) fn attachment_row(row: &Value) -> Value {
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
        let (vfs, ports) = (&value["functions"], rows(&value["ports"]));
        let mut text = match rows(vfs).is_empty() && !ports.is_empty() {
            true => String::new(),
            false => vfs_of_pools(vfs, extent),
        };
        if !ports.is_empty() {
            const NARROW: [&str; 4] = ["pool", "port", "state", "attachment"];
            const WIDE: [&str; 8] =
                ["pool", "port", "resource", "mode", "mac", "state", "attachment", "reason"];
            let columns: &[&str] = if extent == Extent::Wide { &WIDE } else { &NARROW };
            text.push_str(&table(ports, columns, extent));
        }
        for notice in rows(&value["notices"]) {
            let words = |key: &str| notice[key].as_str().unwrap_or("?").to_owned();
            text.push_str(&format!("{}\n  → {}\n", words("seen"), words("remedy")));
        }
        text
    })
}

/// The VFs of pools. Why one is in its state is a line of its own, because no column is wide enough for it.
fn vfs_of_pools(value: &Value, extent: Extent) -> String {
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

/// Orders something about a pool or one VF, and prints how they stand then.
pub(super) fn order_pools(question: &QueryArgs, verb: Verb, of: &str) -> Result<(), CliError> {
    let value = post(&question.socket(), &format!("/v1/pools/{}?of={}", verb.name(), escaped(of)))?;
    match question.output {
        Listing::Json => print_json(&value)?,
        Listing::Table | Listing::Wide => print(&vfs_of_pools(&value, question.output.extent()))?,
    }
    Ok(())
}
