//! By which of its network's `paths` a pod has an interface, told to the cluster: in network-status, and by an Event where an earlier path
//! was passed over.

use fairlead_kube::npwg::TakenPath;

use super::PodNetworks;
use super::network_status_report::own_name;
use crate::engine::Engine;
use crate::engine::attachment_request::OWN_TYPE;
use crate::netconf_summary::ConfigSummary;
use crate::store::{Attachment, Key, LinkRecord};

impl Engine {
    /// Has one Event written for the pod of an ADD, where a path of any of its interfaces was passed over; called once the answer has left.
    /// `of`: what the pod has by this ADD beside the attachment with this key.
    pub(in crate::engine) fn warn_of_fallbacks(&self, of: Option<&PodNetworks>, key: &Key) {
        let Some(cluster) = &self.cluster else { return };
        let Some(first) = self.core.store.find(key) else { return };
        let Some(pod) = of.map(|of| &of.pod).or(first.pod.as_ref()) else { return };
        let others = of.map(|_| self.core.made_with(&first)).unwrap_or_default();
        let all = std::iter::once(&first).chain(&others);
        let told: Vec<String> = all.filter_map(|attachment| fallback(of, attachment)).collect();
        if !told.is_empty() {
            cluster.warn(pod, "FallbackPath", &told.join(". "));
        }
    }
}

/// The path that an attachment has, and why not an earlier one, in words; `None` where none was passed over.
fn fallback(of: Option<&PodNetworks>, attachment: &Attachment) -> Option<String> {
    if attachment.passed_over.is_empty() {
        return None;
    }
    let path = taken_path(attachment)?;
    let network = of.map_or_else(|| own_name(attachment), |of| of.name_of(attachment));
    Some(format!("network {network}, interface {:?}: {path}", attachment.key.ifname))
}

/// The path that an attachment has; `None` where its network names no `paths`. How many it names is not on record.
pub(super) fn taken_path(attachment: &Attachment) -> Option<TakenPath> {
    let is_list = matches!(attachment.link, LinkRecord::Conflist { .. });
    if attachment.key.plugin != OWN_TYPE || is_list {
        return None;
    }
    let passed_over = attachment.passed_over.iter().map(|path| (path.kind.as_str(), path.why.as_str()));
    let passed_over: Vec<(&str, &str)> = passed_over.collect();
    // On record is the configuration of the path, not that of the network.
    Some(TakenPath::new(&ConfigSummary::of(&attachment.config).kind, &passed_over))
}
