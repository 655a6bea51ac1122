//! Who is measured: a plugin (ours, a reference, any peer) or the floor. All have the same interface, so that
//! every case treats them alike.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::{
    Address, AddressFlags, Kind, MacvlanMode, NetKernel, NewLink, Op, Parent, Route, SetLink,
};
use ipnet::{IpNet, Ipv4Net};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::network_config::{IFNAME, stdin};
use crate::node::{Node, Pod};
use crate::plugin_exec::{Answer, Invocation, Verb};

/// What a subject is to the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Fairlead as it is by default.
    Ours,
    /// Fairlead with `del: wait`.
    OursWaiting,
    /// One of the reference plugins.
    Reference,
    /// A plugin that the command line names.
    Peer,
    /// An empty static Rust program, which has the start of Rust's standard library, and the raw kernel calls.
    Floor,
    /// A program of three instructions and the raw kernel calls.
    Bare,
    /// The same, many at once. No bound: they queue in the kernel as they come, and a plugin that has an order can be faster.
    RawAtOnce,
}

/// The name of ours with `del: wait`.
pub(crate) const OURS_WAITING: &str = "ours-wait";
/// The name of the program of three instructions and its kernel calls.
pub(crate) const BARE: &str = "bare";
/// The name of that where many of its calls are made at once.
pub(crate) const RAW_AT_ONCE: &str = "raw-at-once";

/// What is true when a DEL has been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The link is gone.
    LinkGone,
    /// No address is left and the name is free; the link goes after.
    Silenced,
    /// The name is free: what is no plugin takes back what it gave, and nothing that came by itself.
    NameFree,
}

/// Somebody whose calls are measured.
#[derive(Debug)]
pub(crate) struct Subject {
    /// Its name in tables; also the beginning of its container ids.
    pub(crate) name: String,
    /// What the subject is to the targets.
    pub(crate) role: Role,
    /// The path of its executable.
    pub(crate) binary: PathBuf,
    /// What its executable says about itself.
    pub(crate) version: String,
    /// Its config; `None` for what is no plugin.
    pub(crate) config: Option<Value>,
    /// Variables for its environment beside those of the specification.
    pub(crate) environment: Vec<(String, String)>,
    /// The daemon that serves it.
    pub(crate) daemon: Option<Arc<Daemon>>,
    /// The interfaces that its ADD makes: the one that is asked for, then those that the pod asks for beside it.
    pub(crate) interfaces: &'static [&'static str],
}

/// An interface that a subject is asked for, and the pod that it is for.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The value of `CNI_CONTAINERID`.
    pub(crate) id: String,
    /// The pod that the interface is for.
    pub(crate) pod: Pod,
    /// Number of this attachment in the run; addresses that no plugin has allocated are made of it.
    pub(crate) serial: u32,
    /// The answer of its ADD, which DEL gets as `prevResult`.
    pub(crate) result: Option<Vec<u8>>,
    /// The uid of the pod in the cluster, where it is one of a cluster.
    pub(crate) pod_uid: Option<String>,
}

/// A call that is ready to be made.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// `None`: the floor's kernel calls alone.
    invocation: Option<Invocation>,
    kernel_calls: Option<KernelCalls<'a>>,
}

/// A call that was made.
#[derive(Debug)]
pub(crate) struct Done {
    /// The outcome of the exec; for the floor the latency includes the kernel calls.
    pub(crate) answer: Answer,
    /// The two parts of a floor's latency: spawn, kernel calls.
    pub(crate) parts: Option<(Duration, Duration)>,
}

impl Subject {
    /// What this subject's DEL promises.
    pub(crate) fn removal(&self) -> Removal {
        match self.role {
            Role::Ours => Removal::Silenced,
            Role::Floor | Role::Bare | Role::RawAtOnce => Removal::NameFree,
            Role::OursWaiting | Role::Reference | Role::Peer => Removal::LinkGone,
        }
    }

    /// False for a program that does nothing, after which the suite makes the kernel calls.
    pub(crate) fn is_plugin(&self) -> bool {
        !matches!(self.role, Role::Floor | Role::Bare)
    }

    /// Its name in tables of many calls at once.
    pub(crate) fn name_at_once(&self) -> &str {
        if self.role == Role::Bare { RAW_AT_ONCE } else { &self.name }
    }

    /// Prepares a call with the subject's own config.
    pub(crate) fn job<'a>(&self, node: &'a Node, verb: Verb, attachment: &'a Attachment) -> Job<'a> {
        let kernel_calls = (!self.is_plugin()).then(|| floor_calls(node, verb, attachment));
        Job { invocation: Some(self.invocation(verb, attachment, self.config.as_ref())), kernel_calls }
    }

    /// The program of a call without anything else.
    pub(crate) fn spawn_alone(&self, verb: Verb, attachment: &Attachment) -> Job<'static> {
        self.invocation(verb, attachment, self.config.as_ref()).into()
    }

    /// Prepares a call of the executable with this config.
    pub(crate) fn invocation(
        &self,
        verb: Verb,
        attachment: &Attachment,
        config: Option<&Value>,
    ) -> Invocation {
        let netns = attachment.pod.path.display().to_string();
        let cni_path = self.binary.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        let mut args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={}", attachment.id);
        if let Some(uid) = &attachment.pod_uid {
            args += &format!(";K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={uid}", attachment.id);
        }
        let standard = [
            ("CNI_COMMAND", verb.name()),
            ("CNI_CONTAINERID", &attachment.id),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", IFNAME),
            ("CNI_ARGS", &args),
            ("CNI_PATH", &cni_path),
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ];
        let own = self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let result = if verb == Verb::Del { attachment.result.as_deref() } else { None };
        let input = config.map(|config| stdin(config, result)).unwrap_or_default();
        Invocation::new(&self.binary, standard.into_iter().chain(own), input)
    }
}

impl From<Invocation> for Job<'_> {
    fn from(invocation: Invocation) -> Self {
        Job { invocation: Some(invocation), kernel_calls: None }
    }
}

impl Job<'_> {
    /// Makes the call.
    pub(crate) fn run(self) -> io::Result<Done> {
        let kernel = |calls: KernelCalls<'_>| calls.run().map_err(io::Error::other);
        match (self.invocation, self.kernel_calls) {
            (Some(spawn), Some(calls)) => Done::of_floor(spawn, || kernel(calls)),
            (Some(spawn), None) => Ok(Done { answer: spawn.run()?, parts: None }),
            (None, calls) => Done::without_a_program(|| calls.map_or(Ok(()), kernel)),
        }
    }
}

/// The floor's kernel calls, without its program.
pub(crate) fn kernel_calls_alone<'a>(node: &'a Node, verb: Verb, attachment: &'a Attachment) -> Job<'a> {
    Job { invocation: None, kernel_calls: Some(floor_calls(node, verb, attachment)) }
}

fn floor_calls<'a>(node: &'a Node, verb: Verb, attachment: &'a Attachment) -> KernelCalls<'a> {
    KernelCalls { node, netns: &attachment.pod.path, address: floor_address(attachment.serial), verb }
}

impl Done {
    /// A call of the floor: the spawn of its empty program, then kernel calls.
    pub(crate) fn of_floor(
        spawn: Invocation,
        kernel_calls: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Done> {
        let mut answer = spawn.run()?;
        let spawn = answer.latency;
        let start = Instant::now();
        kernel_calls()?;
        let kernel = start.elapsed();
        answer.latency = spawn + kernel;
        answer.finished = Instant::now();
        Ok(Done { answer, parts: Some((spawn, kernel)) })
    }

    /// Kernel calls alone.
    fn without_a_program(kernel_calls: impl FnOnce() -> io::Result<()>) -> io::Result<Done> {
        let start = Instant::now();
        kernel_calls()?;
        let (latency, finished) = (start.elapsed(), Instant::now());
        let (stdout, stderr) = (Vec::new(), Vec::new());
        Ok(Done { answer: Answer { latency, finished, success: true, stdout, stderr }, parts: None })
    }
}

/// The address that the floor gives to attachment number `serial`.
pub(crate) fn floor_address(serial: u32) -> Ipv4Net {
    let base = u32::from(Ipv4Addr::new(10, 96, 0, 2));
    // The prefix length is a constant that `Ipv4Net` allows.
    Ipv4Net::new_assert(Ipv4Addr::from(base + serial % 500_000), 12)
}

/// What the floor asks the kernel for.
#[derive(Debug)]
struct KernelCalls<'a> {
    node: &'a Node,
    netns: &'a Path,
    address: Ipv4Net,
    verb: Verb,
}

/// Why the kernel calls failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelCallError {
    /// The namespace cannot be opened.
    #[error(transparent)]
    Netns(#[from] fairlead_host::NetnsError),
    /// The kernel refused an operation.
    #[error(transparent)]
    Net(#[from] fairlead_host::NetError),
}

/// The index of the floor's links is chosen here, so that nothing has to be read back.
const INDEX: u32 = 4242;

impl KernelCalls<'_> {
    fn run(&self) -> Result<(), KernelCallError> {
        let mut pod = self.node.kernel.pod(self.netns)?;
        match self.verb {
            Verb::Add => pod.batch(&self.add()),
            Verb::Del => pod.batch(&self.del()),
        }?;
        Ok(())
    }

    /// Without these there is no ADD: the link in the pod's namespace, up; address; route.
    fn add(&self) -> [Op; 3] {
        let link = NewLink {
            name: IFNAME.to_owned(),
            index: Some(INDEX),
            kind: Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None },
            parent: Parent::Host(self.node.master),
            mac: None,
            mtu: None,
            up: true,
        };
        let default = Route {
            dst: IpNet::V4(Ipv4Net::default()),
            gateway: Some(Ipv4Addr::new(10, 96, 0, 1).into()),
            index: INDEX,
            source: None,
            table: None,
            scope: None,
            priority: None,
            mtu: None,
            advmss: None,
            protocol: None,
        };
        [Op::CreateLink(link), Op::AddAddress(self.address()), Op::AddRoute(default)]
    }

    /// Without these no DEL leaves the name free and the address silent: delete the address, rename the link.
    fn del(&self) -> [Op; 2] {
        let renamed = SetLink { index: INDEX, name: Some(format!("floor{INDEX}")), ..SetLink::default() };
        [Op::DeleteAddress(self.address()), Op::SetLink(renamed)]
    }

    fn address(&self) -> Address {
        let (net, flags) = (IpNet::V4(self.address), AddressFlags::default());
        Address { index: INDEX, net, broadcast: None, flags }
    }
}

/// The version that an executable prints: the first line of its output when it is started without a command, or
/// with `flag`.
pub(crate) fn version_of(binary: &Path, flag: Option<&str>) -> String {
    let mut command = std::process::Command::new(binary);
    command.env_clear().args(flag).stdin(std::process::Stdio::null());
    let said = command.output().map(|o| [o.stdout, o.stderr].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&said);
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("says nothing")
        .trim()
        .chars()
        .take(120)
        .collect()
}
