//! What the engine is asked to do for one interface of one pod: the engine's own form of it, whoever asks.
//!
//! Adapters make it: from the executable's call, from a plugin of a conflist, from one of several paths of an interface. Everything
//! that can be refused without looking at the host is refused when it is made.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::args::Args;
use fairlead_cni::config::{Loopback, NetConf};
use fairlead_cni::wire::{Command, Inode, Request, Spooled};
use fairlead_cni::{CniError, Code, names};
use fairlead_kube::Pod;
use fairlead_kubelet::ResourcesOfPod;
use fairlead_sriov::numa::NumaPolicy;

use super::call_phases::Timing;
use super::core::PodVisit;
use super::pod_networks::PodNetworks;
use crate::boot_time::BootTime;
use crate::call::Waiting;
use crate::delegate::Parameters;
use crate::policy::address_directory;
use crate::store::{Caller, Key, PassedOver};

/// What is executed for a STATUS is waited for until so long after its caller was started, which waits for 20 ms more.
const STATUS_WAITS: Duration = Duration::from_millis(75);

/// The network type of our own: a network of the conf dir by its name, or one interface by several paths.
pub(crate) const OWN_TYPE: &str = "fairlead";

/// The pod, as its runtime names it, and the environment of whoever asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Sandbox<'a> {
    /// `CNI_CONTAINERID`
    pub container: &'a str,
    /// `CNI_NETNS`; empty where there is none.
    pub netns: &'a str,
    /// The inode that the caller sees there; `None` where nobody looked.
    pub netns_inode: Option<Inode>,
    /// The caller's own network namespace; `None` where nobody looked.
    pub callers_netns: Option<Inode>,
    /// The same by its cookie, which says as much.
    pub callers_cookie: Option<u64>,
    /// `CNI_ARGS`
    pub args: &'a str,
    /// `CNI_PATH`
    pub path: &'a str,
    /// The caller's environment, for plugins that are executed.
    pub env: &'a [(String, String)],
    /// When and where the request was spooled; `None`: it comes from its caller just now.
    pub spooled: Option<&'a Spooled>,
    /// When the caller made the request; `None` where it does not say so.
    pub issued: Option<BootTime>,
}

/// Which network is asked for, and by what the attachment to it is known.
#[derive(Debug)]
pub(crate) struct NetworkRequest {
    pub(crate) key: Key,
    pub(crate) conf: Arc<NetConf>,
    /// The namespace whose definition that is; `None`: it is the administrator's.
    pub(crate) namespace: Option<Arc<str>>,
    /// `CNI_ARGS`, or why they can't be read.
    pub(crate) args: Result<Args, CniError>,
}

impl NetworkRequest {
    /// Reads everything, and reports nothing yet: which of several errors a call is answered with is for its command
    /// to decide.
    pub(crate) fn new(
        conf: Arc<NetConf>,
        namespace: Option<Arc<str>>,
        container: &str,
        ifname: &str,
        args: &str,
    ) -> NetworkRequest {
        NetworkRequest { key: key(container, ifname, &conf), conf, namespace, args: Args::parse(args) }
    }
}

/// A validated request for one attachment.
#[derive(Debug)]
pub(crate) struct AttachmentRequest<'a> {
    pub(crate) command: Command,
    pub(crate) sandbox: Sandbox<'a>,
    /// By what the attachment is known.
    pub(crate) key: &'a Key,
    /// The network, with the result of the plugin before it in a chain.
    pub(crate) conf: Arc<NetConf>,
    /// The namespace whose definition that is; `None`: it is the administrator's.
    pub(crate) namespace: Option<&'a Arc<str>>,
    /// `CNI_ARGS`, read.
    pub(crate) args: &'a Args,
    pub(crate) waiting: Waiting,
    /// Part of another call (a plugin of a conflist, a network beside the pod's default one): that has locked the container
    /// already, and reports the network.
    pub(crate) nested: bool,
    /// The pod's namespace, where this attachment shares it with the pod's others.
    pub(crate) visit: Option<&'a dyn PodVisit>,
    /// The pod whose default network this is, where the watch has told what it asks for.
    pub(crate) watched_pod: Option<Arc<Pod>>,
    /// The attachment of the pod's default network, with which this one is made.
    pub(crate) made_with: Option<u64>,
    /// The gateways that the pod wants its default routes to lead over, on this interface.
    pub(crate) default_gateways: &'a [IpAddr],
    /// The default routes of its configuration are left out: they are the pod's default network's (K23).
    pub(crate) no_default_route: bool,
    /// The paths before the one that `conf` is (`paths` of our own type).
    pub(crate) passed_over: Vec<PassedOver>,
    /// Another path comes after it: what is not there now is not waited for.
    pub(crate) fallback_follows: bool,
    /// `numa` of our own type.
    pub(crate) numa: Option<NumaPolicy>,
    /// Its IPAM failed before it could take any address.
    pub(crate) no_address_taken: bool,
    /// A network of a pod to which kubelet has given a device for it: the file in which its device plugin describes that.
    pub(crate) device_plugin_file: Option<&'a str>,
    /// What kubelet has allocated to the pod, once it was asked.
    pub(crate) pod_resources: OnceCell<ResourcesOfPod>,
    /// What its pod asked for and has now: the cluster is told once the answer has left.
    pub(crate) pod_networks: Option<PodNetworks>,
    pub(crate) timing: Timing,
}

impl<'a> From<&'a Request> for Sandbox<'a> {
    fn from(request: &'a Request) -> Sandbox<'a> {
        Sandbox {
            container: &request.container_id,
            netns: &request.netns,
            netns_inode: request.netns_inode,
            callers_netns: request.own_netns,
            callers_cookie: request.own_netns_cookie,
            args: &request.args,
            path: &request.path,
            env: &request.env,
            spooled: request.spooled.as_ref(),
            issued: request.issued_ns.map(BootTime),
        }
    }
}

impl<'a> AttachmentRequest<'a> {
    /// The request of an executable's call.
    pub(crate) fn of_call(
        request: &'a Request,
        wanted: &'a NetworkRequest,
        mut waiting: Waiting,
    ) -> Result<AttachmentRequest<'a>, CniError> {
        if request.command == Command::Status {
            let left = STATUS_WAITS.saturating_sub(on_its_way(request, waiting.arrived));
            waiting.deadline = waiting.deadline.min(waiting.arrived + left);
        }
        let sandbox = Sandbox::from(request);
        AttachmentRequest::new(request.command, sandbox, &request.ifname, wanted, waiting)
    }

    /// The request for a definition of a tenant, which the policy allows.
    pub(crate) fn of_definition(
        sandbox: Sandbox<'a>,
        ifname: &str,
        wanted: &'a NetworkRequest,
        waiting: Waiting,
    ) -> Result<AttachmentRequest<'a>, CniError> {
        AttachmentRequest::new(Command::Add, sandbox, ifname, wanted, waiting)
    }

    /// The request of a plugin in a conflist, whose container is locked already.
    pub(crate) fn of_plugin(
        command: Command,
        sandbox: Sandbox<'a>,
        ifname: &str,
        wanted: &'a NetworkRequest,
        waiting: Waiting,
    ) -> Result<AttachmentRequest<'a>, CniError> {
        let request = AttachmentRequest::new(command, sandbox, ifname, wanted, waiting)?;
        Ok(AttachmentRequest { nested: true, ..request })
    }

    /// Validates what the environment says.
    fn new(
        command: Command,
        sandbox: Sandbox<'a>,
        ifname: &str,
        wanted: &'a NetworkRequest,
        waiting: Waiting,
    ) -> Result<AttachmentRequest<'a>, CniError> {
        let timing = Timing::since(waiting.arrived);
        let args = wanted.args.as_ref().map_err(CniError::clone)?;
        // GC and STATUS have no container and no interface.
        if matches!(command, Command::Add | Command::Del | Command::Check) {
            names::container_id(sandbox.container)?;
            names::ifname(ifname)?;
        }
        if command == Command::Add {
            names::ifname_of_add(ifname)?;
        }
        // A DEL may come without a namespace, because it is gone or was never made.
        if matches!(command, Command::Add | Command::Check) {
            netns(sandbox.netns)?;
        }
        Ok(AttachmentRequest {
            command,
            sandbox,
            key: &wanted.key,
            conf: Arc::clone(&wanted.conf),
            namespace: wanted.namespace.as_ref(),
            args,
            waiting,
            nested: false,
            visit: None,
            watched_pod: None,
            made_with: None,
            default_gateways: &[],
            no_default_route: false,
            passed_over: Vec::new(),
            fallback_follows: false,
            numa: None,
            no_address_taken: false,
            device_plugin_file: None,
            pod_resources: OnceCell::new(),
            pod_networks: None,
            timing,
        })
    }

    /// The name of the directory with the network's addresses.
    pub(crate) fn address_directory(&self) -> Cow<'_, str> {
        address_directory(&self.key.network, self.namespace.map(|namespace| &**namespace))
    }

    /// The file that describes the device of a pod's network, whether or not its plugins write one. A path that is taken because an
    /// earlier one could not have the device has none.
    pub(crate) fn device_info(&self) -> Option<&str> {
        let has_device = self.passed_over.is_empty();
        self.device_plugin_file.filter(|_| has_device).and(self.conf.runtime.device_info_file.as_deref())
    }

    /// Leaves the pod's namespace, where it is shared: what comes now may wait, or enters one by itself.
    pub(crate) fn leave_pod(&self) {
        self.visit.inspect(|visit| visit.leave());
    }

    /// The path of the pod's namespace.
    pub(crate) fn netns(&self) -> &Path {
        Path::new(self.sandbox.netns)
    }

    /// What goes on record for plugins that are executed.
    pub(crate) fn caller(&self) -> Caller {
        Caller {
            args: self.sandbox.args.to_owned(),
            path: self.sandbox.path.to_owned(),
            env: self.sandbox.env.to_vec(),
        }
    }

    /// What a plugin that is executed is called with.
    pub(crate) fn parameters(&self) -> Parameters<'_> {
        Parameters {
            container_id: self.sandbox.container,
            netns: self.sandbox.netns,
            ifname: &self.key.ifname,
            args: self.sandbox.args,
            path: self.sandbox.path,
            env: self.sandbox.env,
            of_tenant: self.namespace.is_some(),
        }
    }
}

/// By what the attachment of an interface in a network is known.
fn key(container: &str, ifname: &str, conf: &NetConf) -> Key {
    // The loopback plugin serves `lo`, whatever the caller calls it.
    let ifname = if conf.plugin_type == "loopback" { Loopback::IFNAME } else { ifname };
    Key {
        container: container.to_owned(),
        network: conf.name.clone(),
        ifname: ifname.to_owned(),
        plugin: conf.plugin_type.clone(),
    }
}

/// How long a request was on its way when it had been read; nothing where its caller does not say when it was made. What both wait for is
/// counted from the same time: on a busy node the executable would else give up a daemon that still waits for a plugin.
fn on_its_way(request: &Request, arrived: Instant) -> Duration {
    let both = request.issued_ns.zip(BootTime::of(arrived));
    Duration::from_nanos(both.map_or(0, |(issued, BootTime(arrived))| arrived.saturating_sub(issued)))
}

/// The daemon is in another working directory than the caller: what leads to the pod's namespace from there may lead to
/// another one from here.
fn netns(path: &str) -> Result<(), CniError> {
    let wrong = |what: &str| {
        CniError::new(Code::BadEnvironment, what)
            .with("give the path of the pod's network namespace (/proc/<pid>/ns/net or a bind mount of it)")
    };
    match path {
        "" => Err(wrong("CNI_NETNS is empty")),
        path if !Path::new(path).is_absolute() => {
            Err(wrong(&format!("CNI_NETNS must be an absolute path, and is {path:?}")))
        }
        _ => Ok(()),
    }
}
