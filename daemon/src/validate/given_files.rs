//! The files that are to be judged, and what they say of each other: names of networks, labels of namespaces.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fairlead_cni::config::ConfList;
use serde_json::Value;

use super::NAMESPACE;
use crate::conf_dir::ConfDirError;
use crate::network_checks::OtherNetworks;
use crate::policy_check::{self, PolicyCheckError};

/// The label that every namespace gets from the API server: its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Labels of an object.
pub(crate) type Labels = Vec<(String, String)>;

/// A file that is to be judged.
pub(super) struct Given {
    pub(super) file: PathBuf,
    pub(super) text: String,
    /// What it has of Kubernetes; `None` where it is something else.
    pub(super) objects: Option<Vec<Value>>,
}

impl Given {
    pub(super) fn read(file: PathBuf) -> Result<Given, PolicyCheckError> {
        let text = policy_check::text_in(&file)?;
        // Mostly what came before in a pipe has failed: nothing must not pass for a good configuration.
        if file == Path::new(policy_check::STANDARD_INPUT) && text.trim().is_empty() {
            let reason = "standard input is empty".to_owned();
            return Err(PolicyCheckError::Content { file, reason });
        }
        Ok(Given { objects: policy_check::objects_in(&text, &file)?, file, text })
    }
}

/// The networks and definitions of files, which others of them may name.
pub(super) fn named_in<'g>(files: impl Iterator<Item = &'g Given>) -> OtherNetworks {
    let mut others = OtherNetworks::default();
    for Given { text, objects, .. } in files {
        if let Ok(list) = ConfList::parse(text) {
            others.add_network(&list);
        }
        for object in objects.iter().flatten().filter(|object| object["kind"] == policy_check::KIND) {
            let word = |key: &str| object["metadata"][key].as_str();
            others.add_definition(word("namespace").unwrap_or(NAMESPACE), word("name").unwrap_or_default());
        }
    }
    others
}

/// The labels of namespaces whose objects are in files, as the API server would have them.
pub(super) fn labels_in<'g>(files: impl Iterator<Item = &'g Given>) -> BTreeMap<String, Labels> {
    let objects = files.flat_map(|given| given.objects.iter().flatten());
    let labels_of = |namespace: &Value| {
        let name = namespace["metadata"]["name"].as_str()?;
        let written = namespace["metadata"]["labels"].as_object().into_iter().flatten();
        let written = written.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let labels = written.chain([(NAME_LABEL.to_owned(), name.to_owned())]);
        Some((name.to_owned(), labels.collect::<Labels>()))
    };
    objects.filter(|object| object["kind"] == "Namespace").filter_map(labels_of).collect()
}

/// The networks of files whose name another one of them has, too: a conf dir with all of them would not have these. Of definitions each
/// namespace has its own.
pub(super) fn named_twice<'g>(files: impl Iterator<Item = &'g Given>) -> Vec<ConfDirError> {
    let configurations = files.filter(|given| given.objects.is_none());
    let lists = configurations.filter_map(|given| Some((&given.file, ConfList::parse(&given.text).ok()?)));
    let mut lists: Vec<(&PathBuf, ConfList)> = lists.filter(|(_, list)| !list.is_empty()).collect();
    // As the daemon reads a conf dir: lists before single plugins, then by their names.
    lists.sort_by_key(|(file, _)| (file.extension().is_none_or(|ending| ending != "conflist"), *file));
    let mut twice = Vec::new();
    let mut first: BTreeMap<String, &PathBuf> = BTreeMap::new();
    for (file, list) in lists {
        let earlier = *first.entry(list.name.clone()).or_insert(file);
        if earlier != file {
            let (file, first) = (file.clone(), earlier.clone());
            twice.push(ConfDirError::Twice { file, name: list.name, first });
        }
    }
    twice
}
