//! The type `fairlead` with `clusterNetwork`: a network of the conf dir by its name, run as a whole list by ourselves.
//!
//! The list with its full text is on record before its first plugin is called: DEL takes down exactly that, whatever
//! has become of the file since (row M9).

use std::time::Instant;

use fairlead_cni::config::{ConfList, Fairlead};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_host::failpoint;
use serde_json::{Map, Value};

use super::attachment_request::{AttachmentRequest, OWN_TYPE, Sandbox};
use super::core::{Answer, Core, parameters, since_1_1};
use super::parsed_request::ParsedRequest;
use super::{Engine, errors, kinds};
use crate::call::{CallerGone, Waiting};
use crate::conf_dir::Networks;
use crate::conflist_runner::{BuiltIn, Chain};
use crate::own_executable::is_file_of_ours;
use crate::store::{Attachment, LinkRecord};

/// The built-in plugins of a list, called in process, in the name of a container that is locked already.
struct BuiltInPlugins<'e> {
    core: &'e Core,
    /// The networks to look through anew at a STATUS; none at a DEL from the record.
    networks: Option<&'e Networks>,
    sandbox: Sandbox<'e>,
    ifname: &'e str,
    waiting: Waiting,
}

impl BuiltIn for BuiltInPlugins<'_> {
    fn serves(&self, plugin: &str) -> bool {
        kinds::BUILT_IN.contains(&plugin) || plugin == OWN_TYPE
    }

    fn call(&self, command: Command, plugin: &str, config: &str) -> Result<String, CniError> {
        if plugin == OWN_TYPE {
            // A list that names a list, itself at last: nothing was ever made for it.
            return match command {
                Command::Del | Command::Gc => Ok(String::new()),
                Command::Add | Command::Check | Command::Status => Err(CniError::new(
                    Code::InvalidConfig,
                    format!("a plugin of type {OWN_TYPE:?} cannot stand in a list that {OWN_TYPE:?} runs"),
                )
                .with("name the network itself in clusterNetwork")),
            };
        }
        let removal = matches!(command, Command::Del | Command::Gc);
        let conf = self.core.ipam.confs.get(config, removal)?;
        let vf_wait = self.core.policy().vf_wait;
        let (sandbox, waiting, ifname) = (self.sandbox, self.waiting.clone(), self.ifname);
        let parsed = ParsedRequest::new(conf, sandbox.container, ifname, sandbox.args);
        let mut request =
            AttachmentRequest::of_plugin(command, sandbox, ifname, &parsed.wanted, waiting, vf_wait)?;
        self.core.carry_out(&mut request, &parsed, self.networks)
    }
}

impl Engine {
    /// A call of our own type.
    pub(super) fn own_type(&self, request: &mut AttachmentRequest<'_>) -> Result<String, CniError> {
        match Fairlead::parse(&request.conf) {
            Ok(Fairlead::Paths { paths, numa }) => self.by_paths(request, paths, numa),
            Ok(Fairlead::ClusterNetwork(name)) => self.cluster_network(request, Ok(name)),
            // DEL and GC go by the record: a configuration that is refused by now must not keep the pod.
            Err(refused) => self.cluster_network(request, Err(refused)),
        }
    }

    /// A call for the list of this name; what is on record is removed without it.
    fn cluster_network(
        &self,
        request: &mut AttachmentRequest<'_>,
        name: Result<String, CniError>,
    ) -> Result<String, CniError> {
        match request.command {
            Command::Add => return self.cluster_network_add(request, &name?),
            Command::Del => {
                let _lock = self.core.lock_container(request)?;
                // With nothing on record the file may be another by now: what the list made is unknown.
                if let Some(attachment) = self.core.store.find(request.key) {
                    self.core.remove_for(&attachment, Answer::WhenGone)?;
                }
            }
            Command::Check => self.cluster_network_check(request)?,
            Command::Gc => {
                since_1_1(&request.conf, "GC")?;
                self.core.gc(request)?;
            }
            Command::Status => {
                since_1_1(&request.conf, "STATUS")?;
                self.core.store_status(request)?;
                let list = self.wanted(&name?);
                let status = list.and_then(|list| self.with_chain(request, &list, |chain| chain.status()));
                status.map_err(not_available_now)?;
            }
        }
        Ok(String::new())
    }

    fn cluster_network_add(
        &self,
        request: &mut AttachmentRequest<'_>,
        name: &str,
    ) -> Result<String, CniError> {
        let list = self.wanted(name)?;
        let core = &self.core;
        let _lock = core.lock_container(request)?;
        core.finish_older(request)?;
        let mut pod = core.enter(request)?;
        if let Some(before) = core.store.find(request.key) {
            return core.repeat(request, &before, pod.as_ref());
        }
        let netns = core.namespace(request, pod.as_mut())?;
        // Each plugin enters the namespace itself, and one that is executed can run for seconds.
        drop(pod);
        let (id, link) = (core.store.next_id(), LinkRecord::Conflist { conflist: list.to_text() });
        let attachment = core.store.begin(Attachment {
            caller: request.caller(),
            ..Attachment::new(id, request.key.clone(), netns, link, request.conf.raw.clone())
        });
        let attachment = attachment.map_err(|e| errors::store(&e))?;
        failpoint::pass("add.begun");
        let done = core
            .records
            .keep(&attachment)
            .and_then(|()| self.with_chain(request, &list, |chain| chain.add()))
            .and_then(|result| core.commit(request, &attachment, &result));
        if done.is_ok() {
            failpoint::pass("add.committed");
        }
        done.inspect_err(|error| core.undo(&attachment, error))
    }

    fn cluster_network_check(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        let _lock = self.core.lock_container(request)?;
        let attachment = self.core.store.find(request.key).ok_or_else(|| unknown(request))?;
        let recorded = || result_of(&self.core, &attachment);
        let prev = request.conf.prev_result.clone().or_else(recorded).unwrap_or_default();
        let LinkRecord::Conflist { conflist } = &attachment.link else {
            return Err(errors::internal("the record of a list is that of an interface"));
        };
        let list = ConfList::parse(conflist)?;
        self.with_chain(request, &list, |chain| chain.check(&prev))
    }

    /// The list of the conf dir that has this name.
    fn wanted(&self, name: &str) -> Result<ConfList, CniError> {
        let found = self.networks.find(name).or_else(|| {
            // It may have come a moment ago, before its directory's watch has reported it.
            self.networks.rescan();
            self.networks.find(name)
        });
        found.map(|list| ConfList::clone(&list)).ok_or_else(|| {
            CniError::new(
                // The runtime tries again, and the file may only be on its way to the node.
                Code::TryAgain,
                format!("clusterNetwork {name:?}: no configuration of that name is in the conf dir"),
            )
            .with("put it there; `fairleadd networks` lists what is there and what was refused")
        })
    }

    fn with_chain<T>(
        &self,
        request: &AttachmentRequest<'_>,
        list: &ConfList,
        run: impl FnOnce(&Chain<'_>) -> Result<T, CniError>,
    ) -> Result<T, CniError> {
        let built_in = BuiltInPlugins {
            core: &self.core,
            networks: Some(&self.networks),
            sandbox: request.sandbox,
            ifname: &request.key.ifname,
            waiting: request.waiting.clone(),
        };
        let runtime = runtime_config(&request.conf.raw);
        run(&Chain {
            list,
            delegates: &self.core.ipam.delegates,
            built_in: &built_in,
            parameters: request.parameters(),
            runtime: &runtime,
            deadline: request.waiting.deadline,
            plugin_limit: self.core.policy().delegate_timeout,
            cancelled: &|| request.waiting.gone.get(),
            is_ours: &is_file_of_ours,
        })
    }
}

/// DEL of a list from its record alone.
pub(super) fn remove(core: &Core, attachment: &Attachment, conflist: &str) -> Result<(), CniError> {
    let list = ConfList::parse(conflist)?;
    let netns = core.netns_for_delegates(attachment);
    let limit = core.policy().delegate_timeout;
    let now = Instant::now();
    let parameters = parameters(attachment, &netns);
    let sandbox = Sandbox {
        container: parameters.container_id,
        netns: parameters.netns,
        netns_inode: None,
        callers_netns: None,
        args: parameters.args,
        path: parameters.path,
        env: parameters.env,
    };
    let waiting = Waiting { arrived: now, deadline: now + limit, gone: CallerGone::default() };
    let ifname = &attachment.key.ifname;
    let chain = Chain {
        list: &list,
        delegates: &core.ipam.delegates,
        built_in: &BuiltInPlugins { core, networks: None, sandbox, ifname, waiting },
        parameters,
        runtime: &runtime_config(&attachment.config),
        deadline: now + limit,
        plugin_limit: limit,
        cancelled: &|| false,
        is_ours: &is_file_of_ours,
    };
    chain.del(result_of(core, attachment).as_ref())
}

/// The result that the ADD of an attachment has answered.
fn result_of(core: &Core, attachment: &Attachment) -> Option<CniResult> {
    // An ADD that was not committed has no answer. The specification has plugins do without prevResult at a DEL.
    let version = core.ipam.confs.get(&attachment.config, true).ok()?.version;
    CniResult::parse_text(attachment.answer.as_deref()?, version).ok()
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

/// Code 3 for an interface that is not on record.
pub(super) fn unknown(request: &AttachmentRequest<'_>) -> CniError {
    let msg = format!(
        "network {:?}: container {} has no attachment {:?}",
        request.key.network, request.key.container, request.key.ifname
    );
    CniError::new(Code::UnknownContainer, msg)
}
