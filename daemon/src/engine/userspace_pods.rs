//! What pods of userspace-cni's networks are told by annotations, once their calls were answered.

use fairlead_kube::PodRef;

use super::Engine;
use super::cluster_network::result_of;
use super::kinds::vhost_user;
use crate::store::{Key, Phase};

impl Engine {
    /// Has the annotations of an attachment's pod written, where it has a network of type `userspace`.
    pub(in crate::engine) fn annotate_pod_of(&self, key: &Key) {
        if self.cluster.is_some()
            && let Some(pod) = self.core.store.find(key).and_then(|attachment| attachment.pod.clone())
        {
            self.annotate(&pod);
        }
    }

    /// After a start: for pods whose call was answered and who may not have been told.
    pub(in crate::engine) fn annotate_pods_again(&self) {
        for attachment in self.core.store.all() {
            if let Some(pod) = attachment.pod.as_ref().filter(|_| !attachment.answered) {
                self.annotate(pod);
            }
        }
    }

    fn annotate(&self, pod: &PodRef) {
        let Some(cluster) = &self.cluster else { return };
        let all = self.core.store.all();
        let of_pod =
            all.iter().filter(|other| other.phase == Phase::Attached && other.pod.as_ref() == Some(pod));
        let told = of_pod.filter_map(|other| Some((&**other, result_of(&self.core, other)?)));
        if let Some(annotations) = vhost_user::annotations(told) {
            cluster.annotate(pod, annotations);
        }
    }
}
