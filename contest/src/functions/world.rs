//! The machine's own NICs on a stage with one implementation: calls, what is seen after them, and everything put back
//! before the next case, so that what one implementation loses is not held against it twice.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nic::{self, VfDevice, Nic, Seen, USER_DRIVER};
use crate::implementation::{Answer, Call, CallError, Daemon, Implementation};
use crate::process;
use crate::stage::{self, Stage, StageError};

/// VFs of the first NIC; all that it has.
const MANY: usize = 7;
/// How long is waited for what comes a moment after an answer. Generous: the lab is an emulation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where no process is left that could do it, only the kernel.
const NOBODY_IS_LEFT: Duration = Duration::from_secs(4);

/// Why a case did not come out right.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The implementation did something else than it should.
    #[error("{0}")]
    Wrong(String),
    /// The stage failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The implementation could not be called.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What is wrong, when `right` is false.
pub(super) fn ensure(right: bool, otherwise: impl FnOnce() -> String) -> Result<(), Fault> {
    if right { Ok(()) } else { Err(Fault::Wrong(otherwise())) }
}

/// One pod's interface, and what its network's config says of it.
#[derive(Debug, Clone)]
pub(super) struct Attachment {
    /// The pod's name, which is the container's id too.
    pub(super) pod: &'static str,
    /// The VF that the pod is to have.
    pub(super) vf: VfDevice,
    /// The config's fields.
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

/// The name of every pod's interface.
pub(super) const IFNAME: &str = "net1";

/// One implementation with two NICs of this machine.
#[derive(Debug)]
pub(super) struct World<'a> {
    /// Killed before the stage goes.
    daemon: Option<Daemon>,
    stage: Stage,
    pods: Vec<String>,
    implementation: &'a Implementation,
    nics: &'a [Nic; 2],
    /// The VFs of the first NIC, under the kernel's driver.
    pub(super) near: Vec<VfDevice>,
    /// One of the second NIC.
    pub(super) far: VfDevice,
    /// Another of it, under vfio-pci.
    pub(super) user: VfDevice,
    rest: BTreeMap<String, Seen>,
}

impl<'a> World<'a> {
    /// Makes the VFs of both NICs, marks them, and starts the implementation's daemon.
    pub(super) fn new(implementation: &'a Implementation, nics: &'a [Nic; 2]) -> Result<World<'a>, Fault> {
        let stage = Stage::of_this_machine()?;
        let (near, far, user) = furnish(nics)?;
        let daemon = implementation.start_daemon()?;
        let mut world = World {
            daemon,
            stage,
            pods: Vec::new(),
            implementation,
            nics,
            near,
            far,
            user,
            rest: BTreeMap::new(),
        };
        world.rest = nic::seen(&world.vfs())?;
        Ok(world)
    }

    /// The VF that most cases are about.
    pub(super) fn first(&self) -> &VfDevice {
        &self.near[0]
    }

    fn vfs(&self) -> Vec<VfDevice> {
        self.near.iter().chain([&self.far, &self.user]).cloned().collect()
    }

    // ---- pods ----

    /// A pod with nothing but `lo`.
    pub(super) fn pod(&mut self, name: &str) -> Result<(), Fault> {
        self.stage.add_pod(name, true)?;
        self.pods.push(name.to_owned());
        Ok(())
    }

    /// Its namespace is gone, without any call.
    pub(super) fn pod_dies(&mut self, name: &str) -> Result<(), Fault> {
        self.pods.retain(|pod| pod != name);
        Ok(self.stage.remove_pod(name)?)
    }

    /// Runs `ip` in a pod, several lines with `;` between them in one process.
    pub(super) fn ip_in(&self, pod: &str, lines: &str) -> Result<(), Fault> {
        Ok(self.stage.in_pod(pod, || stage::ip_batch(&split(lines)))?)
    }

    /// Writes a file of `/proc/sys` in a pod.
    pub(super) fn write_in(&self, pod: &str, path: &str, content: &str) -> Result<(), Fault> {
        Ok(self.stage.in_pod(pod, || stage::put(path, content))?)
    }

    /// Puts a file where implementations keep theirs.
    pub(super) fn keep(&self, path: &str, content: &str) -> Result<(), Fault> {
        Ok(stage::keep(path, content)?)
    }

    /// A pod's interface, where it has one.
    pub(super) fn interface(&self, pod: &str) -> Result<Option<Value>, Fault> {
        let links = self.stage.in_pod(pod, nic::links)?;
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

    /// True when a ping from a pod is answered.
    pub(super) fn ping(&self, pod: &str, arguments: &str) -> Result<bool, Fault> {
        let mut command = Command::new("busybox");
        command.args(["ping", "-q"]).args(arguments.split(' '));
        let out = self.stage.in_pod(pod, || Ok(process::run(&mut command, b"", PATIENCE)?))?;
        Ok(out.status == Some(0))
    }

    /// What `ip` says in a pod.
    pub(super) fn told_in(&self, pod: &str, arguments: &str) -> Result<String, Fault> {
        Ok(self.stage.in_pod(pod, || stage::ip(arguments))?)
    }

    // ---- calls ----

    /// An attachment of the first VF to `pod`.
    pub(super) fn attachment(&self, pod: &'static str, fields: Value) -> Attachment {
        Attachment { pod, vf: self.first().clone(), fields }
    }

    /// One call, with more fields in the config.
    pub(super) fn call(&self, command: &str, attachment: &Attachment, more: &Value) -> Result<Answer, Fault> {
        let config = attachment.config(more);
        let netns = Stage::netns_path(attachment.pod);
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

    /// ADD, which must succeed; its result.
    pub(super) fn add(&self, attachment: &Attachment) -> Result<Value, Fault> {
        self.succeeds("ADD", attachment, &json!({}))
    }

    /// ADD, which must fail and say why.
    pub(super) fn refused(&self, attachment: &Attachment, why: &str) -> Result<String, Fault> {
        let answer = self.call("ADD", attachment, &json!({}))?;
        ensure(!answer.ok(), || format!("ADD succeeds: {why}"))?;
        Ok(format!("{}: {}", answer.verdict, answer.complaint()))
    }

    /// CHECK, which must succeed.
    pub(super) fn check(&self, attachment: &Attachment, result: &Value) -> Result<(), Fault> {
        self.succeeds("CHECK", attachment, &json!({"prevResult": result})).map(drop)
    }

    /// CHECK, which must fail and tell `what`.
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

    /// DEL, which must succeed.
    pub(super) fn del(&self, attachment: &Attachment) -> Result<(), Fault> {
        self.succeeds("DEL", attachment, &json!({})).map(drop)
    }

    /// GC with no attachment on its list, and STATUS, are about the network alone.
    pub(super) fn of_network(&self, command: &str, more: &Value) -> Result<(), Fault> {
        self.succeeds(command, &self.attachment("pod", json!({})), more).map(drop)
    }

    // ---- what is seen ----

    /// Everything of a VF.
    pub(super) fn seen(&self, vf: &VfDevice) -> Result<Seen, Fault> {
        Ok(nic::seen(std::slice::from_ref(vf))?.remove(&vf.address).unwrap_or_default())
    }

    /// A VF's settings must be these.
    pub(super) fn set(&self, vf: &VfDevice, wanted: &Value) -> Result<(), Fault> {
        let seen = self.seen(vf)?;
        for (name, value) in wanted.as_object().into_iter().flatten() {
            let is = seen.get(name).unwrap_or(&Value::Null);
            ensure(is == value, || format!("{name} is {is}, not {value}"))?;
        }
        Ok(())
    }

    /// A VF must be as it was before the case, at once or soon.
    pub(super) fn home(&self, vf: &VfDevice) -> Result<(), Fault> {
        self.home_as(vf, &self.rest[&vf.address])
    }

    /// A VF must be as it was then, at once or soon.
    pub(super) fn home_as(&self, vf: &VfDevice, was: &Seen) -> Result<(), Fault> {
        self.in_time(|| match nic::difference(was, &self.seen(vf)?) {
            None => Ok(()),
            Some(difference) => Err(Fault::Wrong(difference)),
        })
    }

    /// A VF must have an interface on the machine, at once or soon.
    pub(super) fn on_the_machine(&self, vf: &VfDevice) -> Result<(), Fault> {
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

    /// Takes the second NIC's VFs away.
    pub(super) fn far_vanish(&self) -> Result<(), Fault> {
        self.nics[1].make(0)?;
        Ok(())
    }

    /// Makes them anew: the same addresses, and nothing of before.
    pub(super) fn far_are_made(&mut self) -> Result<(), Fault> {
        self.nics[1].make(2)?;
        self.user.bind(USER_DRIVER)?;
        // Its driver, which had it for a moment, made up a MAC address.
        self.rest.insert(self.user.address.clone(), self.seen(&self.user)?);
        Ok(())
    }

    /// Makes them anew as they are at a case's beginning, with marks.
    pub(super) fn far_begin_anew(&mut self) -> Result<(), Fault> {
        (self.far, self.user) = furnish_far(&self.nics[1])?;
        self.rest = nic::seen(&self.vfs())?;
        Ok(())
    }

    /// The first NIC's interface goes down or up.
    pub(super) fn near_nic(&self, state: &str) -> Result<(), Fault> {
        stage::ip(&format!("link set {} {state}", self.nics[0].name()?))?;
        Ok(())
    }

    /// Changes a setting of a VF, as an administrator does.
    pub(super) fn administer(&self, vf: &VfDevice, setting: &str) -> Result<(), Fault> {
        let nic = vf.nic.name()?;
        stage::ip(&format!("link set {nic} vf {} {setting}", vf.index))?;
        Ok(())
    }

    /// Ends the case: no pods, no links that it made, and every VF as at the start; by force, where the
    /// implementation did not bring it there.
    pub(super) fn clear(&mut self, went_well: bool) -> Result<(), Fault> {
        for pod in std::mem::take(&mut self.pods) {
            self.stage.remove_pod(&pod)?;
        }
        for link in nic::links()? {
            if let (Some("dummy"), Some(name)) =
                (link["linkinfo"]["info_kind"].as_str(), link["ifname"].as_str())
            {
                stage::ip(&format!("link del {name}"))?;
            }
        }
        if self.daemon.is_none() {
            // What it noted is of pods that are no more, and the next one has their names.
            std::fs::remove_dir_all("/var/lib/cni").ok();
        }
        let limit = if went_well { self.patience() } else { NOBODY_IS_LEFT };
        match within(limit, || self.all_at_rest()) {
            Err(Fault::Wrong(left)) => {
                self.begin_anew()?;
                ensure(!went_well, || format!("left behind: {left}"))
            }
            other => other,
        }
    }

    fn all_at_rest(&self) -> Result<(), Fault> {
        let now = nic::seen(&self.vfs())?;
        let told = self.rest.iter().find_map(|(address, was)| nic::difference(was, &now[address]));
        told.map_or(Ok(()), |told| Err(Fault::Wrong(told)))
    }

    fn begin_anew(&mut self) -> Result<(), Fault> {
        (self.near, self.far, self.user) = furnish(self.nics)?;
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

/// VFs on both NICs, with marks of their own: what is lost is seen.
fn furnish(nics: &[Nic; 2]) -> Result<(Vec<VfDevice>, VfDevice, VfDevice), StageError> {
    for nic in nics {
        stage::ip(&format!("link set {} up", nic.name()?))?;
    }
    let near = nics[0].make(MANY)?;
    let (far, user) = furnish_far(&nics[1])?;
    mark(near.iter())?;
    Ok((near, far, user))
}

fn furnish_far(nic: &Nic) -> Result<(VfDevice, VfDevice), StageError> {
    let mut made = nic.make(2)?;
    let (user, far) = (made.swap_remove(1), made.swap_remove(0));
    user.bind(USER_DRIVER)?;
    mark([&far])?;
    Ok((far, user))
}

fn mark<'f>(vfs: impl IntoIterator<Item = &'f VfDevice>) -> Result<(), StageError> {
    let mut lines = Vec::new();
    for vf in vfs {
        let name = vf.name()?;
        lines.push(format!("link set {name} down mtu 1400 alias mine-{name}"));
        lines.push(format!("link property add dev {name} altname mark-{name}"));
    }
    stage::ip_batch(&lines)
}

fn split(lines: &str) -> Vec<String> {
    lines.split("; ").map(str::to_owned).collect()
}

/// Gives every VF that was made here back: there are none.
pub(super) fn unfurnish(nics: &[Nic; 2]) -> Result<(), StageError> {
    nics.iter().try_for_each(|nic| nic.make(0).map(drop))
}
