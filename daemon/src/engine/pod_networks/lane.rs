//! Which lane the ADD of a whole pod belongs on: the fast one where nothing of it waits and nothing is executed.
//!
//! It is a look ahead, and no validation: whatever cannot be told at once waits, as far as the lane is concerned. The call itself finds
//! out anew what the pod asks for.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use fairlead_cni::args::Args;
use fairlead_cni::config::{ConfList, Fairlead, NetConf};
use fairlead_cni::wire::Command;
use fairlead_kube::npwg::{self, NetworkSelection, ObjectKind};
use fairlead_kube::{Definition, PodRef, Wait};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::requested_networks::annotations;
use crate::engine::Engine;
use crate::engine::attachment_request::NetworkRequest;
use crate::engine::cluster_network::runtime_config;
use crate::engine::core::executes_ipam;
use crate::engine::kinds::{Kinds, Network};
use crate::engine::netdev::setup::Dad;

/// When it is full it is emptied: definitions come and go.
const LIMIT: usize = 512;

/// Networks that were looked at: whether all that they ask for are links that the kernel makes at once. Their texts are not kept: that of
/// a tenant can have 64 KiB.
#[derive(Debug, Default)]
pub(in crate::engine) struct ImmediateNetworks {
    /// By a hash whose key is this process's own: nobody can write a text that is taken for another one.
    known: Mutex<HashMap<u64, bool>>,
    hasher: RandomState,
}

impl ImmediateNetworks {
    pub(in crate::engine) fn has(&self, text: &str, kinds: &Kinds) -> bool {
        let hash = self.hasher.hash_one(text);
        if let Some(known) = self.known.lock().get(&hash) {
            return *known;
        }
        let immediate = is_immediate(text, kinds);
        let mut known = self.known.lock();
        if known.len() >= LIMIT {
            known.clear();
        }
        known.insert(hash, immediate);
        immediate
    }
}

impl Engine {
    /// Whether an ADD of our own type starts programs or waits for more than the kernel, as far as can be told before it.
    pub(in crate::engine) fn pod_add_waits(&self, wanted: &NetworkRequest) -> bool {
        self.is_immediate_add(wanted) != Some(true)
    }

    /// `None`: it cannot be told without waiting.
    fn is_immediate_add(&self, wanted: &NetworkRequest) -> Option<bool> {
        let Ok(Fairlead::ClusterNetwork(node)) = Fairlead::parse(&wanted.conf) else { return None };
        // What every pod gets, and a file that is waited for, are looked at by the call itself.
        if !node.default_networks.is_empty() || node.readiness_file.is_some() {
            return Some(false);
        }
        // The kernel's duplicate address detection can take up to 5 s.
        if self.core.call_settings().dad == Dad::Wait {
            return Some(false);
        }
        let list = self.networks.find(&node.name)?;
        if !self.immediate.has(&list.to_text(), &self.core.kinds) {
            return Some(false);
        }
        let Some(pod) = PodRef::of_args(wanted.args.as_ref().ok()?) else { return Some(true) };
        let annotations = self.annotations_at_once(&pod, &wanted.conf)?;
        let requested = npwg::selections(&annotations, &pod.namespace, &pod.namespace).ok()?;
        let others = requested.networks.iter().all(|asked| self.is_immediate_network(asked));
        Some(requested.default_network.is_none() && others)
    }

    fn annotations_at_once(&self, pod: &PodRef, conf: &NetConf) -> Option<BTreeMap<String, String>> {
        if let Some(given) = annotations(&runtime_config(&conf.raw)).ok()? {
            return Some(given);
        }
        match &self.cluster {
            None => Some(BTreeMap::new()),
            Some(cluster) => Some(cluster.pod(pod, &at_once()).ok()?.annotations.clone()),
        }
    }

    /// Whether a network beside the default one takes nothing but the kernel, by its definition as it is now.
    fn is_immediate_network(&self, asked: &NetworkSelection) -> bool {
        let Some(cluster) = self.cluster.as_deref() else { return true };
        let known = cluster.definition(&asked.namespace, &asked.name, &at_once());
        known.is_ok_and(|definition| self.is_immediate_definition(asked, &definition))
    }

    /// The same by the definition that it is attached by.
    pub(super) fn is_immediate_definition(&self, asked: &NetworkSelection, definition: &Definition) -> bool {
        asked.object == ObjectKind::NetworkAttachmentDefinition
            && definition.resource.is_none()
            && definition.config.as_deref().is_some_and(|text| self.immediate.has(text, &self.core.kinds))
    }
}

fn at_once() -> Wait<'static> {
    Wait { deadline: Instant::now(), gone: &|| false }
}

/// A definition need not name its network: it has the object's name then.
fn named(text: &str) -> Cow<'_, str> {
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(mut keys) if !keys.contains_key("name") => {
            keys.insert("name".to_owned(), "unnamed".into());
            Value::Object(keys).to_string().into()
        }
        _ => text.into(),
    }
}

fn is_immediate(text: &str, kinds: &Kinds) -> bool {
    let text = &named(text);
    let plugins: Vec<NetConf> = match (NetConf::parse(text), ConfList::parse(text)) {
        (Ok(one), _) => vec![one],
        (Err(_), Ok(list)) => {
            let conf = |at| NetConf::parse(&list.plugin_config(at, None, &Map::new()).ok()?).ok();
            match (0..list.len()).map(conf).collect() {
                Some(plugins) => plugins,
                None => return false,
            }
        }
        _ => return false,
    };
    plugins.iter().all(|conf| {
        let made = Network::validate(conf, &Args::default()).is_ok_and(|network| {
            matches!(network, Network::Made(_)) && !network.waits(kinds, Command::Add, None)
        });
        made && !executes_ipam(conf)
    })
}
