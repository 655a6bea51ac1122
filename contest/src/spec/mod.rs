//! Cases of the CNI specification, section by section. Each takes an implementation, and says what it did and
//! whether the specification asks for that. The reference is judged by the same cases, for comparison.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::implementation::{Answer, Call, CallError, Daemon, Implementation, Verdict};
use crate::node_commands::NodeError;
use crate::report::{Mark, Row};
use crate::run_row::RowError;
use crate::test_node::TestNode;

mod add;
mod check;
mod del;
mod gc;
mod input;
mod status;

/// What an implementation did in a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether the specification asks for that.
    pub right: bool,
    /// What it did, in a few words.
    pub said: String,
}

impl Finding {
    fn new(right: bool, said: impl Into<String>) -> Finding {
        Finding { right, said: said.into() }
    }

    /// A finding that is right when the call succeeded.
    fn success(answer: &Answer) -> Finding {
        Finding::new(answer.ok(), describe(answer))
    }

    /// A finding that is right when the call failed with one of these codes.
    fn code(answer: &Answer, codes: &[u64]) -> Finding {
        let right = matches!(answer.verdict, Verdict::Error(code) if codes.contains(&code));
        Finding::new(right, describe(answer))
    }

    /// A finding that is right when the call failed with any error object.
    fn error(answer: &Answer) -> Finding {
        Finding::new(matches!(answer.verdict, Verdict::Error(_)), describe(answer))
    }

    /// The first finding that is wrong, or the last one.
    fn all(findings: impl IntoIterator<Item = Finding>) -> Finding {
        let mut last = Finding::new(true, "");
        for finding in findings {
            let right = finding.right;
            last = finding;
            if !right {
                break;
            }
        }
        last
    }

    /// The same finding; wrong unless `right`, with a remark.
    fn and(self, right: bool, otherwise: &str) -> Finding {
        if right { self } else { Finding::new(false, format!("{}, but {otherwise}", self.said)) }
    }
}

fn describe(answer: &Answer) -> String {
    if answer.ok() { "ok".into() } else { format!("{}: {}", answer.verdict, answer.complaint()) }
}

/// One case of the specification.
#[derive(Debug)]
pub struct SpecCase {
    /// The section of the specification.
    pub section: &'static str,
    /// What must hold, as a name.
    pub name: &'static str,
    /// Finds out whether it holds.
    pub judge: fn(&mut SpecTestbed<'_>) -> Result<Finding, RowError>,
}

/// All cases, in the specification's order.
pub fn all() -> Vec<SpecCase> {
    let mut cases = Vec::new();
    for section in [add::CASES, del::CASES, check::CASES, gc::CASES, status::CASES, input::CASES] {
        cases.extend(section.iter().map(|case| SpecCase { ..*case }));
    }
    cases
}

/// Judges both implementations by a case, each in a testbed of its own. The row fails when the subject fails.
pub fn run(case: &SpecCase, reference: &Implementation, subject: &Implementation) -> Row {
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| judge(case, reference));
        let ours = scope.spawn(|| judge(case, subject));
        (theirs.join(), ours.join())
    });
    let flat = |joined: thread::Result<Result<Finding, RowError>>| match joined {
        Ok(Ok(finding)) => finding,
        Ok(Err(error)) => Finding::new(false, error.to_string()),
        Err(_) => Finding::new(false, "the case panicked"),
    };
    let (theirs, ours) = (flat(theirs), flat(ours));
    let sign = |finding: &Finding| format!("{} {}", if finding.right { '✓' } else { '✗' }, finding.said);
    let cut_short = ours.said.len() > 90 || ours.said.contains('\n');
    Row {
        group: case.section,
        title: case.name.to_owned(),
        mark: if ours.right { Mark::Passed } else { Mark::Failed },
        reference: sign(&theirs),
        subject: sign(&ours),
        notes: if ours.right || !cut_short { Vec::new() } else { vec![ours.said] },
    }
}

fn judge(case: &SpecCase, implementation: &Implementation) -> Result<Finding, RowError> {
    let mut testbed = SpecTestbed::new(implementation)?;
    (case.judge)(&mut testbed)
}

/// An implementation on a test node with one pod, and the calls that cases are made of.
#[derive(Debug)]
pub struct SpecTestbed<'a> {
    /// The daemon, declared before the node so that it is killed first.
    _daemon: Option<Daemon>,
    node: TestNode,
    implementation: &'a Implementation,
}

const ID: &str = "contest-1";
const POD: &str = "pod";

impl<'a> SpecTestbed<'a> {
    fn new(implementation: &'a Implementation) -> Result<SpecTestbed<'a>, RowError> {
        let mut node = TestNode::create()?;
        node.add_pod(POD, true)?;
        Ok(SpecTestbed { _daemon: implementation.start_daemon()?, node, implementation })
    }

    /// Makes a call about `eth0` of `contest-1` in the pod.
    fn call(&self, command: &str, config: &Value) -> Result<Answer, CallError> {
        self.call_as(command, ID, "eth0", config)
    }

    /// The same call under another id or name.
    fn call_as(&self, command: &str, id: &str, ifname: &str, config: &Value) -> Result<Answer, CallError> {
        let netns = TestNode::netns_path(POD);
        let text = config.to_string();
        self.raw(&Call {
            command,
            container_id: id,
            netns: &netns,
            ifname,
            args: "",
            config: text.as_bytes(),
        })
    }

    fn raw(&self, call: &Call<'_>) -> Result<Answer, CallError> {
        self.implementation.call("macvlan", call)
    }

    fn interfaces(&self) -> Result<Vec<String>, NodeError> {
        self.node.in_pod(POD, || Ok(crate::observe::interfaces()?.keys().cloned().collect()))
    }

    fn has_interface(&self, name: &str) -> Result<bool, NodeError> {
        Ok(self.interfaces()?.iter().any(|known| known == name))
    }
}

/// The network of the cases; `more` replaces keys of it.
fn network(version: &str, more: &Value) -> Value {
    let mut config = json!({"cniVersion": version, "name": "net", "type": "macvlan", "master": "eth1",
        "ipam": {"type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]}});
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        config.extend(more.clone());
    }
    config
}

/// The names of host-local's allocation files of one container on the current test node.
fn allocated(id: &str) -> Vec<String> {
    let Value::Object(files) = crate::observe::files() else { return Vec::new() };
    let holds = |file: &Value| file["content"].as_str().is_some_and(|c| c.split("\r\n").next() == Some(id));
    files.iter().filter(|(_, file)| holds(file)).map(|(path, _)| path.clone()).collect()
}

/// Waits a little for what may come a moment after an answer; `false` when it did not come.
fn in_time(mut come: impl FnMut() -> Result<bool, RowError>) -> Result<bool, RowError> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if come()? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(50));
    }
}
