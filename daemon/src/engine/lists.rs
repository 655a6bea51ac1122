//! Our own type with `clusterNetwork`: a network of the conf dir by its name, run as a whole list by ourselves.
//!
//! The list with its full text is on record before its first plugin is called: DEL takes down exactly that, whatever
//! has become of the file since (M9).

use fairlead_cni::config::{ConfList, Fairlead};
use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, CniResult, Code};
use serde_json::{Map, Value};

use super::executed::{is_ours, parameters};
use super::job::{Job, Waiting};
use super::{Engine, errors, failpoint};
use crate::call::CallerGone;
use crate::conflist::{BuiltIn, Chain};
use crate::delegate::Parameters;
use crate::networks::BUILT_IN;
use crate::store::{Attachment, LinkRecord, Namespace};

/// The type's name.
pub(super) const TYPE: &str = "fairlead";

/// The built-in plugins of a list, called in process, in the name of a container that is claimed already.
struct Inner<'e> {
    engine: &'e Engine,
    request: Request,
    waiting: Waiting,
}

impl BuiltIn for Inner<'_> {
    fn serves(&self, plugin: &str) -> bool {
        BUILT_IN.contains(&plugin) || plugin == TYPE
    }

    fn call(&self, command: Command, plugin: &str, config: &str) -> Result<String, CniError> {
        if plugin == TYPE {
            // A list that names a list, itself at last: nothing was ever made for it.
            return match command {
                Command::Del | Command::Gc => Ok(String::new()),
                Command::Add | Command::Check | Command::Status => Err(CniError::new(
                    Code::InvalidConfig,
                    format!("a plugin of type {TYPE:?} cannot stand in a list that {TYPE:?} runs"),
                )
                .with("name the network itself in clusterNetwork")),
            };
        }
        let request = Request { command, config: config.to_owned(), ..self.request.clone() };
        self.engine.call(&request, &self.waiting, true).1.map(|(answer, _)| answer)
    }
}

impl Engine {
    /// A call of our own type.
    pub(super) fn own(&self, job: &mut Job) -> Result<String, CniError> {
        match Fairlead::parse(&job.conf) {
            Ok(Fairlead::Paths { paths, numa }) => self.by_paths(job, paths, numa),
            Ok(Fairlead::ClusterNetwork(name)) => self.list(job, Ok(name)),
            Err(refused) => self.list(job, Err(refused)),
        }
    }

    /// A call for the list of this name; what is on record is removed without it.
    fn list(&self, job: &mut Job, name: Result<String, CniError>) -> Result<String, CniError> {
        match job.request.command {
            Command::Add => self.list_add(job, &name?),
            Command::Del => {
                let _claim = self.claim(job)?;
                // With nothing on record the file may be another by now: what the list made is unknown.
                if let Some(attachment) = self.store.find(&job.key) {
                    self.remove_for(&attachment, super::removal::Answer::WhenGone)?;
                }
                Ok(String::new())
            }
            Command::Check => {
                let _claim = self.claim(job)?;
                let attachment = self.store.find(&job.key).ok_or_else(|| unknown(job))?;
                let prev =
                    job.conf.prev_result.clone().or_else(|| self.result_of(&attachment)).unwrap_or_default();
                let list = list_of(&attachment)?;
                self.with_chain(job, &list, |chain| chain.check(&prev))?;
                Ok(String::new())
            }
            Command::Gc => {
                super::gc::below_1_1(&job.conf, "GC")?;
                self.gc(job)?;
                Ok(String::new())
            }
            Command::Status => {
                super::gc::below_1_1(&job.conf, "STATUS")?;
                self.store_status(job)?;
                let list = self.wanted(&name?);
                let told = list.and_then(|list| self.with_chain(job, &list, |chain| chain.status()));
                told.map(|()| String::new()).map_err(not_available_now)
            }
        }
    }

    fn list_add(&self, job: &mut Job, name: &str) -> Result<String, CniError> {
        let list = self.wanted(name)?;
        let _claim = self.claim(job)?;
        self.finish_older(job)?;
        let mut pod = self.enter(job)?;
        if let Some(before) = self.store.find(&job.key) {
            return self.repeat(job, &before, pod.as_ref());
        }
        let told = |e| errors::kernel(&job.key.network, "looking at the pod's namespace", &e);
        let netns = Namespace {
            path: job.request.netns.clone(),
            id: pod.id().clone(),
            nsid: pod.nsid().map_err(told)?,
        };
        drop(pod);
        let (id, link) = (self.store.next_id(), LinkRecord::List { conflist: list.to_text() });
        let attachment = self.store.begin(Attachment {
            caller: job.caller(),
            ..Attachment::new(id, job.key.clone(), netns, link, job.conf.raw.clone())
        });
        let attachment = attachment.map_err(|e| errors::store(&e))?;
        failpoint::pass("add.begun");
        let done = self
            .records
            .keep(&attachment)
            .and_then(|()| self.with_chain(job, &list, |chain| chain.add()))
            .and_then(|result| self.commit(job, &attachment, &result));
        if done.is_ok() {
            failpoint::pass("add.committed");
        }
        done.inspect_err(|error| self.undo(&attachment, error))
    }

    /// The list of the conf dir that has this name.
    fn wanted(&self, name: &str) -> Result<ConfList, CniError> {
        let found = self.networks.find(name).or_else(|| {
            // It may have come a moment ago, before its directory's watch has told.
            self.networks.rescan();
            self.networks.find(name)
        });
        found.map(|list| ConfList::clone(&list)).ok_or_else(|| {
            CniError::new(
                Code::TryAgain,
                format!("clusterNetwork {name:?}: no configuration of that name is in the conf dir"),
            )
            .with("put it there; `fairleadd networks` lists what is there and what was refused")
        })
    }

    fn with_chain<T>(
        &self,
        job: &Job,
        list: &ConfList,
        run: impl FnOnce(&Chain<'_>) -> Result<T, CniError>,
    ) -> Result<T, CniError> {
        let waiting = Waiting { arrived: job.arrived, deadline: job.deadline, gone: job.gone.clone() };
        let inner = Inner { engine: self, request: job.request.clone(), waiting };
        let runtime = runtime_config(&job.conf.raw);
        run(&Chain {
            list,
            delegates: &self.delegates,
            built_in: &inner,
            parameters: Parameters::from(job.request),
            runtime: &runtime,
            deadline: job.deadline,
            plugin_limit: self.policy().delegate_timeout,
            cancelled: &|| job.gone.get(),
            is_ours: &is_ours,
        })
    }

    /// DEL of a list from its record alone.
    pub(super) fn list_del(&self, attachment: &Attachment, conflist: &str) -> Result<(), CniError> {
        let list = ConfList::parse(conflist)?;
        let netns = self.netns_for_delegates(attachment);
        let limit = self.policy().delegate_timeout;
        let now = std::time::Instant::now();
        let request = Request {
            wire: fairlead_cni::wire::WIRE,
            command: Command::Del,
            container_id: attachment.key.container.clone(),
            netns: netns.clone(),
            netns_inode: None,
            own_netns: None,
            ifname: attachment.key.ifname.clone(),
            args: attachment.caller.args.clone(),
            path: attachment.caller.path.clone(),
            env: attachment.caller.env.clone(),
            config: String::new(),
            deadline_ms: 0,
            spooled: None,
        };
        let waiting = Waiting { arrived: now, deadline: now + limit, gone: CallerGone::default() };
        let chain = Chain {
            list: &list,
            delegates: &self.delegates,
            built_in: &Inner { engine: self, request, waiting },
            parameters: parameters(attachment, &netns),
            runtime: &runtime_config(&attachment.config),
            deadline: now + limit,
            plugin_limit: limit,
            cancelled: &|| false,
            is_ours: &is_ours,
        };
        chain.del(self.result_of(attachment).as_ref())
    }

    fn result_of(&self, attachment: &Attachment) -> Option<CniResult> {
        let version = self.confs.get(&attachment.config, true).ok()?.version;
        CniResult::parse_text(attachment.answer.as_deref()?, version).ok()
    }
}

fn list_of(attachment: &Attachment) -> Result<ConfList, CniError> {
    match &attachment.link {
        LinkRecord::List { conflist } => ConfList::parse(conflist),
        _ => Err(super::internal("the record of a list is that of an interface")),
    }
}

/// The capability arguments that the runtime has given us, for the plugins that declare them.
fn runtime_config(config: &str) -> Map<String, Value> {
    match serde_json::from_str::<Value>(config) {
        Ok(Value::Object(mut keys)) => match keys.remove("runtimeConfig") {
            Some(Value::Object(runtime)) => runtime,
            _ => Map::new(),
        },
        _ => Map::new(),
    }
}

/// STATUS: what must be waited for, a plugin that does not answer in time too, is a network that is not available.
fn not_available_now(error: CniError) -> CniError {
    match error.code {
        Code::TryAgain => CniError { code: Code::NotAvailable, ..error },
        _ => error,
    }
}

pub(super) fn unknown(job: &Job) -> CniError {
    let msg = format!(
        "network {:?}: container {} has no attachment {:?}",
        job.key.network, job.key.container, job.key.ifname
    );
    CniError::new(Code::UnknownContainer, msg)
}
