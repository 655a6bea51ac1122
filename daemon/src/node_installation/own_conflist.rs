//! The content of our configuration in the conf dir, and the plugins that other programs have appended to it.
//!
//! Istio, Linkerd and Consul append a plugin to the list that the runtime takes, watch it and put it back. It stays: the runtime runs
//! it after ours, with our answer as its `prevResult`.

use fairlead_cni::CniVersion;
use fairlead_cni::config::ConfList;
use fairlead_cni::wire::MAX_CONFIG;
use serde_json::{Map, Value, json};

use super::NETWORK;
use crate::engine::OWN_TYPE;

/// Our configuration, as it is wanted or as it is there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OwnConflist {
    /// The list with our plugin alone.
    pub(super) own: Value,
    /// What other programs have appended to its plugins.
    appended: Vec<Value>,
}

impl OwnConflist {
    /// The one for this cluster network, with what is appended to the one that is there.
    ///
    /// A runtime of before CNI 1.1 (containerd 1.7, CRI-O 1.29) knows the one version only, that of the cluster network's `cniVersion`,
    /// which it is known to take: it would refuse a result of 1.1.0. Later ones take the newest of all that they know, and send GC and
    /// STATUS from 1.1.0 on. They call an appended plugin by the same version, and no pod would start with one that does not know it
    /// (Consul's knows 1.0.0): with appended plugins the list has the cluster network's version alone.
    pub(super) fn new(
        network: &ConfList,
        plugin: &Map<String, Value>,
        there: Option<&OwnConflist>,
    ) -> OwnConflist {
        let appended = there.map(|there| there.appended.clone()).unwrap_or_default();
        let mut own =
            json!({ "cniVersion": network.plain_version.as_str(), "name": NETWORK, "plugins": [plugin] });
        if appended.is_empty() {
            own["cniVersions"] = json!([CniVersion::LATEST.as_str()]);
        }
        OwnConflist { own, appended }
    }

    /// That of a file's text; `None`: it is none of ours.
    pub(super) fn read(text: &str) -> Option<OwnConflist> {
        let mut own: Value = serde_json::from_str(text).ok()?;
        let plugin = own["plugins"].get(0).filter(|plugin| plugin["type"] == OWN_TYPE)?;
        plugin.get("clusterNetwork").filter(|network| network.is_string())?;
        let appended = match own["plugins"].as_array_mut() {
            Some(plugins) if can_be_kept(text) => plugins.split_off(1),
            _ => Vec::new(),
        };
        Some(OwnConflist { own, appended })
    }

    /// Our plugin, which comes before all that is appended.
    pub(super) fn plugin(&self) -> Option<&Map<String, Value>> {
        self.own["plugins"].get(0)?.as_object()
    }

    /// The text of the file: our plugin, and then what others have appended.
    pub(super) fn text(&self) -> String {
        let mut list = self.own.clone();
        if let Some(plugins) = list["plugins"].as_array_mut() {
            plugins.extend_from_slice(&self.appended);
        }
        format!("{list:#}\n")
    }
}

/// Whether a runtime can run what is appended to this list of ours: of a list with one plugin that it cannot read it runs none. Our own
/// plugin a second time would be refused, as the pod has its interface already.
fn can_be_kept(text: &str) -> bool {
    text.len() <= MAX_CONFIG
        && ConfList::parse(text).is_ok_and(|list| list.plugin_types().skip(1).all(|kind| kind != OWN_TYPE))
}

/// Our plugin in one of our configurations; `None`: the text is none of ours.
pub(super) fn own_plugin(text: &str) -> Option<Map<String, Value>> {
    OwnConflist::read(text)?.plugin().cloned()
}
