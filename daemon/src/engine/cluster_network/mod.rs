//! The type `fairlead` with `clusterNetwork`: a network of the conf dir by its name, run as a whole list by ourselves.
//!
//! The list with its full text is on record before its first plugin is called: DEL takes down exactly that, whatever
//! has become of the file since (row M9).

mod add;
mod built_in_plugins;
mod gc_and_status;
mod list;

pub(super) use self::add::FirstNetwork;
pub(super) use self::gc_and_status::Held;
pub(super) use self::list::{OneList, remove};

use std::borrow::Cow;

use fairlead_cni::config::{ClusterNetwork, ConfList, Fairlead};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniResult, Code};
use fairlead_kube::says_of_networks;
use serde_json::{Map, Value};

use super::attachment_request::AttachmentRequest;
use super::core::{Answer, Core};
use super::pod_networks::ANNOTATIONS;
use super::{Engine, errors};
use crate::store::{Attachment, LinkRecord};

impl Engine {
    /// A call of our own type.
    pub(super) fn own_type(&self, request: &mut AttachmentRequest<'_>) -> Result<String, CniError> {
        match Fairlead::parse(&request.conf) {
            Ok(Fairlead::Paths { paths, numa }) => self.by_paths(request, paths, numa),
            Ok(Fairlead::ClusterNetwork(node)) => self.cluster_network(request, Ok(node)),
            // DEL and GC go by the record: a configuration that is refused by now must not keep the pod.
            Err(refused) => self.cluster_network(request, Err(refused)),
        }
    }

    /// A call for the list of this name; what is on record is removed without it.
    fn cluster_network(
        &self,
        request: &mut AttachmentRequest<'_>,
        node: Result<ClusterNetwork, CniError>,
    ) -> Result<String, CniError> {
        match request.command {
            Command::Add => return self.add_cluster_network(request, &node?),
            Command::Del => {
                let _lock = self.core.lock_container(request)?;
                match self.core.store.find(request.key) {
                    Some(attachment) if self.core.is_newer_than_spooled(&attachment, request) => {}
                    Some(attachment) => self.core.remove_for(&attachment, Answer::WhenGone)?,
                    None => {
                        self.core.must_not_be_newer(request)?;
                        self.del_unrecorded(request, node)?;
                    }
                }
            }
            Command::Check => self.cluster_network_check(request)?,
            Command::Gc => self.collect_networks(request, node.as_ref().ok())?,
            Command::Status => {
                request.conf.version.must_have(Command::Status)?;
                self.core.store_status(request)?;
                self.status_of_networks(request, &node?)?;
            }
        }
        Ok(String::new())
    }

    /// K10: nothing is on record. Multus has made the pod, or the runtime itself has run the list, before our place on this node; a
    /// DEL for what another list of the name has made does nothing.
    fn del_unrecorded(
        &self,
        request: &AttachmentRequest<'_>,
        node: Result<ClusterNetwork, CniError>,
    ) -> Result<(), CniError> {
        let Ok(node) = node else { return Ok(()) };
        let is_administrators = request.namespace.is_none() && !request.nested;
        let of_multus = is_administrators.then(|| self.del_multus_pod(request, &node)).transpose();
        if matches!(of_multus, Ok(Some(true))) {
            return Ok(());
        }
        // What Multus' file does not say goes by the configuration, and its error is told all the same.
        let list = self.networks.find(&node.name);
        let prev = request.conf.prev_result.as_ref();
        let by_list = list.map(|list| self.with_chain(request, &list, None, |chain| chain.del(prev)));
        CniError::all([of_multus.map(drop), by_list.unwrap_or(Ok(()))].into_iter().filter_map(Result::err))
    }

    fn cluster_network_check(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        request.conf.version.must_have(Command::Check)?;
        let _lock = self.core.lock_container(request)?;
        let attachment = self.core.store.find(request.key).ok_or_else(|| unknown(request))?;
        let recorded = || result_of(&self.core, &attachment);
        let prev = request.conf.prev_result.clone().or_else(recorded).unwrap_or_default();
        let LinkRecord::Conflist { conflist, namespace, .. } = &attachment.link else {
            return Err(errors::internal("the record of a list is that of an interface"));
        };
        let list = ConfList::parse(conflist)?;
        // A runtime goes by the version of our own configuration, which says 1.1.0 whatever the list's is: CRI-O sends CHECK after every
        // ADD. The plugins of an older list are not asked, and the pod's other networks are.
        self.with_chain(request, &list, namespace.as_ref(), |chain| chain.check(&prev))?;
        self.check_others(request, &attachment)
    }

    /// The list of the conf dir that has this name.
    pub(super) fn wanted(&self, name: &str) -> Result<ConfList, CniError> {
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
}

/// The result that the ADD of an attachment has answered.
pub(super) fn result_of(core: &Core, attachment: &Attachment) -> Option<CniResult> {
    // An ADD that was not committed has no answer. The specification has plugins do without prevResult at a DEL.
    let version = core.ipam.confs.get(&attachment.config, true).ok()?.version;
    CniResult::parse_text(attachment.answer.as_deref()?, version).ok()
}

/// The capability arguments that the runtime has given us, for the plugins that declare them.
pub(super) fn runtime_config(config: &str) -> Map<String, Value> {
    match serde_json::from_str::<Value>(config) {
        Ok(Value::Object(mut keys)) => match keys.remove("runtimeConfig") {
            Some(Value::Object(runtime)) => runtime,
            _ => Map::new(),
        },
        _ => Map::new(),
    }
}

/// The configuration as it goes on record: of the pod's annotations, which may be hundreds of kilobytes of other programs' words, only
/// those that say something of networks. A plugin that declares them itself gets at DEL what it got at ADD.
fn recorded_config<'a>(config: &'a str, list: &ConfList) -> Cow<'a, str> {
    let told_to_a_plugin = || (0..list.len()).any(|index| list.declares(index, ANNOTATIONS));
    if !config.contains(ANNOTATIONS) || told_to_a_plugin() {
        return Cow::Borrowed(config);
    }
    let Ok(mut whole) = serde_json::from_str::<Value>(config) else { return Cow::Borrowed(config) };
    if let Some(annotations) = whole["runtimeConfig"][ANNOTATIONS].as_object_mut() {
        annotations.retain(|annotation, _| says_of_networks(annotation));
    }
    Cow::Owned(whole.to_string())
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
