//! A call that has been read and validated: everything that can be refused without looking at the host is refused
//! here.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::args::Args;
use fairlead_cni::config::{Loopback, NetConf};
use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, Code, names};
use fairlead_kubelet::ResourcesOfPod;
use fairlead_sriov::numa::{Locality, NumaPolicy};

use super::timing::Timing;
use crate::call::{Call, CallerGone};
use crate::store::{Caller, Key, PassedOver};

/// What is executed for a STATUS is killed so long after the call's arrival: its name must still be told in time.
const STATUS_EXECUTES: Duration = Duration::from_millis(75);

/// A validated call.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) request: &'a Request,
    pub(super) conf: Arc<NetConf>,
    pub(super) args: Args,
    pub(super) key: Key,
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    pub(super) gone: CallerGone,
    pub(super) timing: Timing,
    /// Called by a plugin list that holds the container already.
    pub(super) inner: bool,
    /// The paths before the one that `conf` is (`paths` of our own type).
    pub(super) passed_over: Vec<PassedOver>,
    /// Another path comes after it: what is not there now is not waited for.
    pub(super) another: bool,
    /// It failed for what is not there now.
    pub(super) lacks: bool,
    /// What kubelet has told of the pod: it gave that out before the sandbox was made, and is asked once.
    pub(super) given: OnceCell<ResourcesOfPod>,
    /// `numa` of our own type.
    pub(super) numa: Option<NumaPolicy>,
    /// How the VF lies to the pod, where that was asked for.
    pub(super) near: Option<Locality>,
}

/// When a call came, when it has to end, and whether anybody still waits for it.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    pub(super) gone: CallerGone,
}

impl From<&Call> for Waiting {
    fn from(call: &Call) -> Waiting {
        Waiting { arrived: call.arrived, deadline: call.deadline, gone: call.gone.clone() }
    }
}

impl<'a> Job<'a> {
    /// Validates what the environment and the configuration say.
    pub(super) fn read(
        request: &'a Request,
        conf: Arc<NetConf>,
        waiting: &Waiting,
        inner: bool,
    ) -> Result<Job<'a>, CniError> {
        let timing = Timing::since(waiting.arrived);
        let args = Args::parse(&request.args)?;
        if matches!(request.command, Command::Add | Command::Del | Command::Check) {
            names::container_id(&request.container_id)?;
            names::ifname(&request.ifname)?;
        }
        if matches!(request.command, Command::Add | Command::Check) {
            netns(&request.netns)?;
        }
        let key = key(request, &conf);
        let Waiting { arrived, mut deadline, gone } = waiting.clone();
        if request.command == Command::Status && !inner {
            deadline = deadline.min(arrived + STATUS_EXECUTES);
        }
        Ok(Job {
            request,
            conf,
            args,
            key,
            arrived,
            deadline,
            gone,
            timing,
            inner,
            passed_over: Vec::new(),
            another: false,
            lacks: false,
            given: OnceCell::new(),
            numa: None,
            near: None,
        })
    }

    /// Notes of an error, met before anything was changed, whether it tells what the host or the pod lacks: another path may be
    /// taken then. What could not be asked, and what comes by itself (code 11), is not lacking.
    pub(super) fn noting(&mut self, error: CniError) -> CniError {
        self.lacks |= matches!(error.code, Code::InvalidConfig | Code::BadEnvironment | Code::NotAvailable);
        error
    }

    /// Notes that an error tells what is lacking, whatever its code.
    pub(super) fn lacking(&mut self, error: CniError) -> CniError {
        self.lacks = true;
        error
    }

    /// The pod's namespace.
    pub(super) fn netns(&self) -> &Path {
        Path::new(&self.request.netns)
    }

    /// What executed plugins need.
    pub(super) fn caller(&self) -> Caller {
        Caller {
            args: self.request.args.clone(),
            path: self.request.path.clone(),
            env: self.request.env.clone(),
        }
    }
}

/// By what the attachment of a call is known.
pub(super) fn key(request: &Request, conf: &NetConf) -> Key {
    // The loopback plugin serves `lo`, whatever the caller calls it.
    let ifname = if conf.plugin_type == "loopback" { Loopback::IFNAME } else { &request.ifname };
    Key {
        container: request.container_id.clone(),
        network: conf.name.clone(),
        ifname: ifname.to_owned(),
        plugin: conf.plugin_type.clone(),
    }
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
