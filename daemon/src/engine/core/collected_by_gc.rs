//! Which attachments the runtime's GC has removed, for the operator who asks where an interface is: in memory only and bounded.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use fairlead_kube::PodRef;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::store::{Attachment, Key};

/// So many are remembered, the last ones.
const MOST: usize = 256;

/// The attachments, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct CollectedByGc(Mutex<VecDeque<Collected>>);

#[derive(Debug)]
struct Collected {
    pod: Option<PodRef>,
    key: Key,
    at: SystemTime,
}

impl Collected {
    fn row(&self) -> Value {
        json!({
            "pod": self.pod.as_ref().map(ToString::to_string),
            "container": self.key.container,
            "network": self.key.network,
            "ifname": self.key.ifname,
            "at": self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        })
    }
}

impl CollectedByGc {
    /// Remembers an attachment, and forgets the oldest where there are too many.
    pub(super) fn add(&self, attachment: &Attachment) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.pop_front();
        }
        let (pod, key) = (attachment.pod.clone(), attachment.key.clone());
        all.push_back(Collected { pod, key, at: SystemTime::now() });
    }

    /// Those that are meant by their pod or container, the last one first.
    pub(crate) fn rows(&self, meant: impl Fn(Option<&PodRef>, &str) -> bool) -> Vec<Value> {
        let all = self.0.lock();
        let of = all.iter().rev().filter(|one| meant(one.pod.as_ref(), &one.key.container));
        of.map(Collected::row).collect()
    }
}
