//! Runs one row with one implementation on a test node and records everything that can be seen of it; then
//! compares what two implementations left.

use std::sync::RwLock;
use std::thread;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::allowed_differences;
use crate::case::{Case, Expect, Plugin};
use crate::diff::{self, Difference};
use crate::disturbance::Disturbance;
use crate::implementation::{Answer, Call, CallError, Implementation, Verdict};
use crate::link_removal;
use crate::node_commands::{self, NodeError};
use crate::normalise::Normaliser;
use crate::observe;
use crate::row_attempts::{self, Cause};
use crate::test_node::{MASTER_MACS, TestNode};

/// Why a row could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The test node failed.
    #[error(transparent)]
    TestNode(#[from] NodeError),
    /// The implementation could not be called.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The thread of one implementation panicked.
    #[error("the {0} side's thread panicked")]
    Panic(&'static str),
}

/// The result of one row.
#[derive(Debug)]
pub struct Outcome {
    /// Differences that nothing allows, and broken expectations, as lines for the report.
    pub faults: Vec<String>,
    /// Whose these are; absent if there are none.
    pub cause: Option<Cause>,
    /// How often the row was run.
    pub runs: usize,
    /// The faults of earlier runs in which the subject ran out of time.
    pub earlier: Vec<String>,
    /// The intended differences, each with its reason.
    pub allowed: Vec<(Difference, &'static str)>,
    /// The verdicts of the reference's and of the subject's ADD, with the message of an error.
    pub adds: [String; 2],
}

/// Rows at work beside others hold it for reading, and one that is run again for writing: alone.
static AT_WORK: RwLock<()> = RwLock::new(());

/// Runs a row with both implementations at once, each on its own node, and compares. It is run again, twice at most and with no other at
/// work, where load may explain what was found: a reference that does not answer, or an address that is tentative for seconds, tells of
/// a busy machine and not of plugins.
pub fn run(case: &Case, reference: &Implementation, subject: &Implementation) -> Result<Outcome, RowError> {
    let once = || both(case, reference, subject).map(|(theirs, ours)| compare(case, &theirs, &ours));
    let first = {
        let _beside_others = AT_WORK.read();
        once()?
    };
    row_attempts::until_final(first, || {
        let _alone = AT_WORK.write();
        once()
    })
}

fn both(
    case: &Case,
    reference: &Implementation,
    subject: &Implementation,
) -> Result<(Record, Record), RowError> {
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| run_with(case, reference));
        let ours = scope.spawn(|| run_with(case, subject));
        (theirs.join(), ours.join())
    });
    let theirs = theirs.map_err(|_| RowError::Panic("reference"))??;
    let ours = ours.map_err(|_| RowError::Panic("subject"))??;
    Ok((theirs, ours))
}

fn compare(case: &Case, theirs: &Record, ours: &Record) -> Outcome {
    let mut outcome = Outcome {
        faults: Vec::new(),
        cause: None,
        runs: 1,
        earlier: Vec::new(),
        allowed: Vec::new(),
        adds: [theirs.add(), ours.add()],
    };
    let is_as_expected = (theirs.seen["add"]["verdict"] == "ok") == (case.expect == Expect::Success);
    if !is_as_expected {
        outcome.faults.push(format!(
            "the reference was expected to {:?} here: {}",
            case.expect,
            theirs.add()
        ));
    }
    let mut faults = Vec::new();
    for difference in diff::differences(&theirs.seen, &ours.seen) {
        match allowed_differences::reason(&difference, &case.allow) {
            Some(reason) => outcome.allowed.push((difference, reason)),
            None => faults.push(difference),
        }
    }
    outcome.faults.extend(faults.iter().map(line));
    if !outcome.faults.is_empty() {
        let is_sound = is_as_expected && theirs.settled && !row_attempts::ran_out_of_time(&theirs.seen);
        outcome.cause = Some(if is_sound {
            row_attempts::cause_in_subject(&faults, ours.settled)
        } else {
            Cause::Reference
        });
        outcome.faults.extend(ours.log.iter().map(|log| format!("the subject's daemon: {log}")));
    }
    outcome
}

/// Formats a difference as a line for the report.
pub fn line(difference: &Difference) -> String {
    let show = |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), brief);
    format!(
        "{}: reference {}, subject {}",
        difference.path,
        show(&difference.reference),
        show(&difference.subject)
    )
}

/// The beginning of a value: an interface with its sysctls would fill a screen.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(240) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Everything that was seen of one implementation.
struct Record {
    seen: Value,
    /// Whether its interfaces came to rest before each look at them.
    settled: bool,
    complaint: String,
    log: Option<String>,
}

impl Record {
    fn add(&self) -> String {
        let verdict = self.seen["add"]["verdict"].as_str().unwrap_or_default();
        if self.complaint.is_empty() { verdict.to_owned() } else { format!("{verdict} ({})", self.complaint) }
    }
}

fn run_with(case: &Case, implementation: &Implementation) -> Result<Record, RowError> {
    let mut node = TestNode::create()?;
    node_commands::ip_batch(&case.node)?;
    let daemon = implementation.start_daemon()?;
    let node_before = observe::interfaces()?;
    let runtime = FakeRuntime { case, implementation };

    runtime.prepare(&mut node, "pod")?;
    let attachment = runtime.add("pod")?;
    let mut seen = Map::new();
    let mut normal = Normaliser::default().with_node(&node_before);
    let mut settled = runtime.look_after_add(&node, &attachment, &mut seen, &mut normal)?;
    if attachment.answer.ok() {
        seen.insert("check".into(), runtime.check(&attachment)?);
        seen.insert("status".into(), json!(runtime.plain("STATUS", &attachment)?.to_string()));
    }
    settled &= runtime.look_after_del(&node, &attachment, &mut seen, &normal)?;
    node.remove_pod("pod")?;
    for probe in &case.probes {
        let verdict = runtime.probe(&mut node, *probe)?;
        seen.insert(format!("probe {probe}"), normal.apply(verdict));
    }
    let complaint = if attachment.answer.ok() { String::new() } else { attachment.answer.complaint() };
    let log = daemon.as_ref().map(|daemon| daemon.log());
    Ok(Record { seen: Value::Object(seen), settled, complaint, log })
}

/// One ADD of a whole chain, and what its plugins answered.
struct Attachment {
    id: String,
    pod: String,
    /// The answer of the last plugin, or of the one that failed.
    answer: Answer,
    /// The results of all plugins so far.
    bodies: Vec<Value>,
}

/// Plays the runtime for one case: does step by step what libcni does with a conflist.
struct FakeRuntime<'a> {
    case: &'a Case,
    implementation: &'a Implementation,
}

impl FakeRuntime<'_> {
    fn prepare(&self, node: &mut TestNode, pod: &str) -> Result<(), NodeError> {
        node.add_pod(pod, !self.case.dad)?;
        node.in_pod(pod, || {
            node_commands::ip_batch(&self.case.pod)?;
            self.case
                .sysctls
                .iter()
                .try_for_each(|(path, value)| node_commands::put(&format!("/proc/sys/{path}"), value))
        })
    }

    fn call(
        &self,
        command: &str,
        id: &str,
        pod: &str,
        plugin: &Plugin,
        prev: Option<&str>,
    ) -> Result<Answer, CallError> {
        let config = with_key(&plugin.config, "prevResult", prev);
        let netns = TestNode::netns_path(pod);
        let call = Call {
            command,
            container_id: id,
            netns: &netns,
            ifname: self.case.ifname,
            args: self.case.args,
            config: config.as_bytes(),
        };
        self.implementation.call(plugin.executable, &call)
    }

    fn add(&self, pod: &str) -> Result<Attachment, CallError> {
        let id = format!("contest-{pod}");
        let mut prev = self.case.prev_result.clone();
        let mut answer = None;
        let mut bodies = Vec::new();
        for plugin in &self.case.plugins {
            let said = self.call("ADD", &id, pod, plugin, prev.as_deref())?;
            bodies.push(said.body.clone());
            let ok = said.ok();
            prev = Some(said.body.to_string());
            answer = Some(said);
            if !ok {
                break;
            }
        }
        let nothing =
            Answer { verdict: Verdict::NoErrorObject(None), body: Value::Null, stderr: String::new() };
        Ok(Attachment { id, pod: pod.to_owned(), answer: answer.unwrap_or(nothing), bodies })
    }

    fn look_after_add(
        &self,
        node: &TestNode,
        attachment: &Attachment,
        seen: &mut Map<String, Value>,
        normal: &mut Normaliser,
    ) -> Result<bool, NodeError> {
        let answer = &attachment.answer;
        let waiting = node.in_pod("pod", observe::unusable)?;
        let (in_pod, pod) = node.in_pod("pod", || Ok((observe::settle()?, observe::namespace()?)))?;
        let interfaces = pod["interfaces"].as_object().cloned().unwrap_or_default();
        let asked = self.asked();
        *normal = std::mem::take(normal).with_pod(&interfaces, &asked);
        for body in &attachment.bodies {
            *normal = std::mem::take(normal).with_result(body, &asked);
        }
        let mut add = json!({
            "verdict": answer.verdict.to_string(),
            "plugins reached": attachment.bodies.len(),
            "addresses not usable at the answer": waiting,
        });
        if answer.ok() {
            add["result"] = answer.body.clone();
        }
        seen.insert("add".into(), normal.apply(add));
        let on_node = observe::settle()?;
        let added = json!({"pod": pod, "node": observe::namespace()?, "files": observe::files()});
        seen.insert("added".into(), normal.apply(added));
        Ok(in_pod && on_node)
    }

    /// The texts in which a MAC address is asked for, and so is no random one.
    fn asked(&self) -> String {
        let configs: Vec<&str> = self.case.plugins.iter().map(|p| p.config.as_str()).collect();
        let setup = [self.case.pod.join(" "), self.case.node.join(" ")].join(" ");
        let node: Vec<&str> = MASTER_MACS.iter().flat_map(|(_, mac, wire)| [*mac, *wire]).collect();
        [configs.join(" "), self.case.args.to_owned(), setup, node.join(" ")].join(" ")
    }

    fn check(&self, attachment: &Attachment) -> Result<Value, CallError> {
        let result = attachment.answer.body.to_string();
        let mut verdicts = Map::new();
        for plugin in &self.case.plugins {
            let said = self.call("CHECK", &attachment.id, &attachment.pod, plugin, Some(&result))?;
            verdicts.insert(plugin.executable.to_owned(), json!(said.verdict.to_string()));
        }
        Ok(Value::Object(verdicts))
    }

    fn plain(&self, command: &str, attachment: &Attachment) -> Result<Verdict, CallError> {
        let Some(first) = self.case.plugins.first() else { return Ok(Verdict::Success) };
        Ok(self.call(command, &attachment.id, &attachment.pod, first, None)?.verdict)
    }

    fn del(&self, attachment: &Attachment) -> Result<Value, CallError> {
        let result = attachment.answer.ok().then(|| attachment.answer.body.to_string());
        let mut verdicts = Map::new();
        for plugin in self.case.plugins.iter().rev() {
            let said = self.call("DEL", &attachment.id, &attachment.pod, plugin, result.as_deref())?;
            verdicts.insert(plugin.executable.to_owned(), json!(said.verdict.to_string()));
        }
        Ok(Value::Object(verdicts))
    }

    fn look_after_del(
        &self,
        node: &TestNode,
        attachment: &Attachment,
        seen: &mut Map<String, Value>,
        normal: &Normaliser,
    ) -> Result<bool, RowError> {
        let before = node.in_pod("pod", || Ok(observe::names()))?;
        seen.insert("del".into(), self.del(attachment)?);
        let answered = Instant::now();
        seen.insert("at del's answer".into(), node.in_pod("pod", || silence(self.case.ifname))?);
        let links =
            node.in_pod("pod", || Ok(link_removal::wait_for_it(&before, &attachment.id, answered)))?;
        seen.insert(link_removal::SEEN_AS.into(), json!(links));
        seen.insert("del again".into(), self.del(attachment)?);
        let settled = observe::settle()?;
        let removed = json!({
            "pod": node.in_pod("pod", observe::namespace)?,
            "node": observe::namespace()?,
            "files": observe::files(),
        });
        seen.insert("removed".into(), normal.apply(removed));
        Ok(settled)
    }

    fn probe(&self, node: &mut TestNode, probe: Disturbance) -> Result<Value, RowError> {
        let pod = format!("pod-{}", probe.to_string().replace(' ', "-"));
        self.prepare(node, &pod)?;
        let attachment = self.add(&pod)?;
        let mut seen = Map::new();
        seen.insert("add".into(), json!(attachment.answer.verdict.to_string()));
        if attachment.answer.ok() {
            let harmed = node.in_pod(&pod, || probe.apply(self.case.ifname, &attachment.id))?;
            seen.insert("something to harm".into(), json!(harmed));
            let found = if probe == Disturbance::Collect {
                self.collect(&attachment)?
            } else {
                self.check(&attachment)?
            };
            seen.insert("found".into(), found);
        }
        seen.insert("del".into(), self.del(&attachment)?);
        node.remove_pod(&pod)?;
        Ok(Value::Object(seen))
    }

    /// Calls GC on the first plugin, with the attachment on the list and then with an empty list.
    fn collect(&self, attachment: &Attachment) -> Result<Value, CallError> {
        let Some(first) = self.case.plugins.first() else { return Ok(Value::Null) };
        let listed = json!([{"containerID": attachment.id, "ifname": self.case.ifname}]).to_string();
        let mut seen = Map::new();
        for (name, list) in [("listed", listed.as_str()), ("not listed", "[]")] {
            let config = with_key(&first.config, "cni.dev/valid-attachments", Some(list));
            let plugin = Plugin { executable: first.executable, config };
            let said = self.call("GC", "", "", &plugin, None)?;
            seen.insert(name.into(), json!({"verdict": said.verdict.to_string(), "files": observe::files()}));
        }
        Ok(Value::Object(seen))
    }
}

/// What surface.md promises when DEL is answered: the name is free, and nobody answers for the addresses. Nor does IPv6
/// go by the interface any more.
fn silence(ifname: &str) -> Result<Value, NodeError> {
    let interfaces = observe::interfaces()?;
    let speaking: Vec<&String> = interfaces
        .iter()
        .filter(|(name, _)| *name != "lo")
        .flat_map(|(_, interface)| {
            interface["addresses"].as_object().into_iter().flatten().map(|(text, _)| text)
        })
        .collect();
    let name: Vec<&str> = interfaces.contains_key(ifname).then_some(ifname).into_iter().collect();
    let routes = observe::ipv6_routes();
    Ok(json!({"the name is held": name, "addresses": speaking, "IPv6 routes": routes}))
}

/// The configuration with one more key, inserted as text behind the opening brace.
fn with_key(config: &str, key: &str, value: Option<&str>) -> String {
    let (Some(value), Some(brace)) = (value, config.find('{')) else { return config.to_owned() };
    let rest = config[brace + 1..].trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!("{}{{\"{key}\":{value}{comma}{rest}", &config[..brace])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_added_without_touching_the_rest() {
        assert_eq!(with_key(" {\"a\":1,\"A\":2}", "k", Some("[]")), " {\"k\":[],\"a\":1,\"A\":2}");
        assert_eq!(with_key("{ }", "k", Some("1")), "{\"k\":1}");
        assert_eq!(with_key("{}", "k", None), "{}");
        assert_eq!(with_key("no object", "k", Some("1")), "no object");
    }
}
