//! The machine's own NICs on a test node with one implementation: calls, and what is seen after them. Everything
//! is restored before the next case, so that what one implementation loses does not count against it twice.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nic::{self, Nic, USER_DRIVER, Vf, VfSnapshot};
use crate::implementation::{Answer, Call, CallError, Daemon, Implementation};
use crate::node_commands::{self, NodeError};
use crate::process;
use crate::test_node::TestNode;

/// The number of VFs of the first NIC, which is all that it can have.
const MANY: usize = 7;
/// The time to wait for what comes a moment after an answer. It is long, because the lab is an emulation on a
/// busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same time where no process is left that could act, only the kernel.
const NOBODY_IS_LEFT: Duration = Duration::from_secs(4);

/// Why a case did not come out right.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The implementation did something else than it should.
    #[error("{0}")]
    Wrong(String),
    /// The test node failed.
    #[error(transparent)]
    TestNode(#[from] NodeError),
    /// The implementation could not be called.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Returns the fault when `right` is false.
pub(super) fn ensure(right: bool, otherwise: impl FnOnce() -> String) -> Result<(), Fault> {
    if right { Ok(()) } else { Err(Fault::Wrong(otherwise())) }
}

/// One pod's interface, and the fields of its network's configuration.
#[derive(Debug, Clone)]
pub(super) struct Attachment {
    /// The name of the pod, which is also the container's id.
    pub(super) pod: &'static str,
    /// The VF that the pod is to have.
    pub(super) vf: Vf,
    /// Fields of the network's configuration.
    pub(super) fields: Value,
}

impl Attachment {
    fn config(&self, more: &Value) -> String {
        let mut config = json!({"cniVersion": "1.1.0", "name": "lab", "type": "sriov",
            "deviceID": self.vf.address});
        for fields in [&self.fields, more] {
            if let (Some(config), Some(fields)) = (config.as_object_mut(), fields.as_object()) {
                config.extend(fields.clone());
            }
        }
        config.to_string()
    }
}

/// The name of the interface in every pod.
pub(super) const IFNAME: &str = "net1";

/// One implementation with two NICs of this machine.
#[derive(Debug)]
pub(super) struct VfTestbed<'a> {
    /// The daemon, which is killed before the test node goes.
    daemon: Option<Daemon>,
    node: TestNode,
    pods: Vec<String>,
    implementation: &'a Implementation,
    nics: &'a [Nic; 2],
    /// The VFs of the first NIC, under the kernel's driver.
    pub(super) near: Vec<Vf>,
    /// A VF of the second NIC.
    pub(super) far: Vf,
    /// Another VF of the second NIC, under vfio-pci.
    pub(super) user: Vf,
    rest: BTreeMap<String, VfSnapshot>,
}

impl<'a> VfTestbed<'a> {
    /// Makes the VFs of both NICs, marks them, and starts the implementation's daemon.
    pub(super) fn new(
        implementation: &'a Implementation,
        nics: &'a [Nic; 2],
    ) -> Result<VfTestbed<'a>, Fault> {
        let node = TestNode::of_this_machine()?;
        let (near, far, user) = make_vfs(nics)?;
        let daemon = implementation.start_daemon()?;
        let mut testbed = VfTestbed {
            daemon,
            node,
            pods: Vec::new(),
            implementation,
            nics,
            near,
            far,
            user,
            rest: BTreeMap::new(),
        };
        testbed.rest = nic::seen(&testbed.vfs())?;
        Ok(testbed)
    }

    /// The VF that most cases are about.
    pub(super) fn first(&self) -> &Vf {
        &self.near[0]
    }

    fn vfs(&self) -> Vec<Vf> {
        self.near.iter().chain([&self.far, &self.user]).cloned().collect()
    }

    // ---- pods ----

    /// Makes a pod with nothing but `lo`.
    pub(super) fn pod(&mut self, name: &str) -> Result<(), Fault> {
        self.node.add_pod(name, true)?;
        self.pods.push(name.to_owned());
        Ok(())
    }

    /// Removes a pod's namespace without any call.
    pub(super) fn pod_dies(&mut self, name: &str) -> Result<(), Fault> {
        self.pods.retain(|pod| pod != name);
        Ok(self.node.remove_pod(name)?)
    }

    /// Runs `ip` in a pod; several lines, with `;` between them, in one process.
    pub(super) fn ip_in(&self, pod: &str, lines: &str) -> Result<(), Fault> {
        Ok(self.node.in_pod(pod, || node_commands::ip_batch(&split(lines)))?)
    }

    /// Writes a file of `/proc/sys` in a pod.
    pub(super) fn write_in(&self, pod: &str, path: &str, content: &str) -> Result<(), Fault> {
        Ok(self.node.in_pod(pod, || node_commands::put(path, content))?)
    }

    /// Writes a file where implementations keep theirs.
    pub(super) fn keep(&self, path: &str, content: &str) -> Result<(), Fault> {
        Ok(node_commands::keep(path, content)?)
    }

    /// The interface of a pod, where it has one.
    pub(super) fn interface(&self, pod: &str) -> Result<Option<Value>, Fault> {
        let links = self.node.in_pod(pod, nic::links)?;
        Ok(links.into_iter().find(|link| link["ifname"] == IFNAME))
    }

    /// Waits until a pod's interface has a carrier.
    pub(super) fn carrier(&self, pod: &str) -> Result<(), Fault> {
        self.in_time(|| {
            let link = self.interface(pod)?.unwrap_or_default();
            let up = link["flags"].as_array().is_some_and(|flags| flags.contains(&json!("LOWER_UP")));
            ensure(up, || format!("{pod} has no carrier"))
        })
    }

    /// Whether a ping from a pod is answered.
    pub(super) fn ping(&self, pod: &str, arguments: &str) -> Result<bool, Fault> {
        let mut command = Command::new("busybox");
        command.args(["ping", "-q"]).args(arguments.split(' '));
        let out = self.node.in_pod(pod, || Ok(process::run(&mut command, b"", PATIENCE)?))?;
        Ok(out.status == Some(0))
    }

    /// What `ip` prints in a pod.
    pub(super) fn ip_output_in(&self, pod: &str, arguments: &str) -> Result<String, Fault> {
        Ok(self.node.in_pod(pod, || node_commands::ip(arguments))?)
    }

    // ---- calls ----

    /// An attachment of the first VF to `pod`.
    pub(super) fn attachment(&self, pod: &'static str, fields: Value) -> Attachment {
        Attachment { pod, vf: self.first().clone(), fields }
    }

    /// Makes one call, with more fields in the configuration.
    pub(super) fn call(&self, command: &str, attachment: &Attachment, more: &Value) -> Result<Answer, Fault> {
        let config = attachment.config(more);
        let netns = TestNode::netns_path(attachment.pod);
        Ok(self.implementation.call(
            "sriov",
            &Call {
                command,
                container_id: attachment.pod,
                netns: &netns,
                ifname: IFNAME,
                args: "",
                config: config.as_bytes(),
            },
        )?)
    }

    fn succeeds(&self, command: &str, attachment: &Attachment, more: &Value) -> Result<Value, Fault> {
        let answer = self.call(command, attachment, more)?;
        ensure(answer.ok(), || format!("{command}: {}: {}", answer.verdict, answer.complaint()))?;
        Ok(answer.body)
    }

    /// Makes an ADD that must succeed; returns its result.
    pub(super) fn add(&self, attachment: &Attachment) -> Result<Value, Fault> {
        self.succeeds("ADD", attachment, &json!({}))
    }

    /// Makes an ADD that must fail and say why.
    pub(super) fn refused(&self, attachment: &Attachment, why: &str) -> Result<String, Fault> {
        let answer = self.call("ADD", attachment, &json!({}))?;
        ensure(!answer.ok(), || format!("ADD succeeds: {why}"))?;
        Ok(format!("{}: {}", answer.verdict, answer.complaint()))
    }

    /// Makes a CHECK that must succeed.
    pub(super) fn check(&self, attachment: &Attachment, result: &Value) -> Result<(), Fault> {
        self.succeeds("CHECK", attachment, &json!({"prevResult": result})).map(drop)
    }

    /// Makes a CHECK that must fail and name `what`.
    pub(super) fn check_finds(
        &self,
        attachment: &Attachment,
        result: &Value,
        what: &str,
    ) -> Result<(), Fault> {
        let answer = self.call("CHECK", attachment, &json!({"prevResult": result}))?;
        ensure(!answer.ok(), || "CHECK finds nothing".into())?;
        let complaint = answer.complaint();
        ensure(complaint.contains(what), || format!("CHECK does not tell of {what}: {complaint}"))
    }

    /// Makes a DEL that must succeed.
    pub(super) fn del(&self, attachment: &Attachment) -> Result<(), Fault> {
        self.succeeds("DEL", attachment, &json!({})).map(drop)
    }

    /// Calls GC with no attachment on its list, or STATUS: both are about the network alone.
    pub(super) fn of_network(&self, command: &str, more: &Value) -> Result<(), Fault> {
        self.succeeds(command, &self.attachment("pod", json!({})), more).map(drop)
    }

    // ---- what is seen ----

    /// Everything that can be seen of a VF.
    pub(super) fn seen(&self, vf: &Vf) -> Result<VfSnapshot, Fault> {
        Ok(nic::seen(std::slice::from_ref(vf))?.remove(&vf.address).unwrap_or_default())
    }

    /// Requires that a VF has these settings.
    pub(super) fn set(&self, vf: &Vf, wanted: &Value) -> Result<(), Fault> {
        let seen = self.seen(vf)?;
        for (name, value) in wanted.as_object().into_iter().flatten() {
            let is = seen.get(name).unwrap_or(&Value::Null);
            ensure(is == value, || format!("{name} is {is}, not {value}"))?;
        }
        Ok(())
    }

    /// Requires that a VF is, at once or soon, as it was before the case.
    pub(super) fn is_restored(&self, vf: &Vf) -> Result<(), Fault> {
        self.is_restored_as(vf, &self.rest[&vf.address])
    }

    /// Requires that a VF is, at once or soon, as it was then.
    pub(super) fn is_restored_as(&self, vf: &Vf, was: &VfSnapshot) -> Result<(), Fault> {
        self.in_time(|| match nic::difference(was, &self.seen(vf)?) {
            None => Ok(()),
            Some(difference) => Err(Fault::Wrong(difference)),
        })
    }

    /// Requires that a VF has, at once or soon, an interface on the machine.
    pub(super) fn on_the_machine(&self, vf: &Vf) -> Result<(), Fault> {
        self.in_time(|| ensure(vf.name().is_ok(), || "the machine has no interface of it".into()))
    }

    /// Waits for what may come a moment after an answer.
    pub(super) fn in_time(&self, right: impl FnMut() -> Result<(), Fault>) -> Result<(), Fault> {
        within(self.patience(), right)
    }

    fn patience(&self) -> Duration {
        if self.daemon.is_some() { PATIENCE } else { NOBODY_IS_LEFT }
    }

    // ---- the machine ----

    /// Removes the VFs of the second NIC.
    pub(super) fn remove_far_vfs(&self) -> Result<(), Fault> {
        self.nics[1].make(0)?;
        Ok(())
    }

    /// Makes the VFs of the second NIC again, with the same addresses and no marks.
    pub(super) fn remake_far_vfs(&mut self) -> Result<(), Fault> {
        self.nics[1].make(2)?;
        self.user.bind(USER_DRIVER)?;
        // Its driver, which had it for a moment, made up a MAC address.
        self.rest.insert(self.user.address.clone(), self.seen(&self.user)?);
        Ok(())
    }

    /// Makes the VFs of the second NIC again, with marks as at the beginning of a case.
    pub(super) fn remake_far_vfs_with_marks(&mut self) -> Result<(), Fault> {
        (self.far, self.user) = make_far_vfs(&self.nics[1])?;
        self.rest = nic::seen(&self.vfs())?;
        Ok(())
    }

    /// Sets the interface of the first NIC down or up.
    pub(super) fn near_nic(&self, state: &str) -> Result<(), Fault> {
        node_commands::ip(&format!("link set {} {state}", self.nics[0].name()?))?;
        Ok(())
    }

    /// Changes a setting of a VF, as an administrator does.
    pub(super) fn administer(&self, vf: &Vf, setting: &str) -> Result<(), Fault> {
        let nic = vf.nic.name()?;
        node_commands::ip(&format!("link set {nic} vf {} {setting}", vf.index))?;
        Ok(())
    }

    /// Ends the case: no pods, no links that it made, and every VF as at the start. Where the implementation did
    /// not restore it, that is done by force.
    pub(super) fn clear(&mut self, went_well: bool) -> Result<(), Fault> {
        for pod in std::mem::take(&mut self.pods) {
            self.node.remove_pod(&pod)?;
        }
        for link in nic::links()? {
            if let (Some("dummy"), Some(name)) =
                (link["linkinfo"]["info_kind"].as_str(), link["ifname"].as_str())
            {
                node_commands::ip(&format!("link del {name}"))?;
            }
        }
        if self.daemon.is_none() {
            // What it noted is of pods that are no more, and the next one has their names.
            std::fs::remove_dir_all("/var/lib/cni").ok();
        }
        let limit = if went_well { self.patience() } else { NOBODY_IS_LEFT };
        match within(limit, || self.all_at_rest()) {
            Err(Fault::Wrong(left)) => {
                self.remake_all_vfs()?;
                ensure(!went_well, || format!("left behind: {left}"))
            }
            other => other,
        }
    }

    fn all_at_rest(&self) -> Result<(), Fault> {
        let now = nic::seen(&self.vfs())?;
        let difference = self.rest.iter().find_map(|(address, was)| nic::difference(was, &now[address]));
        difference.map_or(Ok(()), |difference| Err(Fault::Wrong(difference)))
    }

    fn remake_all_vfs(&mut self) -> Result<(), Fault> {
        (self.near, self.far, self.user) = make_vfs(self.nics)?;
        self.rest = nic::seen(&self.vfs())?;
        Ok(())
    }
}

fn within(limit: Duration, mut right: impl FnMut() -> Result<(), Fault>) -> Result<(), Fault> {
    let deadline = Instant::now() + limit;
    loop {
        match right() {
            Err(Fault::Wrong(_)) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
}

/// Makes VFs on both NICs with different marks, so that a lost mark is seen.
fn make_vfs(nics: &[Nic; 2]) -> Result<(Vec<Vf>, Vf, Vf), NodeError> {
    for nic in nics {
        node_commands::ip(&format!("link set {} up", nic.name()?))?;
    }
    let near = nics[0].make(MANY)?;
    let (far, user) = make_far_vfs(&nics[1])?;
    mark(near.iter())?;
    Ok((near, far, user))
}

fn make_far_vfs(nic: &Nic) -> Result<(Vf, Vf), NodeError> {
    let mut made = nic.make(2)?;
    let (user, far) = (made.swap_remove(1), made.swap_remove(0));
    user.bind(USER_DRIVER)?;
    mark([&far])?;
    Ok((far, user))
}

fn mark<'f>(vfs: impl IntoIterator<Item = &'f Vf>) -> Result<(), NodeError> {
    let mut lines = Vec::new();
    for vf in vfs {
        let name = vf.name()?;
        lines.push(format!("link set {name} down mtu 1400 alias mine-{name}"));
        lines.push(format!("link property add dev {name} altname mark-{name}"));
    }
    node_commands::ip_batch(&lines)
}

fn split(lines: &str) -> Vec<String> {
    lines.split("; ").map(str::to_owned).collect()
}

/// Removes every VF that was made here.
pub(super) fn remove_vfs(nics: &[Nic; 2]) -> Result<(), NodeError> {
    nics.iter().try_for_each(|nic| nic.make(0).map(drop))
}
