//! GC and STATUS of the networks of a node: the cluster network, those that every pod has, and for GC those that pods have asked for.
//!
//! The runtime knows of our network only. We are the runtime of the lists: each plugin of one, and its IPAM, is told by GC what is valid of
//! that list's network. That is what the runtime has told and whatever is on record here or with Multus. A list below 1.1.0 has neither
//! command.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::config::{AttachmentRef, ClusterNetwork, ConfList};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, Code};
use serde_json::{Map, Value};

use super::built_in_plugins::is_built_in;
use super::{OneList, not_available_now};
use crate::engine::Engine;
use crate::engine::attachment_request::{AttachmentRequest, OWN_TYPE};
use crate::store::{Attachment, LinkRecord, Phase};

/// A network's name, and the namespace whose definition it is; `None`: it is the administrator's.
type NetworkId = (String, Option<Arc<str>>);

/// An attachment that is there: the network's own name, container and interface.
pub(in crate::engine) type Held = (String, AttachmentRef);

impl Engine {
    /// GC of our network, and then of each list that its pods have.
    pub(super) fn collect_networks(
        &self,
        request: &mut AttachmentRequest<'_>,
        node: Option<&ClusterNetwork>,
    ) -> Result<(), CniError> {
        request.conf.version.must_have(Command::Gc)?;
        // Before what is not valid any more is removed, and with it the last word of its networks.
        let lists = self.lists_of_pods(request, node);
        let mut errors: Vec<CniError> = self.core.gc(request).err().into_iter().collect();
        let conf = Arc::clone(&request.conf);
        // Older callers send no list. Taken for an empty one, it would cost every pod what its plugins keep for it.
        let Some(valid) = &conf.valid_attachments else { return CniError::all(errors) };
        match self.held_by_multus(node) {
            Ok(of_multus) => {
                errors.extend(lists.iter().filter_map(|((name, namespace), list)| {
                    let collected =
                        self.collect_list(request, (list, namespace.as_ref()), (valid, &of_multus));
                    collected
                        .map_err(|error| in_words_of_the_network(name, namespace.as_deref(), error))
                        .err()
                }));
            }
            // What its pods have cannot be told to the plugins, which would free it.
            Err(unknown) => errors.push(unknown),
        }
        request.timing.end("lists");
        CniError::all(errors)
    }

    /// The lists of 1.1.0 that pods have by our network, and those that any pod would get.
    fn lists_of_pods(
        &self,
        request: &AttachmentRequest<'_>,
        node: Option<&ClusterNetwork>,
    ) -> BTreeMap<NetworkId, ConfList> {
        let named =
            node.into_iter().flat_map(|node| std::iter::once(&node.name).chain(&node.default_networks));
        let of_conf_dir = named.filter_map(|name| self.networks.find(name));
        let mut lists: BTreeMap<NetworkId, ConfList> =
            of_conf_dir.map(|list| ((list.name.clone(), None), ConfList::clone(&list))).collect();
        let all = self.core.store.all();
        let key = request.key;
        let is_first = |a: &Attachment| a.key.network == key.network && a.key.plugin == key.plugin;
        let firsts: Vec<u64> =
            all.iter().filter(|a| is_first(a) && a.namespace.is_none()).map(|a| a.id).collect();
        for attachment in all
            .iter()
            .filter(|a| firsts.contains(&a.id) || a.made_with.is_some_and(|first| firsts.contains(&first)))
        {
            if let Some((namespace, list)) = recorded_list(attachment) {
                // The file in force counts before what was in force when a pod came.
                lists.entry((list.name.clone(), namespace)).or_insert(list);
            }
        }
        lists.retain(|_, list| list.version.has(Command::Gc));
        lists
    }

    fn collect_list(
        &self,
        request: &AttachmentRequest<'_>,
        (list, namespace): (&ConfList, Option<&Arc<str>>),
        (of_runtime, of_multus): (&[AttachmentRef], &[Held]),
    ) -> Result<(), CniError> {
        if Instant::now() >= request.waiting.deadline {
            return Err(
                CniError::new(Code::TryAgain, "it was not collected in time").with("the next GC does it")
            );
        }
        // A newer version's record says nothing that could be told to a plugin.
        self.core.must_have_no_newer(&list.name)?;
        let valid = || {
            let on_record = self.core.store.all();
            // What is silenced has had its DEL from every plugin.
            let here =
                on_record.iter().filter(|a| a.phase != Phase::Silenced && is_of_network(a, &list.name));
            let on_record = here.map(|a| a.reference());
            let of_multus = of_multus.iter().filter(|(name, _)| *name == list.name);
            let held = of_multus.map(|(_, attachment)| attachment.clone());
            of_runtime.iter().cloned().chain(on_record).chain(held).collect::<Vec<_>>()
        };
        let runtime = Map::new();
        let one = OneList { list, namespace, runtime: &runtime, of_tenant: namespace.is_some(), visit: None };
        self.core.collections.collect(&list.name, valid, |valid| {
            self.with_list(request, &one, (request.sandbox, &request.key.ifname), |chain| chain.gc(&valid))
        })
    }

    /// What Multus has attached to pods that still live.
    fn held_by_multus(&self, node: Option<&ClusterNetwork>) -> Result<Vec<Held>, CniError> {
        node.map_or(Ok(Vec::new()), |node| self.attachments_of_multus(&node.multus_dir))
    }

    /// STATUS of the cluster network, and of what every pod gets beside it. What a pod names is that pod's: a definition that cannot be
    /// used takes no node out of service.
    pub(super) fn status_of_networks(
        &self,
        request: &AttachmentRequest<'_>,
        node: &ClusterNetwork,
    ) -> Result<(), CniError> {
        let ready = self.must_be_ready(node).and_then(|()| self.wanted(&node.name));
        let status = ready.and_then(|list| {
            self.must_have_room_for(request, &list)?;
            self.with_chain(request, &list, None, |chain| chain.status())
        });
        status.map_err(not_available_now)?;
        node.default_networks.iter().try_for_each(|name| {
            let status = self.status_of_default(request, node, name);
            status.map_err(not_available_now).map_err(|error| CniError {
                msg: format!("defaultNetworks {name:?}: {}", error.msg),
                ..error
            })
        })
    }

    /// Whether the record of an ADD of this list could be written, where it executes plugins.
    fn must_have_room_for(&self, request: &AttachmentRequest<'_>, list: &ConfList) -> Result<(), CniError> {
        match list.plugin_types().all(is_built_in) {
            true => Ok(()),
            false => self.core.records_status(request, request.conf.raw.len() + list.to_text().len()),
        }
    }

    fn status_of_default(
        &self,
        request: &AttachmentRequest<'_>,
        node: &ClusterNetwork,
        name: &str,
    ) -> Result<(), CniError> {
        let Some((list, namespace)) = self.list_of_every_pod(node, name, request.args)? else {
            return Ok(());
        };
        self.must_have_room_for(request, &list)?;
        let runtime = Map::new();
        let (namespace, of_tenant) = (namespace.as_ref(), namespace.is_some());
        let one = OneList { list: &list, namespace, runtime: &runtime, of_tenant, visit: None };
        self.with_list(request, &one, (request.sandbox, &request.key.ifname), |chain| chain.status())
    }
}

/// The list of an attachment, and whose it is; `None` for what is the runtime's own, or a plugin's of a list.
fn recorded_list(attachment: &Attachment) -> Option<(Option<Arc<str>>, ConfList)> {
    if let LinkRecord::Conflist { conflist, namespace, .. } = &attachment.link {
        return Some((namespace.clone(), ConfList::parse(conflist).ok()?));
    }
    let namespace = attachment.namespace.clone()?;
    let mut conf: Map<String, Value> = serde_json::from_str(&attachment.config).ok()?;
    // What one pod was given is nothing of the network's.
    conf.retain(|key, _| !matches!(key.as_str(), "runtimeConfig" | "prevResult"));
    let list = ConfList::parse(&Value::Object(conf).to_string()).ok()?;
    (attachment.made_with.is_some() && attachment.key.plugin != OWN_TYPE).then_some((Some(namespace), list))
}

/// Whether an attachment is one of the network of this name, whoever has defined it: a plugin that is executed knows the name only.
fn is_of_network(attachment: &Attachment, name: &str) -> bool {
    let is_list = || match &attachment.link {
        LinkRecord::Conflist { conflist, .. } => {
            ConfList::parse(conflist).is_ok_and(|list| list.name == name)
        }
        _ => false,
    };
    attachment.key.network == name || is_list()
}

fn in_words_of_the_network(name: &str, namespace: Option<&str>, error: CniError) -> CniError {
    let error = error.of_network(name);
    match namespace {
        Some(namespace) => CniError { msg: format!("namespace {namespace}, {}", error.msg), ..error },
        None => error,
    }
}
