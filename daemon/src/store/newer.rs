//! What a newer version left on record and this one cannot act on: kept word for word until that version is back.
//!
//! Whose it is can be said as far as it says so in today's words. Where it does not, whatever it mentions counts as its own:
//! nothing that might be its own is given to anybody else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fairlead_host::NetnsId;
use fairlead_host::record_version::RecordVersion;
use fairlead_kube::PodRef;
use fairlead_sriov::PciAddr;
use serde_json::{Map, Value};

use super::frame::{NewerEntry, put};
use super::record::interface_in_words;
use super::{Key, Namespace, Store, StoreError};

/// An attachment of which a newer version left something on record.
#[derive(Debug, Clone)]
pub struct NewerAttachment {
    /// Its number in the store; `None` for a record that names none.
    pub id: Option<u64>,
    /// Who wrote it.
    pub version: RecordVersion,
    /// The file that it stands in, where that is not the journal.
    pub file: Option<PathBuf>,
    /// The pod, as far as it says it in today's words.
    pub pod: Option<PodRef>,
    container: Option<String>,
    network: Option<String>,
    ifname: Option<String>,
    plugin: Option<String>,
    netns: Option<Namespace>,
    /// All that was written of it, to look for what it mentions.
    text: String,
}

impl NewerAttachment {
    fn new(id: Option<u64>) -> NewerAttachment {
        NewerAttachment {
            id,
            version: RecordVersion::default(),
            file: None,
            pod: None,
            container: None,
            network: None,
            ifname: None,
            plugin: None,
            netns: None,
            text: String::new(),
        }
    }

    /// Notes one more object that was written of it. `newer`: this version cannot act on that one.
    fn learn(&mut self, fields: &Map<String, Value>, newer: Option<&RecordVersion>) {
        if let Some(version) = newer {
            self.version = version.clone();
        }
        let key = |name: &str| Some(fields.get("key")?.get(name)?.as_str()?.to_owned());
        let known = |of: &mut Option<String>, name| *of = key(name).or_else(|| of.take());
        known(&mut self.container, "container");
        known(&mut self.network, "network");
        known(&mut self.ifname, "ifname");
        known(&mut self.plugin, "plugin");
        let netns = fields.get("netns").and_then(|netns| serde_json::from_value(netns.clone()).ok());
        self.netns = netns.or_else(|| self.netns.take());
        let pod = fields.get("pod").and_then(|pod| serde_json::from_value(pod.clone()).ok());
        self.pod = pod.or_else(|| self.pod.take());
        self.text.push_str(&Value::Object(fields.clone()).to_string());
    }

    /// The container, the network, the interface and the type, as far as it says them; else empty.
    pub fn words(&self) -> [&str; 4] {
        [&self.container, &self.network, &self.ifname, &self.plugin]
            .map(|word| word.as_deref().unwrap_or_default())
    }

    /// For a person: "net1 of container c1".
    pub fn label(&self) -> String {
        match (&self.container, &self.ifname) {
            (Some(container), Some(ifname)) => interface_in_words(ifname, container),
            (Some(container), None) => format!("an interface of container {container}"),
            _ => "an attachment of an unknown container".to_owned(),
        }
    }

    /// What can be done about it here, for a person.
    pub fn remedy(&self) -> &'static str {
        match (self.id, &self.container, &self.ifname) {
            (Some(_), Some(_), Some(_)) => {
                "start that version of fairleadd again, or a later one; `fairleadd forget` gives the attachment up"
            }
            _ if self.file.is_some() => {
                "start that version of fairleadd again, or a later one; or remove the file of its record (`fairleadd attachments -o json`)"
            }
            // It cannot be named; the journal that has it ends with the boot.
            _ => "start that version of fairleadd again, or a later one; or drain the node and reboot it",
        }
    }

    /// Whether it may be this container's interface. `None` stands for any interface.
    pub fn may_be_of(&self, container: &str, ifname: Option<&str>) -> bool {
        match &self.container {
            Some(own) => own == container && self.may_have_ifname(ifname),
            None => self.text.contains(&Value::from(container).to_string()),
        }
    }

    fn may_have_ifname(&self, ifname: Option<&str>) -> bool {
        let is = |own: &String| ifname.is_none_or(|ifname| ifname == own);
        self.ifname.as_ref().is_none_or(is)
    }

    /// Whether it may be the attachment that the caller means. `of_any_type`: the network's type may have been changed since.
    fn may_be(&self, key: &Key, of_any_type: bool) -> bool {
        self.may_be_of(&key.container, Some(&key.ifname))
            && self.network.as_ref().is_none_or(|own| *own == key.network)
            && (of_any_type || self.plugin.as_ref().is_none_or(|own| *own == key.plugin))
    }

    /// Whether it may be an interface of this name in this namespace.
    fn may_be_in(&self, netns: &NetnsId, ifname: &str) -> bool {
        self.may_have_ifname(Some(ifname)) && self.netns.as_ref().is_none_or(|own| own.id.same(netns))
    }
}

/// One frame that is kept as it was written.
#[derive(Debug, Clone)]
struct KeptFrame {
    id: Option<u64>,
    payload: Vec<u8>,
}

/// All that a newer version left on record, in the order in which it was written.
#[derive(Debug, Default)]
pub(super) struct NewerRecords {
    frames: Vec<KeptFrame>,
    /// By number; those that name none are counted down from the largest, which no attachment has.
    attachments: BTreeMap<u64, NewerAttachment>,
    unnumbered: u64,
}

impl NewerRecords {
    pub(super) fn holds(&self, id: u64) -> bool {
        self.attachments.contains_key(&id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &NewerAttachment> {
        self.attachments.values()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.attachments.values().filter_map(|attachment| attachment.id)
    }

    /// Keeps a frame of a newer version, with what was written of its attachment before.
    pub(super) fn keep(&mut self, entry: &NewerEntry, before: Vec<Vec<u8>>, payload: Vec<u8>) {
        for earlier in before {
            self.keep_known(entry.id, earlier);
        }
        self.entry(entry.id).learn(&entry.fields, Some(&entry.version));
        self.frames.push(KeptFrame { id: entry.id, payload });
    }

    /// Keeps a frame that this version could act on, about an attachment of which another cannot be acted on.
    pub(super) fn keep_known(&mut self, id: Option<u64>, payload: Vec<u8>) {
        if let Ok(fields) = serde_json::from_slice(&payload) {
            self.entry(id).learn(&fields, None);
        }
        self.frames.push(KeptFrame { id, payload });
    }

    /// Notes an attachment whose record in a file of its own is a newer version's.
    pub(super) fn keep_file(&mut self, id: Option<u64>, entry: &NewerEntry, file: &Path) {
        let attachment = self.entry(id);
        attachment.learn(&entry.fields, Some(&entry.version));
        attachment.file = Some(file.to_owned());
    }

    fn entry(&mut self, id: Option<u64>) -> &mut NewerAttachment {
        let place = id.unwrap_or_else(|| {
            self.unnumbered += 1;
            u64::MAX - self.unnumbered
        });
        self.attachments.entry(place).or_insert_with(|| NewerAttachment::new(id))
    }

    /// Nothing is left of it, or all of it was written anew.
    pub(super) fn forget(&mut self, id: u64) {
        if self.attachments.remove(&id).is_some() {
            self.frames.retain(|frame| frame.id != Some(id));
        }
    }

    pub(super) fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().map(|frame| frame.payload.as_slice())
    }

    pub(super) fn about(&self, key: &Key, of_any_type: bool) -> Option<&NewerAttachment> {
        self.all().find(|newer| newer.may_be(key, of_any_type))
    }

    pub(super) fn of(&self, container: &str, ifname: Option<&str>) -> Option<&NewerAttachment> {
        self.all().find(|newer| newer.may_be_of(container, ifname))
    }

    pub(super) fn within(&self, netns: &NetnsId, ifname: &str) -> bool {
        self.all().any(|newer| newer.may_be_in(netns, ifname))
    }

    pub(super) fn mentioning(&self, word: &str) -> Option<&NewerAttachment> {
        self.all().find(|newer| newer.text.contains(word))
    }
}

impl Store {
    /// All that a newer version left on record and this one cannot act on.
    pub fn newer(&self) -> Vec<NewerAttachment> {
        self.lock().newer.all().cloned().collect()
    }

    /// Whether anything is on record under this number.
    pub fn knows(&self, id: u64) -> bool {
        let state = self.lock();
        state.live.contains_key(&id) || state.newer.holds(id)
    }

    /// What a newer version left that may be the attachment of this key. `of_any_type`: whatever its plugin.
    pub fn newer_about(&self, key: &Key, of_any_type: bool) -> Option<NewerAttachment> {
        self.lock().newer.about(key, of_any_type).cloned()
    }

    /// What a newer version left that may be this container's interface; of any where that is `None`.
    pub fn newer_of(&self, container: &str, ifname: Option<&str>) -> Option<NewerAttachment> {
        self.lock().newer.of(container, ifname).cloned()
    }

    /// Whether something that a newer version left may be an interface of this name in this namespace.
    pub fn newer_within(&self, netns: &NetnsId, ifname: &str) -> bool {
        self.lock().newer.within(netns, ifname)
    }

    /// What a newer version left that names this VF.
    pub fn newer_with_vf(&self, address: PciAddr) -> Option<NewerAttachment> {
        self.lock().newer.mentioning(&address.to_string()).cloned()
    }

    /// Leaves an attachment to the newer version that wrote this file about it; what the journal has of it is kept.
    pub fn leave_to_newer(
        &self,
        id: Option<u64>,
        fields: Map<String, Value>,
        file: &Path,
    ) -> Result<(), StoreError> {
        let mut state = self.lock();
        // The file holds its number in this boot, too: what is removed under that takes the newer version's record along.
        id.inspect(|id| state.pass_over_number(*id));
        if let Some(id) = id
            && let Some(attachment) = state.live.remove(&id)
        {
            let frames = match state.verbatim.remove(&id) {
                Some(frames) => frames,
                None => vec![put(&attachment)?],
            };
            state.by_key.retain(|_, of| *of != id);
            state.silenced.remove(&id);
            state.with_uplink.remove(&id);
            frames.into_iter().for_each(|frame| state.newer.keep_known(Some(id), frame));
        }
        state.newer.keep_file(id, &NewerEntry::of(fields), file);
        Ok(())
    }
}
