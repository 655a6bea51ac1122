//! Two implementations at once on one host-local directory: no address is assigned twice, and all files are as
//! host-local wants them. Each side has its own node and pods; only the directory is shared, as on a node in the
//! middle of a migration.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::implementation::{Answer, Call, CallError, Daemon, Implementation};
use crate::report::{Mark, Row};
use crate::run_row::RowError;
use crate::test_node::TestNode;

/// The number of ADDs of each side.
const ADDS: usize = 40;

/// The number of calls of one side that run at the same time.
const CALLS_AT_ONCE: usize = 4;

const RETURN_LIMIT: Duration = Duration::from_secs(20);

const GROUP: &str = "both on one host-local directory";

/// One address that was assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    container: String,
    address: String,
}

/// Runs both sides at once, and judges which addresses they got and what lies in `directory`. The directory must
/// be empty and visible to both (in the program's own scratch directory).
pub fn run(
    reference: &Implementation,
    subject: &Implementation,
    directory: &str,
) -> Result<Vec<Row>, RowError> {
    let start = Barrier::new(2);
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| side(reference, directory, &start));
        let ours = scope.spawn(|| side(subject, directory, &start));
        (theirs.join(), ours.join())
    });
    let theirs = theirs.map_err(|_| RowError::Panic("reference"))??;
    let ours = ours.map_err(|_| RowError::Panic("subject"))??;
    Ok(vec![granted(&theirs, &ours), released(&theirs, &ours, directory)])
}

/// Everything that one side saw.
struct Side {
    grants: Vec<Grant>,
    faults: Vec<String>,
    /// The files of the directory after both sides' ADDs, before any DEL.
    files: BTreeMap<String, String>,
}

fn side(implementation: &Implementation, directory: &str, step: &Barrier) -> Result<Side, RowError> {
    let mut side = Side { grants: Vec::new(), faults: Vec::new(), files: BTreeMap::new() };
    let raised = create(implementation);
    // Whatever fails, both sides come by every barrier: else the other one would wait for ever.
    step.wait();
    if raised.is_ok() {
        for (container, answer) in all_at_once(implementation, "ADD", directory) {
            match answer.as_ref().ok().and_then(address) {
                Some(address) => side.grants.push(Grant { container, address }),
                None => side.faults.push(fault("ADD", &container, &answer)),
            }
        }
    }
    step.wait();
    side.files = allocations(directory);
    step.wait();
    if raised.is_ok() {
        for (container, answer) in all_at_once(implementation, "DEL", directory) {
            if !answer.as_ref().is_ok_and(Answer::ok) {
                side.faults.push(fault("DEL", &container, &answer));
            }
        }
        wait_until_free(implementation, directory);
    }
    step.wait();
    let (node, daemon) = raised?;
    drop(daemon);
    drop(node);
    Ok(side)
}

fn fault(command: &str, container: &str, answer: &Result<Answer, CallError>) -> String {
    match answer {
        Ok(answer) => format!("{command} of {container}: {} {}", answer.verdict, answer.complaint()),
        Err(error) => format!("{command} of {container}: {error}"),
    }
}

/// Waits until an address is free: it may return to its range only when its link is really gone, a moment after
/// DEL's answer.
fn wait_until_free(implementation: &Implementation, directory: &str) {
    let deadline = Instant::now() + RETURN_LIMIT;
    let mine = |content: &String| content.starts_with(implementation.role);
    while allocations(directory).values().any(mine) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
}

fn create(implementation: &Implementation) -> Result<(TestNode, Option<Daemon>), RowError> {
    let mut node = TestNode::create()?;
    for index in 0..ADDS {
        node.add_pod(&format!("pod{index}"), true)?;
    }
    let daemon = implementation.start_daemon()?;
    Ok((node, daemon))
}

type Said = (String, Result<Answer, CallError>);

/// Makes the same call for every pod of a side, [`CALLS_AT_ONCE`] at a time.
fn all_at_once(implementation: &Implementation, command: &str, directory: &str) -> Vec<Said> {
    let config = json!({"cniVersion": "1.0.0", "name": "shared", "type": "macvlan", "master": "eth1",
        "ipam": {"type": "host-local", "subnet": "10.4.0.0/16", "dataDir": directory}})
    .to_string();
    let config = config.as_bytes();
    thread::scope(|scope| {
        let work = |lane: usize| {
            (lane..ADDS)
                .step_by(CALLS_AT_ONCE)
                .map(|pod| one(implementation, command, pod, config))
                .collect::<Vec<Said>>()
        };
        let lanes: Vec<_> = (0..CALLS_AT_ONCE).map(|lane| scope.spawn(move || work(lane))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_default()).collect()
    })
}

fn one(implementation: &Implementation, command: &str, pod: usize, config: &[u8]) -> Said {
    let container = format!("{}-{pod}", implementation.role);
    let netns = TestNode::netns_path(&format!("pod{pod}"));
    let call = Call { command, container_id: &container, netns: &netns, ifname: "eth0", args: "", config };
    let answer = implementation.call("macvlan", &call);
    (container, answer)
}

fn address(answer: &Answer) -> Option<String> {
    if !answer.ok() {
        return None;
    }
    let text = answer.body.get("ips")?.get(0)?.get("address").and_then(Value::as_str)?;
    text.split('/').next().map(str::to_owned)
}

/// The allocation files of a directory: address → content.
fn allocations(directory: &str) -> BTreeMap<String, String> {
    fs::read_dir(format!("{directory}/shared"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
        })
        .filter(|(name, _)| name != "lock" && !name.starts_with("last_reserved_ip"))
        .collect()
}

fn granted(theirs: &Side, ours: &Side) -> Row {
    let mut notes = Vec::new();
    let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
    for grant in theirs.grants.iter().chain(&ours.grants) {
        if let Some(other) = holders.insert(&grant.address, &grant.container) {
            notes.push(format!("{} was given to {other} and to {}", grant.address, grant.container));
        }
    }
    for (address, container) in &holders {
        let wanted = format!("{container}\r\neth0");
        let file = ours.files.get(*address);
        if file.map(String::as_str) != Some(wanted.as_str()) {
            notes.push(format!("the file of {address} holds {file:?}, not {wanted:?}"));
        }
    }
    let strays = ours.files.keys().filter(|address| !holders.contains_key(address.as_str()));
    notes.extend(strays.map(|address| format!("{address} is taken, and nobody was given it")));
    row(format!("{ADDS} ADDs each: no address twice, all files right"), theirs, ours, notes)
}

fn released(theirs: &Side, ours: &Side, directory: &str) -> Row {
    let mut notes: Vec<String> = theirs.faults.iter().chain(&ours.faults).cloned().collect();
    let left: Vec<String> = allocations(directory).into_keys().collect();
    if !left.is_empty() {
        notes.push(format!("still taken after all DELs: {}", left.join(" ")));
    }
    row(format!("{ADDS} DELs each: every address free again"), theirs, ours, notes)
}

fn row(title: String, theirs: &Side, ours: &Side, notes: Vec<String>) -> Row {
    let mark = if notes.is_empty() { Mark::Passed } else { Mark::Failed };
    let count = |side: &Side| format!("{} addresses", side.grants.len());
    Row { group: GROUP, title, mark, reference: count(theirs), subject: count(ours), notes }
}
