//! ADD: the list of a pod's default network, with what belongs to the same call, all or nothing.

use std::cell::Cell;
use std::sync::Arc;

use fairlead_cni::config::{ClusterNetwork, ConfList, NetConf};
use fairlead_cni::{CniError, CniResult};
use fairlead_host::failpoint;
use fairlead_kube::PodRef;
use serde_json::{Map, Value};

use super::built_in_plugins::is_built_in;
use super::recorded_config;
use crate::conflist_runner::AddFailure;
use crate::engine::Engine;
use crate::engine::attachment_request::{AttachmentRequest, NetworkRequest, Sandbox};
use crate::engine::core::{PodNet, PodVisit, SharedVisit};
use crate::engine::pod_networks::{
    AllocatedDevices, DefaultList, FoundDefinition, OwnDefault, PodNetworks, without_device,
};
use crate::store::{Attachment, LinkRecord, Namespace};

/// The attachment of a list before it is committed: that of a pod's default network, while the pod's others are made.
pub(in crate::engine) struct FirstNetwork<'a> {
    pub(in crate::engine) attachment: &'a Attachment,
    /// The pod's namespace, which those of the others share that take nothing but the kernel.
    pub(in crate::engine) visit: Option<&'a dyn PodVisit>,
}

impl Engine {
    /// The pod's default network, then what every pod has, and then what it asks for.
    pub(super) fn add_cluster_network(
        &self,
        request: &mut AttachmentRequest<'_>,
        node: &ClusterNetwork,
    ) -> Result<String, CniError> {
        // Before the container is locked: the pod, or the node, may have to be waited for.
        let asked = self.networks_of_pod(request, node)?;
        // A definition of this type is a tenant's word, which no file of the host is looked at for.
        if !request.nested && request.namespace.is_none() {
            self.wait_until_ready(node, &request.waiting)
                .map_err(|error| self.told_of(asked.as_ref(), error))?;
        }
        let default = self.default_list(request, asked.as_ref(), &node.name);
        let DefaultList { list, namespace, own } =
            default.map_err(|error| self.told_of(asked.as_ref(), error))?;
        let Some(asked) = asked else { return self.add_list(request, &list, None, &|_, result| Ok(result)) };
        let of_default = own.as_ref().map_or(0, |own| own.text);
        let definitions = self.definitions_of_others(&asked, of_default, (request.sandbox, &request.waiting));
        // An ADD that is made again has its answer on record, whatever became of the definitions.
        if let Err(error) = &definitions
            && !self.core.store.has_attached(&request.key.container, &request.key.ifname)
        {
            return Err(self.told_of(Some(&asked), error.clone()));
        }
        let networks = (&asked, &definitions);
        let answer = match own {
            None => {
                let others = (request.sandbox, AllocatedDevices::default());
                self.add_pod(request, networks, (&list, namespace.as_ref()), None, others)?
            }
            Some(OwnDefault { runtime, args, device_plugin_file, lacking, devices, .. }) => {
                let (sandbox, ifname) = (Sandbox { args: &args, ..request.sandbox }, &request.key.ifname);
                let conf = Arc::new(with_runtime_config(&request.conf, runtime)?);
                let wanted = NetworkRequest::new(conf, None, sandbox.container, ifname, &args);
                let waiting = request.waiting.clone();
                let mut own = AttachmentRequest::of_definition(sandbox, ifname, &wanted, waiting)?;
                let selection = asked.default_network();
                own.default_gateways =
                    selection.and_then(|own| own.default_route.as_deref()).unwrap_or_default();
                own.device_plugin_file = device_plugin_file.as_deref();
                std::mem::swap(&mut own.timing, &mut request.timing);
                // What it asks of its default network is no other network's.
                let others = (request.sandbox, devices);
                let lacking = lacking.as_deref();
                let answer = self.add_pod(&mut own, networks, (&list, namespace.as_ref()), lacking, others);
                std::mem::swap(&mut own.timing, &mut request.timing);
                answer?
            }
        };
        request.pod_networks = Some(asked);
        Ok(answer)
    }

    /// All networks of a pod, of which the list is the default one. `lacking`: the resource of which that has no device.
    fn add_pod(
        &self,
        request: &mut AttachmentRequest<'_>,
        (asked, definitions): (&PodNetworks, &Result<Vec<FoundDefinition>, CniError>),
        (list, namespace): (&ConfList, Option<&Arc<str>>),
        lacking: Option<&str>,
        (of_others, devices): (Sandbox<'_>, AllocatedDevices),
    ) -> Result<String, CniError> {
        let (waiting, devices) = (request.waiting.clone(), Cell::new(devices));
        request.watched_pod = asked.watched_pod().cloned();
        // Those beside the default network are told where they fail, in their own words.
        let told = Cell::new(false);
        let others = |first: &FirstNetwork<'_>, result| {
            let definitions = definitions.as_ref().map_err(|error| self.told_of(Some(asked), error.clone()));
            let attached = definitions.and_then(|definitions| {
                let networks = (asked, definitions.as_slice());
                self.attach_others(networks, (of_others, &waiting), first, (devices.take(), result))
            });
            told.set(attached.is_err());
            attached
        };
        self.add_list(request, list, namespace, &others).map_err(|error| match told.get() {
            true => error,
            false => self.told_of(Some(asked), without_device(error, lacking)),
        })
    }

    /// Runs a list: the administrator's, or that of this namespace. `others` makes what belongs to the same ADD, before that is
    /// committed.
    pub(in crate::engine) fn add_list(
        &self,
        request: &mut AttachmentRequest<'_>,
        list: &ConfList,
        namespace: Option<&Arc<str>>,
        others: &dyn Fn(&FirstNetwork<'_>, CniResult) -> Result<CniResult, CniError>,
    ) -> Result<String, CniError> {
        let core = &self.core;
        let _lock = core.lock_container(request)?;
        core.finish_older(request)?;
        let mut pod = core.enter(request)?;
        let config: Arc<str> = Arc::from(recorded_config(&request.conf.raw, list));
        if let Some(before) = core.store.find(request.key) {
            return core.repeat(request, &config, &before, &*pod);
        }
        self.with_chain(request, list, namespace, |chain| chain.must_be_installed())?;
        let netns = core.namespace(request, &mut *pod)?;
        request.timing.end("namespace");
        let text = list.to_text();
        let is_immediate = self.immediate.has(&text, &core.kinds);
        let own_visit = match pod {
            PodNet::Own(entered) if is_immediate => {
                Some(SharedVisit::of(core.kernel(), netns.clone(), entered))
            }
            // Each plugin enters the namespace itself, and one that is executed can run for seconds.
            entered => {
                drop(entered);
                None
            }
        };
        let visit = own_visit.as_ref().map(|own| own as &dyn PodVisit).or(request.visit);
        let attachment = self.list_intent(request, (list, namespace, text), netns, config);
        let attachment =
            core.put_intent_on_record(request, attachment, (!is_immediate).then_some(&list.name))?;
        let kept = core.records.keep(&attachment);
        let added = match kept {
            Ok(()) => self.with_visit(request, list, (namespace, visit), |chain| chain.add()),
            Err(error) => Err(AddFailure { error, nothing_is_left: true }),
        };
        request.timing.end("plugins");
        let done = added.and_then(|result| {
            let made = FirstNetwork { attachment: &attachment, visit };
            let bare = match request.no_default_route {
                true => self.without_default_routes(&made, result),
                false => Ok(result),
            };
            let whole = bare.and_then(|result| others(&made, result));
            request.timing.end("others");
            let before = own_visit.as_ref().map(SharedVisit::take_commits).unwrap_or_default();
            let committed = whole.and_then(|whole| core.commit(request, &attachment, &whole, before));
            committed.map_err(|error| AddFailure { error, nothing_is_left: false })
        });
        // Nothing of the namespace is held while the announcer works, or while the pod's networks are taken down.
        visit.inspect(|visit| visit.leave());
        match done {
            Ok(answer) => {
                failpoint::pass("add.committed");
                core.announce_all(own_visit.map(|visit| visit.take_announcements()).unwrap_or_default());
                Ok(answer)
            }
            Err(AddFailure { error, nothing_is_left }) => {
                match nothing_is_left {
                    true => core.forget_undone(&attachment, &error),
                    false => core.undo(&attachment, &error),
                }
                Err(error)
            }
        }
    }

    /// The attachment of a list, as it goes on record first. `text`: the list's own.
    fn list_intent(
        &self,
        request: &AttachmentRequest<'_>,
        (list, namespace, text): (&ConfList, Option<&Arc<str>>, String),
        netns: Namespace,
        config: Arc<str>,
    ) -> Attachment {
        let link = LinkRecord::Conflist {
            conflist: text.into(),
            namespace: namespace.cloned(),
            built_in: list.plugin_types().all(is_built_in),
        };
        let id = self.core.store.next_id();
        Attachment {
            caller: request.caller(),
            namespace: request.namespace.cloned(),
            pod: PodRef::of_args(request.args),
            annotations: request.watched_pod.as_ref().map(|pod| pod.annotations.clone()),
            made_with: request.made_with,
            default_gateways: request.default_gateways.to_vec(),
            device_info: request.device_info().map(str::to_owned),
            ..Attachment::new(id, request.key.clone(), netns, link, config)
        }
    }
}

/// A configuration with other capability arguments.
fn with_runtime_config(conf: &NetConf, runtime: Value) -> Result<NetConf, CniError> {
    let mut keys: Map<String, Value> = serde_json::from_str(&conf.raw).unwrap_or_default();
    keys.insert("runtimeConfig".to_owned(), runtime);
    NetConf::parse(&Value::Object(keys).to_string())
}
