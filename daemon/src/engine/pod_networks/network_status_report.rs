//! What a pod has got, told to the cluster (network-status).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::CniResult;
use fairlead_cni::config::ConfList;
use fairlead_cni::result::{Interface, RouteConfig};
use fairlead_kube::Wait;
use fairlead_kube::npwg::NetworkSelection;
use fairlead_kube::npwg::network_status::{Attached, network_status};
use serde_json::Value;

use super::PodNetworks;
use super::default_routes::everywhere;
use super::requested_networks::{annotated, annotations, asked};
use super::taken_path::taken_path;
use crate::call::PodNetwork;
use crate::engine::Engine;
use crate::engine::attachment_request::OWN_TYPE;
use crate::engine::cluster_network::{result_of, runtime_config};
use crate::engine::netdev::setup::is_pods_default;
use crate::store::{Attachment, Key, LinkRecord, Phase};

impl Engine {
    /// Has network-status written for a pod whose networks are all attached; called once the answer has left.
    pub(in crate::engine) fn report(&self, of: &PodNetworks, key: &Key) {
        let Some(cluster) = &self.cluster else { return };
        let Some(first) = self.core.store.find(key) else { return };
        cluster.report(&of.pod, self.network_status(of, &first));
    }

    /// After a start: the daemon before may have been killed when a call was answered and network-status not yet told. A pod that is not
    /// known yet is waited for until the deadline, where only the watch can say what it asks for.
    pub(in crate::engine) fn report_again(&self, deadline: Instant) {
        let Some(cluster) = &self.cluster else { return };
        self.annotate_pods_again();
        for first in self.core.store.all() {
            if let Some(of) = self.networks_of_record(&first, deadline) {
                cluster.report_again(&of.pod, self.network_status(&of, &first));
            }
        }
    }

    /// What the pod asked for whose default network this attachment is; `None` where that is nobody's, or cannot be told any more.
    fn networks_of_record(&self, first: &Attachment, deadline: Instant) -> Option<PodNetworks> {
        let is_whole = first.made_with.is_none() && first.phase == Phase::Attached;
        let named = first.pod.as_ref().filter(|_| is_whole && first.key.plugin == OWN_TYPE)?;
        let node = self.node_of(first)?;
        // A running pod's annotations may say something else by now.
        let of_call = annotations(&runtime_config(&first.config)).ok()?;
        let pod = match of_call.or_else(|| first.annotations.clone()) {
            Some(annotations) => annotated(named, annotations),
            // A release before has not put them on record.
            None => self.cluster.as_ref()?.pod(named, &Wait { deadline, gone: &|| false }).ok()?,
        };
        asked(&pod, named, &first.key.ifname, &node).ok()
    }

    /// The annotation network-status of a pod.
    fn network_status(&self, of: &PodNetworks, first: &Arc<Attachment>) -> String {
        let all: Vec<_> = self
            .results(first)
            .map(|(attachment, mut result)| {
                let is_default = attachment.id == first.id;
                self.put_mtu(&attachment, &mut result);
                of.put_default_route(&attachment, &mut result);
                let network = if is_default { of.name_of_default(first) } else { of.name_of(&attachment) };
                (network, is_default, result, self.device_info(&attachment), taken_path(&attachment))
            })
            .collect();
        let attached = all.iter().map(|(network, is_default, result, device_info, path)| Attached {
            network,
            is_default: *is_default,
            result,
            device_info: device_info.as_ref(),
            path: path.as_ref(),
        });
        network_status(&attached.collect::<Vec<_>>())
    }

    /// What was attached with the default network that is known so, and that network first.
    pub(in crate::engine) fn attached_with(&self, key: &Key) -> Vec<PodNetwork> {
        let Some(first) = self.core.store.find(key) else { return Vec::new() };
        let of_attachment = |(attachment, result): (Arc<Attachment>, CniResult)| PodNetwork {
            network: own_name(&attachment),
            namespace: namespace_of(&attachment).cloned(),
            ifname: attachment.key.ifname.clone(),
            is_default: attachment.id == first.id,
            result,
        };
        self.results(&first).map(of_attachment).collect()
    }

    /// The attachment of a default network, those that were made with it in the pod's order, and what each ADD has answered.
    fn results(&self, first: &Arc<Attachment>) -> impl Iterator<Item = (Arc<Attachment>, CniResult)> {
        let all = std::iter::once(Arc::clone(first)).chain(self.core.made_with(first));
        all.filter_map(|attachment| {
            let result = result_of(&self.core, &attachment)?;
            Some((attachment, result))
        })
    }

    /// The MTU stands beside what the plugins answered, where they cannot tell it. What a plugin that was executed has made of it is not
    /// known.
    fn put_mtu(&self, attachment: &Attachment, result: &mut CniResult) {
        let Some(mtu) = self.mtu_of(attachment) else { return };
        let untold =
            |i: &&mut Interface| i.mtu == 0 && i.name == attachment.key.ifname && !i.sandbox.is_empty();
        result.interfaces.iter_mut().filter(untold).for_each(|interface| interface.mtu = mtu);
    }

    fn mtu_of(&self, attachment: &Attachment) -> Option<u32> {
        let kinds = &self.core.kinds;
        match &attachment.link {
            LinkRecord::Conflist { built_in: true, .. } => {
                let plugins = self.core.store.all_after(attachment.id);
                let mut plugins = plugins.iter().filter(|plugin| attachment.has_plugin(plugin));
                plugins.find_map(|plugin| kinds.recorded_mtu(plugin))
            }
            _ => kinds.recorded_mtu(attachment),
        }
    }

    /// What the plugin of an attachment has written of its device.
    fn device_info(&self, attachment: &Attachment) -> Option<Value> {
        if let Some(known) = self.core.kinds.known_device_info(attachment) {
            return Some(known);
        }
        let asked = runtime_config(&attachment.config);
        let path = asked.get("CNIDeviceInfoFile").and_then(Value::as_str);
        self.core.kinds.device_info.read(attachment.device_info.as_deref().or(path)?)
    }
}

impl PodNetworks {
    /// What the pod asks for of default routes stands beside what the plugins answered.
    fn put_default_route(&self, attachment: &Attachment, result: &mut CniResult) {
        let asked = self.others.iter().find(|asked| asked.interface == attachment.key.ifname);
        let gateways = asked.and_then(|asked| asked.selection.default_route.as_deref()).unwrap_or_default();
        if !gateways.is_empty() {
            result.routes.retain(|route| !is_pods_default(route));
            result.routes.extend(gateways.iter().map(|gateway| default_by(*gateway)));
        }
    }

    fn name_of_default(&self, first: &Attachment) -> String {
        self.default_network().map_or_else(|| own_name(first), NetworkSelection::reference)
    }

    pub(super) fn name_of(&self, other: &Attachment) -> String {
        let asked = self.others.iter().find(|asked| asked.interface == other.key.ifname);
        asked.map_or_else(|| other.key.network.clone(), |asked| asked.selection.reference())
    }
}

/// The network's own name, as Multus tells it, and not that of the configuration that stands for it.
pub(in crate::engine) fn own_name(attachment: &Attachment) -> String {
    match &attachment.link {
        LinkRecord::Conflist { conflist, .. } => {
            ConfList::parse(conflist).map_or_else(|_| attachment.key.network.clone(), |list| list.name)
        }
        _ => attachment.key.network.clone(),
    }
}

/// The namespace whose definition the network is; a list has its own, since a pod's default network may be a definition, too.
fn namespace_of(attachment: &Attachment) -> Option<&Arc<str>> {
    match &attachment.link {
        LinkRecord::Conflist { namespace: Some(namespace), .. } => Some(namespace),
        _ => attachment.namespace.as_ref(),
    }
}

/// A default route as a result tells it.
pub(super) fn default_by(gateway: IpAddr) -> RouteConfig {
    RouteConfig {
        dst: everywhere(gateway),
        gw: Some(gateway),
        mtu: None,
        advmss: None,
        priority: None,
        table: None,
        scope: None,
    }
}
